"""Tells whether an answer ended because of the limit on its output, and not by itself. Pure."""

from __future__ import annotations

import re
from typing import Final

from guard.core.usage.framing import Recorded
from guard.core.usage.response_format import Usage

_END: Final = re.compile(
    rb'"(?:(?:finish|stop|done)_reason|finishReason|stopReason)"\s*:\s*"([^"\\]+)"'
    rb'|"incomplete_details"\s*:\s*\{[^{}]*"reason"\s*:\s*"([^"\\]+)"'
)
"""Where vendors say why an answer ended. In a text of the answer the quotes are escaped."""

_BY_LIMIT: Final = frozenset({
    b"length", b"max_tokens", b"max_output_tokens", b"max_completion_tokens", b"model_length",
})  # fmt: skip


def is_cut_short(recorded: Recorded, usage: Usage, most: int | None) -> bool:
    """Tell whether the limit ended an answer; by its size where the answer does not say why.

    Args:
        recorded: the recorded part of the answer's body.
        usage: what the answer used.
        most: the output tokens that the request's limit allows; None where that is not known.

    >>> is_cut_short(Recorded(b'{"stop_reason": "max_tokens"}'), Usage(), None)
    True
    """
    reasons = [
        found[1] or found[2]
        for part in (recorded.head, recorded.tail)
        for found in _END.finditer(part)
    ]
    if reasons:
        return any(reason.lower() in _BY_LIMIT for reason in reasons)
    return most is not None and usage.output_tokens + usage.reasoning_tokens >= most
