"""What type checkers must see of the public API; checked by mypy and by pyright, never run."""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Callable, Coroutine, Generator, Iterator
from typing import Any, assert_type

import guard
from guard.context import carry

# --- decorators keep signatures -------------------------------------------------------------------


@guard.protect
def plain(a: int, *, b: str = "") -> list[str]:
    return [b] * a


@guard.protect()
def with_parentheses(a: int) -> set[int]:
    return {a}


@guard.protect
async def coroutine(a: int) -> bytes:
    return b"" * a


@guard.protect
def generator(a: int) -> Generator[int, str, bool]:
    yield a
    return True


@guard.protect
async def async_generator(a: int) -> AsyncIterator[int]:
    yield a


@guard.guarded
@guard.sensitive
@guard.protect
async def stacked(a: int, b: str = "") -> dict[str, int]:
    return {b: a}


@guard.sensitive
def marked(a: int) -> int:
    return a


@guard.guarded
def main() -> None: ...


assert_type(plain(1, b="x"), list[str])
assert_type(with_parentheses(1), set[int])
with_parentheses("1")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
assert_type(generator(1), Generator[int, str, bool])
assert_type(async_generator(1), AsyncIterator[int])
assert_type(marked(1), int)
assert_type(main(), None)
plain("1")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
plain(1, c="x")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
marked()  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]


async def awaited() -> None:
    assert_type(await coroutine(1), bytes)
    assert_type(await stacked(1, b="x"), dict[str, int])
    async for item in async_generator(1):
        assert_type(item, int)
    await coroutine("1")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


class Agent:
    @guard.protect
    def method(self, a: int) -> str:
        return str(a)

    @guard.protect
    async def coroutine(self, a: int) -> str:
        return str(a)

    @classmethod
    @guard.protect
    def made(cls, a: int) -> Agent:
        return cls()

    @staticmethod
    @guard.protect
    def helper(a: int) -> float:
        return float(a)

    @guard.protect
    @staticmethod
    def outside_static(a: int) -> float:
        return float(a)

    @guard.protect
    @classmethod
    def outside_class(cls, a: int) -> str:
        return cls.__name__ * a

    @property
    @guard.protect
    def answer(self) -> int:
        return 42


assert_type(Agent().method(1), str)
assert_type(Agent.method(Agent(), 1), str)
assert_type(Agent.made(1), Agent)
assert_type(Agent.helper(1), float)
assert_type(Agent().helper(1), float)
assert_type(Agent.outside_static(1), float)
assert_type(Agent.outside_class(1), str)
assert_type(Agent().answer, int)
Agent().method("1")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]

partial = guard.protect(functools.partial(plain, 1))
assert_type(partial(), list[str])

callback: Callable[[int], Coroutine[Any, Any, bytes]] = coroutine

# --- context managers -----------------------------------------------------------------------------

with guard.workflow("w") as flow, guard.chain("c", op="start") as chain:
    assert_type(flow, guard.workflow)
    assert_type(flow.workflow_id, str)
    assert_type(flow.run_id, str)
    assert_type(chain.chain_id, str)
with guard.span() as span, guard.agent(name="a") as agent:
    assert_type(span.trace_id, str)
    assert_type(span.span_id, str)
    assert_type(agent.agent_id, str)
with guard.handle(exit_code=2):
    pass
guard.chain("c", op="stop")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
guard.chain("c", "start")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
guard.workflow(5)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


async def entered() -> None:
    async with guard.workflow("w") as flow:
        assert_type(flow, guard.workflow)
        assert_type(await in_span(1), str)
    async with guard.handle():
        pass


@guard.workflow("w")
def in_workflow(a: int) -> str:
    return str(a)


@guard.span("s")
@guard.agent("a")
async def in_span(a: int) -> str:
    return str(a)


assert_type(in_workflow(1), str)
in_workflow("1")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]

assert_type(carry(plain)(1, b="x"), list[str])

# --- functions ------------------------------------------------------------------------------------

assert_type(guard.init("key", "https://guard.example.com", True), guard.GuardRuntime)
assert_type(guard.init_or_die(api_key="key"), guard.GuardRuntime)
assert_type(guard.status(), guard.GuardStatus)
assert_type(guard.track_llm(1, 2, model="m", latency_ms=1.5, metadata={"a": 1}), dict[str, Any])
guard.track_tool("t", 1.5, is_retry=True)
guard.track_event("e", anything=1)
guard.set_call_context("m", ["t"])
guard.shutdown(timeout=1.0, flush=False)
assert_type(guard.format_user_message(ValueError(), "en"), str)
assert_type(guard.get_user_message("GD-B004"), str)
guard.set_user_message("GD-B004", "x")
guard.track_llm("1")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
guard.track_llm(1, 2, "m")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
guard.set_call_context(tools="t")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
assert guard.CostLimitExceeded  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue]


def hook(error: guard.GuardError, context: guard.ErrorContext) -> None:
    assert_type(error.error_code, str)
    assert_type(error.user_action, str)
    assert_type(error.retryable, bool)
    assert_type(error.docs_url, str)
    assert_type(context.workflow_id, str | None)


assert_type(guard.on_error(hook), Callable[[], None])

state = guard.status().state
if state == "ok" or state == "degraded" or state == "offline":
    pass
else:
    assert state == "misconfigured"


def numbers() -> Iterator[int]:
    try:
        yield from generator(1)
    except guard.GuardToolBlockedError as exc:
        assert_type(exc.tool_name, str | None)
    except guard.GuardBudgetError as exc:
        assert_type(exc.status_code, int | None)
    except guard.GuardAuthError as exc:
        assert_type(exc.status_code, int)
    except guard.WorkflowPausedException as exc:
        assert_type(exc.resume_after, float | None)
    except guard.WorkflowKilledInterrupt as exc:
        assert_type(exc.reason, str)
