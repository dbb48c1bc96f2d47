"""Other code between any two steps of a function: what another thread could do there."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import CodeType, FrameType
from typing import Any


@contextmanager
def at_step(step: int, codes: set[CodeType], other: Callable[[], object]) -> Iterator[list[int]]:
    """Run ``other`` once, before the given bytecode instruction of the functions.

    Instructions of functions nested in them, such as generator expressions, count as well.

    Args:
        step: of the instructions that run inside, counted from 0.
        codes: of the functions.
        other: what another thread does.

    Yields:
        The instructions so far, as a list of one number.
    """
    codes = {each for code in codes for each in _nested(code)}
    seen, before = [0], sys.gettrace()

    def trace(frame: FrameType, event: str, arg: Any) -> Any:
        if frame.f_code not in codes:
            return None
        frame.f_trace_opcodes = True
        if event == "opcode":
            seen[0] += 1
            if seen[0] == step + 1:
                other()  # not traced itself
        return trace

    sys.settrace(trace)
    try:
        yield seen
    finally:
        sys.settrace(before)


def at_every_step(
    codes: set[CodeType], run: Callable[[], tuple[Callable[[], object], Callable[[], object]]]
) -> int:
    """Run a function once for each of its steps, with other code before that step.

    Args:
        codes: of the functions whose steps count.
        run: prepares one round; returns the function to run and the other code.

    Returns:
        How many rounds there were.
    """
    step = 0
    while True:
        function, other = run()
        with at_step(step, codes, other) as seen:
            function()
        if seen[0] <= step:
            return step
        step += 1


def _nested(code: CodeType) -> Iterator[CodeType]:
    yield code
    for each in code.co_consts:
        if isinstance(each, CodeType):
            yield from _nested(each)
