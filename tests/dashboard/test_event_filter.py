"""Events are found by who caused them, what they cost and when, on the page and in its export."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable
from typing import Any

import pytest
from playwright.sync_api import expect

from guard.gateway.storage.sql import dashboard


def fill(tenant: Any) -> None:
    for number, (user, team, model, cents) in enumerate(
        [("ana", "search", "gpt-4o", 5), ("bo", "search", "gpt-4o", 70),
         ("ana", "ads", "claude-x", 90), ("bo", "ads", "claude-x", 1)]
    ):  # fmt: skip
        data = {"model": model, "cost_nanousd": cents * 10**7, "input_tokens": 10}
        tenant.send(
            f"w{number}", {"type": "llm", "data": data, "user": user, "tags": {"team": team}}
        )


def found(visitor: Any, **query: str) -> set[str]:
    """Return the workflows on the page, which are those of its export."""
    page = visitor.get("/events", **query)
    assert page.status_code == 200
    exported = visitor.get("/export/events.csv", **query)
    names = {row["workflow_id"] for row in csv.DictReader(io.StringIO(exported.text))}
    shown = page.text.partition('id="events"')[2]
    assert {f"w{number}" for number in range(4) if f">w{number}</a>" in shown} == names
    return names


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ({"user": "ana"}, {"w0", "w2"}),
        ({"tag": "team=ads"}, {"w2", "w3"}),
        ({"tag": " team = ads ", "user": "bo"}, {"w3"}),
        ({"model": "gpt-4o"}, {"w0", "w1"}),
        ({"cost": "$0.50"}, {"w1", "w2"}),
        ({"cost": "0.7", "range": "24h"}, {"w1", "w2"}),
        ({"from": "2001-01-01", "to": "2001-02-01"}, set()),
        ({"user": "nobody"}, set()),
    ],
)
def test_a_filter_finds_what_fits(
    tenant: Any, visitor: Any, query: dict[str, str], expected: set[str]
) -> None:
    fill(tenant)
    assert found(visitor, **query) == expected


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ({"tag": "search"}, "A tag is written team=search."),
        ({"cost": "cheap"}, "is no amount"),
        ({"from": "yesterday"}, "A day is written like"),
    ],
)
def test_what_is_no_filter_says_so(
    tenant: Any, visitor: Any, query: dict[str, str], said: str
) -> None:
    fill(tenant)
    page = visitor.get("/events", **query)
    assert page.status_code == 200
    assert said in page.text


def test_a_long_search_says_how_far_it_looked(
    tenant: Any, visitor: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The export goes on by itself: nothing is missing from it."""
    monkeypatch.setattr(dashboard, "SCAN_MAX", 2)
    fill(tenant)
    page = visitor.get("/events", model="gpt-4o")
    assert "Nothing fits among" in page.text
    assert "Look further back" in page.text
    exported = visitor.get("/export/events.csv", model="gpt-4o")
    assert exported.text.count("gpt-4o") == 2


def test_it_is_used_by_hand(signed_in: Callable[..., Any], tenant: Any) -> None:
    fill(tenant)
    page = signed_in("/events")
    page.get_by_label("Person").fill("ana")
    page.get_by_label("Cost from").fill("$0.50")
    page.get_by_role("button", name="Show").click()
    table = page.get_by_role("table", name="Events, newest first")
    expect(table.get_by_role("link", name="w2")).to_be_visible()
    expect(table.get_by_role("link", name="w0")).to_be_hidden()
    page.get_by_role("link", name="24h").click()
    expect(table.get_by_role("link", name="w2")).to_be_visible()
    page.get_by_role("link", name="Clear").click()
    expect(table.get_by_role("link", name="w0")).to_be_visible()
