"""Spec part 4: the SDK interface, symbol by symbol, and the curated public surface."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Callable
from inspect import Parameter
from typing import Any

import pytest

import guard

POSITIONAL = Parameter.POSITIONAL_OR_KEYWORD
KEYWORD = Parameter.KEYWORD_ONLY
REQUIRED = Parameter.empty

SIGNATURES: dict[str, list[tuple[str, Any, Any]]] = {
    "init": [
        ("api_key", POSITIONAL, None),
        ("api_url", POSITIONAL, None),
        ("debug", POSITIONAL, False),
    ],
    "init_or_die": [
        ("api_key", POSITIONAL, None),
        ("api_url", POSITIONAL, None),
        ("debug", POSITIONAL, False),
    ],
    "protect": [("function", POSITIONAL, None)],  # so that `@protect()` works as well
    "sensitive": [("function", POSITIONAL, REQUIRED)],
    "guarded": [("function", POSITIONAL, REQUIRED)],
    "handle": [("exit_code", KEYWORD, 1)],
    "workflow": [("name", POSITIONAL, None)],
    "chain": [("name", POSITIONAL, None), ("op", KEYWORD, "auto")],
    "span": [("name", POSITIONAL, None)],
    "agent": [("name", POSITIONAL, None)],
    "set_call_context": [("model", POSITIONAL, None), ("tools", POSITIONAL, None)],
    "on_error": [("hook", POSITIONAL, REQUIRED)],
    "track_llm": [
        ("input_tokens", POSITIONAL, REQUIRED),
        ("output_tokens", POSITIONAL, 0),
        ("model", KEYWORD, None),
        ("latency_ms", KEYWORD, None),
        ("metadata", KEYWORD, None),
    ],
    "track_tool": [
        ("tool_name", POSITIONAL, REQUIRED),
        ("duration_ms", POSITIONAL, None),
        ("is_retry", KEYWORD, False),
        ("metadata", KEYWORD, None),
    ],
    "track_event": [
        ("event_type", POSITIONAL, REQUIRED),
        ("kwargs", Parameter.VAR_KEYWORD, REQUIRED),
    ],
    "format_user_message": [("exc", POSITIONAL, REQUIRED), ("locale", POSITIONAL, "en")],
    "set_user_message": [("code", POSITIONAL, REQUIRED), ("text", POSITIONAL, REQUIRED)],
    "get_user_message": [("code", POSITIONAL, REQUIRED)],
    "shutdown": [("timeout", POSITIONAL, 2.0), ("flush", POSITIONAL, True)],
    "status": [],
}
EXCEPTIONS = (
    "GuardError",
    "GuardAuthError",
    "GuardConfigError",
    "GuardBackendError",
    "GuardBudgetError",
    "GuardToolBlockedError",
    "WorkflowKilledInterrupt",
)
LEGACY = (
    "WorkflowPausedException",
    "WorkflowKilledException",
    "GuardAuthenticationError",
    "GuardBlockedException",
)
REMOVED = (
    "CostLimitExceeded",
    "ApprovalRequired",
    "BreakerTimeout",
    "LoopDetectedException",
    "RetryStormException",
    "RateLimitExceededException",
)


class TestSymbols:
    @pytest.mark.parametrize("name", SIGNATURES)
    def test_signature(self, name: str) -> None:
        """Part 4, SDK interface: the exact signature (names, kinds, defaults)."""
        signature = inspect.signature(getattr(guard, name))
        found = [(p.name, p.kind, p.default) for p in signature.parameters.values()]
        assert found == SIGNATURES[name]

    @pytest.mark.parametrize("name", SIGNATURES)
    def test_is_documented(self, name: str) -> None:
        """Part 4, SDK interface: every symbol says what it does, in one first sentence."""
        doc = inspect.getdoc(getattr(guard, name))
        assert doc
        assert doc.splitlines()[0].endswith(".")

    @pytest.mark.parametrize("name", ["protect", "sensitive", "guarded"])
    def test_decorators_are_used_without_arguments(self, name: str) -> None:
        """Part 4: ``@protect`` and ``@sensitive`` take no arguments; ``@guarded`` decorates."""
        decorate = getattr(guard, name)
        if name == "protect":
            assert decorate() is decorate
        else:
            with pytest.raises(TypeError):
                decorate()

        def function(one: int, *, two: str = "x") -> str:
            """Say something."""
            return two * one

        decorated = decorate(function)
        assert decorated.__name__ == "function"
        assert decorated.__doc__ == "Say something."
        assert inspect.signature(decorated) == inspect.signature(function)


class TestCuratedSurface:
    def test_the_listing_is_the_core_symbols_and_seven_exceptions(self) -> None:
        """Part 4: the core symbols above, ``on_error``, and the seven exception names."""
        assert dir(guard) == sorted([*SIGNATURES, *EXCEPTIONS])

    def test_a_star_import_brings_the_same(self) -> None:
        """Part 4: the curated public surface."""
        namespace: dict[str, object] = {}
        exec("from guard import *", namespace)
        del namespace["__builtins__"]
        assert sorted(namespace) == dir(guard)

    @pytest.mark.parametrize("name", LEGACY)
    def test_legacy_names_stay_importable_and_are_absent_from_the_listing(self, name: str) -> None:
        """Part 4: legacy exception names stay importable by name but are not listed."""
        namespace: dict[str, object] = {}
        exec(f"from guard import {name}", namespace)
        from guard.breaker import exceptions

        assert namespace[name] is getattr(exceptions, name)
        assert name not in dir(guard)

    @pytest.mark.parametrize(
        "name", ["GuardRuntime", "GuardStatus", "ErrorContext", "SDK_MIN_VERSION_FOR_V3"]
    )
    def test_types_are_importable_and_not_listed(self, name: str) -> None:
        """Part 2 and 9: named types and the constant are importable."""
        assert getattr(guard, name) is not None
        assert name not in dir(guard)

    def test_the_listing_stays_the_same_whatever_was_imported(
        self, run_python: Callable[..., Any]
    ) -> None:
        """Part 4: the directory listing, also after submodules were loaded."""
        ran = run_python(
            """
            import guard
            before = dir(guard)
            import guard.runtime.runtime, guard.context, guard.breaker.exceptions, guard.cli
            guard.WorkflowPausedException, guard.GuardRuntime
            assert dir(guard) == before
            assert callable(guard.status) and callable(guard.handle) and callable(guard.protect)
            """
        )
        assert ran.returncode == 0, ran.stderr

    def test_no_module_hides_a_public_function(self) -> None:
        """Part 4: a submodule with a public name would replace it when imported."""
        modules = {info.name for info in pkgutil.iter_modules(guard.__path__)}
        assert not modules & {*SIGNATURES, *EXCEPTIONS, *LEGACY}

    def test_an_unknown_name_is_an_attribute_error(self) -> None:
        """Part 4: the surface is closed."""
        with pytest.raises(AttributeError, match="nothing_here"):
            _ = guard.nothing_here  # type: ignore[attr-defined]


def _modules() -> list[str]:
    """Return every module of the package that can be imported here."""
    walked = pkgutil.walk_packages(guard.__path__, "guard.", onerror=lambda _: None)
    return ["guard", *(info.name for info in walked if not info.name.endswith("__main__"))]


class TestRemoved:
    @pytest.mark.parametrize("name", REMOVED)
    def test_is_unreachable_by_any_import_path(self, name: str) -> None:
        """Part 7, rule 2; part 9: removed in 0.4.0 and unreachable by any import path."""
        for module_name in _modules():
            try:
                module = importlib.import_module(module_name)
            except ImportError:  # an extra that is not installed
                continue
            assert not hasattr(module, name), module_name
        with pytest.raises(ImportError):
            exec(f"from guard import {name}")
        with pytest.raises(ImportError):
            exec(f"from guard.breaker.exceptions import {name}")
        with pytest.raises(ImportError):
            exec(f"from guard.breaker import {name}")
