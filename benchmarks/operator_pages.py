"""What an operator waits for when a million events came in one day, or in several.

Run: ``python -m benchmarks.operator_pages [--events 1000000] [--days 1] [--rounds 10] [--engines
sqlite postgres]`` ``[--postgres URI] [--only TEXT] [--results FOLDER]``

The events are written straight into the store of each engine, with all the sums that a gateway
keeps of them: 50 workflows, 5,000 users, 20,000 runs and 20 models over the last 24 hours. Then a
gateway serves it, and each page of the dashboard, each list of the admin API and ``usage`` by every
dimension is asked for in turns, round after round, as one client of a gateway that is idle
otherwise. Prints the median and p95 in milliseconds; 300 ms is the target.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import json
import platform
import re
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import httpx

from benchmarks._cluster import database_on
from benchmarks._many_events import fill
from benchmarks.scale import POSTGRES
from guard.gateway.embedded import Gateway, run_gateway

TARGET_MS: Final = 300
HOUR: Final = 3_600_000
_DIMENSIONS: Final = ("workflow", "run", "agent", "chain", "user", "key", "tool", "model",
                      "provider", "type", "hour", "day", "total")  # fmt: skip


def pages() -> dict[str, str]:
    """Return the pages of the dashboard, by name."""
    found = {f"overview {span}": f"/?range={span}" for span in ("1h", "24h", "7d", "30d")}
    found |= {f"workflows by {sort}": f"/workflows?sort={sort}" for sort in ("seen", "spend")}
    found |= {
        f"workflow {tab}": f"/workflow?id=w7&tab={tab}"
        for tab in ("calls", "spans", "models", "decisions", "errors")
    }
    found |= {f"workflow {span}": f"/workflow?id=w7&range={span}" for span in ("1h", "30d")}
    names = ("users", "events", "events?type=tool", "events?workflow=w7", "events?show=refused",
             "approvals", "audit", "budgets", "policies", "keys", "settings/prices",
             "settings/prices?q=gpt", "settings/gateway", "events/event?id=500",
             "events/refusal?id=1", "control?action=kill&workflow=*")  # fmt: skip
    found |= {f"page {name}": f"/{name}" for name in names}
    divisions = ("model", "workflow", "user", "agent", "tag:team", "tag:request")
    found |= {
        f"spend by {by} {span}": f"/spend?by={by}&range={span}"
        for by in divisions
        for span in ("24h", "7d", "90d")
    }
    for by, address in (("user", "user?id=u77"), ("agent", "agent?id=a7"), ("model", "model?id=m7"),
                        ("tag", "tag?name=team&id=t3")):  # fmt: skip
        found |= {f"spend of one {by} {s}": f"/{address}&range={s}" for s in ("24h", "90d")}
    found |= {f"search {text}": f"/search?q={text}" for text in ("w", "r19", "e77", "call7", "u49")}
    return (
        found
        | {"page latency": "/latency", "call": "/events?call=call7777"}
        | {
            f"export {name}": f"/export/{name}.csv"
            for name in ("spend", "users", "workflows", "events", "budgets", "audit")
        }
    )


def lists(now_ms: int) -> dict[str, str]:
    """Return the lists of the admin API, by name."""
    times = {
        "": "",
        " today": f"&since_ms={now_ms - now_ms % (24 * HOUR)}",
        " 24h": f"&since_ms={now_ms - 24 * HOUR + 12_345}",
        " 90min": f"&since_ms={now_ms - 8 * HOUR + 77}&until_ms={now_ms - 13 * HOUR // 2}",
    }
    found = {
        f"usage by {dimension}{name}": f"/usage?group_by={dimension}{time_range}"
        for dimension in _DIMENSIONS
        for name, time_range in times.items()
    }
    plain = ("organisations", "organisations/settings", "keys", "budgets", "policies", "prices",
             "workflows", "workflows/w7", "runs", "runs?workflow_id=w7", "approvals", "events",
             "events?type=tool", "events?workflow_id=w7", "events?flag=in_doubt", "ledger",
             "audit", "audit/head", "webhooks", "webhooks/deliveries", "control/known?target=w7",
             "control/named?target=w*")  # fmt: skip
    return found | {f"list {name}": f"/{name}" for name in plain}


@contextlib.contextmanager
def signed_in(gateway: Gateway) -> Iterator[httpx.Client]:
    """Return a client with a session of the dashboard."""
    with httpx.Client(base_url=gateway.base_url, trust_env=False, timeout=120) as http:
        http.cookies.set("guard_zone", "America/New_York")  # whose days are no days of UTC
        form = re.search(r'name="csrf" value="([^"]+)"', http.get("/sign-in").text)
        assert form is not None
        answer = http.post(
            "/sign-in",
            data={"name": "bench", "password": PASSWORD, "csrf": form[1], "return_to": "/"},
            headers={"Origin": gateway.base_url},
        )
        assert answer.status_code == 303, answer.text
        yield http


def begun(http: httpx.Client, path: str) -> httpx.Response:
    """Ask for a file, until its first bytes are there: the rest is sent as it is read."""
    with http.stream("GET", path) as answer:
        next(answer.iter_raw(), b"")
    return answer


PASSWORD: Final = "correct horse battery staple"


def measure(
    database: str, events: int, rounds: int, only: str, days: int = 1
) -> dict[str, list[float]]:
    """Fill a database, serve it, and return the milliseconds of each page."""
    with run_gateway(database) as gateway:
        gateway.admin.set_password("bench", PASSWORD)
        organisation = gateway.admin.request("GET", "/organisations")[0]["organisation_id"]
        for kind, scope_id, window in (("organisation", "", "day"), ("workflow", "*", "total"),
                                       ("user", "*", "day")):  # fmt: skip
            gateway.admin.set_budget(
                10**6, scope_kind=kind, scope_id=scope_id, window=window, mode="soft"
            )
    now_ms = time.time_ns() // 1_000_000
    started = time.perf_counter()
    fill(database, organisation, events, now_ms, days)
    print(f"filled in {time.perf_counter() - started:.0f} s", file=sys.stderr)
    taken: dict[str, list[float]] = {}
    with run_gateway(database) as gateway, signed_in(gateway) as http:
        admin = {"Authorization": f"Bearer {gateway.admin_key}"}
        asked: dict[str, Callable[[], httpx.Response]] = {
            name: lambda path=path: http.get(path) for name, path in pages().items()
        }
        for name in ("spend", "users", "workflows", "events", "budgets", "audit"):
            asked[f"export {name}, begun"] = lambda name=name: begun(http, f"/export/{name}.csv")
        for name, path in lists(now_ms).items():
            asked[name] = lambda path=path: http.get(f"/api/v1/admin{path}", headers=admin)
        asked = {name: ask for name, ask in asked.items() if only in name}
        for number in range(rounds + 1):
            for name, ask in asked.items():
                began = time.perf_counter()
                answer = ask()
                if number:  # the first round warms the caches
                    taken.setdefault(name, []).append((time.perf_counter() - began) * 1000)
                if answer.status_code != 200:
                    raise SystemExit(f"{name}: {answer.status_code} {answer.text[:300]}")
    return taken


def p95(values: list[float]) -> float:
    """Return the 95th percentile."""
    return sorted(values)[min(len(values) - 1, round(0.95 * len(values)))]


def report(engine: str, taken: dict[str, list[float]]) -> dict[str, Any]:
    """Print a line for each page, the slowest first; return the figures."""
    figures = {
        name: {"p50_ms": round(statistics.median(each), 1), "p95_ms": round(p95(each), 1)}
        for name, each in taken.items()
    }
    print(f"\n{engine:34} {'p50 ms':>8} {'p95 ms':>8}")
    for name, each in sorted(figures.items(), key=lambda item: -item[1]["p95_ms"]):
        mark = "  over the target" if each["p95_ms"] > TARGET_MS else ""
        print(f"{name:34} {each['p50_ms']:8.1f} {each['p95_ms']:8.1f}{mark}")
    return figures


def main() -> None:
    """Measure both engines."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--events", type=int, default=1_000_000)
    parser.add_argument("--days", type=int, default=1, help="over which the events are spread")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--engines", nargs="+", default=["sqlite", "postgres"])
    parser.add_argument("--postgres", default=POSTGRES, help="a server to make a database on")
    parser.add_argument("--only", default="", help="pages whose name contains this")
    parser.add_argument("--results", type=Path, help="a folder to write a JSON file into")
    options = parser.parse_args()
    found = {}
    for engine in options.engines:
        with database_on(engine, options.postgres) as database:
            taken = measure(database, options.events, options.rounds, options.only, options.days)
        found[engine] = report(engine, taken)
    if options.results is not None:
        today = datetime.datetime.now(datetime.UTC).date().isoformat()
        machine = {"machine": platform.machine(), "python": platform.python_version()}
        content = {
            "date": today,
            **machine,
            "events": options.events,
            "days": options.days,
            "pages": found,
        }
        options.results.mkdir(parents=True, exist_ok=True)
        path = options.results / f"operator-pages-{today}.json"
        path.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
