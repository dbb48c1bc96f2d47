"""Make the dashboard's screenshots: a gateway with a day of traffic, and headless Chromium.

Run as ``python docs/gateway/screenshots/make.py [FOLDER]``. Needs the extra ``gateway``, Playwright
and Pillow, and a Chromium (``GUARD_CHROMIUM`` or one of the usual names).
"""

from __future__ import annotations

import io
import os
import random
import shutil
import sys
import time
from pathlib import Path
from typing import Any

import httpx
from PIL import Image
from playwright.sync_api import Browser, Page, sync_playwright

from guard.gateway.embedded import Gateway, run_gateway

CHROMIUM = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
ARGUMENTS = [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
]  # fmt: skip
PASSWORD = "a password for screenshots"  # noqa: S105  # of a gateway that lives for seconds
HOUR_MS = 3_600_000

WORKFLOWS = {
    # name: (share of the traffic, functions, tools, model, agents)
    "support-triage": (9, ["classify", "draft_reply"], ["search_tickets"], "gpt-4o-mini", "triage"),
    "invoice-matching": (5, ["match_lines"], ["read_invoice", "lookup_order"], "gpt-4o", "matcher"),
    "market-research": (3, ["plan", "summarise"], ["web_search"], "claude-sonnet-4-5", "analyst"),
    "release-notes": (1, ["collect", "write"], ["git_log"], "gpt-4o", "writer"),
    "crm-cleanup": (2, ["merge_contacts"], ["update_record", "delete_record"], "gpt-4o-mini", ""),
}


class Clock:
    """A clock that the seeding moves, and that ends in the evening of a day that is nearly over."""

    def __init__(self) -> None:
        now_ms = time.time_ns() // 1_000_000
        self._evening_ms = -((now_ms - 20 * HOUR_MS - 40 * 60_000) % (24 * HOUR_MS))
        # The store's clock never runs backwards, so it has to start in the past.
        self.offset_ms = -31 * HOUR_MS

    def __call__(self) -> int:
        return time.time_ns() // 1_000_000 + self._evening_ms + self.offset_ms


class Seeder:
    """Sends what a day of agents would send."""

    def __init__(self, gateway: Gateway, clock: Clock) -> None:
        self._gateway = gateway
        self._clock = clock
        self._random = random.Random(7)
        self._number = 0
        self._http = httpx.Client(
            base_url=gateway.base_url,
            headers={"X-API-Key": gateway.api_key, "X-Guard-Protocol": "3"},
            trust_env=False,
        )

    def _id(self, kind: str) -> str:
        self._number += 1
        return f"{kind}-{self._number:06d}"

    def gate(self, workflow: str, **fields: Any) -> httpx.Response:
        """Ask for a call."""
        body = {"call_id": self._id("call"), "kind": "call", "workflow_id": workflow, **fields}
        return self._http.post("/gate", json=body)

    def send(self, *events: dict[str, Any]) -> None:
        """Report events."""
        body = {"batch_id": self._id("batch"), "sent_at_ms": self._clock(), "events": list(events)}
        self._http.post("/api/v1/events", json=body).raise_for_status()

    def run(self, workflow: str, at_ms: int, calls: int) -> None:
        """One run: calls with an LLM call each, some with tools, as a tree of spans."""
        _, functions, tools, model, agent = WORKFLOWS[workflow]
        pick, run_id, root = self._random, self._id("run"), self._id("span")
        common = {"workflow_id": workflow, "run_id": run_id, "trace_id": root}
        common |= {"agent": agent} if agent else {}
        events: list[dict[str, Any]] = []
        start = at_ms
        for step in range(calls):
            span, function = self._id("span"), functions[step % len(functions)]
            reply = self.gate(workflow, function=function, run_id=run_id, agent=agent or None)
            if reply.status_code != 200:
                continue
            reservation = reply.json()["reservation_id"]
            latency = pick.uniform(500, 4200)
            at_ms += int(latency)
            inside = {**common, "span_id": span, "parent_span_id": root,
                      "reservation_id": reservation}  # fmt: skip
            data = {"model": model, "provider": "openai" if "gpt" in model else "anthropic",
                    "input_tokens": pick.randint(900, 14_000),
                    "output_tokens": pick.randint(80, 1500), "latency_ms": latency,
                    "source": "auto"}  # fmt: skip
            events.append({"event_id": self._id("e"), "type": "llm", "at_ms": at_ms, "data": data,
                           **inside})  # fmt: skip
            took = latency
            if pick.random() < 0.7:
                tool_ms = pick.uniform(40, 900)
                at_ms += int(tool_ms)
                took += tool_ms
                data = {"tool_name": pick.choice(tools), "duration_ms": tool_ms, "outcome": "ok"}
                events.append({"event_id": self._id("e"), "type": "tool", "at_ms": at_ms,
                               "data": data, **inside})  # fmt: skip
            failed = pick.random() < 0.04
            data = {"name": function, "kind": "call", "duration_ms": took + 20, "final": True,
                    "outcome": "error" if failed else "ok"}  # fmt: skip
            at_ms += 20
            events.append({"event_id": self._id("e"), "type": "span", "at_ms": at_ms, "data": data,
                           **inside})  # fmt: skip
        data = {"name": f"run {workflow}", "kind": "span", "duration_ms": at_ms - start,
                "outcome": "ok"}  # fmt: skip
        events.append({"event_id": self._id("e"), "type": "span", "at_ms": at_ms, "data": data,
                       **common, "span_id": root})  # fmt: skip
        self.send(*events)

    def day(self) -> None:
        """Thirty hours up to now, busier by day than by night."""
        names = list(WORKFLOWS)
        weights = [WORKFLOWS[name][0] for name in names]
        for hour in range(30, -1, -1):
            busy = 0.35 + 0.65 * abs(((hour + 3) % 24) - 12) / 12
            runs = round(7 * busy) + self._random.randint(0, 2)
            for run in range(runs):
                self._clock.offset_ms = -round((hour - run / runs) * HOUR_MS) if hour else 0
                name = self._random.choices(names, weights)[0]
                self.run(name, self._clock(), self._random.randint(2, 6))
        self._clock.offset_ms = 0

    def rules(self) -> None:
        """Budgets and policies, as an operator would have set them."""
        admin = self._gateway.admin
        for body in (
            {"scope_kind": "organisation", "window": "day", "limit_cents": 1400},
            {"scope_kind": "workflow", "scope_id": "support-triage", "window": "day",
             "limit_cents": 75},
            {"scope_kind": "workflow", "scope_id": "market-research", "window": "day",
             "limit_cents": 300, "mode": "soft"},
            {"scope_kind": "organisation", "window": "month", "limit_cents": 20_000},
        ):  # fmt: skip
            admin.request("PUT", "/budgets", body)
        admin.request("PUT", "/policies/production", {"document": {
            "tools_block": ["shell_*", "drop_table"], "approval_tools": ["delete_*", "send_wire"],
            "models_block": ["*-preview"], "rate_caps": [{"calls": 600, "per_ms": 60_000}],
        }})  # fmt: skip
        admin.request("PUT", "/policies/contractors", {
            "scope_kind": "workflow", "scope_id": "ext-*",
            "document": {"tools_allow": ["web_search", "read_*"], "sensitive_action": "block"},
        })  # fmt: skip

    def trouble(self) -> None:
        """What somebody has to look at."""
        self.gate("crm-cleanup", function="run_script", tool_name="shell_exec", agent="janitor")
        self.gate("market-research", function="plan", model="gemini-2.5-pro-preview")
        self.gate("crm-cleanup", kind="tool", function="crm.delete_record",
                  tool_name="delete_record", agent="janitor")  # fmt: skip
        self.gate("invoice-matching", kind="tool", function="bank.send_wire",
                  tool_name="send_wire", agent="matcher",
                  note={"message": "Pay this invoice? It matches the order and the delivery.",
                        "details": {"to": "Nordlicht GmbH", "amount": "1,250.00 EUR",
                                    "invoice": "2026-1107"}})  # fmt: skip
        self._gateway.admin.request(
            "POST",
            "/control",
            {"action": "pause", "workflow_id": "release-notes", "reason": "waiting for the tag"},
        )
        self._gateway.admin.request("POST", "/control", {
            "action": "kill", "workflow_id": "crm-cleanup",
            "reason": "merged the wrong contacts"})  # fmt: skip
        self._gateway.admin.create_key("staging")
        self._http.close()


def seed(gateway: Gateway, clock: Clock) -> None:
    """Fill a gateway."""
    seeder = Seeder(gateway, clock)
    seeder.rules()
    seeder.day()
    seeder.trouble()
    gateway.admin.set_password("admin", PASSWORD)


def chromium() -> str:
    """Return the browser to use."""
    named = os.environ.get("GUARD_CHROMIUM") or next(filter(None, map(shutil.which, CHROMIUM)), "")
    if not named:
        raise SystemExit("no Chromium: install it, or set GUARD_CHROMIUM")
    return named


def sign_in(page: Page, base_url: str) -> None:
    """Sign in as the first operator."""
    page.goto(f"{base_url}/sign-in")
    page.get_by_label("Password").fill(PASSWORD)
    page.get_by_role("button", name="Sign in").click()
    page.get_by_role("heading", name="Overview", level=1).wait_for()


def shoot(page: Page, folder: Path, name: str, height_max: int) -> None:
    """Write one picture, the window as high as the page."""
    page.get_by_text("Live", exact=True).wait_for()
    size = page.viewport_size or {"width": 1280, "height": 0}
    height = page.evaluate("document.documentElement.scrollHeight")
    page.set_viewport_size({"width": size["width"], "height": min(height, height_max)})
    picture = Image.open(io.BytesIO(page.screenshot())).convert("RGB")
    in_few_colours(picture).save(folder / f"{name}.png", optimize=True)
    kilobytes = (folder / f"{name}.png").stat().st_size / 1000
    sys.stdout.write(f"{name}.png {kilobytes:.0f} kB\n")


def in_few_colours(picture: Image.Image) -> Image.Image:
    """Return a picture with a palette: the commonest colours as they are, the others nearly so."""
    counted = picture.getcolors(maxcolors=1 << 24) or []
    counted.sort(key=lambda each: -each[0])
    flat = [channel for _, colour in counted[:40] for channel in colour]  # type: ignore[union-attr]  # RGB has tuples
    rest = picture.quantize(216, method=Image.Quantize.FASTOCTREE).getpalette() or []
    palette = Image.new("P", (1, 1))
    palette.putpalette((flat + rest)[: 3 * 256])
    return picture.quantize(palette=palette, dither=Image.Dither.NONE)


def pictures(browser: Browser, base_url: str, folder: Path, now_ms: int) -> None:
    """Take every picture."""
    wanted = {
        ("desktop", "light"): {
            "overview": "/", "approvals": "/approvals", "budgets": "/budgets",
            "events": "/events?workflow=invoice-matching&cost=0.03&range=24h",
            "prices": "/settings/prices", "budget": "/budgets/edit?workflow=invoice-matching",
            "settings": "/settings",
        },
        ("phone", "dark"): {"workflows": "/workflows"},
    }  # fmt: skip
    for (size, scheme), pages in wanted.items():
        width, height = (1280, 860) if size == "desktop" else (390, 844)
        context = browser.new_context(
            viewport={"width": width, "height": height}, color_scheme=scheme,  # type: ignore[arg-type]  # one of its literals
            device_scale_factor=1 if size == "desktop" else 2,
        )  # fmt: skip
        context.clock.set_fixed_time(now_ms)
        page = context.new_page()
        sign_in(page, base_url)
        for name, path in pages.items():
            page.goto(base_url + path)
            page.set_viewport_size({"width": width, "height": height})
            shoot(page, folder, f"{name}-{size}-{scheme}", 1100 if name != "overview" else 1800)
        context.close()


def main() -> None:
    """Seed a gateway, take the pictures, write them beside this file or where the argument says."""
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent
    folder.mkdir(parents=True, exist_ok=True)
    clock = Clock()
    with run_gateway(clock_ms=clock) as gateway, sync_playwright() as playwright:
        seed(gateway, clock)
        browser = playwright.chromium.launch(executable_path=chromium(), args=ARGUMENTS)
        pictures(browser, gateway.base_url, folder, clock())
        browser.close()


if __name__ == "__main__":
    main()
