"""What an agent shows to the person who approves, on the page where they answer."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from guard.gateway.dashboard import formatting

NOTE: dict[str, Any] = {
    "message": "Pay this invoice?\nIt is the second one of this month.",
    "details": {
        "invoice": "2026-1107",
        "to": "ACME GmbH",
        "amount": {"value": 1250.0, "currency": "EUR"},
        "items": ["licences", "support"],
        "urgent": False,
    },
}
HOSTILE: dict[str, Any] = {
    "message": "harmless \u202etxt.exe\u200b <script>window.pwned=1</script>"
    + " \n" * 60
    + "last words",
    "details": {
        "<img src=x onerror=window.pwned=1>": "<b>bold</b>",
        "\u2066key": {"deep": ["\u202e", "<script>window.pwned=1</script>"]},
        "zero": "\u0000",  # a message has none, other data is any JSON
        "long": "x" * 3000,
        "עברית": "שלום",
        "items": "a name like the method's",
    },
}


def ask(tenant: Any, note: dict[str, Any], **fields: Any) -> None:
    document = {"approval_tools": ["pay_*"], "approval_timeout_ms": 600_000}
    tenant.admin.request("PUT", "/policies/p", {"document": document})
    tenant.gate("billing", tool_name="pay_invoice", agent="clerk", note=note, **fields)


def picture(page: Any, name: str) -> None:
    """Keep a picture of a page, to look at."""
    folder = os.environ.get("GUARD_TEST_PICTURES")
    if folder:
        page.screenshot(path=str(Path(folder) / f"{name}.png"), full_page=True)


@pytest.mark.parametrize(
    ("look", "options"),
    [
        ("desktop", {}),
        ("dark", {"color_scheme": "dark"}),
        ("phone", {"viewport": {"width": 390, "height": 844}}),
    ],
)
def test_a_question_with_its_details(
    signed_in: Callable[..., Any], tenant: Any, look: str, options: Any
) -> None:
    ask(tenant, NOTE)
    ask(tenant, {})
    page = signed_in("/approvals", **options)
    picture(page, f"approvals-{look}")
    said = page.get_by_role("group", name="Shown by the agent")
    assert said.count() == 1
    assert said.locator("p").nth(1).inner_text() == NOTE["message"]
    names, values = said.locator("dt").all_inner_texts(), said.locator("dd").all_inner_texts()
    assert dict(zip(names, values, strict=True)) == {
        "invoice": "2026-1107",
        "to": "ACME GmbH",
        "amount": '{"value": 1250.0, "currency": "EUR"}',
        "items": '["licences", "support"]',
        "urgent": "false",
    }
    page.get_by_role("button", name="Approve").first.click()
    page.get_by_role("row", name="pay_invoice").first.wait_for()
    picture(page, f"approvals-{look}-answered")


def test_nothing_that_an_agent_shows_misleads(signed_in: Callable[..., Any], tenant: Any) -> None:
    ask(tenant, HOSTILE)
    page = signed_in("/approvals")
    picture(page, "approvals-hostile")
    said = page.get_by_role("group", name="Shown by the agent")
    text = said.inner_text()
    assert "harmless ⟨U+202E⟩txt.exe⟨U+200B⟩ <script>window.pwned=1</script>" in text
    assert "⟨U+0000⟩" in text
    assert "⟨U+2066⟩key" in text
    assert '"⟨U+202E⟩"' in text
    assert "שלום" in text  # a language that is written from right to left is no trick
    assert not set("\u202e\u2066\u200b") & set(page.content())
    assert page.evaluate("window.pwned === undefined")
    # However much it says, the answer stays in view.
    assert said.bounding_box()["height"] < 400
    assert said.get_by_text("last words").bounding_box()["y"] < 400  # not far below what is seen
    assert page.get_by_role("button", name="Refuse").bounding_box()["y"] < 720
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")


def test_a_question_that_is_withdrawn_leaves_the_page(
    signed_in: Callable[..., Any], tenant: Any
) -> None:
    ask(tenant, NOTE)
    page = signed_in("/approvals")
    page.get_by_role("button", name="Approve").wait_for()
    (asked,) = tenant.admin.approvals()
    tenant.http.post("/gate/release", json={"reservation_id": asked["approval_id"]})
    page.get_by_text("Nothing waits for you").wait_for()
    page.get_by_role("row", name="withdrawn").wait_for()
    page.goto(f"/audit?organisation={tenant.organisation_id}")
    page.get_by_text("withdrew approval").wait_for()


@pytest.mark.parametrize("char", ["\u202a", "\u2069", "\u061c", "\ufeff", "\u2028", "\u3164",
                                  "\u0085", "\U000e0041", "\ue000"])  # fmt: skip
def test_what_cannot_be_seen_is_shown_as_its_code(char: str) -> None:
    assert formatting.visible(f"a{char}b") == f"a⟨U+{ord(char):04X}⟩b"


def test_what_can_be_seen_stays() -> None:
    text = "Grüße, 請求書 שלום\n\t– “x” 🙂"
    assert formatting.visible(text) == text
