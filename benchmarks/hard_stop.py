"""What a budget stops: requests that ran, money that was spent, against the limit.

Run: ``python -m benchmarks.hard_stop [--requests 100] [--peers PYTHON] [--only NAME ...]
[--results FOLDER]``

Real vendor clients talk to a stand-in of the vendor on loopback, which counts what it answers: what
the vendor would bill. Guard runs against its own gateway, in a process of its own, with a limit for
ten requests. Each program runs once under each kind of limit: dollars, tokens, calls, dollars of
which a share is kept for winding down, and dollars that are raised once by half while requests
wait for it. ``requests not gated`` is dollars with ``GUARD_GATE_REQUESTS=0``. The peer is LiteLLM's
``max_budget`` (``PYTHON`` has ``litellm``), which also decides in the process. A column shows how
many requests ran, which should be at least 8 (6 without the share, 12 with the raise), and how much
of the limit that was: at most all of it.

``--all [--rounds 3]`` plays the cases of ``limit_cases.py`` instead: programs under ``guard run``,
each in a way of its own to pass a limit, or to be stopped before it. ``python
docs/generate_limit_cases.py`` makes a page of the results.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import contextvars
import json
import os
import platform
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final, NamedTuple

from benchmarks import limit_cases
from tests.support.llm_vendor import vendor_process

_ROOT = Path(__file__).parents[1]
MODEL: Final = "bench-model"
INPUT_NANOUSD: Final = 1_000
OUTPUT_NANOUSD: Final = 4_000
PROMPT: Final = "word " * 80
MAX_TOKENS: Final = 100
BESIDE: Final = 30
"""Tokens of the prompt besides its words."""
INPUT_TOKENS: Final = len(PROMPT.split()) + BESIDE
COST: Final = INPUT_TOKENS * INPUT_NANOUSD + MAX_TOKENS * OUTPUT_NANOUSD
"""Of one request, in nano-dollars."""
LIMIT: Final = 10 * COST + 10 * 40 * INPUT_NANOUSD
"""Ten requests, each with a bound that is 40 tokens above what its prompt has."""
TOKENS: Final = 10 * (INPUT_TOKENS + MAX_TOKENS + 40)
"""The same in tokens."""
CALLS: Final = 10
KEEP: Final = 20
"""Percent of the limit that are kept for winding down; no program here does."""
RAISE: Final = LIMIT // 2
MESSAGES: Final = [{"role": "user", "content": PROMPT}]


def _serve_gateway() -> None:
    from guard.gateway.embedded import run_gateway

    with run_gateway() as gateway:
        print(gateway.base_url, gateway.api_key, gateway.admin_key, flush=True)
        sys.stdin.read()


# -- the programs -----------------------------------------------------------------------------

Send = Callable[[str, bool], Callable[[], Any]]


def _openai(url: str, asynchronous: bool) -> Callable[[], Any]:
    import openai

    kind = openai.AsyncOpenAI if asynchronous else openai.OpenAI
    client: Any = kind(base_url=f"{url}/v1", api_key="k")
    create = client.chat.completions.create
    return lambda: create(model=MODEL, messages=MESSAGES, max_tokens=MAX_TOKENS)


def _anthropic(url: str, asynchronous: bool) -> Callable[[], Any]:
    import anthropic

    kind = anthropic.AsyncAnthropic if asynchronous else anthropic.Anthropic
    client: Any = kind(base_url=url, api_key="k")
    create = client.messages.create
    return lambda: create(model=MODEL, messages=MESSAGES, max_tokens=MAX_TOKENS)


def _httpx(url: str, asynchronous: bool) -> Callable[[], Any]:
    import httpx

    limits = httpx.Limits(max_connections=100)
    client: Any = (
        httpx.AsyncClient(limits=limits, timeout=30)
        if asynchronous
        else httpx.Client(limits=limits, timeout=30)
    )
    body = {"model": MODEL, "messages": MESSAGES, "max_tokens": MAX_TOKENS}
    return lambda: client.post(f"{url}/v1/chat/completions", json=body)


def _streaming(url: str, asynchronous: bool) -> Callable[[], Any]:
    """A stream without ``max_tokens``."""
    import openai

    client = openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="k")

    async def send() -> None:
        async for _ in await client.chat.completions.create(
            model=MODEL, messages=MESSAGES, stream=True, stream_options={"include_usage": True}
        ):
            pass

    return send


CLIENTS: dict[str, Send] = {"openai": _openai, "anthropic": _anthropic, "httpx": _httpx}


def _gathered(send: Callable[[], Awaitable[Any]], count: int) -> list[Any]:
    async def main() -> list[Any]:
        return await asyncio.gather(*(send() for _ in range(count)), return_exceptions=True)

    return asyncio.run(main())


def _threads(send: Callable[[], Any], count: int) -> list[Any]:
    def one() -> Any:
        try:
            return send()
        except BaseException as exc:  # counted
            return exc

    with ThreadPoolExecutor(32) as pool:  # a thread has its own context: give it the caller's
        contexts = [contextvars.copy_context() for _ in range(count)]
        futures = [pool.submit(context.run, one) for context in contexts]
        return [future.result() for future in futures]


def _loop(send: Callable[[], Any], count: int) -> list[Any]:
    found = []
    for _ in range(count):
        try:
            found.append(send())
        except BaseException as exc:  # counted
            found.append(exc)
    return found


def _guarded(program: str, url: str, count: int) -> None:
    """Run one program under guard; print what became of its requests."""
    import guard

    guard.init()
    results: list[Any] = []
    try:
        with guard.workflow(os.environ["BENCH_WORKFLOW"]):
            _keep_results(results, program, url, count)
    except guard.GuardBudgetError as exc:  # what was swallowed inside is raised at the edge
        results = results or [exc]  # the first call of a process that came late
    print(json.dumps(Counter(map(_outcome, results))), flush=True)
    guard.shutdown()


def _keep_results(results: list[Any], program: str, url: str, count: int) -> None:
    """Run a program in the current scope; add what each of its requests came to."""
    import guard

    @guard.protect
    def work() -> None:
        results.extend(_results(program, url, count))

    work()


def _results(program: str, url: str, count: int) -> list[Any]:
    client, _, how = program.partition(", ")
    if program == "streams without a limit":
        return _gathered(_streaming(url, True), count)
    if how == "async":
        return _gathered(CLIENTS[client](url, True), count)
    if how == "threads":
        return _threads(CLIENTS[client](url, False), count)
    if program == "a loop of 1 ms requests":
        return _loop(_httpx(url, False), count)
    if program == "a forbidden model":
        return _loop(_openai(url, False), 5)
    return _gathered(_httpx(url, True), count)  # one of several processes


def _outcome(result: Any) -> str:
    if not isinstance(result, BaseException):
        return "ran"
    return type(getattr(result, "error", result)).__name__


def _litellm(url: str, count: int) -> None:
    """The peer: a budget of the process, checked before each call."""
    import litellm

    litellm.register_model({f"openai/{MODEL}": {
        "input_cost_per_token": INPUT_NANOUSD / 1e9, "output_cost_per_token": OUTPUT_NANOUSD / 1e9,
        "litellm_provider": "openai", "mode": "chat",
    }})  # fmt: skip
    litellm.max_budget = LIMIT / 1e9

    async def send() -> None:
        await litellm.acompletion(
            f"openai/{MODEL}", messages=MESSAGES, max_tokens=MAX_TOKENS, api_base=f"{url}/v1",
            api_key="k",
        )  # fmt: skip

    results = _gathered(send, count)
    print(json.dumps(Counter(map(_outcome, results))), flush=True)
    os._exit(0)


# -- the limits -------------------------------------------------------------------------------


class Kind(NamedTuple):
    """A kind of limit.

    Attributes:
        budget: how it is set.
        used: what of the vendor's figures it counts.
        most: so much may be used.
    """

    budget: dict[str, Any]
    used: str
    most: int


KINDS: Final = {
    "dollars": Kind({"limit_nanousd": LIMIT}, "nanousd", LIMIT),
    "tokens": Kind({"limit_tokens": TOKENS}, "tokens", TOKENS),
    "calls": Kind({"limit_calls": CALLS, "counts": [MODEL]}, "ran", CALLS),
    "share": Kind(
        {"limit_nanousd": LIMIT, "wind_down_percent": KEEP}, "nanousd", LIMIT * (100 - KEEP) // 100
    ),
    "raised": Kind({"limit_nanousd": LIMIT, "on_exhausted": "ask"}, "nanousd", LIMIT + RAISE),
}


@contextlib.contextmanager
def _raising(admin: Any, workflow: str) -> Iterator[None]:
    """Raise the limit once as soon as a request asks for it, and let it refuse after that."""
    ended = threading.Event()

    def watch() -> None:
        while not ended.wait(0.02):
            for ask in admin.budget_asks():
                if ask["workflow_id"] == workflow:
                    admin.raise_budget(ask["budget_id"], RAISE, workflow)
                    scope = {"scope_kind": "workflow", "scope_id": workflow}
                    admin.set_budget(**scope, limit_nanousd=LIMIT + RAISE)
                    return

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


# -- the comparison ---------------------------------------------------------------------------

PROGRAMS: Final = [
    *(f"{client}, {how}" for client in CLIENTS for how in ("async", "threads")),
    "streams without a limit",
    "a loop of 1 ms requests",
    "4 processes, one budget",
    "a forbidden model",
]


class Bench:
    """A gateway, a vendor, and programs run against them.

    Args:
        vendor: the vendor's address.
    """

    def __init__(self, vendor: str) -> None:
        self.vendor = vendor
        self.gateway, self.key, self.admin_key = self._start_gateway()
        from guard.gateway.admin import AdminClient

        self.admin = AdminClient(self.gateway, self.admin_key)
        self.admin.set_price(
            MODEL, input_per_mtok=INPUT_NANOUSD * 10**6, output_per_mtok=OUTPUT_NANOUSD * 10**6
        )
        self.number = 0

    def _start_gateway(self) -> list[str]:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.hard_stop", "--gateway"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=_ROOT,
        )  # fmt: skip
        assert self._process.stdout is not None
        return self._process.stdout.readline().split()

    def vendor_says(self, path: str) -> Any:
        import httpx

        return httpx.get(f"{self.vendor}{path}").json()

    def _billed(self, before: dict[str, int] | None = None) -> dict[str, int]:
        """How many requests the vendor has answered, and what it bills for them, since."""
        stats = self.vendor_says("/stats")
        tokens = stats["input_tokens"], stats["output_tokens"]
        found = {
            "ran": stats["answered"],
            "nanousd": tokens[0] * INPUT_NANOUSD + tokens[1] * OUTPUT_NANOUSD,
            "tokens": sum(tokens),
        }
        return {name: amount - (before or {}).get(name, 0) for name, amount in found.items()}

    def run(self, program: str, count: int, gated: bool, kind: str = "dollars") -> dict[str, Any]:
        self.number += 1
        workflow = f"bench-{self.number}"
        limit = KINDS[kind]
        self.admin.set_budget(scope_kind="workflow", scope_id=workflow, **limit.budget)
        if program == "a forbidden model":
            self._forbid(workflow)
        self.vendor_says("/delay/0.001" if "1 ms" in program else "/delay/0.02")
        before = self._billed()
        raising = _raising(self.admin, workflow) if kind == "raised" else contextlib.nullcontext()
        with raising:
            outcomes = self._processes(
                sys.executable, program, count, 4 if program.startswith("4") else 1,
                GUARD_API_URL=self.gateway, GUARD_API_KEY=self.key, BENCH_WORKFLOW=workflow,
                GUARD_GATE_REQUESTS="1" if gated else "0",
            )  # fmt: skip
        billed = self._billed(before)
        ledger = [row for row in self.admin.ledger() if row["scope_id"] == workflow]
        booked = ledger[0] if ledger else {}
        return {"ran": billed["ran"], "used": billed[limit.used], "most": limit.most,
                "outcomes": outcomes, "booked": booked.get("committed", 0)}  # fmt: skip

    def _forbid(self, workflow: str) -> None:
        self.admin.set_policy(
            workflow, models_block=[MODEL], scope_kind="workflow", scope_id=workflow
        )

    def peer(self, python: str, count: int) -> dict[str, Any]:
        before = self._billed()
        outcomes = self._processes(python, "litellm", count, 1)
        billed = self._billed(before)
        return {"ran": billed["ran"], "used": billed["nanousd"], "most": LIMIT,
                "outcomes": outcomes}  # fmt: skip

    def _processes(
        self, python: str, program: str, count: int, processes: int, **environ: str
    ) -> dict[str, int]:
        started = [
            subprocess.Popen(
                [python, "-m", "benchmarks.hard_stop", "--work", program, "--url", self.vendor,
                 "--requests", str(count)],
                stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, cwd=_ROOT,
                env={**os.environ, **environ},
            )
            for _ in range(processes)
        ]  # fmt: skip
        found: Counter[str] = Counter()
        for process in started:
            out, _ = process.communicate(timeout=300)
            lines = [line for line in out.splitlines() if line.startswith("{")]
            found.update(json.loads(lines[-1]) if lines else {f"exit {process.returncode}": 1})
        return dict(found)

    def stop(self) -> None:
        self.admin.close()
        self._process.kill()
        self._process.communicate()


def main() -> None:
    """Run the comparison and print it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--requests", type=int, default=100)
    parser.add_argument("--peers", help="an interpreter that has the peer")
    parser.add_argument("--only", nargs="*", help="programs to run")
    parser.add_argument("--results", type=Path, help="folder for a JSON file of the results")
    parser.add_argument("--all", action="store_true", help="play all cases of limit_cases instead")
    parser.add_argument("--rounds", type=int, default=3, help="how often, with --all")
    for hidden in ("--work", "--url"):
        parser.add_argument(hidden, help=argparse.SUPPRESS)
    parser.add_argument("--gateway", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.gateway:
        _serve_gateway()
    elif given.all:
        sys.exit(1 if limit_cases.play(limit_cases.cases(), given.rounds, given.results) else 0)
    elif given.work == "litellm":
        _litellm(given.url, given.requests)
    elif given.work:
        _guarded(given.work, given.url, given.requests)
    else:
        with vendor_process(beside=BESIDE, unlimited=MAX_TOKENS) as vendor:
            _compare(given, Bench(vendor))


def _compare(given: argparse.Namespace, bench: Bench) -> None:
    found: dict[str, Any] = {}
    print(f"Python {platform.python_version()}, {os.cpu_count()} CPUs; limit {LIMIT / 1e9:.6f} USD,"
          f" {given.requests} requests of {COST / 1e9:.6f} USD each")  # fmt: skip
    print(f"{'':34}" + "".join(f"{kind:>12}" for kind in KINDS))
    try:
        for program in given.only or PROGRAMS:
            found[program] = _show(program, {
                kind: bench.run(program, given.requests, True, kind) for kind in KINDS
            })  # fmt: skip
        if not given.only:
            name = "requests not gated: httpx, async"
            row = {"dollars": bench.run("httpx, async", given.requests, False)}
            found[name] = _show(name, row)
            if given.peers:
                name = "LiteLLM max_budget, async"
                found[name] = _show(name, {"dollars": bench.peer(given.peers, given.requests)})
    finally:
        bench.stop()
    if given.results is not None:
        given.results.mkdir(parents=True, exist_ok=True)
        day = time.strftime("%F")
        machine = f"{os.cpu_count()} cores, {platform.machine()}, {platform.python_version()}"
        text = json.dumps({"date": day, "machine": machine, "limit_nanousd": LIMIT,
                           "requests": given.requests, "results": found}, indent=1)  # fmt: skip
        (given.results / f"hard-stop-{day}.json").write_text(text)


def _show(name: str, row: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    cells = "".join(f"{each['ran']:5}{each['used'] / each['most']:6.2f}x" for each in row.values())
    print(f"{name:34}{cells}", flush=True)
    return row


if __name__ == "__main__":
    main()
