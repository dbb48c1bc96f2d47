"""Other code between any two steps of a function: what another thread could do there."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import CodeType, FrameType
from typing import Any


@contextmanager
def at_step(
    step: int, codes: set[CodeType], other: Callable[[], object]
) -> Iterator[list[CodeType]]:
    """Run ``other`` once, before the given bytecode instruction of the functions.

    Instructions of functions nested in them, such as generator expressions, count as well.

    Args:
        step: of the instructions that run inside, counted from 0.
        codes: of the functions.
        other: what another thread does.

    Yields:
        The function of each instruction so far.
    """
    codes = {each for code in codes for each in _nested(code)}
    seen: list[CodeType] = []
    before = sys.gettrace()

    def trace(frame: FrameType, event: str, arg: Any) -> Any:
        if frame.f_code not in codes:
            return None
        frame.f_trace_opcodes = True
        if event == "opcode":
            seen.append(frame.f_code)
            if len(seen) == step + 1:
                other()  # not traced itself
        return trace

    # CPython 3.12 only looks for steps if a frame had asked for them when tracing began.
    sys._getframe().f_trace_opcodes = True
    sys.settrace(trace)
    try:
        yield seen
    finally:
        sys.settrace(before)


def at_every_step(
    codes: set[CodeType], run: Callable[[], tuple[Callable[[], object], Callable[[], object]]]
) -> int:
    """Run a function once for each of its steps, with other code before that step.

    How many steps a function has differs between interpreters, so only this is asserted: each
    function was interrupted.

    Args:
        codes: of the functions whose steps count.
        run: prepares one round; returns the function to run and the other code.

    Returns:
        How many rounds there were.
    """
    interrupted: set[CodeType] = set()
    for step in itertools.count():
        function, other = run()
        with at_step(step, codes, other) as seen:
            function()
        if len(seen) <= step:
            break
        interrupted.add(seen[step])
    assert interrupted >= codes, f"never interrupted: {codes - interrupted}"
    return step


def _nested(code: CodeType) -> Iterator[CodeType]:
    yield code
    for each in code.co_consts:
        if isinstance(each, CodeType):
            yield from _nested(each)
