"""The context of work: its workflow, its user, what it may cost (spec 2, 3).

Each manager works with ``with``, with ``async with`` and as a decorator of functions, coroutine
functions, generators and asynchronous generators, and is safe with interleaved tasks. ``carry`` and
``ContextExecutor`` take the context into plain threads and executors.
"""

from __future__ import annotations

from guard.contexts.attribution import ask, tags, user
from guard.contexts.carrying import ContextExecutor, carry, carrying
from guard.contexts.options import options, winding_down
from guard.contexts.work import ChainOp, agent, chain, span, workflow

__all__ = [
    "ChainOp",
    "ContextExecutor",
    "agent",
    "ask",
    "carry",
    "carrying",
    "chain",
    "options",
    "span",
    "tags",
    "user",
    "winding_down",
    "workflow",
]
