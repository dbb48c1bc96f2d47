"""Spec part 7: the exception tree, its codes and attributes, and the rules."""

from __future__ import annotations

import copy
import inspect
import pickle
import warnings
from typing import Any

import pytest

import guard
import guard.breaker
from guard.breaker import exceptions as tree
from guard.breaker.exceptions import (
    BreakerError,
    GuardBlockedException,
    GuardError,
    GuardRateLimitRedisError,
    GuardTransportError,
    RateLimitError,
    WorkflowKilledException,
    WorkflowKilledInterrupt,
    WorkflowPausedException,
)
from guard.core.catalogue import CATALOGUE

# class: (base, code, retryable, attributes)
TABLE: dict[str, tuple[str, str | None, bool | None, tuple[str, ...]]] = {
    "GuardError": ("BreakerError", None, None, ()),
    "GuardConfigError": ("GuardError", "GD-C000", False, ()),
    "GuardAuthenticationError": ("GuardError", "GD-A001", False, ("message",)),
    "GuardAuthError": ("GuardAuthenticationError", "GD-A003", False, ("message", "status_code")),
    "GuardTransportError": ("GuardError", "GD-B001", True, ("source", "endpoint")),
    "GuardBackendError": ("GuardTransportError", "GD-B002", True, ("source", "endpoint")),
    "RateLimitError": (
        "GuardTransportError",
        "GD-R001",
        True,
        ("retry_after", "upgrade_url", "body"),
    ),
    "GuardInfrastructureError": ("GuardError", None, None, ()),
    "GuardRateLimitRedisError": ("GuardInfrastructureError", "GD-R002", None, ()),
    "GuardProtocolError": ("GuardError", "GD-P001", False, ("min_required_version",)),
    "GuardBlockedException": (
        "GuardError",
        "GD-X001",
        False,
        ("workflow_id", "reason", "action", "tool_name", "details", "status_code"),
    ),
    "GuardBudgetError": ("GuardBlockedException", "GD-B004", False, ("details", "status_code")),
    "GuardToolBlockedError": ("GuardBlockedException", "GD-T001", False, ("tool_name",)),
    "GuardDecision": ("GuardError", None, None, ()),
    "GuardChainError": ("GuardDecision", "GD-CH001", None, ()),
    "GuardConsumeOverbudgetError": ("GuardDecision", "GD-O001", None, ()),
    "GuardWorkflowInactiveError": ("GuardDecision", "GD-W004", None, ()),
    "BreakerTransportError": ("BreakerError", None, None, ("events_lost", "buffer_size")),
    "InsecureTransportError": ("BreakerTransportError", None, None, ()),
    "WorkflowPausedException": (
        "GuardError",
        "GD-W003",
        None,
        ("workflow_id", "reason", "resume_after"),
    ),
    "WorkflowKilledException": ("GuardError", "GD-W002", None, ()),
    "WorkflowKilledInterrupt": ("BaseException", "GD-W002", None, ("workflow_id", "reason")),
}
CANARY = "gdk_canary_key_0123456789"


def _make(name: str) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return getattr(tree, name)()


@pytest.mark.parametrize("name", TABLE)
class TestRow:
    def test_base(self, name: str) -> None:
        """Part 7, table: what each class is a subclass of."""
        base = TABLE[name][0]
        cls = getattr(tree, name)
        expected = getattr(tree, base, BaseException)
        assert expected in cls.__mro__
        named = [c.__name__ for c in cls.__mro__[1:] if not c.__name__.startswith("_")]
        assert named[0] == base

    def test_code(self, name: str) -> None:
        """Part 7, table: its code."""
        code = TABLE[name][1]
        error = _make(name)
        assert error.error_code in CATALOGUE
        if code is not None:
            assert error.error_code == code

    def test_retryable(self, name: str) -> None:
        """Part 7, table: whether it is retryable."""
        retryable = TABLE[name][2]
        assert isinstance(_make(name).retryable, bool)
        if retryable is not None:
            assert _make(name).retryable is retryable

    def test_attributes(self, name: str) -> None:
        """Part 7, table: its attributes, there on every instance."""
        error = _make(name)
        for attribute in TABLE[name][3]:
            assert hasattr(error, attribute), attribute

    def test_carries_the_four_attributes(self, name: str) -> None:
        """Part 7: error_code (string), user_action (imperative hint), retryable, docs_url."""
        error = _make(name)
        assert isinstance(error.error_code, str)
        assert isinstance(error.user_action, str)
        assert error.user_action[0].isupper()
        assert error.user_action.endswith(".")
        assert isinstance(error.retryable, bool)
        assert error.docs_url.endswith(error.error_code)

    def test_pickles_and_copies_with_everything(self, name: str) -> None:
        """Part 7: exceptions cross processes whole."""
        error = _make(name)
        error.extra = [1]
        error.__cause__ = LookupError("why")
        for clone in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
            assert type(clone) is type(error)
            assert clone.args == error.args
            assert clone.extra == [1]
            assert repr(clone.__cause__) == repr(error.__cause__)
            assert clone.error_code == error.error_code
            assert str(clone) == str(error)

    def test_is_where_rule_1_says(self, name: str) -> None:
        """Part 7, rule 1: exceptions live in breaker.exceptions of the package."""
        cls = getattr(tree, name)
        assert cls.__module__ == "guard.breaker.exceptions"
        assert cls.__doc__


class TestTree:
    def test_nothing_is_missing_and_nothing_else_is_public(self) -> None:
        """Part 7: the table, and the two bases that it names."""
        classes = {
            name
            for name, value in vars(tree).items()
            if inspect.isclass(value)
            and issubclass(value, BaseException)
            and not name.startswith("_")
        }
        assert classes == {*TABLE, "BreakerError"}

    def test_every_public_exception_inherits_from_guard_error(self) -> None:
        """Part 7: inherits from GuardError; the table names the three that do not."""
        outside = {name for name in TABLE if not issubclass(getattr(tree, name), GuardError)}
        assert outside == {
            "BreakerTransportError",
            "InsecureTransportError",
            "WorkflowKilledInterrupt",
        }

    def test_guard_error_is_an_exception_below_breaker_error(self) -> None:
        """Part 7: GuardError inherits BreakerError."""
        assert issubclass(GuardError, BreakerError)
        assert issubclass(BreakerError, Exception)

    def test_config_codes_are_one_family_and_never_retryable(self) -> None:
        """Part 7: GD-C000 family, never retryable."""
        for code in ("GD-C001", "GD-C002", "GD-C003", "GD-C004"):
            error = tree.GuardConfigError("text", error_code=code)
            assert (error.error_code, error.retryable) == (code, False)
        with pytest.raises(TypeError):
            tree.GuardConfigError("text", retryable=True)  # type: ignore[call-arg]

    def test_the_authentication_error_has_a_message(self) -> None:
        """Part 7: has message attribute."""
        error = tree.GuardAuthenticationError("no key", error_code="GD-C001")
        assert error.message == "no key"
        assert error.error_code == "GD-C001"
        assert tree.GuardAuthError("rejected", status_code=401).status_code == 401

    @pytest.mark.parametrize(
        "name", ["GuardBlockedException", "GuardBudgetError", "GuardToolBlockedError"]
    )
    def test_the_blocked_exception_has_no_message(self, name: str) -> None:
        """Part 7: no message attribute."""
        assert not hasattr(getattr(tree, name)(), "message")
        assert not hasattr(getattr(tree, name), "message")

    @pytest.mark.parametrize(
        "source", ["NETWORK_ERROR", "GATEWAY_ERROR", "BREAKER_OPEN", "AUTH_ERROR"]
    )
    def test_transport_sources(self, source: Any) -> None:
        """Part 7: source, and endpoint; the code of an open breaker (semantics: GD-B005)."""
        error = GuardTransportError("x", source=source, endpoint="/gate")
        assert (error.source, error.endpoint) == (source, "/gate")
        assert error.error_code == ("GD-B005" if source == "BREAKER_OPEN" else "GD-B001")

    def test_the_rate_limit_store_error_fails_closed(self) -> None:
        """Part 7: subclass of GuardInfrastructureError, not of a transport error."""
        assert not issubclass(GuardRateLimitRedisError, GuardTransportError)

    def test_the_killed_exception_warns_on_construction(self) -> None:
        """Part 7: deprecated; emits DeprecationWarning on construction."""
        with pytest.warns(DeprecationWarning, match="WorkflowKilledInterrupt") as caught:
            WorkflowKilledException(workflow_id="w")
        assert caught[0].filename == __file__

    def test_importing_it_does_not_warn(self) -> None:
        """Part 7: on construction, so not before."""
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert guard.WorkflowKilledException is WorkflowKilledException

    def test_the_interrupt_is_not_an_exception(self) -> None:
        """Part 7: subclass of BaseException, not Exception; catch before a generic handler."""
        assert not issubclass(WorkflowKilledInterrupt, Exception)
        caught = ""
        try:
            try:
                raise WorkflowKilledInterrupt(workflow_id="w")
            except Exception:
                caught = "generic"
        except WorkflowKilledInterrupt:
            caught = "interrupt"
        assert caught == "interrupt"

    def test_the_paused_exception(self) -> None:
        """Part 7: has workflow_id, reason, resume_after."""
        error = WorkflowPausedException(workflow_id="w", reason="lunch", resume_after=17.5)
        assert (error.workflow_id, error.reason, error.resume_after) == ("w", "lunch", 17.5)

    def test_the_blocked_exception_carries_what_it_was_given(self) -> None:
        """Part 7: workflow_id, reason, action, tool_name, details, status_code."""
        error = GuardBlockedException(
            workflow_id="w",
            reason="r",
            action="block",
            tool_name="t",
            details={"a": 1},
            status_code=403,
        )
        assert (error.workflow_id, error.reason, error.action) == ("w", "r", "block")
        assert (error.tool_name, dict(error.details), error.status_code) == ("t", {"a": 1}, 403)

    def test_the_rate_limit_error_carries_what_it_was_given(self) -> None:
        """Part 7: retry_after, upgrade_url, body."""
        error = RateLimitError("x", retry_after=2.5, upgrade_url="https://u", body={"a": 1})
        assert (error.retry_after, error.upgrade_url, dict(error.body)) == (
            2.5,
            "https://u",
            {"a": 1},
        )


class TestRules:
    def test_the_breaker_package_does_not_re_export_the_blocked_exception(self) -> None:
        """Part 7, rule 1: the top-level breaker package does not re-export it."""
        assert not hasattr(guard.breaker, "GuardBlockedException")
        with pytest.raises(ImportError):
            exec("from guard.breaker import GuardBlockedException")

    def test_str_holds_the_code(self) -> None:
        """Part 7, rule 4: str(exc) contains internal identifiers."""
        assert str(tree.GuardBudgetError(reason="workflow wf-1")) == "[GD-B004] workflow wf-1"

    def test_str_and_repr_of_an_error_never_show_the_key(self, tenant: Any) -> None:
        """Part 7 (security): neither holds a key."""
        with pytest.raises(GuardError) as refused:
            guard.init(CANARY, tenant.url)
        error: BaseException | None = refused.value
        while error is not None:
            assert CANARY not in f"{error} {error!r} {error.__dict__}"
            error = error.__cause__ or error.__context__
