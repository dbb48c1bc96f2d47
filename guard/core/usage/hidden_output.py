"""Which requests can have output that nobody sees, and which vendors stop when a stream is closed.

Its table and that of the vendors name what is known; what is not named is taken for the dearer.
"""

from __future__ import annotations

import re
from typing import Final

from guard.core.vendors import VENDORS

_PLAIN: Final = re.compile(
    r"(?:^|[/:.@])(?:"
    r"gpt-3\.5|gpt-4(?![\d.])|gpt-4o|gpt-4\.1|chatgpt-4o|davinci|babbage|text-(?:davinci|embedding)"
    r"|claude-(?:instant|2|3|(?:opus|sonnet|haiku)-4|v2)"
    r"|gemini-(?:1|2\.0-(?!flash-thinking))"
    r"|(?:open-)?mi[sx]tral-(?:7b|8x|nemo|large|small-24|tiny)|ministral|codestral|pixtral"
    r"|command(?!-a-reasoning)|embed-|rerank-|llama|meta-llama|gemma|phi-?[34](?!-(?:mini-)?reason)"
    r"|qwen-?2|deepseek|titan|nova-(?:micro|lite|pro)"
    r")",
    re.IGNORECASE,
)
"""Models that show all that they write, unless the request asks for more. DeepSeek's and Llama's
reasoning is part of the answer."""

_NAMED: Final = re.compile(r"think|reason", re.IGNORECASE)

_ASKS_FOR_MORE: Final = (
    b'"thinking', b'"reasoning', b'"enable_thinking', b'"include_reasoning', b'"prediction"',
    b'"modalities"', b'"responseModalities"',
)  # fmt: skip
"""Members of a request with which more is billed than the texts of its answer."""


def may_hide_output(model: str | None, body: bytes) -> bool:
    """Tell whether an answer can have cost tokens that are not in its texts.

    >>> may_hide_output("gpt-4o-mini", b'{"messages":[]}')
    False
    >>> may_hide_output("claude-sonnet-4-5", b'{"thinking":{"type":"enabled"}}')
    True
    >>> may_hide_output("o3", b"{}"), may_hide_output("my-own", b"{}")
    (True, True)
    """
    if model is None or _PLAIN.search(model) is None or _NAMED.search(model):
        return True
    return any(name in body for name in _ASKS_FOR_MORE)


_FASTER: Final = re.compile(r"spark|turbo-fast|-fast\b|instant", re.IGNORECASE)
"""Models that a vendor sells for their speed: no figure is known to be above it."""


def top_speed(vendor: str | None, model: str | None) -> int | None:
    """Return the most tokens a second that a closed stream is billed for; None: it is not known.

    Args:
        vendor: behind the host; None for a host that is not known.
        model: as the request names it.

    >>> top_speed("openai", "gpt-4o"), top_speed("google", "gemini-2.5-pro"), top_speed(None, "m")
    (600, None, None)
    """
    if vendor is None or (model is not None and _FASTER.search(model)):
        return None
    known = VENDORS.get(vendor)
    return None if known is None else known.top_speed
