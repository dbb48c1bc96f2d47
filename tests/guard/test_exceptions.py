"""The exception tree of the spec's part 7, row by row."""

from __future__ import annotations

import contextlib
import copy
import importlib
import inspect
import pickle
import pkgutil
import subprocess
import sys
import warnings
from typing import Any

import httpx
import pytest

import guard
import guard.breaker
from guard.breaker import exceptions as tree
from guard.core.catalogue import CATALOGUE

# class: (direct base, code, retryable). Codes that the spec leaves out are filled as decided.
TABLE: dict[str, tuple[str, str, bool]] = {
    "GuardError": ("BreakerError", "GD-X000", False),
    "GuardConfigError": ("GuardError", "GD-C000", False),
    "GuardAuthenticationError": ("GuardError", "GD-A001", False),
    "GuardAuthError": ("GuardAuthenticationError", "GD-A003", False),
    "GuardTransportError": ("GuardError", "GD-B001", True),
    "GuardBackendError": ("GuardTransportError", "GD-B002", True),
    "RateLimitError": ("GuardTransportError", "GD-R001", True),
    "GuardInfrastructureError": ("GuardError", "GD-I001", True),
    "GuardRateLimitRedisError": ("GuardInfrastructureError", "GD-R002", True),
    "GuardProtocolError": ("GuardError", "GD-P001", False),
    "GuardBlockedException": ("GuardError", "GD-X001", False),
    "GuardBudgetError": ("GuardBlockedException", "GD-B004", False),
    "GuardToolBlockedError": ("GuardBlockedException", "GD-T001", False),
    "GuardDecision": ("GuardError", "GD-X002", False),
    "GuardChainError": ("GuardDecision", "GD-CH001", False),
    "GuardConsumeOverbudgetError": ("GuardDecision", "GD-O001", False),
    "GuardWorkflowInactiveError": ("GuardDecision", "GD-W004", False),
    "WorkflowPausedException": ("GuardError", "GD-W003", True),
    "WorkflowKilledException": ("GuardError", "GD-W002", False),
    "BreakerTransportError": ("BreakerError", "GD-B003", True),
    "InsecureTransportError": ("BreakerTransportError", "GD-C005", False),
}
REMOVED = [
    "CostLimitExceeded", "ApprovalRequired", "BreakerTimeout", "LoopDetectedException",
    "RetryStormException", "RateLimitExceededException",
]  # fmt: skip
LEGACY = [
    "WorkflowPausedException", "WorkflowKilledException", "GuardAuthenticationError",
    "GuardBlockedException",
]  # fmt: skip


def make(name: str, *args: Any, **fields: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return getattr(tree, name)(*args, **fields)


@pytest.mark.parametrize(
    ("name", "base", "code", "retryable"), [(name, *row) for name, row in TABLE.items()]
)
def test_each_class(name: str, base: str, code: str, retryable: bool) -> None:
    kind = getattr(tree, name)
    assert issubclass(kind, getattr(tree, base))
    exc = make(name)
    assert exc.error_code == code
    assert exc.retryable is retryable
    assert isinstance(exc.user_action, str)
    assert exc.user_action.endswith(".")
    assert exc.docs_url.endswith(f"/{code}")
    assert str(exc)


def test_the_tree_holds_these_classes_and_no_others() -> None:
    public = {
        name
        for name, value in vars(tree).items()
        if inspect.isclass(value) and issubclass(value, BaseException) and not name.startswith("_")
        and value.__module__ == tree.__name__
    }  # fmt: skip
    assert public == {*TABLE, "BreakerError", "WorkflowKilledInterrupt"}


@pytest.mark.parametrize("name", ["BreakerTransportError", "InsecureTransportError"])
def test_undelivered_events_are_no_guard_error(name: str) -> None:
    """Part 7: BreakerTransportError is a subclass of BreakerError, not of GuardError."""
    assert not issubclass(getattr(tree, name), tree.GuardError)


def test_the_interrupt_is_a_base_exception() -> None:
    kind = tree.WorkflowKilledInterrupt
    assert issubclass(kind, BaseException)
    assert not issubclass(kind, Exception)
    assert not issubclass(kind, tree.BreakerError)
    with pytest.raises(kind), contextlib.suppress(Exception):
        raise kind(workflow_id="w", reason="r")
    exc = kind(workflow_id="w", reason="r")
    assert (exc.workflow_id, exc.reason, exc.error_code) == ("w", "r", "GD-W002")
    assert exc.docs_url.endswith("/GD-W002")


def test_every_code_has_a_catalogue_entry() -> None:
    used = {row[1] for row in TABLE.values()} | {
        "GD-W002",
        "GD-C001",
        "GD-C002",
        "GD-C003",
        "GD-B005",
    }
    assert used <= CATALOGUE.keys()


@pytest.mark.parametrize("code", CATALOGUE)
def test_a_catalogue_message_is_for_people(code: str) -> None:
    """A person can act on it, and it contains no identifiers."""
    entry = CATALOGUE[code]
    assert entry.user_message.endswith(".")
    assert code not in entry.user_message
    assert "GD-" not in entry.user_message
    assert "{" not in entry.user_message
    assert "Exception" not in entry.user_message
    assert len(entry.user_message) <= 160
    assert entry.title
    assert entry.explanation.endswith(".")


def test_a_missing_key_has_its_own_code_and_hint() -> None:
    exc = tree.GuardAuthenticationError("no key", error_code="GD-C001")
    assert exc.error_code == "GD-C001"
    assert "GUARD_API_KEY" in exc.user_action
    assert exc.message == "no key"


def test_a_rejected_key_has_the_status() -> None:
    exc = tree.GuardAuthError("rejected")
    assert (exc.status_code, exc.error_code, exc.message) == (401, "GD-A003", "rejected")
    assert isinstance(exc, tree.GuardAuthenticationError)


def test_a_config_error_is_never_retryable() -> None:
    assert tree.GuardConfigError("x", error_code="GD-C003").retryable is False
    with pytest.raises(TypeError):
        tree.GuardConfigError("x", retryable=True)  # type: ignore[call-arg]  # must not exist


@pytest.mark.parametrize("source", ["NETWORK_ERROR", "GATEWAY_ERROR", "BREAKER_OPEN", "AUTH_ERROR"])
def test_a_transport_error_names_its_source_and_endpoint(source: Any) -> None:
    exc = tree.GuardTransportError("x", source=source, endpoint="/gate")
    assert (exc.source, exc.endpoint) == (source, "/gate")
    assert exc.error_code == ("GD-B005" if source == "BREAKER_OPEN" else "GD-B001")


def test_a_backend_error_is_the_gateways() -> None:
    exc = tree.GuardBackendError("x", endpoint="/gate", status_code=503)
    assert (exc.source, exc.status_code, exc.retryable) == ("GATEWAY_ERROR", 503, True)


def test_a_rate_limit_has_its_attributes() -> None:
    exc = tree.RateLimitError(
        "x", retry_after=2.5, upgrade_url="u", body={"a": 1}, endpoint="/gate"
    )
    assert (exc.retry_after, exc.upgrade_url, exc.body) == (2.5, "u", {"a": 1})
    empty = tree.RateLimitError()
    assert (empty.retry_after, empty.upgrade_url, empty.body) == (None, None, {})


BLOCKS = ["GuardBlockedException", "GuardBudgetError", "GuardToolBlockedError"]


@pytest.mark.parametrize("name", BLOCKS)
def test_a_block_has_its_attributes_and_no_message(name: str) -> None:
    exc = make(
        name, workflow_id="w", reason="r", action="block", tool_name="t", details={"a": 1},
        status_code=403,
    )  # fmt: skip
    assert (exc.workflow_id, exc.reason, exc.action) == ("w", "r", "block")
    assert (exc.tool_name, exc.details, exc.status_code) == ("t", {"a": 1}, 403)
    assert not hasattr(exc, "message")
    assert not hasattr(make(name), "message")
    assert make(name).details == {}


def test_the_details_of_two_blocks_are_not_shared() -> None:
    given = {"a": 1}
    first = tree.GuardBlockedException(details=given)
    given["a"] = 2
    assert first.details == {"a": 1}


def test_a_protocol_error_names_the_version() -> None:
    assert tree.GuardProtocolError(min_required_version="1.2").min_required_version == "1.2"


def test_a_pause_has_its_attributes() -> None:
    exc = tree.WorkflowPausedException(workflow_id="w", reason="r", resume_after=12.5)
    assert (exc.workflow_id, exc.reason, exc.resume_after) == ("w", "r", 12.5)


def test_undelivered_events_are_counted() -> None:
    exc = tree.BreakerTransportError(events_lost=3, buffer_size=7)
    assert (exc.events_lost, exc.buffer_size) == (3, 7)
    assert "3" in str(exc)


def test_the_deprecated_class_warns_where_it_is_constructed() -> None:
    with pytest.warns(DeprecationWarning, match="WorkflowKilledInterrupt") as caught:
        exc = tree.WorkflowKilledException(workflow_id="w", reason="r")
    assert caught[0].filename == __file__
    assert (exc.workflow_id, exc.reason) == ("w", "r")


def test_naming_the_deprecated_class_does_not_warn() -> None:
    """Old code has it in its except clauses; only constructing it is deprecated."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert guard.WorkflowKilledException is tree.WorkflowKilledException


EXAMPLES: list[Any] = [
    make("BreakerError", "text"),
    make("GuardError", "text", error_code="GD-Z1", user_action="Act.", retryable=True),
    make("GuardConfigError", "text", error_code="GD-C003"),
    make("GuardAuthenticationError", "text", error_code="GD-C001"),
    make("GuardAuthError", "text", status_code=403),
    make("GuardTransportError", "text", source="BREAKER_OPEN", endpoint="/gate"),
    make("GuardBackendError", "text", endpoint="/gate", status_code=502),
    make("RateLimitError", "text", retry_after=1.5, upgrade_url="u", body={"a": 1}),
    make("GuardInfrastructureError", "text"),
    make("GuardRateLimitRedisError", "text"),
    make("GuardProtocolError", "text", min_required_version="1.0"),
    make("GuardBlockedException", workflow_id="w", reason="r", details={"a": [1]}),
    make("GuardBudgetError", reason="r", status_code=402),
    make("GuardToolBlockedError", tool_name="t"),
    make("GuardDecision", "text", details={"a": 1}),
    make("GuardChainError", workflow_id="w", reason="r"),
    make("GuardConsumeOverbudgetError", "text", status_code=422),
    make("GuardWorkflowInactiveError", "text", reason="r"),
    make("WorkflowPausedException", workflow_id="w", resume_after=5.0),
    make("WorkflowKilledException", workflow_id="w"),
    make("WorkflowKilledInterrupt", workflow_id="w", reason="r"),
    make("BreakerTransportError", events_lost=3, buffer_size=4),
    make("InsecureTransportError", "text"),
]
assert {type(example).__name__ for example in EXAMPLES} >= TABLE.keys()
WAYS = {
    "pickle": lambda exc: pickle.loads(pickle.dumps(exc)),
    "oldest pickle": lambda exc: pickle.loads(pickle.dumps(exc, 0)),
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
}


def shown(exc: Any) -> dict[str, Any]:
    names = (
        "error_code", "user_action", "retryable", "docs_url", "message", "status_code", "source",
        "endpoint", "retry_after", "upgrade_url", "body", "min_required_version", "workflow_id",
        "reason", "action", "tool_name", "details", "resume_after", "events_lost", "buffer_size",
        "args", "__notes__",
    )  # fmt: skip
    return {name: getattr(exc, name) for name in names if hasattr(exc, name)} | {"str": str(exc)}


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("example", EXAMPLES, ids=lambda exc: type(exc).__name__)
def test_exceptions_travel_whole(example: Any, way: str) -> None:
    """They cross process pools and task queues: attributes, notes and cause go with them."""
    original = WAYS[way](example)
    original.add_note("seen in worker 7")
    original.__cause__ = ConnectionResetError(104, "reset")
    there = WAYS[way](original)
    assert type(there) is type(example)
    assert shown(there) == shown(original)
    assert shown(there) | {"__notes__": 0} == shown(example) | {"__notes__": 0}
    assert repr(there) == repr(example)
    assert repr(there.__cause__) == repr(original.__cause__)


@pytest.mark.parametrize("way", ["pickle", "deepcopy"])
@pytest.mark.parametrize("kind", ["GuardTransportError", "WorkflowKilledInterrupt"])
def test_a_cause_that_cannot_travel_is_left_behind(kind: str, way: str) -> None:
    class Local(Exception):
        pass

    request = httpx.Request("GET", "http://127.0.0.1/")
    causes = [
        Local(),
        httpx.HTTPStatusError("no", request=request, response=httpx.Response(500)),
    ]
    for cause in causes:
        exc = make(kind, "text")
        exc.__cause__ = cause
        there = pickle.loads(pickle.dumps(exc)) if way == "pickle" else copy.deepcopy(exc)
        assert there.args == exc.args
        assert there.__cause__ is None


def test_a_copy_without_a_cause_does_not_hide_a_later_context() -> None:
    there = pickle.loads(pickle.dumps(tree.GuardError("x")))

    def fail() -> None:
        try:
            raise ValueError("context")
        except ValueError:
            raise there  # noqa: B904  # the context is what is looked at

    with pytest.raises(tree.GuardError) as caught:
        fail()
    assert isinstance(caught.value.__context__, ValueError)
    assert not caught.value.__suppress_context__


def test_a_users_subclass_travels_too() -> None:
    there = pickle.loads(pickle.dumps(UsersOwn("a", 2)))
    assert (there.left, there.right, str(there)) == ("a", 2, "[GD-B001] mine")


class UsersOwn(tree.GuardTransportError):
    def __init__(self, left: str, right: int) -> None:
        super().__init__("mine")
        self.left, self.right = left, right


def test_the_breaker_package_does_not_re_export_the_blocked_exception() -> None:
    """Part 7, rule 1."""
    assert not hasattr(guard.breaker, "GuardBlockedException")
    with pytest.raises(ImportError):
        exec("from guard.breaker import GuardBlockedException")


@pytest.mark.parametrize("name", LEGACY)
def test_legacy_names_are_importable_and_not_listed(name: str) -> None:
    assert getattr(guard, name) is getattr(tree, name)
    assert name not in dir(guard)
    assert name not in guard.__all__


@pytest.mark.parametrize("name", REMOVED)
def test_removed_names_are_unreachable_by_any_path(name: str) -> None:
    """Part 7, rule 2: neither as an attribute nor as a module, anywhere in the SDK."""
    with pytest.raises(AttributeError):
        getattr(guard, name)
    modules = [
        info.name
        for info in pkgutil.walk_packages(guard.__path__, "guard.")
        if not info.name.startswith(("guard.gateway", "guard.demo", "guard.integrations"))
        and not info.name.endswith("__main__")
    ]
    assert "guard.breaker.exceptions" in modules
    for module in modules:
        assert name.lower() not in module
        try:
            found = importlib.import_module(module)
        except ImportError:  # an adapter whose framework is not installed
            continue
        assert not hasattr(found, name), module


def test_an_error_that_nobody_catches_shows_its_code_and_no_secret() -> None:
    script = (
        "from guard.breaker.exceptions import GuardBudgetError\n"
        "raise GuardBudgetError(reason='used up', details={'key': 'canary'})"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 1
    assert "GuardBudgetError: [GD-B004] used up" in done.stderr
    assert "canary" not in done.stderr.splitlines()[-1]
