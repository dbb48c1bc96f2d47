"""``options``: of one protected call, or of a block."""

from __future__ import annotations

import numbers
from typing import Any, Self

from msgspec.structs import replace

from guard.contexts.boundary import ContextScope
from guard.core.call_options import CallOptions, Ceiling
from guard.core.wire import NANOUSD_MAX, NANOUSD_PER_CENT, NANOUSD_PER_DOLLAR, cents
from guard.core.written_numbers import read_dollars
from guard.facade import name_of
from guard.runtime import active
from guard.scope.scope import Scope


class options(ContextScope):  # noqa: N801  # used like a function: `with options(limit="$0.05"):`
    """Set options of the calls inside: of one protected call, or of a block.

    Args:
        model: the model that the gate checks and prices, as by ``set_call_context``.
        tool_name: the name under which policies see the protected calls that begin in the block
            itself, in the place of their functions' names.
        limit: the most that the LLM requests inside may cost, in dollars: ``"$0.05"`` or 0.05. A
            request is refused unless its worst case still fits. The limit applies beside the
            gateway's budgets, also while the gateway cannot be reached.
        limit_cents: the same in cents.
        max_output_tokens: put into LLM requests that have no limit, where the vendor and the HTTP
            client take it; in the place of ``GUARD_MAX_OUTPUT_TOKENS``.

    Inner options replace outer ones, except ``limit``: there both limits apply.

    Raises:
        GuardBudgetError: from inside, a request could cost more than is left.
        GuardConfigError: on entry with a limit, this process does not gate LLM requests.
        TypeError, ValueError: an argument is not what it should be.

    Example:
        >>> with options(limit="$0.05", max_output_tokens=200) as limits:
        ...     limits.left_dollars
        0.05
    """

    kind = "options"
    enforces = True

    def __init__(
        self,
        *,
        model: str | None = None,
        tool_name: str | None = None,
        limit: str | float | None = None,
        limit_cents: float | None = None,
        max_output_tokens: int | None = None,
    ) -> None:
        if limit is not None:
            if limit_cents is not None:
                raise TypeError("give limit or limit_cents, not both")
            limit_cents = _dollars(limit) / NANOUSD_PER_CENT
        self._given: dict[str, Any] = {
            "model": None if model is None else name_of("model", model),
            "tool_name": None if tool_name is None else name_of("tool_name", tool_name),
            "limit_cents": None if limit_cents is None else _limit(limit_cents),
            "max_output_tokens": None if max_output_tokens is None else _most(max_output_tokens),
        }
        super().__init__(None)
        # Counts what is spent and held under the limit. Made on entry, because it takes from the
        # ceiling around it; kept after the exit, for `spent_dollars`. Thread-safe by itself.
        self._ceiling: Ceiling | None = None

    def _again(self) -> Self:
        return type(self)(**self._given)

    @property
    def spent_dollars(self) -> float | None:
        """The cost of the requests inside whose answers have been read."""
        return None if self._ceiling is None else self._ceiling.spent_nanousd / NANOUSD_PER_DOLLAR

    @property
    def left_dollars(self) -> float | None:
        """The most that further requests may cost; what is held for open ones is not in it."""
        if self._ceiling is None:
            return None
        return max(0, self._ceiling.left_nanousd) / NANOUSD_PER_DOLLAR

    @property
    def spent_cents(self) -> float | None:
        """The same in cents."""
        return None if self._ceiling is None else cents(self._ceiling.spent_nanousd)

    @property
    def left_cents(self) -> float | None:
        """The same in cents."""
        return None if self._ceiling is None else cents(max(0, self._ceiling.left_nanousd))

    def _changes(self, outer: Scope) -> dict[str, Any]:
        given, known = self._given, outer.options or CallOptions()
        ceiling = known.ceiling
        if given["limit_cents"] is not None:
            if active.current is not None:
                active.current.settings.require_gated_requests("limit_cents")
            limit_nanousd = round(given["limit_cents"] * NANOUSD_PER_CENT)
            ceiling = self._ceiling = Ceiling(limit_nanousd, ceiling)
        inner = CallOptions(
            given["tool_name"] or known.tool_name,
            given["max_output_tokens"] or known.max_output_tokens,
            ceiling,
            known.winding_down,
        )
        return {"options": inner, "model": given["model"] or outer.model}


class winding_down(ContextScope):  # noqa: N801  # used like a function: `with winding_down():`
    """Let the calls and LLM requests inside use what budgets keep for winding down.

    A hard budget with ``wind_down_percent`` keeps that share of its limit for code that finishes a
    run: a summary, a last answer, cleaning up. Outside of this block it cannot be used, but for the
    last request of a run under ``guard run --keep``.

    Example:
        >>> with winding_down():
        ...     pass  # ask the model for a summary
    """

    kind = "winding_down"
    enforces = True

    def __init__(self) -> None:
        super().__init__(None)

    def _again(self) -> Self:
        return type(self)()

    def _changes(self, outer: Scope) -> dict[str, Any]:
        return {"options": replace(outer.options or CallOptions(), winding_down=True)}


def _dollars(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise TypeError(f"limit is a text such as '$0.05', not {type(value).__name__}")
    return read_dollars(str(value), or_nothing=True)


def _limit(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise TypeError(f"limit_cents is a number, not {type(value).__name__}")
    number = float(value)
    if not 0 <= number <= NANOUSD_MAX / NANOUSD_PER_CENT:
        raise ValueError("limit_cents is a number from 0 on")
    return number


def _most(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        raise TypeError(f"max_output_tokens is a whole number, not {type(value).__name__}")
    if not 1 <= int(value) < 2**31:
        raise ValueError(f"max_output_tokens is a number from 1 to {2**31 - 1}")
    return int(value)
