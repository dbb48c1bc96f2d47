"""The module-level functions over the process's one runtime (spec part 4)."""

from __future__ import annotations

import logging
import numbers
import os
import threading
import time
from collections.abc import Mapping
from typing import Any, Final, NoReturn, cast

import msgspec

from guard.breaker.exceptions import (
    BreakerTransportError,
    GuardAuthenticationError,
    GuardConfigError,
    GuardError,
)
from guard.control.bodies import require_task
from guard.control.observations import OBSERVED_EVENT
from guard.core.buffer import Record
from guard.core.tool_definitions import names_in_definition
from guard.core.wire import TOKENS_MAX, ToolData, require_name
from guard.hooks import ErrorContext, fire
from guard.loop.threads import in_thread
from guard.messages import format_user_message, print_message
from guard.runtime import active as _active
from guard.runtime.account import KeyAccount
from guard.runtime.runtime import GuardRuntime, active_runtime, known_runtime
from guard.scope.scope import Scope, account_in, current_scope
from guard.state import GuardStatus

logger = logging.getLogger("guard")

_RESERVED_TYPES: Final = frozenset(
    {"llm", "tool", "span", "chain", "sdk.loss", "sdk.unseen", OBSERVED_EVENT}
)
_PAYLOAD_BYTES_MAX: Final = 60_000

# Held while a runtime is made or opened, so that all threads get the same one. Re-entrant: a hook
# or a signal handler may call `init` again.
_init_lock = threading.RLock()
# Bound once for `track_llm`, where each attribute look-up counts.
_scope = current_scope.get
_time_ns = time.time_ns
_model: str | None = None
"""The model name that was checked last. No lock: whichever thread sets it has checked the name."""


def init(
    api_key: str | None = None, api_url: str | None = None, debug: bool = False
) -> GuardRuntime:
    """Initialise the process's runtime and return it.

    Idempotent: with the same settings it returns the running one. It probes the gateway for at most
    ``GUARD_TIMEOUT_MS``; a gateway that cannot be reached is not an error (``status().state`` is
    ``offline`` until it recovers). Inside a running event loop, ``await GuardRuntime.start()`` does
    the same without blocking the loop.

    Args:
        api_key: key of the gateway; ``GUARD_API_KEY`` when None.
        api_url: address of the gateway, or ``"local"`` for a gateway of this user, which is
            started unless it runs, and which needs no key; ``GUARD_API_URL``, else
            ``http://127.0.0.1:8787``, when None.
        debug: log to standard error at debug level: each decision, and its reason. Also switches
            it on in a runtime that is running.

    Raises:
        GuardAuthenticationError: no key anywhere (GD-C001), or the gateway refuses it (GD-A003).
        GuardConfigError: a bad setting (GD-C003), initialised with other settings (GD-C004), or
            the local gateway cannot be started (GD-C000).
        GuardProtocolError: the gateway needs another SDK version.
        InsecureTransportError: plain HTTP to anything but a loopback address.

    Example:
        >>> import guard
        >>> runtime = guard.init()  # doctest: +SKIP
    """
    with _init_lock:
        try:
            runtime = known_runtime()
            if runtime is not None and not runtime.is_shut_down:
                runtime.require_same(api_key=api_key, api_url=api_url)
                if debug:
                    runtime.start_debugging()
            else:
                runtime = GuardRuntime(api_key, api_url, debug or None)
            return runtime.open()
        except GuardError as exc:
            fire(exc, ErrorContext("init"))
            raise


def init_or_die(
    api_key: str | None = None, api_url: str | None = None, debug: bool = False
) -> GuardRuntime:
    """Like :func:`init`, but a missing key prints its user message and exits with code 1.

    Raises:
        SystemExit: no key anywhere (GD-C001). Everything else is raised as by ``init``.
    """
    try:
        return init(api_key, api_url, debug)
    except GuardAuthenticationError as exc:
        if exc.error_code != "GD-C001":
            raise
        _die(exc)


def _die(exc: GuardError) -> NoReturn:
    print_message(format_user_message(exc))
    raise SystemExit(1) from None


def ready_runtime() -> GuardRuntime:
    """Return the runtime for a protected call; make it from the environment if there is none."""
    runtime = active_runtime()
    if runtime is None:
        return init()
    return runtime if runtime.is_open else runtime.open()


async def ready_runtime_async() -> GuardRuntime:
    """Like :func:`ready_runtime`, without blocking the caller's loop.

    Raises:
        GuardConfigError: the caller runs in no asyncio task (GD-C003).
    """
    runtime = active_runtime()
    if runtime is not None and runtime.is_open:
        return runtime
    require_task()
    runtime = await in_thread(ready_runtime)
    # Opened again in this thread: only the main thread can install the handler of SIGTERM.
    return runtime if runtime.is_shut_down else runtime.open()


def enforcing_runtime() -> GuardRuntime | None:
    """Return the runtime of a context; make it from the environment if there is none.

    Raises:
        GuardAuthenticationError: no runtime, and no key in the environment (GD-C001).
    """
    return None if _active.is_off() else ready_runtime()


async def enforcing_runtime_async() -> GuardRuntime | None:
    """Like :func:`enforcing_runtime`, without blocking the caller's loop."""
    return None if _active.is_off() else await ready_runtime_async()


def _recording_runtime() -> GuardRuntime:
    """Return the runtime for an event, without waiting: it connects in the background."""
    runtime = active_runtime()
    if runtime is None:
        # Checked again under the lock: another thread may have made one.
        with _init_lock:
            runtime = active_runtime() or GuardRuntime()
    return runtime


def _recording_account() -> KeyAccount:
    """Like :func:`_recording_runtime`, for the current scope's caller."""
    return account_in(current_scope.get(), _recording_runtime())


def shutdown(timeout: float = 2.0, flush: bool = True) -> None:
    """Close the control socket cleanly, deliver what is buffered, stop the background thread.

    Idempotent, safe to register with ``atexit`` (``init`` does it already), where a loss is logged
    and not raised; without a runtime it does nothing.

    Args:
        timeout: seconds for all of it; they begin anew with each batch that the gateway accepts.
        flush: whether to deliver what is buffered.

    Raises:
        BreakerTransportError: events could not be delivered in time.
    """
    runtime = known_runtime()
    if runtime is None:
        return
    try:
        runtime.shutdown(timeout, flush)
    except BreakerTransportError as exc:
        if threading.main_thread().is_alive():
            raise
        logger.warning("at exit: %s", exc)  # there is no caller to raise to


def status() -> GuardStatus:
    """Return a snapshot of the runtime; thread-safe and without side effects.

    Raises:
        GuardConfigError: the runtime is not initialised (GD-C002).
    """
    runtime = known_runtime()
    if runtime is None:
        error = GuardConfigError(
            "guard is not initialised; call guard.init() first", error_code="GD-C002"
        )
        fire(error, ErrorContext("status"))
        raise error
    return runtime.status()


def instrument() -> None:
    """Observe the LLM calls of this process; ``init`` does it unless ``GUARD_AUTO_INSTRUMENT=0``.

    Idempotent; :func:`uninstrument` undoes it. It also observes clients that exist already.

    Raises:
        GuardAuthenticationError: no runtime, and no key in the environment (GD-C001).
    """
    if not _active.is_off():
        _recording_runtime().instrumentation.install()


def uninstrument() -> None:
    """Stop observing LLM calls and restore the HTTP clients' methods. Idempotent."""
    runtime = active_runtime()
    if runtime is not None:
        runtime.instrumentation.uninstall()


def track_llm(
    input_tokens: int,
    output_tokens: int = 0,
    *,
    model: str | None = None,
    latency_ms: float | None = None,
    metadata: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Report an LLM call that auto-instrumentation cannot see; report once per real call.

    Buffered: delivered with the next ``@protect`` call of the workflow or after the flush
    interval. Never raises on transport trouble.

    Args:
        input_tokens, output_tokens: as the vendor counted them.
        model: the model's name.
        latency_ms: duration in milliseconds.
        metadata: free-form JSON data; it leaves the process.

    Returns:
        The newest decision known for the workflow: ``{decision, workflow_id, budget, warnings,
        event_id, buffered}``, with decision ``allow``, ``kill``, ``pause`` or ``block``. After
        ``shutdown`` the next call is refused and nothing is buffered: ``block`` and False.

    Raises:
        ValueError: a number is negative or too large, or metadata is.
        TypeError: an argument has a wrong type.
        GuardAuthenticationError: no runtime, and no key in the environment (GD-C001).

    Example:
        >>> track_llm(812, 64, model="my-model")["buffered"]  # doctest: +SKIP
        True
    """
    global _model
    # A hot path: valid arguments pass without a call, and nothing takes a lock, encodes JSON or
    # waits; the loop turns the record into an event later.
    if (
        type(input_tokens) is not int
        or type(output_tokens) is not int
        or not 0 <= input_tokens | output_tokens < TOKENS_MAX
    ):
        input_tokens = _tokens("input_tokens", input_tokens)
        output_tokens = _tokens("output_tokens", output_tokens)
    if model is not _model:  # the same name as last time, mostly
        _model = None if model is None else name_of("model", model)
    if latency_ms is not None:
        latency_ms = _milliseconds("latency_ms", latency_ms)
    encoded = _payload("metadata", metadata) if metadata else None
    runtime = _active.current
    if runtime is None:
        if _active.is_off():
            return _nothing_decided()
        runtime = _recording_runtime()
    scope = _scope()
    fields = scope._event_fields or scope.event_fields
    at_ns = _time_ns()
    account: KeyAccount = runtime if scope.caller is None else account_in(scope, runtime)
    events = account.events
    ids = events.ids
    serial = next(ids.count)
    lane = events.buffer.llm
    lane.append(
        Record(
            "llm", at_ns, serial, fields, model, input_tokens, output_tokens, latency_ms, encoded
        )
    )
    # After the event is in the buffer: the gate request that clears this mark then takes the event
    # along. The other way round, the mark could be cleared by a request without the event.
    metered = account.leases.metered
    if scope.workflow_id not in metered:
        metered.add(scope.workflow_id)
    if scope.call is not None:
        scope.call.metered = True
    if len(lane) >= lane.high_watermark:
        events.buffer.on_high_watermark()
    event_id = ids.uuid7(at_ns // 1_000_000, serial)
    cached_scope, cached = account.decisions.cached
    decision = cached.copy() if cached_scope is scope else _newest_decision(account, scope)
    decision["event_id"] = event_id
    return decision


def _nothing_decided() -> dict[str, Any]:
    """Return the decision while guard is switched off."""
    return {
        "decision": "allow",
        "workflow_id": _scope().workflow_id,
        "budget": None,
        "warnings": (),
        "event_id": "",
        "buffered": False,
    }


def _newest_decision(account: KeyAccount, scope: Scope) -> dict[str, Any]:
    enforcement = account.enforcement
    control = enforcement.control
    decision = account.decisions.newest(scope, control)
    if enforcement.control is not control:  # it changed meanwhile: do not reuse this decision
        account.decisions.changed()
    return decision


def track_tool(
    tool_name: str,
    duration_ms: float | None = None,
    *,
    is_retry: bool = False,
    metadata: Mapping[str, Any] | None = None,
) -> None:
    """Report a tool call that auto-instrumentation cannot see.

    Args:
        tool_name: what tool policies match.
        duration_ms: duration in milliseconds.
        is_retry: whether the call repeats an earlier one.
        metadata: free-form JSON data; it leaves the process.

    Raises:
        ValueError, TypeError: an argument is not what it should be.
    """
    data = ToolData(
        tool_name=name_of("tool_name", tool_name),
        duration_ms=_milliseconds("duration_ms", duration_ms),
        is_retry=bool(is_retry),
        metadata=_payload("metadata", metadata),
    )
    if not _active.is_off():
        _recording_account().events.record("tool", data)


def track_event(event_type: str, **kwargs: Any) -> None:
    """Report an event of your own; the keyword arguments are its payload.

    Raises:
        ValueError: the type is empty, too long or one of the SDK's own, or the payload is too
            large.
        TypeError: the type is not a string.

    Example:
        >>> track_event("ticket.closed", minutes=12)  # doctest: +SKIP
    """
    if name_of("event_type", event_type) in _RESERVED_TYPES:
        raise ValueError(f"event type {event_type!r} is one of the SDK's own")
    payload = _payload("the payload", kwargs)
    if not _active.is_off():
        _recording_account().events.record(event_type, payload)


def set_call_context(
    model: str | None = None, tools: list[str] | list[dict[str, Any]] | None = None
) -> None:
    """Set the model and the tools that the next calls of this context report to the gate.

    Holds until it is set again, or until the enclosing ``workflow``, ``chain``, ``span`` or
    ``agent`` ends. Without it the gate gets the model ``"unknown"`` and no tools.

    Args:
        model: name of the model.
        tools: names of the tools offered to it, or their definitions as the vendors take them.

    Raises:
        TypeError, ValueError: not strings, or too long.

    Example:
        >>> set_call_context("gpt-4o", [{"type": "function", "function": {"name": "search"}}])
    """
    if isinstance(tools, str):
        raise TypeError("tools is a list of names, not one string")
    names = [name for tool in tools or () for name in names_in_definition(tool)]
    current_scope.set(
        current_scope.get().evolve(
            model=None if model is None else name_of("model", model),
            tools=tuple(name_of("tools", name) for name in names),
        )
    )


def name_of(argument: str, value: object) -> str:
    """Return a caller's argument if it is a valid name, or raise an error that describes one."""
    if not isinstance(value, str):
        raise TypeError(f"{argument} must be a string, not {type(value).__name__}")
    return require_name(argument, value)


def _tokens(argument: str, value: object) -> int:
    # numpy's integers are no ``int``; a bool is one.
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        raise TypeError(f"{argument} must be a whole number, not {type(value).__name__}")
    number = int(value)
    if not 0 <= number <= TOKENS_MAX:
        raise ValueError(f"{argument} must be from 0 to {TOKENS_MAX}")
    return number


def _milliseconds(argument: str, value: object) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise TypeError(f"{argument} must be a number, not {type(value).__name__}")
    number = float(value)
    if not 0 <= number < float("inf"):
        raise ValueError(f"{argument} must not be negative or infinite")
    return number


def _payload(argument: str, value: Mapping[str, Any] | None) -> dict[str, Any]:
    """Encode now, so that later changes to the mapping do not change the event."""
    if not value:
        return {}
    if not isinstance(value, Mapping):
        raise TypeError(f"{argument} must be a mapping, not {type(value).__name__}")
    try:
        encoded = msgspec.json.encode(dict(value), enc_hook=_plain_number)
    except Exception:  # noqa: BLE001  # a value's own methods may raise anything
        encoded = msgspec.json.encode(_encodable(argument, value))
    if len(encoded) > _PAYLOAD_BYTES_MAX:
        raise ValueError(f"{argument} must be at most {_PAYLOAD_BYTES_MAX} bytes of JSON")
    return cast("dict[str, Any]", msgspec.Raw(encoded))  # encodes as what it holds


def _encodable(argument: str, value: Mapping[str, Any]) -> dict[str, msgspec.Raw]:
    """Return the encoded values of a mapping without those that JSON cannot have.

    One of them must not cost the report, which says what was spent.
    """
    good: dict[str, msgspec.Raw] = {}
    try:
        for key, each in value.items():
            try:
                encoded = msgspec.json.encode(each, enc_hook=_plain_number)
                msgspec.json.encode({key: None})
            except Exception as exc:  # noqa: BLE001  # as above
                logger.warning("%s: a value is left out: %s", argument, type(exc).__name__)
            else:
                good[key] = msgspec.Raw(encoded)
    except Exception as exc:  # noqa: BLE001  # a mapping of somebody's own
        logger.warning("%s: the rest is left out: %s", argument, type(exc).__name__)
    return good


def _plain_number(value: object) -> int | float:
    """Return a number of another library, such as numpy, as JSON has it."""
    if isinstance(value, numbers.Integral):
        return int(value)
    if isinstance(value, numbers.Real):
        return float(value)
    raise TypeError(f"objects of type {type(value).__name__} are not supported")


def _after_fork() -> None:
    global _init_lock
    # Another thread, which does not exist here, may have held it.
    _init_lock = threading.RLock()


os.register_at_fork(after_in_child=_after_fork)
