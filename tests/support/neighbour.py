"""An organisation that asks for all that a gateway does, each at its largest, again and again.

Used by ``benchmarks/neighbours.py``, which times another organisation beside it, and by the tests
of what a unit of work holds.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable, Iterator
from typing import Any, Final

import httpx

EVENTS: Final = 1000
"""As many as a request may have."""

BILLED: Final = 4000
RULES: Final = 1000
LIST: Final = 1000
HOUR: Final = 3_600_000
PASSWORD: Final = "correct horse battery staple"
EXPORTS: Final = ("spend", "usage", "workflows", "events", "budgets", "audit")
PAGES: Final = ("", "workflows", "workflow?id=w7", "users", "events", "events?show=refused",
                "approvals", "audit", "budgets", "policies", "keys", "spend?by=model&range=90d",
                "spend?by=user&range=90d", "latency", "search?q=e77")  # fmt: skip
LISTS: Final = ("events", "ledger", "audit", "workflows", "runs", "approvals", "budgets",
                "policies", "prices", "keys", "webhooks/deliveries")  # fmt: skip
USAGE: Final = ("workflow", "run", "agent", "chain", "user", "key", "model", "provider", "hour")


class Neighbour:
    """One client of an organisation, with its keys and a session of the dashboard.

    Args:
        url: of the gateway.
        admin_key: of the gateway.
        organisation_id: of the organisation.
        api_key: of the organisation.
        now_ms: the time at which the newest of its events came.
        number: tells it from other clients of the organisation.
        rules: how many of each kind it applies at once.
    """

    def __init__(
        self,
        url: str,
        admin_key: str,
        organisation_id: str,
        api_key: str,
        now_ms: int,
        number: int,
        rules: int = RULES,
    ) -> None:
        self._http = httpx.Client(base_url=url, trust_env=False, timeout=300)
        self._key = {"X-API-Key": api_key, "X-Guard-Protocol": "3"}
        self._admin = {"Authorization": f"Bearer {admin_key}"}
        self._own = organisation_id
        self._now_ms = now_ms
        self._number = number
        self._rules = rules
        self._numbers: Iterator[int] = itertools.count()

    def sign_in(self, url: str, name: str) -> None:
        """Begin a session of the dashboard."""
        form = re.search(r'name="csrf" value="([^"]+)"', self._http.get("/sign-in").text)
        assert form is not None
        answer = self._http.post(
            "/sign-in", headers={"Origin": url},
            data={"name": name, "password": PASSWORD, "csrf": form[1], "return_to": "/"},
        )  # fmt: skip
        assert answer.status_code == 303, answer.text

    def operations(self) -> dict[str, Callable[[], httpx.Response]]:
        """Return what it asks for, by name."""
        found: dict[str, Callable[[], httpx.Response]] = {
            "batch of events": self.events,
            "batch of events of one workflow each": lambda: self.events(workflows=EVENTS),
            "gate with events": self.gate_with_events,
            "reconcile": self.reconcile,
            "dry reconcile": lambda: self.reconcile(dry_run=True),
            "apply": self.apply,
            "apply and prune": lambda: self.apply(prune=True),
            "gate after rules have changed": self.gate_after_apply,
            "preview of a policy": self.preview,
        }
        for name in EXPORTS:
            found[f"export of {name}"] = lambda name=name: self._http.get(f"/export/{name}.csv")
        found["export of events as JSON"] = lambda: self._http.get("/export/events.json")
        for name in PAGES:
            found[f"page /{name}"] = lambda name=name: self._http.get(f"/{name}")
        for name in LISTS:
            found[f"list of {name}"] = lambda name=name: self._get(f"{name}?limit={LIST}")
        for name in USAGE:
            found[f"usage by {name}"] = lambda name=name: self._get(f"usage?group_by={name}")
        return found

    def _get(self, path: str) -> httpx.Response:
        sign = "&" if "?" in path else "?"
        address = f"/api/v1/admin/{path}{sign}organisation={self._own}"
        return self._http.get(address, headers=self._admin)

    def _post(self, path: str, body: Any) -> httpx.Response:
        address = f"/api/v1/admin/{path}?organisation={self._own}"
        return self._http.post(address, json=body, headers=self._admin)

    def _batch(self, workflows: int = 50) -> list[dict[str, Any]]:
        first = f"{self._number}-{next(self._numbers)}"
        return [
            {
                "event_id": f"{first}-{number}", "type": "llm", "at_ms": self._now_ms,
                "workflow_id": f"w{number % workflows}", "run_id": f"{first}-{number // 20}",
                "agent": f"a{number % 20}", "user": f"u{number}",
                "data": {"model": f"m{number % 20}", "provider": "openai", "cost_nanousd": 1000,
                         "input_tokens": 100, "output_tokens": 50, "latency_ms": 900},
            }
            for number in range(EVENTS)
        ]  # fmt: skip

    def events(self, workflows: int = 50) -> httpx.Response:
        """Report as many events as a request may have."""
        body = {"batch_id": f"{self._number}-{next(self._numbers)}", "sent_at_ms": 1,
                "events": self._batch(workflows)}  # fmt: skip
        headers = {**self._key, "Idempotency-Key": body["batch_id"]}
        return self._http.post("/api/v1/events", json=body, headers=headers)

    def gate_with_events(self) -> httpx.Response:
        """Report as many of them with a question."""
        body = {"call_id": f"{self._number}-{next(self._numbers)}", "kind": "call", "function": "f",
                "events": self._batch()}  # fmt: skip
        return self._http.post("/gate", json=body, headers=self._key)

    def reconcile(self, dry_run: bool = False) -> httpx.Response:
        """Book a bill of as many rows as a request may have, each of them another than before."""
        first_ms = self._now_ms - self._now_ms % HOUR - HOUR * (BILLED // 20)
        cost = 10**6 + next(self._numbers) + 1000 * self._number
        rows = [
            {"start_ms": first_ms + HOUR * (number // 20), "width_ms": HOUR,
             "model": f"m{number % 20}", "cost_nanousd": cost}
            for number in range(BILLED)
        ]  # fmt: skip
        return self._post("reconcile", {"rows": rows, "source": "bill.csv", "dry_run": dry_run})

    def apply(self, *, prune: bool = False) -> httpx.Response:
        """Set as many rules as a request may have, each of them another than before."""
        limit = 10**12 + next(self._numbers) + 1000 * self._number
        rules = range(0 if prune and next(self._numbers) % 4 > 1 else self._rules)
        body = {
            "budgets": [{"scope_kind": "workflow", "scope_id": f"w{each}", "window": "day",
                         "limit_nanousd": limit, "anyway": True} for each in rules],
            "policies": [{"name": f"p{each}", "scope_kind": "workflow", "scope_id": f"w{each}",
                          "anyway": True, "document": {"tools_block": [f"t{limit}"]}}
                         for each in rules],
            "prices": [], "prune": prune,
        }  # fmt: skip
        return self._post("apply", body)

    def gate_after_apply(self) -> httpx.Response:
        """Change as many rules, and ask for a call that they are compiled for."""
        self.apply()
        body = {"call_id": f"{self._number}-{next(self._numbers)}", "kind": "call", "function": "f"}
        return self._http.post("/gate", json=body, headers=self._key)

    def preview(self) -> httpx.Response:
        """Compare as many calls as a request may with another policy."""
        document = {"tools_block": ["delete*"], "on_accelerating_spend": "pause"}
        body = {"name": "p0", "calls": LIST, "policy": {"document": document}}
        return self._post("policies/preview", body)

    def close(self) -> None:
        """Close its connection."""
        self._http.close()


def told(name: str, answer: httpx.Response) -> str:
    """Return a line about an answer that is not what was asked for."""
    return f"{name}: {answer.status_code} {json.dumps(answer.text[:300])}"
