"""`ContextExecutor` and `carrying`: the scope of who submits, in whichever thread the work runs."""

from __future__ import annotations

import asyncio
import threading
import time
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from typing import Any

import pytest

import guard
from guard.context import ContextExecutor, carrying, user
from guard.scope.scope import current_scope
from tests.guard.conftest import Tenant
from tests.support.waiting import WAIT_S, until


def here(*_: Any) -> tuple[str | None, str | None]:
    scope = current_scope.get()
    return scope.workflow_id, scope.user


@pytest.fixture(params=[lambda: ContextExecutor(4), lambda: carrying(ThreadPoolExecutor(4))],
                ids=["a pool of its own", "around another"])  # fmt: skip
def pool(request: pytest.FixtureRequest) -> Executor:
    made: Executor = request.param()
    return made


@pytest.mark.usefixtures("switched_off")
def test_work_is_of_who_submits_it(pool: Executor) -> None:
    """Not of who made the pool, nor of who used the thread before."""
    with pool, guard.workflow("w"):
        with user("a"):
            first = pool.submit(here)
            many = pool.map(here, range(20))
        with user("b"):
            second = pool.submit(here)
        third = pool.submit(here)
        assert (first.result(), second.result()) == (("w", "a"), ("w", "b"))
        assert set(many) == {("w", "a")}
        assert third.result() == ("w", None)
    assert here() == (None, None)


def test_arguments_and_errors_pass_through(pool: Executor) -> None:
    def divide(a: int, *, by: int) -> float:
        return a / by

    with pool:
        assert pool.submit(divide, 6, by=3).result() == 2
        with pytest.raises(ZeroDivisionError):
            pool.submit(divide, 6, by=0).result()
    with pytest.raises(RuntimeError, match="after shutdown"):
        pool.submit(divide, 6, by=3)


def test_in_an_event_loop(pool: Executor) -> None:
    async def of(name: str) -> Any:
        async with user(name):
            return await asyncio.get_running_loop().run_in_executor(pool, here)

    async def main() -> list[Any]:
        return await asyncio.gather(*(of(f"u{n}") for n in range(20)))

    with pool:
        assert [each[1] for each in asyncio.run(main())] == [f"u{n}" for n in range(20)]


def test_as_an_event_loops_default() -> None:
    async def main() -> Any:
        loop = asyncio.get_running_loop()
        loop.set_default_executor(ContextExecutor(2))
        async with user("a"):
            return await loop.run_in_executor(None, here)

    assert asyncio.run(main())[1] == "a"


def test_a_kill_reaches_the_threads(
    runtime: guard.GuardRuntime, tenant: Tenant, pool: Executor
) -> None:
    started = threading.Event()

    def work() -> None:
        started.set()
        ends_s = time.monotonic() + WAIT_S
        while time.monotonic() < ends_s:
            time.sleep(0.01)

    with pool, guard.workflow("killed-in-a-pool"):
        done = pool.submit(work)
        assert started.wait(WAIT_S)
        tenant.admin.kill("killed-in-a-pool")
        with pytest.raises(guard.WorkflowKilledInterrupt):
            done.result(WAIT_S)
        until(lambda: runtime.enforcement.control.kills, WAIT_S)


def test_what_runs_elsewhere_is_refused() -> None:
    with ProcessPoolExecutor(1) as elsewhere, pytest.raises(TypeError, match="of this process"):
        carrying(elsewhere)
    with pytest.raises(TypeError, match="carrying takes an executor, not int"):
        carrying(4)  # type: ignore[arg-type]


def test_shutting_down_ends_the_pool_inside() -> None:
    inside = ThreadPoolExecutor(1)
    carrying(inside).shutdown(cancel_futures=True)
    with pytest.raises(RuntimeError, match="after shutdown"):
        inside.submit(here)
