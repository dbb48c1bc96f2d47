"""User messages: override, catalogue, fallback; nothing breaks them (spec parts 2, 4, 7)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from guard import format_user_message, get_user_message, set_user_message
from guard.breaker.exceptions import (
    GuardBudgetError,
    GuardError,
    GuardToolBlockedError,
    WorkflowKilledInterrupt,
)
from guard.core.catalogue import CATALOGUE, FALLBACK_MESSAGE


def test_override_then_catalogue_then_fallback() -> None:
    assert get_user_message("GD-B004") == CATALOGUE["GD-B004"].user_message
    set_user_message("GD-B004", "Ask Ann for more.")
    assert get_user_message("GD-B004") == "Ask Ann for more."
    assert format_user_message(GuardBudgetError()) == "Ask Ann for more."
    set_user_message("GD-B004", "")
    assert get_user_message("GD-B004") == CATALOGUE["GD-B004"].user_message
    assert get_user_message("GD-NONE") == FALLBACK_MESSAGE


def test_the_budget_message_is_a_usage_limit_message() -> None:
    """Spec part 7, rule 5."""
    assert "usage limit" in get_user_message("GD-B004")


def test_any_code_can_be_overridden_also_an_unknown_one() -> None:
    set_user_message("MY-CODE", "Mine.")
    assert get_user_message("MY-CODE") == "Mine."
    set_user_message("MY-CODE", "")
    assert get_user_message("MY-CODE") == FALLBACK_MESSAGE
    set_user_message("MY-CODE", "")


@pytest.mark.parametrize("blank", ["", " ", "\n\t"])
def test_a_blank_override_clears(blank: str) -> None:
    """A message is never empty, so a blank one cannot be an override."""
    set_user_message("GD-B004", "x")
    set_user_message("GD-B004", blank)
    assert get_user_message("GD-B004") == CATALOGUE["GD-B004"].user_message


@pytest.mark.parametrize(("code", "text"), [(None, "x"), ("GD-B004", None), (5, "x"), ("a", b"x")])
def test_overrides_are_strings(code: Any, text: Any) -> None:
    with pytest.raises(TypeError):
        set_user_message(code, text)
    assert get_user_message("GD-B004") == CATALOGUE["GD-B004"].user_message


def test_an_empty_code_cannot_be_overridden() -> None:
    with pytest.raises(ValueError, match="empty"):
        set_user_message(" ", "x")


@pytest.mark.parametrize("locale", ["en", "de", "EN_us", "", "xx-klingon", None, 5])
def test_every_locale_is_english(locale: Any) -> None:
    assert format_user_message(GuardBudgetError(), locale) == get_user_message("GD-B004")
    assert format_user_message(GuardBudgetError(), locale=locale) == get_user_message("GD-B004")


def test_it_holds_no_identifier() -> None:
    """Spec part 7, rule 4: str(exc) contains internal identifiers, the user message does not."""
    exc = GuardToolBlockedError(
        workflow_id="wf-secret", reason="policy p-7731", tool_name="shell", details={"k": "v"}
    )
    assert "p-7731" in str(exc)
    message = format_user_message(exc)
    for identifier in ("wf-secret", "p-7731", "shell", "GD-"):
        assert identifier not in message


def test_the_interrupt_and_any_object_with_a_code() -> None:
    assert format_user_message(WorkflowKilledInterrupt()) == get_user_message("GD-W002")

    class Foreign:
        error_code = "GD-R001"

    assert format_user_message(Foreign()) == get_user_message("GD-R001")
    assert format_user_message(Foreign) == get_user_message("GD-R001")


class RaisingProperty:
    @property
    def error_code(self) -> str:
        raise RuntimeError("hostile")


class RaisingGetattr:
    def __getattribute__(self, name: str) -> Any:
        raise MemoryError(name)


class Recursive:
    @property
    def error_code(self) -> str:
        return self.error_code


class EvilString(str):
    def __hash__(self) -> int:
        raise RuntimeError("hostile")

    def __eq__(self, other: object) -> bool:
        raise RuntimeError("hostile")


class WithEvilCode:
    error_code = EvilString("GD-B004")


def test_a_code_with_methods_of_its_own_is_its_text() -> None:
    assert format_user_message(WithEvilCode()) == get_user_message("GD-B004")


def with_code(code: object) -> GuardError:
    exc = GuardError("x")
    exc.error_code = code  # type: ignore[assignment]  # a wrong type is what is tested
    return exc


HOSTILE: list[Callable[[], Any]] = [
    lambda: None, lambda: 5, lambda: "GD-B004", lambda: b"", object, ValueError, list, dict,
    lambda: float("nan"), lambda: type, RaisingProperty, RaisingGetattr, Recursive,
    lambda: with_code(None), lambda: with_code([]), lambda: with_code(""),
    lambda: with_code("GD-NONE"), lambda: with_code(b"GD-B004"),
]  # fmt: skip


@pytest.mark.parametrize("make", HOSTILE)
def test_it_never_raises_and_is_never_empty(make: Callable[[], Any]) -> None:
    assert format_user_message(make()) == FALLBACK_MESSAGE


@pytest.mark.parametrize("code", [None, 5, "", [], {}, b"GD-B004"])
def test_a_code_that_is_no_code_gives_the_fallback(code: Any) -> None:
    assert get_user_message(code) == FALLBACK_MESSAGE
    assert FALLBACK_MESSAGE
