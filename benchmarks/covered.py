"""The cost of covering an LLM request: observed alone, and covered by a lease, in turns.

Run: ``python -m benchmarks.covered [--rounds 40] [--requests 300]``

One process, one httpx client whose transport answers at once, a real gateway in a process of its
own. The same requests run without guard, observed, and covered, round after round; the table gives
medians, and the median of each round's difference. ``caller`` is the time of the thread that makes
the requests, ``all`` that of the whole process, the delivery of events included.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any, Final

MODEL: Final = "bench-model"
ANSWER: Final = json.dumps({
    "id": "c", "object": "chat.completion", "created": 1, "model": MODEL,
    "choices": [{"index": 0, "message": {"role": "assistant", "content": "word " * 40},
                 "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 200, "completion_tokens": 40, "total_tokens": 240},
}).encode()  # fmt: skip
ASKED: Final = json.dumps({
    "model": MODEL, "max_tokens": 200,
    "messages": [{"role": "system", "content": "You are a helpful assistant. " * 12},
                 {"role": "user", "content": "What is the weather like? " * 18}],
}).encode()  # fmt: skip
URL: Final = "https://api.openai.com/v1/chat/completions"
MODES: Final = ("off", "observed", "covered")

Times = dict[str, list[tuple[float, float]]]


def _answer(request: Any) -> Any:
    import httpx

    return httpx.Response(200, content=ANSWER, headers={"content-type": "application/json"})


def _sync(count: int) -> None:
    import httpx

    with httpx.Client(transport=httpx.MockTransport(_answer)) as client:
        for _ in range(count):
            client.post(URL, content=ASKED)


def _async(count: int) -> None:
    import httpx

    async def main() -> None:
        async with httpx.AsyncClient(transport=httpx.MockTransport(_answer)) as client:
            for _ in range(count):
                await client.post(URL, content=ASKED)

    asyncio.run(main())


def _measured(work: Callable[[int], None], count: int) -> tuple[float, float]:
    caller, whole = time.thread_time(), time.process_time()
    work(count)
    return (
        (time.thread_time() - caller) / count * 1e6,
        (time.process_time() - whole) / count * 1e6,
    )


def _run(rounds: int, count: int) -> dict[str, Times]:
    import guard
    from guard.runtime import active_runtime

    guard.init()
    runtime: Any = active_runtime()
    seen = runtime.instrumentation
    gate = runtime.request_gate
    times: dict[str, Times] = {name: {mode: [] for mode in MODES} for name in ("sync", "async")}
    with guard.workflow("bench-covered"):
        for number in range(rounds + 3):
            for mode in MODES:
                if mode == "off":
                    seen.uninstall()
                else:
                    seen.install()
                    runtime.request_gate = gate if mode == "covered" else None
                for name, work in (("sync", _sync), ("async", _async)):
                    work(3)  # takes the lease
                    spent = _measured(work, count)
                    if number >= 3:
                        times[name][mode].append(spent)
    guard.shutdown()
    return times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--requests", type=int, default=300)
    options = parser.parse_args()
    gateway = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.hard_stop", "--gateway"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert gateway.stdout is not None
    url, key, admin_key = gateway.stdout.readline().split()
    from guard.gateway.admin import AdminClient

    admin = AdminClient(url, admin_key)
    admin.set_price(MODEL, input_per_mtok=10**9, output_per_mtok=4 * 10**9)
    admin.set_budget(scope_kind="workflow", scope_id="bench-covered", limit_nanousd=10**15)
    os.environ.update(GUARD_API_URL=url, GUARD_API_KEY=key)
    try:
        times = _run(options.rounds, options.requests)
    finally:
        gateway.terminate()
    print(f"{'':8}{'off':>18}{'observed':>18}{'covered':>18}{'covered - observed':>22}   us")
    for name, modes in times.items():
        for index, what in enumerate(("caller", "all")):
            middle = [statistics.median(t[index] for t in modes[mode]) for mode in MODES]
            more = statistics.median(
                covered[index] - observed[index]
                for covered, observed in zip(modes["covered"], modes["observed"], strict=True)
            )
            cells = "".join(f"{value:18.1f}" for value in middle)
            print(f"{name:6}{what:8}{cells}{more:16.1f}")


if __name__ == "__main__":
    main()
