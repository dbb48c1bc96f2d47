"""Formats a refusal for a program: as an error of its vendor, with one sentence; no I/O.

The status is 400: the only one after which coding agents do not retry (Codex retries after 402 and
403; Claude Code and Gemini retry after 429 for ever). 503 means that nothing was decided, and that
a retry is right.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

import attrs
import msgspec

from guard.breaker.exceptions import (
    GuardBudgetError,
    GuardInfrastructureError,
    GuardTransportError,
    RateLimitError,
    WorkflowKilledInterrupt,
    WorkflowPausedException,
)
from guard.core.catalogue import CATALOGUE
from guard.core.request_bound import said_unknown
from guard.core.usage import Endpoint
from guard.core.usage.framing import aws_frame
from guard.core.usage.response_format import Dialect
from guard.core.wire import amount_in, dollars, reached
from guard.proxy.headers import Pairs

REFUSED: Final = 400
UNDECIDED: Final = 503
UNKNOWN: Final = 401

_OWN: Final = ("key ", "run ", "organisation ")
"""How the scopes begin of limits that a run sets, or that are everybody's."""

_ACTED_ON: Final = re.compile(
    r"prompt is too long|context[ _]length|context window|maximum context|too many tokens"
    r"|input is too long|quota",
    re.IGNORECASE,
)
"""Words that tools take for another error, after which they shorten their prompt or change their
model. They are replaced in the sentence."""


_EXCEPTION: Final = {
    ":message-type": "exception",
    ":exception-type": "validationException",
    ":content-type": "application/json",
}
"""Headers of the frame that carries an exception in an AWS event stream."""


_OF_VENDORS: Final = {
    "anthropic": Dialect.ANTHROPIC, "gemini": Dialect.GEMINI, "vertex": Dialect.GEMINI,
    "codeassist": Dialect.GEMINI, "codex": Dialect.RESPONSES, "ollama": Dialect.OLLAMA,
    "bedrock": Dialect.BEDROCK,
}  # fmt: skip


def dialect_of(vendor: str, endpoint: Endpoint | None) -> Dialect:
    """Return the format of errors at an endpoint of a vendor."""
    if endpoint is not None and endpoint.format.dialect is not None:
        return endpoint.format.dialect
    return _OF_VENDORS.get(vendor, Dialect.CHAT)


@attrs.frozen
class ErrorAnswer:
    """The error that a program gets instead of its answer.

    Attributes:
        status: the status by HTTP.
        code: its code in the catalogue, such as ``GD-B004``.
        sentence: what happened, and what to do.
        retry_after_s: seconds after which to send again; None where that is not known.
    """

    status: int
    code: str
    sentence: str
    retry_after_s: float | None = None

    def headers(self) -> Pairs:
        """Return the headers of the answer."""
        again = b"true" if self.status == UNDECIDED else b"false"
        found = [
            (b"content-type", b"application/json"),
            (b"x-should-retry", again),
            (b"x-guard-code", self.code.encode("ascii")),
        ]
        if self.retry_after_s is not None:
            found.append((b"retry-after", b"%d" % max(1, round(self.retry_after_s))))
        return found

    def whole(self, dialect: Dialect) -> tuple[Pairs, bytes]:
        """Return the headers of the answer, with its length, and its body."""
        body = self.body(dialect)
        return [*self.headers(), (b"content-length", b"%d" % len(body))], body

    def body(self, dialect: Dialect) -> bytes:
        """Return the body of the answer."""
        return msgspec.json.encode(_error(self, dialect))

    def event(self, dialect: Dialect) -> bytes:
        """Return the last event of a stream, as the vendor would end it after an error."""
        match dialect:
            case Dialect.BEDROCK:
                return aws_frame(self.body(dialect), _EXCEPTION)
            case Dialect.OLLAMA:
                return self.body(dialect) + b"\n"
            case Dialect.RESPONSES:
                return _failed_response(self.sentence)
            case Dialect.ANTHROPIC:
                return _sse("error", _error(self, dialect))
            case _:
                return _sse(None, _error(self, dialect))


def keep_alive(dialect: Dialect) -> bytes | None:
    """Return bytes that keep a silent stream alive and mean nothing; None where there are none.

    Google's own clients take a comment for a chunk of an answer that they cannot read.
    """
    if dialect is Dialect.ANTHROPIC:
        return b'event: ping\ndata: {"type": "ping"}\n\n'
    return None if dialect is Dialect.GEMINI or not has_comments(dialect) else b": keep-alive\n\n"


def has_comments(dialect: Dialect) -> bool:
    """Return whether lines of a stream that begin with a colon are comments.

    As of events (https://html.spec.whatwg.org, 9.2.6).
    """
    return dialect not in (Dialect.OLLAMA, Dialect.BEDROCK)


def told_of(error: BaseException) -> ErrorAnswer:
    """Return the error that a program gets for an exception of guard's."""
    code = str(getattr(error, "error_code", "GD-X000"))
    sentence = _ACTED_ON.sub("allowance", f"guard: {_sentence(error, code)}")
    if isinstance(error, RateLimitError):
        return ErrorAnswer(UNDECIDED, code, sentence, error.retry_after)
    undecided = isinstance(error, GuardTransportError | GuardInfrastructureError)
    return ErrorAnswer(UNDECIDED if undecided else REFUSED, code, sentence)


def unknown_caller(named: bool) -> ErrorAnswer:
    """Return the error for a request that names no guard key, or an invalid one."""
    what = "this key is not valid; ask for another" if named else (
        "name your key in the header x-guard-key, or as /k/KEY before the vendor in the base URL"
    )  # fmt: skip
    return ErrorAnswer(UNKNOWN, "GD-A003", f"guard: {what}")


def unreachable(origin_host: str) -> ErrorAnswer:
    """Return the error for an upstream that cannot be reached."""
    return ErrorAnswer(UNDECIDED, "GD-B001", f"guard: {origin_host} cannot be reached from here")


def _sentence(error: BaseException, code: str) -> str:
    reason = str(getattr(error, "reason", "") or "")
    if isinstance(error, WorkflowKilledInterrupt):
        return "an operator has stopped this" + (f": {reason}" if reason else "")
    if isinstance(error, WorkflowPausedException):
        why = f": {reason}" if reason else ""
        return f"an operator has paused this{why}; go on when it is resumed"
    if isinstance(error, GuardBudgetError):
        return _budget(error)
    tool_name = getattr(error, "tool_name", None)
    if code == "GD-T001" and tool_name:
        return f"the tool {tool_name} is blocked here, so this answer is withheld"
    if reason:
        return f"this is not allowed here: {reason}"
    entry = CATALOGUE.get(code)
    return "the request was stopped" if entry is None else entry.user_message


def _budget(error: GuardBudgetError) -> str:
    if unknown := error.details.get("unknown"):
        return said_unknown(unknown, error.details.get("needed_nanousd"))
    counted = error.details.get("counted")
    if isinstance(counted, Mapping):
        of = ", ".join(map(str, counted.get("counts") or ()))
        amount = amount_in(str(counted.get("unit")), int(counted.get("limit", 0)), of)
        how = reached(counted.get("used"))
        return f"the limit of {amount} {how}; ask for a higher one, or start again with one"
    budget = error.details.get("budget")
    known = budget if isinstance(budget, Mapping) else None
    limit = known.get("limit_nanousd") if known else getattr(budget, "limit_nanousd", None)
    how = reached(known.get("spent_nanousd") if known else getattr(budget, "spent_nanousd", None))
    of = "" if limit is None else f" of {dollars(int(limit))}"
    if error.details.get("winding_down"):
        return (
            f"the limit{of} is reached, and so is what was kept of it for a last answer; ask for a "
            "higher one, or start again with a higher --limit"
        )
    scope = str(known.get("scope", "")) if known else str(getattr(budget, "scope", ""))
    if scope and not scope.startswith(_OWN):  # its reader could not know whose limit it is
        return f"the limit{of} on {scope} {how}; ask for a higher one"
    return f"the limit{of} {how}; ask for a higher one, or start again with a higher --limit"


def _error(told: ErrorAnswer, dialect: Dialect) -> dict[str, Any]:
    undecided = told.status == UNDECIDED
    match dialect:
        case Dialect.ANTHROPIC:
            # After any other type of a 400 Claude Code drops the betas of its request one by one,
            # and sends it again after each.
            kind = "overloaded_error" if undecided else "billing_error"
            return {"type": "error", "error": {"type": kind, "message": told.sentence}}
        case Dialect.GEMINI:
            status = "UNAVAILABLE" if undecided else "FAILED_PRECONDITION"
            about = {"code": told.status, "message": told.sentence, "status": status}
            return {"error": about}
        case Dialect.OLLAMA:
            return {"error": told.sentence}
        case Dialect.BEDROCK:
            return {"message": told.sentence}
        case _:
            kind = "server_error" if undecided else "invalid_request_error"
            about = {"message": told.sentence, "type": kind, "param": None, "code": told.code}
            return {"error": about}


def _failed_response(sentence: str) -> bytes:
    """Return both events that end a response: each client acts on one, and ignores the other.

    OpenCode ends after ``error``, but would retry after ``response.failed`` alone; Codex reads only
    ``response.failed``. ``invalid_prompt`` is the code after which neither retries.
    """
    code = "invalid_prompt"
    about = {"code": code, "message": sentence, "param": None}
    response = {"id": "resp_guard", "object": "response", "status": "failed", "output": [],
                "error": {"code": code, "message": sentence}}  # fmt: skip
    return _sse("error", {
        "type": "error", **about, "error": {"type": "invalid_request_error", **about},
    }) + _sse("response.failed", {"type": "response.failed", "response": response})  # fmt: skip


def _sse(name: str | None, data: Mapping[str, Any]) -> bytes:
    head = b"" if name is None else b"event: " + name.encode("ascii") + b"\n"
    return head + b"data: " + msgspec.json.encode(data) + b"\n\n"
