"""What guard costs an agent of many short calls: with guard on and off, in turns.

Run: ``python -m benchmarks.agent_run [--calls 10000] [--latency-ms 100] [--results FOLDER]``

An agent makes LLM calls one after another with the real ``openai`` client, each in a tool of its
own under ``@protect``; the stand-in of the vendor answers after ``--latency-ms``, less than a
vendor takes for the shortest answer. What guard costs is the same for each call, so its share rises
when they are shorter: ``--latency-ms 20`` shows it as it is for a model on the same machine. The
calls run in blocks with guard on and off alternately, in one process, so that the machine's drift
affects both alike. Reported are the medians of the blocks, and the CPU time of the agent's process,
where guard's background work shows too.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.hard_stop import BESIDE, MAX_TOKENS, MESSAGES, MODEL, Bench
from tests.support.llm_vendor import vendor_process

BLOCK = 100


class Agent:
    """The agent; ``step`` is one of its calls, guarded or not."""

    def __init__(self, url: str) -> None:
        import openai

        import guard

        client = openai.OpenAI(base_url=f"{url}/v1", api_key="k")

        def step() -> None:
            client.chat.completions.create(model=MODEL, messages=MESSAGES, max_tokens=MAX_TOKENS)  # type: ignore[call-overload]  # a plain list of dicts

        self.plain = step
        self.guarded = guard.protect(step)

    def block(self, guarded: bool) -> tuple[float, float]:
        """Run one block; return its seconds and its CPU seconds."""
        step = self.guarded if guarded else self.plain
        began, cpu = time.perf_counter(), time.process_time()
        for _ in range(BLOCK):
            step()
        return time.perf_counter() - began, time.process_time() - cpu


def main() -> None:
    """Run the comparison and print it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--calls", type=int, default=10_000, help="calls with guard on")
    parser.add_argument("--latency-ms", type=float, default=100.0)
    parser.add_argument("--results", type=Path, help="folder for a JSON file of the results")
    given = parser.parse_args()
    with vendor_process(beside=BESIDE, unlimited=MAX_TOKENS) as vendor:
        bench = Bench(vendor)
        try:
            found = _run(bench, given.calls, given.latency_ms)
        finally:
            bench.stop()
    print(f"Python {platform.python_version()}, {os.cpu_count()} CPUs; {given.calls} calls of"
          f" {given.latency_ms:g} ms, medians of blocks of {BLOCK}")  # fmt: skip
    print(f"  off {found['off_ms']:.3f} ms a call, on {found['on_ms']:.3f} ms:"
          f" {found['time_ratio'] - 1:+.2%} of its time (target at most 1 %)")  # fmt: skip
    print(f"  CPU: {found['cpu_us']:+.0f} us a call in the whole process")
    if given.results is not None:
        given.results.mkdir(parents=True, exist_ok=True)
        day = time.strftime("%F")
        machine = f"{os.cpu_count()} cores, {platform.machine()}, {platform.python_version()}"
        text = json.dumps({"date": day, "machine": machine, "calls": given.calls,
                           "latency_ms": given.latency_ms, "results": found}, indent=1)  # fmt: skip
        (given.results / f"agent-run-{day}.json").write_text(text)


def _run(bench: Bench, calls: int, latency_ms: float) -> dict[str, Any]:
    import guard

    bench.vendor_says(f"/delay/{latency_ms / 1000}")
    bench.admin.set_budget(100_000.0)
    guard.init(bench.key, bench.gateway)
    agent = Agent(bench.vendor)
    took: dict[bool, list[tuple[float, float]]] = {True: [], False: []}
    with guard.workflow("agent-run"):
        runtime = _instrumentation()
        agent.block(True)
        for _ in range(max(1, calls // BLOCK)):
            for guarded in (True, False):
                (runtime.install if guarded else runtime.uninstall)()
                took[guarded].append(agent.block(guarded))
            if sys.stderr.isatty():
                print(f"\r{len(took[True]) * BLOCK} calls", end="", file=sys.stderr)
        runtime.install()
    guard.shutdown()
    ratios = [on[0] / off[0] for on, off in zip(took[True], took[False], strict=True)]
    median = statistics.median
    return {
        "on_ms": median(on[0] for on in took[True]) / BLOCK * 1e3,
        "off_ms": median(off[0] for off in took[False]) / BLOCK * 1e3,
        "time_ratio": median(ratios),
        "cpu_us": (median(on[1] for on in took[True]) - median(off[1] for off in took[False]))
        / BLOCK * 1e6,
    }  # fmt: skip


def _instrumentation() -> Any:
    from guard.runtime import active_runtime

    runtime = active_runtime()
    assert runtime is not None
    return runtime.instrumentation


if __name__ == "__main__":
    main()
