"""Spec part 4: user messages; part 7, rules 4 and 5."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import guard
from guard.breaker import exceptions
from guard.breaker.exceptions import GuardBudgetError, GuardError, WorkflowKilledInterrupt
from guard.core.catalogue import CATALOGUE, FALLBACK_MESSAGE


class Coded:
    """Anything with an error_code."""

    def __init__(self, error_code: object) -> None:
        self.error_code = error_code


class TestFormat:
    def test_an_end_user_string_for_a_guard_error(self) -> None:
        """Part 4: returns an end-user string for a GuardError."""
        error = GuardBudgetError(workflow_id="wf-1", reason="internal detail")
        message = guard.format_user_message(error)
        assert message == guard.get_user_message("GD-B004")
        assert "wf-1" not in message
        assert "internal detail" not in message

    def test_or_any_object_with_an_error_code(self) -> None:
        """Part 4: or any object with an error_code attribute."""
        assert guard.format_user_message(Coded("GD-T001")) == guard.get_user_message("GD-T001")
        interrupt = WorkflowKilledInterrupt(workflow_id="w")
        assert guard.format_user_message(interrupt) == guard.get_user_message("GD-W002")

    @pytest.mark.parametrize("locale", ["en", "de", "", "zz-ZZ", "en-GB"])
    def test_other_locales_fall_back_to_english(self, locale: str) -> None:
        """Part 4: only en exists; other locales fall back to English."""
        english = guard.format_user_message(GuardBudgetError())
        assert guard.format_user_message(GuardBudgetError(), locale) == english
        assert guard.format_user_message(GuardBudgetError(), locale=locale) == english

    @pytest.mark.parametrize("thing", [None, 3, "text", ValueError("x"), object()])
    def test_objects_without_error_code_give_the_generic_fallback(self, thing: object) -> None:
        """Part 4: objects without error_code give a generic fallback message."""
        assert guard.format_user_message(thing) == FALLBACK_MESSAGE

    def test_never_raises_never_returns_an_empty_string(self) -> None:
        """Part 4: never raises, never returns an empty string, whatever the object does."""

        class Property:
            @property
            def error_code(self) -> str:
                raise RuntimeError("hostile")

        class Missing:
            def __getattr__(self, name: str) -> Any:
                raise RuntimeError("hostile")

        class Text(str):
            def __hash__(self) -> int:
                raise RuntimeError("hostile")

            def __eq__(self, other: object) -> bool:
                raise RuntimeError("hostile")

        hostile = [
            Property(),
            Missing(),
            Coded(""),
            Coded(None),
            Coded(7),
            Coded([]),
            Coded("\ud800"),
            Coded("no such code"),
            Coded("x" * 10**6),
        ]
        for thing in hostile:
            for locale in ("en", None, 3, object()):
                message = guard.format_user_message(thing, locale)  # type: ignore[arg-type]
                assert message == FALLBACK_MESSAGE
        assert guard.format_user_message(Coded(Text("GD-B004"))) == guard.get_user_message(
            "GD-B004"
        )

    def test_the_interrupts_of_a_process_pass(self) -> None:
        """Part 4: never raises an exception; a Ctrl-C inside a hostile property is not one."""

        class Interrupting:
            @property
            def error_code(self) -> str:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            guard.format_user_message(Interrupting())

    def test_str_contains_internal_identifiers_and_the_message_does_not(self) -> None:
        """Part 7, rule 4: use it in place of str(exc), which holds internal identifiers."""
        error = GuardBudgetError(reason="budget exhausted: workflow wf-1")
        assert "wf-1" in str(error)
        assert "GD-B004" in str(error)
        assert "GD-B004" not in guard.format_user_message(error)


class TestOverride:
    def test_set_and_cleared_with_an_empty_string(self) -> None:
        """Part 4, set_user_message: an override; text of empty string clears it."""
        default = guard.get_user_message("GD-T001")
        guard.set_user_message("GD-T001", "Ask Anna.")
        assert guard.get_user_message("GD-T001") == "Ask Anna."
        assert guard.format_user_message(Coded("GD-T001")) == "Ask Anna."
        guard.set_user_message("GD-T001", "")
        assert guard.get_user_message("GD-T001") == default
        guard.set_user_message("GD-T001", "")

    @pytest.mark.parametrize("code", [*sorted(CATALOGUE), "MY-OWN"])
    def test_any_code_can_be_overridden(self, code: str) -> None:
        """Part 7, rule 5: any code can be overridden with set_user_message."""
        guard.set_user_message(code, f"about {code}")
        assert guard.format_user_message(Coded(code)) == f"about {code}"

    def test_is_per_process_and_not_persisted(self, run_python: Callable[..., Any]) -> None:
        """Part 4, set_user_message: per-process; not persisted."""
        guard.set_user_message("GD-T001", "Ask Anna.")
        ran = run_python("import guard; print(guard.get_user_message('GD-T001'))")
        assert ran.stdout.strip() == CATALOGUE["GD-T001"].user_message

    def test_is_not_synced_to_the_backend(self, scripted: Any, scripted_runtime: Any) -> None:
        """Part 4, set_user_message: not synced to the backend."""
        guard.set_user_message("GD-T001", "Ask Anna.")
        guard.track_tool("a")
        scripted_runtime.flush()
        assert all(b"Anna" not in asked.body for asked in scripted.asked)

    def test_wrong_types_are_refused(self) -> None:
        """Part 4: two strings."""
        for code, text in ((1, "x"), ("GD-T001", None), (None, None)):
            with pytest.raises(TypeError):
                guard.set_user_message(code, text)  # type: ignore[arg-type]


class TestGet:
    def test_the_override_else_the_default_else_the_fallback(self) -> None:
        """Part 4, get_user_message: override if set, else the catalog default, else fallback."""
        assert guard.get_user_message("GD-T001") == CATALOGUE["GD-T001"].user_message
        assert guard.get_user_message("NO-SUCH-CODE") == FALLBACK_MESSAGE
        guard.set_user_message("NO-SUCH-CODE", "now there is")
        assert guard.get_user_message("NO-SUCH-CODE") == "now there is"

    def test_the_budget_message_is_a_fixed_usage_limit_message(self) -> None:
        """Part 7, rule 5: the default for GD-B004 is a fixed usage-limit message."""
        one = guard.format_user_message(GuardBudgetError(workflow_id="a", reason="b"))
        two = guard.format_user_message(GuardBudgetError())
        assert one == two
        assert "usage limit" in one

    def test_every_exception_has_a_message_of_its_own(self) -> None:
        """Part 2, User message: a string per error_code."""
        for value in vars(exceptions).values():
            code = getattr(value, "error_code", None)
            if isinstance(value, type) and isinstance(code, str) and value is not GuardError:
                assert guard.get_user_message(code) != FALLBACK_MESSAGE, value
