"""What the proxy costs: beside a bare pass-through in Starlette and httpx, and LiteLLM's proxy.

Run: ``python -m benchmarks.proxy [--litellm PYTHON] [--seconds 4] [--rounds 5] [--streams 1000]``
``[--results FOLDER]``

``PYTHON`` is an interpreter that has ``litellm[proxy]``. All forward to one stand-in of a vendor on
this machine and take turns, round after round. Guard's proxy is that of a run: it holds money for
each request at a gateway in a process of its own, and charges it; then a team's, to which each
caller brings the vendor's key, and one that holds it (custody). Printed are requests for each
second of CPU of the proxy's process (its gateway's CPU stands beside it), the time that is added to
a request at the median and the 99th percentile over one connection, the time until the first byte
of a stream, and the memory with many streams open at once.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import platform
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import attrs
import psutil

from benchmarks._llm_backend import serve
from benchmarks._raw_load import Load, load

_ROOT: Final = Path(__file__).parents[1]
_LITELLM: Final = """
model_list:
  - model_name: gpt-5
    litellm_params: {{model: openai/gpt-5, api_base: {url}/v1, api_key: k}}
litellm_settings: {{telemetry: false}}
"""


@attrs.define
class Subject:
    """A proxy that is measured.

    Attributes:
        name: in the table.
        url: its base URL of OpenAI.
        pid: of its process.
        beside: process of its gateway, which works for it; None without one.
        credentials: the headers of a request that carry keys.
        rates, medians_ms, p99s_ms, firsts_ms: of each round.
    """

    name: str
    url: str
    pid: int
    beside: int | None = None
    credentials: str = "Authorization: Bearer k\r\n"
    rates: list[float] = attrs.Factory(list)
    beside_us: list[float] = attrs.Factory(list)
    medians_ms: list[float] = attrs.Factory(list)
    p99s_ms: list[float] = attrs.Factory(list)
    firsts_ms: list[float] = attrs.Factory(list)

    def cpu_s(self) -> tuple[float, float]:
        """Return the CPU time of the process and of its gateway."""
        return _cpu_s(self.pid), 0.0 if self.beside is None else _cpu_s(self.beside)


def _cpu_s(pid: int) -> float:
    times = psutil.Process(pid).cpu_times()
    return float(times.user + times.system)


def request(subject: Subject, *, stream: bool) -> bytes:
    """Return a chat request as a coding agent's client sends it, about 4 kB."""
    words = "Read the file and say what it does. " * 100
    body = json.dumps({
        "model": "gpt-5", "max_completion_tokens": 500, "stream": stream,
        **({"stream_options": {"include_usage": True}} if stream else {}),
        "messages": [{"role": "user", "content": words}],
    }).encode()  # fmt: skip
    path = "/" + subject.url.removeprefix("http://").partition("/")[2]
    head = (
        f"POST {path.rstrip('/')}/v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\n"
        f"{subject.credentials}User-Agent: codex_cli_rs/0.4\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


# -- the proxies ---------------------------------------------------------------------------------


@contextlib.contextmanager
def bare(upstream: str) -> Iterator[Subject]:
    """Run the pass-through."""
    process = subprocess.Popen(
        [sys.executable, "-m", "benchmarks._pass_through", upstream],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=_ROOT,
    )  # fmt: skip
    assert process.stdout is not None
    try:
        url = process.stdout.readline().strip()
        yield Subject("Starlette + httpx", f"{url}/openai", process.pid)
    finally:
        process.communicate(timeout=60)


@contextlib.contextmanager
def guards(upstream: str) -> Iterator[Subject]:
    """Run guard's proxy of a run, and its gateway."""
    (gateway_url, key), gateway = serve("gateway")
    environ = {**os.environ, "GUARD_API_URL": gateway_url, "GUARD_API_KEY": key,
               "GUARD_WORKFLOW": "benchmark", "GUARD_PRICE_LOCAL": "1",
               "PYTHONPATH": str(_ROOT)}  # fmt: skip
    with tempfile.TemporaryDirectory(prefix="guard-proxy-") as folder:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "guard.proxy"],
            env=environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(json.dumps({"directory": folder, "upstreams": {"openai": upstream}}))
        process.stdin.write("\n")
        process.stdin.flush()
        try:
            url = json.loads(process.stdout.readline())["url"]
            yield Subject("guard", f"{url}/openai", process.pid, gateway.pid)
        finally:
            process.communicate(timeout=60)
            gateway.communicate(timeout=60)


@contextlib.contextmanager
def teams(upstream: str, *, custody: bool) -> Iterator[Subject]:
    """Run guard's proxy of a team, and its gateway."""
    (gateway_url, key, own_key), gateway = serve("team")
    with tempfile.TemporaryDirectory(prefix="guard-proxy-") as folder:
        accounts = Path(folder, "accounts.toml")
        accounts.write_text(f'[openai]\norigins = ["{upstream}"]\ncredential_env = "VENDOR_KEY"\n')
        given = ["--accounts", str(accounts)] if custody else ["--upstream", f"openai={upstream}"]
        process = subprocess.Popen(
            [sys.executable, "-m", "guard", "proxy", "serve", "--port", "0",
             *given],
            env={**os.environ, "GUARD_API_URL": gateway_url, "GUARD_API_KEY": own_key,
                 "GUARD_PRICE_LOCAL": "1", "VENDOR_KEY": "k", "PYTHONPATH": str(_ROOT)},
            stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert process.stdout is not None
        try:
            found = re.search(r"http://[\d.:]+", process.stdout.readline())
            assert found is not None, "the proxy has not started"
            own = f"Authorization: Bearer {key}\r\n"
            both = f"Authorization: Bearer k\r\nx-guard-key: {key}\r\n"
            yield Subject("guard, custody" if custody else "guard, a team's", f"{found[0]}/openai",
                          process.pid, gateway.pid, own if custody else both)  # fmt: skip
        finally:
            process.terminate()
            process.wait(60)
            gateway.communicate(timeout=60)


@contextlib.contextmanager
def litellms(python: str, upstream: str) -> Iterator[Subject]:
    """Run LiteLLM's proxy with one worker and without a database."""
    port = 4000 + os.getpid() % 1000
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as config:
        config.write(_LITELLM.format(url=upstream))
        config.flush()
        command = [str(Path(python).with_name("litellm")), "--config", config.name,
                   "--host", "127.0.0.1", "--port", str(port), "--num_workers", "1"]  # fmt: skip
        process = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            env={**os.environ, "LITELLM_LOG": "ERROR",
                 "LITELLM_DANGEROUSLY_PERMIT_WEAK_OR_UNSET_MASTER_KEY": "true"},
        )  # fmt: skip
        try:
            url = f"http://127.0.0.1:{port}"
            _wait_for(url)
            yield Subject("LiteLLM", url, process.pid)
        finally:
            process.terminate()
            process.wait(60)


def _wait_for(url: str) -> None:
    import httpx

    for _ in range(600):
        with contextlib.suppress(httpx.TransportError):
            if httpx.get(f"{url}/health/liveliness").status_code == 200:
                return
        time.sleep(0.1)
    raise TimeoutError(f"{url} does not answer")


# -- the measurements ----------------------------------------------------------------------------


def measure(subject: Subject, seconds: float) -> None:
    """Load a proxy over 16 connections for its CPU, and over one for the time it adds."""
    url = subject.url
    before = subject.cpu_s()
    many = _run(url, request(subject, stream=False), 16, seconds)
    own_s, beside_s = (b - a for a, b in zip(before, subject.cpu_s(), strict=True))
    subject.rates.append(many.answers / own_s)
    subject.beside_us.append(beside_s / many.answers * 1e6)
    one = _run(url, request(subject, stream=False), 1, seconds / 2)
    subject.medians_ms.append(statistics.median(one.whole_s) * 1e3)
    subject.p99s_ms.append(sorted(one.whole_s)[int(len(one.whole_s) * 0.99)] * 1e3)
    streams = _run(url, request(subject, stream=True), 1, seconds / 2)
    subject.firsts_ms.append(statistics.median(streams.first_s) * 1e3)


def _run(url: str, what: bytes, connections: int, seconds: float) -> Load:
    host = url.removeprefix("http://").partition("/")[0]
    return asyncio.run(load(f"http://{host}", what, connections, seconds))


def report(subjects: list[Subject], direct: Load) -> dict[str, Any]:
    """Print the table, and return it."""
    floor_ms = statistics.median(direct.whole_s) * 1e3
    first_ms = statistics.median(direct.first_s) * 1e3
    bare_us = 1e6 / statistics.median(subjects[0].rates)
    print(f"{'':<20}{'per s of CPU':>13}{'CPU us':>9}{'ratio':>7}{'gateway us':>11}"
          f"{'added ms':>10}{'p99':>7}{'first ms':>10}")  # fmt: skip
    rows = {}
    for each in subjects:
        rate = statistics.median(each.rates)
        row = {
            "requests_per_cpu_second": round(rate),
            "cpu_us": round(1e6 / rate),
            "ratio": round(1e6 / rate / bare_us, 2),
            "gateway_us": round(statistics.median(each.beside_us)),
            "added_ms": round(statistics.median(each.medians_ms) - floor_ms, 2),
            "added_p99_ms": round(statistics.median(each.p99s_ms) - floor_ms, 2),
            "first_byte_ms": round(statistics.median(each.firsts_ms) - first_ms, 2),
        }
        rows[each.name] = row
        print(f"{each.name:<20}{row['requests_per_cpu_second']:>13,}{row['cpu_us']:>9,}"
              f"{row['ratio']:>7.2f}{row['gateway_us']:>11,}{row['added_ms']:>10.2f}"
              f"{row['added_p99_ms']:>7.2f}{row['first_byte_ms']:>10.2f}")  # fmt: skip
    return rows


def main() -> None:
    """Measure."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--litellm", metavar="PYTHON", help="interpreter that has litellm[proxy]")
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--streams", type=int, default=1000, help="open at once; 0 for none")
    parser.add_argument("--results", type=Path, help="folder for a JSON file of the results")
    given = parser.parse_args()
    (upstream,), vendor = serve("llm")
    with contextlib.ExitStack() as stack:
        stack.callback(vendor.communicate)
        made = [bare(upstream), guards(upstream),
                teams(upstream, custody=False), teams(upstream, custody=True)]  # fmt: skip
        subjects = [stack.enter_context(each) for each in made]
        if given.litellm:
            subjects.append(stack.enter_context(litellms(given.litellm, upstream)))
        for each in subjects:
            _run(each.url, request(each, stream=False), 4, 1.0)  # until all is loaded
        for _ in range(given.rounds):
            for each in subjects:
                measure(each, given.seconds)
        direct = _run(upstream, request(Subject("", upstream, 0), stream=False), 1, given.seconds)
        rows = report(subjects, direct)
    if given.streams:
        rows |= {"open_streams": open_streams(given.streams)}
    if given.results:
        stamp = time.strftime("%Y-%m-%d")
        facts = {"machine": platform.platform(), "date": stamp, "rows": rows}
        (given.results / f"proxy-{stamp}.json").write_text(json.dumps(facts, indent=1) + "\n")


def open_streams(count: int) -> dict[str, Any]:
    """Open many streams at once through guard's proxy; return what memory they need."""
    from benchmarks._slow_streams import slow_vendor

    with slow_vendor() as upstream, guards(upstream) as subject:
        process = psutil.Process(subject.pid)
        _run(subject.url, request(subject, stream=True), 4, 0.1)
        before = process.memory_info().rss
        peaks = []

        async def watch() -> Load:
            host = subject.url.removeprefix("http://").partition("/")[0]
            what = request(subject, stream=True)
            loading = asyncio.create_task(load(f"http://{host}", what, count, 0.0))
            while not loading.done():
                peaks.append(process.memory_info().rss)
                await asyncio.sleep(0.25)
            return await loading

        found = asyncio.run(watch())
        facts = {
            "streams": found.answers,
            "seconds": round(found.took_s, 1),
            "before_mb": round(before / 2**20, 1),
            "peak_mb": round(max(peaks) / 2**20, 1),
            "kb_each": round((max(peaks) - before) / count / 2**10, 1),
        }
        print(f"{count} streams open at once: {facts['before_mb']} MB before, "
              f"{facts['peak_mb']} MB at most, {facts['kb_each']} kB each")  # fmt: skip
        return facts


if __name__ == "__main__":
    main()
