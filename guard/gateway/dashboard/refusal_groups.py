"""Refusals of the same call at the same place for the same reason, as one row. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from msgspec import Struct

from guard.gateway.domain.usage import Refused

_FIGURES: Final = re.compile(
    r"\$\d[\d,.]*\d|\$\d|(?<![\w.-])\d[\d,]*(?= (?:of|tokens?|calls?|output|would|under|in)\b)"
)
"""Amounts in a reason, which differ from one refusal to the next: money, and counts."""


class RefusalGroup(Struct):
    """Refusals that are one row.

    Args:
        newest: the newest of them, whose reason is shown.
        count: how many calls were refused; a call that asked again counts once.
        first_ms: when the oldest of them was refused.
    """

    newest: Refused
    count: int
    first_ms: int


def grouped(refused: Sequence[Refused]) -> list[RefusalGroup]:
    """Return refusals, which are given newest first, in groups, the newest first.

    Those of a group have code, workflow, agent, tool or function, model and reason in common, but
    for the amounts in it.
    """
    groups: dict[tuple[str | None, ...], RefusalGroup] = {}
    calls: dict[tuple[str | None, ...], set[str]] = {}
    for each in refused:
        key = (
            each.error_code, each.workflow_id, each.agent, each.tool_name or each.function,
            each.model, each.refused_by, _FIGURES.sub("#", each.reason),
        )  # fmt: skip
        known = groups.get(key)
        if known is None:
            groups[key] = RefusalGroup(each, 1, each.at_ms)
            calls[key] = {each.call_id}
            continue
        calls[key].add(each.call_id)
        known.count, known.first_ms = len(calls[key]), min(known.first_ms, each.at_ms)
    return list(groups.values())
