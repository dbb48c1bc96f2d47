"""The whole exception tree of the SDK (spec part 7).

``BreakerError`` is the root of everything that is an ``Exception``; ``GuardError`` is the root of
the errors that user code should catch. ``WorkflowKilledInterrupt`` is deliberately a
``BaseException``: an ``except Exception`` inside an agent must not swallow an operator's kill.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, ClassVar, Final, Literal

from guard.breaker.portable import _Portable

TransportSource = Literal["NETWORK_ERROR", "GATEWAY_ERROR", "BREAKER_OPEN", "AUTH_ERROR"]

SHUT_DOWN: Final = "GD-B006"
"""Code of a call or a request that came after the end of the runtime."""

DOCS_PATH: Final = "/docs/errors"
"""Path at which every gateway serves the pages of the error codes."""

# This process's: an exception that was unpickled here shows this process's gateway.
_docs_gateway = "http://127.0.0.1:8787"


def docs_at(gateway_url: str) -> None:
    """Point every ``docs_url`` to this gateway: the one that the process uses."""
    global _docs_gateway
    _docs_gateway = gateway_url.rstrip("/")


def _page_of(error_code: str) -> str:
    return f"{_docs_gateway}{DOCS_PATH}/{error_code}"


# Shared by all exceptions without details, so it must not be writable.
_NO_DETAILS: Final[Mapping[str, Any]] = MappingProxyType({})


class BreakerError(_Portable, Exception):
    """Root of every exception of the SDK that is an ``Exception``."""


class GuardError(BreakerError):
    """Base of the user-facing errors.

    Args:
        text: what happened, for developers. End users get ``guard.format_user_message(exc)``.
        error_code: a code of the catalogue; the class has a default.
        user_action: an imperative hint; the class has a default.
        retryable: whether retrying the same call can succeed.

    Attributes:
        docs_url: the page that explains ``error_code``.
    """

    error_code: str = "GD-X000"
    user_action: str = "Read the page at docs_url and the exception's attributes."
    retryable: bool = False

    def __init__(
        self,
        text: str = "",
        *,
        error_code: str | None = None,
        user_action: str | None = None,
        retryable: bool | None = None,
    ) -> None:
        super().__init__(text)
        if error_code is not None:
            self.error_code = error_code
        if user_action is not None:
            self.user_action = user_action
        if retryable is not None:
            self.retryable = retryable

    @property
    def docs_url(self) -> str:
        """The page that explains this error's code."""
        return _page_of(self.error_code)

    def __str__(self) -> str:
        text = str(self.args[0]) if self.args else ""
        return f"[{self.error_code}] {text}" if text else f"[{self.error_code}]"


class GuardConfigError(GuardError):
    """The SDK is misconfigured. Never retryable (codes GD-C000 to GD-C099)."""

    error_code = "GD-C000"
    user_action = "Correct the setting that the message names, then start again."

    def __init__(
        self, text: str = "", *, error_code: str | None = None, user_action: str | None = None
    ) -> None:
        super().__init__(text, error_code=error_code, user_action=user_action, retryable=False)


class GuardAuthenticationError(GuardError):
    """The API key is missing or invalid, or a signature was refused (401 or 403)."""

    error_code = "GD-A001"
    user_action = "Set GUARD_API_KEY (and GUARD_HMAC_SECRET, if used) to values of this gateway."

    def __init__(self, message: str = "", *, error_code: str | None = None) -> None:
        super().__init__(message, error_code=error_code, retryable=False)
        if error_code == "GD-C001":
            self.user_action = "Pass api_key to guard.init() or set GUARD_API_KEY."

    @property
    def message(self) -> str:
        """What happened, without the code."""
        return str(self.args[0]) if self.args else ""


class GuardAuthError(GuardAuthenticationError):
    """The gateway rejected the API key (401)."""

    error_code = "GD-A003"
    user_action = "Ask the operator for a valid API key; this one is unknown or revoked."

    def __init__(
        self, message: str = "", *, error_code: str | None = None, status_code: int = 401
    ) -> None:
        super().__init__(message, error_code=error_code)
        if error_code == "GD-A005":
            self.user_action = "Use a key of role proxy, which the gateway's operator makes."
        self.status_code = status_code


class GuardTransportError(GuardError):
    """The gateway cannot be reached, or its response is not a valid reply."""

    error_code = "GD-B001"
    user_action = "Check that the gateway is running and that GUARD_API_URL points to it."
    retryable = True

    def __init__(
        self,
        text: str = "",
        *,
        source: TransportSource = "NETWORK_ERROR",
        endpoint: str = "",
        error_code: str | None = None,
        retryable: bool | None = None,
    ) -> None:
        if error_code is None and source == "BREAKER_OPEN" and type(self) is GuardTransportError:
            error_code = "GD-B005"
        super().__init__(text, error_code=error_code, retryable=retryable)
        if error_code == SHUT_DOWN:
            self.user_action = "Call guard.init() again, or make no protected call after shutdown."
        self.source: TransportSource = source
        self.endpoint = endpoint


class GuardBackendError(GuardTransportError):
    """The gateway answered with a 5xx status."""

    error_code = "GD-B002"
    user_action = "Wait a moment and try again; if it lasts, look at the gateway's log."

    def __init__(self, text: str = "", *, endpoint: str = "", status_code: int = 500) -> None:
        super().__init__(text, source="GATEWAY_ERROR", endpoint=endpoint)
        self.status_code = status_code


class RateLimitError(GuardTransportError):
    """A rate cap was reached (429). Wait ``retry_after`` seconds before trying again.

    Attributes:
        retry_after: seconds to wait, if the gateway said so: a duration, unlike the
            ``resume_after`` of ``WorkflowPausedException``, which is a point in time.
    """

    error_code = "GD-R001"
    user_action = "Wait for retry_after seconds before trying again."

    def __init__(
        self,
        text: str = "",
        *,
        retry_after: float | None = None,
        upgrade_url: str | None = None,
        body: Mapping[str, Any] | None = None,
        endpoint: str = "",
    ) -> None:
        super().__init__(text, source="GATEWAY_ERROR", endpoint=endpoint)
        self.retry_after = retry_after
        self.upgrade_url = upgrade_url
        self.body: Mapping[str, Any] = dict(body or {})


class GuardInfrastructureError(GuardError):
    """A store behind the gateway failed, so the call could not be checked."""

    error_code = "GD-I001"
    user_action = "Wait a moment and try again; the operator should look at the gateway's store."
    retryable = True


class GuardRateLimitRedisError(GuardInfrastructureError):
    """The store of rate-limit reservations failed (503). The call is refused: fails closed."""

    error_code = "GD-R002"


class GuardProtocolError(GuardError):
    """The SDK and the gateway do not speak the same protocol."""

    error_code = "GD-P001"
    user_action = "Upgrade the SDK to min_required_version or newer."

    def __init__(self, text: str = "", *, min_required_version: str | None = None) -> None:
        super().__init__(text, retryable=False)
        self.min_required_version = min_required_version


class GuardBlockedException(GuardError):
    """A policy refused the call."""

    error_code = "GD-X001"
    user_action = "Ask the operator why the policy refuses this call."

    def __init__(
        self,
        *,
        workflow_id: str | None = None,
        reason: str = "",
        action: str = "block",
        tool_name: str | None = None,
        details: Mapping[str, Any] | None = None,
        status_code: int | None = None,
        error_code: str | None = None,
    ) -> None:
        super().__init__(reason or "refused by policy", error_code=error_code, retryable=False)
        self.workflow_id = workflow_id
        self.reason = reason
        self.action = action
        self.tool_name = tool_name
        self.details: Mapping[str, Any] = dict(details) if details else _NO_DETAILS
        self.status_code = status_code

    def __reduce__(self) -> tuple[Any, ...]:
        # A mapping proxy, the default, does not pickle.
        rebuild, (cls, args, state) = super().__reduce__()
        state["details"] = dict(self.details)
        return rebuild, (cls, args, state)


class GuardBudgetError(GuardBlockedException):
    """The budget is exhausted (402)."""

    error_code = "GD-B004"
    user_action = "Ask the operator to raise the budget, or wait until it resets."


class GuardToolBlockedError(GuardBlockedException):
    """The tool is on a block list (403)."""

    error_code = "GD-T001"
    user_action = "Use another tool, or ask the operator to allow this one."


class GuardDecision(GuardError):
    """Base of the gateway's decisions about a workflow or a chain.

    Attributes:
        workflow_id, reason, details, status_code: as the gateway gave them.
    """

    error_code = "GD-X002"
    user_action = "Read reason and details; the operator's dashboard shows the decision."

    def __init__(
        self,
        text: str = "",
        *,
        workflow_id: str | None = None,
        reason: str = "",
        details: Mapping[str, Any] | None = None,
        status_code: int | None = None,
        error_code: str | None = None,
    ) -> None:
        super().__init__(text or reason, error_code=error_code, retryable=False)
        self.workflow_id = workflow_id
        self.reason = reason
        self.details: dict[str, Any] = dict(details or {})
        self.status_code = status_code


class GuardChainError(GuardDecision):
    """The gate check of a chain failed: its soft budget's ceiling was reached."""

    error_code = "GD-CH001"
    user_action = "End this chain, or ask the operator to raise its ceiling."


class GuardConsumeOverbudgetError(GuardDecision):
    """The actual cost exceeded the reservation and its tolerance (422). It was recorded."""

    error_code = "GD-O001"
    user_action = "Declare larger token limits for the call, or raise the budget's tolerance."


class GuardWorkflowInactiveError(GuardDecision):
    """The workflow is paused or killed, or belongs to another organisation (403)."""

    error_code = "GD-W004"
    user_action = "Ask the operator to resume or revive the workflow."


class WorkflowPausedException(GuardError):
    """An operator paused the workflow.

    Attributes:
        resume_after: Unix time in seconds at which the pause lifts itself, if the operator set
            it: a point in time, unlike ``RateLimitError.retry_after``, which is a duration.
    """

    error_code = "GD-W003"
    user_action = "Wait until the operator resumes the workflow, then try again."
    retryable = True

    def __init__(
        self,
        text: str = "",
        *,
        workflow_id: str | None = None,
        reason: str = "",
        resume_after: float | None = None,
    ) -> None:
        super().__init__(text or reason or "the workflow is paused")
        self.workflow_id = workflow_id
        self.reason = reason
        self.resume_after = resume_after


class WorkflowKilledException(GuardError):
    """Deprecated: kills raise :class:`WorkflowKilledInterrupt`."""

    error_code = "GD-W002"
    user_action = "Catch WorkflowKilledInterrupt instead; the operator can revive the workflow."

    def __init__(self, text: str = "", *, workflow_id: str | None = None, reason: str = "") -> None:
        warnings.warn(
            "WorkflowKilledException is deprecated; a kill raises WorkflowKilledInterrupt",
            DeprecationWarning,
            stacklevel=2,
        )
        super().__init__(text or reason or "the workflow was killed")
        self.workflow_id = workflow_id
        self.reason = reason


class WorkflowKilledInterrupt(_Portable, BaseException):  # the contract fixes the name
    """An operator killed the workflow, before or during the call.

    Not an ``Exception``: catch it before a generic handler if clean-up needs it, and re-raise it.
    Hooks of ``guard.on_error`` do not see it.
    """

    error_code: ClassVar[str] = "GD-W002"
    user_action: ClassVar[str] = "Ask the operator; only a revive lets the workflow run again."
    retryable: ClassVar[bool] = False

    def __init__(self, text: str = "", *, workflow_id: str | None = None, reason: str = "") -> None:
        super().__init__(text or reason or "the workflow was killed")
        self.workflow_id = workflow_id
        self.reason = reason

    @property
    def docs_url(self) -> str:
        """The page that explains the code."""
        return _page_of(self.error_code)

    def __str__(self) -> str:
        return f"[{self.error_code}] {self.args[0]}"


class BreakerTransportError(BreakerError):
    """Events could not be delivered after retries. Not a ``GuardError``.

    Attributes:
        events_lost: how many events were given up.
        buffer_size: how many were still in the buffer.
    """

    error_code: str = "GD-B003"
    user_action: str = "Check the gateway; set GUARD_SPOOL_DIR to keep events through an outage."
    retryable: bool = True

    def __init__(self, text: str = "", *, events_lost: int = 0, buffer_size: int = 0) -> None:
        super().__init__(text or f"{events_lost} events could not be delivered")
        self.events_lost = events_lost
        self.buffer_size = buffer_size

    @property
    def docs_url(self) -> str:
        """The page that explains the code."""
        return _page_of(self.error_code)


class InsecureTransportError(BreakerTransportError):
    """Plain HTTP was asked for where HTTPS is required: anywhere but a loopback address."""

    error_code = "GD-C005"
    user_action = (
        "Use an https:// address, or a loopback address for a local gateway; inside a private "
        "network, name the host in GUARD_ALLOW_PLAINTEXT_HOSTS."
    )
    retryable = False


def was_shut_down() -> GuardTransportError:
    """Return the error for a call that is interrupted by the end of the runtime."""
    return GuardTransportError(
        "guard was shut down; call guard.init() again",
        source="BREAKER_OPEN",
        error_code=SHUT_DOWN,
        retryable=False,
    )
