"""The worker pool: batches, isolation, and shedding before latency grows."""

from __future__ import annotations

import asyncio
import functools
import itertools
import sys
import textwrap
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from spamdetect.engine import Analysis, Engine, Preprocessed
from spamdetect.service import work
from spamdetect.service.analysis import EngineFailedError, Item
from spamdetect.service.processes import EngineProcesses
from spamdetect.service.respond import RefusalError
from spamdetect.service.work import WorkerPool
from spamdetect.testing import run_service_async

pytestmark = pytest.mark.asyncio


async def run(pool: WorkerPool, item: Any) -> Any:
    return await pool.submit(item)


class Gate:
    """The real engine behind a gate, so that a test decides when work goes on."""

    def __init__(self, engine: Engine) -> None:
        self.model_version = engine.model_version
        self.open = threading.Event()
        self.batches: list[int] = []
        self.seconds_per_text = 0.0
        self._engine = engine

    def preprocess(self, text: str) -> Preprocessed:
        return self._engine.preprocess(text)

    def predict_many(self, texts: Sequence[str]) -> list[Analysis]:
        assert self.open.wait(280)
        time.sleep(self.seconds_per_text * len(texts))
        self.batches.append(len(texts))
        for text in texts:
            if "poison" in text:
                raise ValueError(text)
        return self._engine.predict_many(texts)


@pytest.fixture(scope="module")
def engine() -> Engine:
    return Engine.load()


async def test_texts_that_wait_together_are_analysed_together(
    engine: Engine, until: Callable[..., Awaitable[None]], monkeypatch: pytest.MonkeyPatch
) -> None:
    # How long the test itself keeps the gate closed says nothing of the engine's speed.
    clock = SimpleNamespace(perf_counter=functools.partial(next, itertools.count(0.0, 0.001)))
    monkeypatch.setattr(work, "time", clock)
    gate = Gate(engine)
    pool = WorkerPool(gate, 1, 1000, 60)
    calls = [asyncio.create_task(run(pool, Item(f"text {n}"))) for n in range(100)]
    await until(lambda: pool.pending == 36)
    gate.open.set()
    bodies = await asyncio.gather(*calls)
    assert all(f"text {n}".encode() in body for n, (body, _) in enumerate(bodies))
    assert gate.batches[0] == 64
    assert sum(gate.batches) == 100
    assert len(gate.batches) < 20  # where the speed is not known yet
    await pool.close()


async def test_one_text_that_fails_fails_alone(
    engine: Engine, until: Callable[..., Awaitable[None]]
) -> None:
    gate = Gate(engine)
    pool = WorkerPool(gate, 1, 1000, 60)
    texts = ["a", "b", "poison", "c"]
    calls = [asyncio.create_task(run(pool, Item(text))) for text in texts]
    await until(lambda: pool.busy)
    gate.open.set()
    outcomes = await asyncio.gather(*calls, return_exceptions=True)
    assert [isinstance(outcome, EngineFailedError) for outcome in outcomes] == [
        False,
        False,
        True,
        False,
    ]
    assert (await run(pool, Item("next")))[1] in {True, False}
    await pool.close()


async def test_a_full_queue_refuses(engine: Engine, until: Callable[..., Awaitable[None]]) -> None:
    gate = Gate(engine)
    pool = WorkerPool(gate, 1, 5, 60)
    calls = [asyncio.create_task(run(pool, Item("text")))]
    await until(lambda: pool.busy)
    calls += [asyncio.create_task(run(pool, Item("text"))) for _ in range(5)]
    await until(lambda: pool.pending == 5)
    with pytest.raises(RefusalError) as caught:
        await run(pool, Item("one more"))
    assert (caught.value.status_code, caught.value.error_code.value) == (503, "OVERLOADED")
    assert dict(caught.value.headers)[b"retry-after"] == b"1"
    gate.open.set()
    await asyncio.gather(*calls)
    await run(pool, Item("one more"))
    await pool.close()


async def test_a_long_estimated_wait_refuses_before_the_queue_is_full(engine: Engine) -> None:
    gate = Gate(engine)
    gate.open.set()
    gate.seconds_per_text = 0.02
    pool = WorkerPool(gate, 1, 100_000, 0.2)
    await run(pool, Item("learn the speed"))
    calls = [asyncio.create_task(run(pool, Item("learn the speed"))) for _ in range(500)]
    outcomes = await asyncio.gather(*calls, return_exceptions=True)
    refused = sum(isinstance(outcome, RefusalError) for outcome in outcomes)
    assert 400 < refused < 500
    await pool.close()


async def test_who_has_gone_is_not_worked_for(
    engine: Engine, until: Callable[..., Awaitable[None]]
) -> None:
    gate = Gate(engine)
    pool = WorkerPool(gate, 1, 1000, 60)
    calls = [asyncio.create_task(run(pool, Item("text")))]
    await until(lambda: pool.busy)
    calls += [asyncio.create_task(run(pool, Item("text"))) for _ in range(9)]
    await until(lambda: pool.pending == 9)
    for call in calls[1:]:
        call.cancel()
    last = asyncio.create_task(run(pool, Item("last")))
    await until(lambda: pool.pending == 10)
    gate.open.set()
    await last
    assert sum(gate.batches) == 2
    await pool.close()


async def test_short_texts_are_analysed_on_the_loop_and_long_ones_beside_it(
    engine: Engine,
) -> None:
    threads: list[threading.Thread] = []

    class Seen(Gate):
        def predict_many(self, texts: Sequence[str]) -> list[Analysis]:
            threads.append(threading.current_thread())
            return super().predict_many(texts)

    seen = Seen(engine)
    seen.open.set()
    pool = WorkerPool(seen, 1, 1000, 60)
    pool._seconds_per_char = 1e-6  # as if measured: 2,000 characters take two milliseconds
    await asyncio.gather(*(run(pool, Item(f"text {n}")) for n in range(3)))
    await run(pool, Item("long text " * 2_000))
    assert seen.batches == [3, 1]
    assert [each is threading.current_thread() for each in threads] == [True, False]
    await pool.close()


async def test_closing_refuses_what_waits(
    engine: Engine, until: Callable[..., Awaitable[None]]
) -> None:
    gate = Gate(engine)
    pool = WorkerPool(gate, 1, 1000, 60)
    calls = [asyncio.create_task(run(pool, Item("text")))]
    await until(lambda: pool.busy)
    calls += [asyncio.create_task(run(pool, Item("text"))) for _ in range(2)]
    await until(lambda: pool.pending == 2)
    closing = asyncio.create_task(pool.close())
    await until(lambda: pool.pending == 0)
    gate.open.set()
    await closing
    outcomes: list[Any] = await asyncio.gather(*calls, return_exceptions=True)
    assert [isinstance(outcome, RefusalError) for outcome in outcomes] == [False, True, True]
    with pytest.raises(RefusalError):
        await run(pool, Item("text"))


async def test_an_overloaded_service_refuses_most_without_waiting_for_the_engine(
    engine: Engine, until: Callable[..., Awaitable[None]]
) -> None:
    import httpx

    gate = Gate(engine)
    gate.open.set()
    gate.seconds_per_text = 0.02  # learnt when the service starts
    async with run_service_async(engine=gate, workers=1, max_queue_wait_ms=200) as service:
        limits = httpx.Limits(max_connections=100)
        async with httpx.AsyncClient(limits=limits, timeout=280) as client:
            statuses: list[int] = []

            async def ask() -> None:
                for _ in range(2):
                    answer = await client.post(
                        f"{service.base_url}/v1/spam-detection/predict",
                        json={"text": "hello"},
                        headers={"x-api-key": service.api_key},
                    )
                    statuses.append(answer.status_code)
                    if answer.status_code == 503:
                        assert answer.json()["data"] == {"error_code": "OVERLOADED"}
                        assert int(answer.headers["retry-after"]) >= 1

            gate.open.clear()
            asking = asyncio.gather(*(ask() for _ in range(60)))
            try:
                # At most some thirty are taken, which wait; each of the others asks twice.
                await until(lambda: len(statuses) >= 50, 240)
                assert set(statuses) == {503}
            finally:
                gate.open.set()
            await asking
    assert set(statuses) == {200, 503}
    assert len(statuses) == 120


@pytest.mark.parametrize("stalls", [0, 1, 2])
async def test_a_stall_while_it_warms_up_is_not_taken_for_the_engines_speed(
    engine: Engine, stalls: int
) -> None:
    class Stalling(Gate):
        def predict_many(self, texts: Sequence[str]) -> list[Analysis]:
            self.seconds_per_text = 0.5 if len(self.batches) == stalls else 0.0
            return super().predict_many(texts)

    stalling = Stalling(engine)
    stalling.open.set()
    pool = WorkerPool(stalling, 1, 1000, 60)
    await pool.warm_up()
    assert len(stalling.batches) == 3
    assert pool._seconds_per_char < 0.5 / len(work._WARM_UP_TEXT)
    await pool.close()


async def test_the_engine_runs_in_processes_and_a_killed_one_is_replaced(engine: Engine) -> None:
    import psutil

    processes = EngineProcesses(2)
    pool = WorkerPool(engine, 2, 1000, 60, processes)
    await pool.warm_up()
    texts = [f"You won prize number {n}, claim it now" for n in range(200)]
    expected = [analysis.prediction.is_spam for analysis in engine.predict_many(texts)]
    found = await asyncio.gather(*(run(pool, Item(text)) for text in texts))
    assert [is_spam for _, is_spam in found] == expected
    assert b"processed_text" in (await run(pool, Item("hello", False)))[0]
    for when_idle in (True, False):
        children = [psutil.Process(pid) for pid in processes.pids]
        assert len(children) == 2
        for child in children:
            child.kill()
        if when_idle:
            await asyncio.to_thread(psutil.wait_procs, children, 120)
        failures = []
        async with asyncio.timeout(60):
            while True:
                try:
                    outcome = await run(pool, Item(texts[0]))
                    break
                except EngineFailedError as error:
                    failures.append(error.kind)
        assert outcome[1] is expected[0]
        assert set(failures) <= {"WorkerEnded"}
        await pool.warm_up()
        assert pool.busy == 0
    await pool.close()


async def test_a_service_that_dies_leaves_neither_workers_nor_semaphores() -> None:
    import psutil

    script = """
        import os, psutil
        from spamdetect import SpamClient
        from spamdetect.testing import run_service

        with run_service(processes=2, max_queue_wait_ms=60_000) as service:
            with SpamClient(service.base_url, service.api_key, timeout=60) as spam:
                assert spam.predict("You won! Claim your free prize at http://bit.ly/x now").is_spam
            print(*(child.pid for child in psutil.Process().children()), flush=True)
            os._exit(3)
    """
    service = await asyncio.create_subprocess_exec(
        sys.executable, "-c", textwrap.dedent(script),
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    async with asyncio.timeout(240):
        out, err = await service.communicate()
    assert (service.returncode, err) == (3, b"")
    workers = [psutil.Process(int(pid)) for pid in out.split() if psutil.pid_exists(int(pid))]
    assert len(out.split()) == 2
    assert not psutil.wait_procs(workers, 120)[1]


async def test_a_text_that_no_worker_can_be_sent_fails_alone() -> None:
    processes = EngineProcesses(1)
    with pytest.raises(UnicodeEncodeError):
        await processes.analyse([Item("half a pair \ud83d")])
    found = await processes.analyse([Item("hello"), Item("hello", False)])
    assert [isinstance(each, tuple) and each[1] for each in found] == [False, None]
    await processes.close()
    assert processes.pids == []
