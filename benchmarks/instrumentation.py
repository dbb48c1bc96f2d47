"""The cost of observing an LLM call: per call, per chunk, to the first chunk; beside its peers.

Run: ``python benchmarks/instrumentation.py [--peers PYTHON] [--starts 6] [--rounds 5]
[--only NAME ...] [--quick]``

``PYTHON`` is an interpreter that has ``openai opentelemetry-instrumentation-openai-v2
'opentelemetry-util-genai<1.2' opentelemetry-sdk langfuse nullrun`` (the newest ``util-genai`` lacks
what the instrumentation imports); without it guard is compared with the plain client alone.
Every case is a process of its own, all talk to one local server, and they take turns, round after
round, so that the machine's other load affects every case alike. Guard's events go to a gateway
that runs here at the lowest priority. The processes are restarted several times, because their
memory layout alone makes processes of the same code differ by several percent. Guard alone can be
switched on and off in one process: that table comes first and is the most exact. Compare the
ratios.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks._llm_backend import CHUNKS, serve

QUICK = "BENCHMARK_QUICK"
CALLS, STREAMS, BLOCKS = (3, 3, 1) if os.environ.get(QUICK) else (60, 12, 5)
TITLES = {"call": "a call", "first": "to the first chunk", "chunk": "each further chunk"}
PEERS = ("opentelemetry", "langfuse", "nullrun")

# -- the cases ---------------------------------------------------------------------------------


def _instrument(name: str, url: str) -> None:
    if name == "guard":
        import guard

        guard.init()
    elif name == "opentelemetry":
        from opentelemetry import trace
        from opentelemetry.instrumentation.openai_v2 import OpenAIInstrumentor
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import (
            BatchSpanProcessor,
            SpanExporter,
            SpanExportResult,
        )

        class Nowhere(SpanExporter):
            def export(self, spans: Any) -> Any:
                return SpanExportResult.SUCCESS

        provider = TracerProvider()
        provider.add_span_processor(BatchSpanProcessor(Nowhere()))
        trace.set_tracer_provider(provider)
        OpenAIInstrumentor().instrument()
    elif name == "langfuse":
        os.environ.update(
            LANGFUSE_PUBLIC_KEY="pk", LANGFUSE_SECRET_KEY="sk", LANGFUSE_HOST=url,
            LANGFUSE_BASE_URL=url,
        )  # fmt: skip
        import langfuse.openai  # it patches the client as it is imported

        assert langfuse.openai
    elif name == "nullrun":
        import nullrun

        nullrun.init(api_key="nr_test", api_url=url)


class Worker:
    """One case: a client, and the three measurements."""

    def __init__(self, name: str, client: str, url: str) -> None:
        _instrument(name, url)
        self.ask: dict[str, Any] = {
            "model": "gpt-5",
            "messages": [{"role": "user", "content": "x" * 400}],
        }
        self.more = {"stream": True, "stream_options": {"include_usage": True}}
        self.url = f"{url}/v1/chat/completions"
        self.kind = client
        if client == "openai":
            import openai

            self.api: Any = openai.OpenAI(base_url=f"{url}/v1", api_key="k", max_retries=0)
        else:
            import httpx

            # The vendor's own host name, which some peers check; the server is a forward proxy.
            self.url = "http://api.openai.com/v1/chat/completions"
            self.api = httpx.Client(proxy=url)

    def call(self) -> None:
        if self.kind == "openai":
            self.api.chat.completions.create(**self.ask)
        else:
            self.api.post(self.url, json=self.ask).json()

    def stream(self) -> tuple[float, float]:
        """Return the time to the first chunk and the time for the others."""
        began = time.perf_counter()
        first = 0.0
        if self.kind == "openai":
            for _ in self.api.chat.completions.create(**self.ask, **self.more):
                first = first or time.perf_counter()
        else:
            with self.api.stream("POST", self.url, json={**self.ask, **self.more}) as response:
                for _ in response.iter_raw():
                    first = first or time.perf_counter()
        return first - began, time.perf_counter() - first

    def round(self, part: int = 1) -> dict[str, list[float]]:
        """Measure one ``part``-th of the calls and streams of a whole round."""
        calls, firsts, rests = [], [], []
        for _ in range(CALLS // part):
            began = time.perf_counter()
            self.call()
            calls.append((time.perf_counter() - began) * 1e6)
        for _ in range(STREAMS // part):
            first, rest = self.stream()
            firsts.append(first * 1e6)
            rests.append(rest * 1e6 / CHUNKS)
        return {"call": calls, "first": firsts, "chunk": rests}


def work(name: str, client: str, url: str) -> None:
    """Measure a round for every line on standard input."""
    out, sys.stdout = sys.stdout, sys.stderr  # peers print
    worker = Worker(name, client, url)
    worker.round()
    print("ready", file=out, flush=True)
    for _ in sys.stdin:
        print(json.dumps(worker.round()), file=out, flush=True)
    os._exit(0)


def alternate(client: str, url: str) -> None:
    """Measure one process with guard off and on in turn, for every line on standard input."""
    import guard

    worker = Worker("guard", client, url)
    worker.round()
    print("ready", flush=True)
    for number, _ in enumerate(sys.stdin):
        found: dict[str, list[list[float]]] = {key: [[], []] for key in TITLES}
        for _ in range(BLOCKS):
            for on in (number % 2, 1 - number % 2):
                (guard.instrument if on else guard.uninstrument)()
                worker.round(3)  # the interpreter loses its specialisations at a switch
                for key, values in worker.round(2).items():
                    found[key][on].append(statistics.median(values))
        print(json.dumps(found), flush=True)
    os._exit(0)


# -- the comparison ----------------------------------------------------------------------------


class Case:
    """A worker process and its measurements, for each of its starts."""

    def __init__(
        self, python: str, name: str, client: str, url: str, environ: dict[str, str]
    ) -> None:
        self.name, self.client = name, client
        self.samples: dict[str, list[float]] = {key: [] for key in TITLES}
        self.best: dict[str, float] = {}
        self._command = [python, __file__, "--work", name, client, url]
        self._environ = {**os.environ, **environ}
        self._said = tempfile.TemporaryFile("w+")  # noqa: SIM115 - as long-lived as the case
        self.process: subprocess.Popen[str] | None = None

    def start(self) -> bool:
        """Start the process; False when it cannot be."""
        self.process = subprocess.Popen(
            self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._said,
            text=True, env=self._environ,
        )  # fmt: skip
        return self._line() == "ready"

    def last_words(self) -> str:
        """The last line that the process has written to its standard error."""
        self._said.seek(0)
        return (self._said.read().strip().splitlines() or [""])[-1]

    def round(self) -> None:
        for key, values in self._asked().items():
            self.samples[key].append(statistics.median(values))
            self.best[key] = min(self.best.get(key, float("inf")), *values)

    def _asked(self) -> dict[str, Any]:
        """Have the process measure once, and return what it says."""
        assert self.process is not None
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        answer: dict[str, Any] = json.loads(self._line())
        return answer

    def _line(self) -> str:
        assert self.process is not None
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def stop(self) -> None:
        if self.process is None:
            return
        with contextlib.suppress(OSError):
            assert self.process.stdin is not None
            self.process.stdin.close()
        self.process.kill()
        self.process.wait()


class OnAndOff(Case):
    """A worker process that switches guard off and on in turn."""

    def __init__(self, client: str, url: str, environ: dict[str, str]) -> None:
        super().__init__(sys.executable, "guard", client, url, environ)
        self._command = [sys.executable, __file__, "--alternate", client, url]
        self.pairs: dict[str, list[tuple[float, float]]] = {key: [] for key in TITLES}

    def round(self) -> None:
        """Measure once more."""
        for key, (off, on) in self._asked().items():
            self.pairs[key] += zip(off, on, strict=True)

    def table(self) -> list[str]:
        """Medians with guard off and on, of their ratios, and of what is added."""
        lines = ["", f"{self.client}, one process, guard off and on in turn, in microseconds", ""]
        lines += [f"{'':22}{'off':>10}{'on':>10}{'ratio':>8}{'added':>9}"]
        for key, title in TITLES.items():
            off, on = zip(*self.pairs[key], strict=True)
            ratio = statistics.median(b / a for a, b in self.pairs[key])
            added = statistics.median(b - a for a, b in self.pairs[key])
            lines.append(
                f"{title:22}{statistics.median(off):10.2f}{statistics.median(on):10.2f}"
                f"{ratio:8.3f}{added:9.2f}"
            )
        return lines


def measure(cases: list[Case], starts: int, rounds: int) -> None:
    """Take turns; a case whose process does not start is left out."""
    for _ in range(starts):
        try:
            for case in cases.copy():
                if not case.start():
                    case.stop()
                    cases.remove(case)
                    print(f"{case.name} is left out: {case.last_words()}", file=sys.stderr)
            for _ in range(rounds):
                for case in cases:
                    case.round()
        finally:
            for case in cases:
                case.stop()


def tables(cases: list[Case]) -> list[str]:
    """Return the tables: medians, best of all, ratios to the plain case."""
    lines = []
    for client in dict.fromkeys(case.client for case in cases):
        group = [case for case in cases if case.client == client]
        plain = group[0]
        for key, title in TITLES.items():
            lines += ["", f"{client}, {title}, in microseconds", ""]
            lines += [f"{'':16}{'median':>10}{'ratio':>8}{'best':>10}{'ratio':>8}{'added':>9}"]
            for case in group:
                # Ratios of neighbours in time, so that the machine's drift cancels out.
                ratio = statistics.median(
                    a / b for a, b in zip(case.samples[key], plain.samples[key], strict=True)
                )
                added = case.best[key] - plain.best[key]
                lines.append(
                    f"{case.name:16}{statistics.median(case.samples[key]):10.2f}{ratio:8.3f}"
                    f"{case.best[key]:10.2f}{case.best[key] / plain.best[key]:8.3f}{added:9.2f}"
                )
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--peers", help="an interpreter that has the peers")
    parser.add_argument("--starts", type=int, default=6, help="of each process")
    parser.add_argument("--rounds", type=int, default=5, help="after each start")
    parser.add_argument("--only", nargs="*", help="only these cases, beside the plain client")
    parser.add_argument("--quick", action="store_true", help="to see that it runs: few calls")
    options = parser.parse_args()
    if options.quick:
        os.environ[QUICK] = "1"
    wanted = [("plain", "openai"), ("guard", "openai")]
    if options.peers:
        wanted += [("opentelemetry", "openai"), ("langfuse", "openai")]
    wanted += [("plain", "httpx"), ("guard", "httpx")]
    if options.peers:
        wanted += [("nullrun", "httpx")]
    (url,), server = serve("llm")
    (gateway_url, api_key), gateway = serve("gateway")
    try:
        keys = {"GUARD_API_KEY": api_key, "GUARD_API_URL": gateway_url}
        cases = [
            Case(options.peers if name in PEERS else sys.executable, name, client, url, keys)
            for name, client in wanted
            if not options.only or name in ("plain", *options.only)
        ]
        switched = [OnAndOff(client, url, keys) for client in ("openai", "httpx")]
        for one in switched:
            measure([one], options.starts, options.rounds)
        measure(cases, options.starts, options.rounds)
        print(f"Python {platform.python_version()}, {os.cpu_count()} CPUs, {CHUNKS} chunks")
        print("\n".join(line for one in switched for line in one.table()))
        print("\n".join(tables(cases)))
    finally:
        for process in (gateway, server):
            process.communicate()  # the end of its input is the end of it


if __name__ == "__main__":
    if sys.argv[1:2] == ["--work"]:
        work(*sys.argv[2:5])
    elif sys.argv[1:2] == ["--alternate"]:
        alternate(*sys.argv[2:4])
    else:
        main()
