"""Does the limit hold, and is anybody stopped while there is money? Cases against a billing vendor.

Run: ``python -m benchmarks.hard_stop --all [--rounds 3] [--results FOLDER]`` for all of them, or
``python -m benchmarks.limit_cases [--only TEXT ...] [--list]`` for some.

Each case is a program of its own under ``guard run --limit``, against a stand-in of the vendor that
bills by a price table of its own (``_billing_vendor.py``). A case holds when the bill is at most
the limit, what guard charged is at least the bill, and the program was not stopped while the money
that was left would have paid for its prompt and the least answer.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import attrs

from benchmarks._billing_vendor import HIDING, PRICES

_ROOT: Final = Path(__file__).parents[1]
LEAST_NAMED: Final = 1024
LEAST: Final = 256
LEAST_HIDING: Final = 4096
MODELS: Final = {
    "chat": ("gpt-4o-mini", "o3"),
    "responses": ("gpt-4o", "o1-pro"),
    "anthropic": ("claude-sonnet-4-5", "claude-opus-4-1"),
    "gemini": ("gemini-2.5-flash", "gemini-2.5-pro"),
}


CLIENTS: Final = {
    "openai": "chat", "openai responses": "responses", "anthropic": "anthropic",
    "google-genai": "gemini", "langchain": "chat", "langgraph": "chat", "openai-agents": "chat",
}  # fmt: skip


@attrs.frozen
class Case:
    """One program.

    Attributes:
        format: whose endpoint, and in which form.
        model: the model.
        limit_nanousd: of the run.
        shape: one after the other, or together in threads or tasks.
        count: how many requests it wants to make.
        named: the limit on its output that a request names; None for none.
        wanted: the tokens of an answer without a limit.
        stream: whether answers are streamed.
        fault: what the vendor does wrong.
        way: how the program is started, and how it ends its requests or itself.
        delay_ms: how long an answer takes.
        prompt_words: the size of the prompt.
        client: what makes the requests: httpx, or a vendor's client or framework as it is.
    """

    format: str
    model: str
    limit_nanousd: int
    shape: str = "serial"
    count: int = 30
    named: int | None = None
    wanted: int = 200
    stream: bool = False
    fault: str = "none"
    way: str = "plain"
    delay_ms: int = 5
    prompt_words: int = 60
    client: str = "httpx"

    @property
    def name(self) -> str:
        """What it is called."""
        words = [self.model, self.shape, "stream" if self.stream else "whole"]
        words.append("no max" if self.named is None else f"max {self.named}")
        details = self.client, self.fault, self.way
        words += [word for word in details if word not in ("httpx", "none", "plain")]
        return ", ".join(words)

    @property
    def least_nanousd(self) -> int:
        """What the prompt and the least answer cost, with a generous reading of the prompt."""
        price_in, price_out = PRICES[self.model]
        is_named = self.named is not None or self.format == "anthropic"
        least = LEAST_NAMED if is_named else LEAST
        if self.model.startswith(HIDING) or self.model.startswith("gemini-2.5"):
            least = LEAST_HIDING
        if self.named:
            least = min(least, self.named)
        return int(1000 * ((5 * self.prompt_words + 600) * price_in + least * price_out))


def cost_of(model: str, tokens_in: int, tokens_out: int) -> int:
    """Return the cost of one answer in nano-dollars."""
    price_in, price_out = PRICES[model]
    return int(1000 * (tokens_in * price_in + tokens_out * price_out))


def cases() -> list[Case]:
    """Return all cases."""
    found: list[Case] = []
    for form, models in MODELS.items():
        for model in models:
            found += [
                Case(form, model, limit_of(model), shape, named=named, stream=stream)
                for shape in ("serial", "gather", "threads")
                for named in (None, 300, 32_000)
                for stream in (False, True)
            ]
        found += faults_of(form, *models)
    return [*found, *clients()]


def clients() -> list[Case]:
    """Return the cases of vendors' clients and frameworks, which retry by themselves."""
    found: list[Case] = []
    for client, form in CLIENTS.items():
        model = MODELS[form][0]
        limit = limit_of(model)
        found += [
            Case(form, model, limit, "serial", client=client),
            Case(form, model, limit, "gather", client=client, named=300, delay_ms=100),
            Case(form, model, limit, "gather", client=client, named=300, fault="reset"),
            Case(form, model, limit, "serial", client=client, stream=True),
        ]
    return found


def faults_of(form: str, model: str, other: str) -> list[Case]:
    """Return the cases of one format in which a vendor, a client or a process fails."""
    limit = limit_of(model)
    together = [Case(form, model, limit, "gather", named=300, fault=fault)
                for fault in ("reset", "proxy", "error")]  # fmt: skip
    streams = [Case(form, model, limit, "gather", named=300, stream=True, fault=fault)
               for fault in ("cut", "mute")]  # fmt: skip
    hiding = [Case(form, other, 4 * limit_of(other), stream=True, fault=fault)
              for fault in ("cut", "mute")]  # fmt: skip
    ended = [Case(form, model, limit, "gather", named=300, way=way, delay_ms=2000)
             for way in ("cancel", "close", "timeout")]  # fmt: skip
    left = [Case(form, model, limit, stream=True, way="abandon")]
    started = [Case(form, model, limit, named=300, way=way)
               for way in ("env", "env -i", "nested", "fork")]  # fmt: skip
    killed = [Case(form, model, limit, "gather", named=300, way=way, delay_ms=3000)
              for way in ("_exit", "kill", "hup")]  # fmt: skip
    return [*together, *streams, *hiding, *ended, *left, *started, *killed]


def limit_of(model: str) -> int:
    """Return a limit that pays for about twelve usual answers, and for three least ones."""
    least = Case("", model, 0).least_nanousd
    return max(12 * cost_of(model, 80, 200), 3 * least)


class Bench:
    """A vendor and a local gateway for all cases."""

    def __init__(self, directory: Path, port: str) -> None:
        self._port = port
        self._env = {k: v for k, v in os.environ.items() if not k.startswith("GUARD_")} | {
            "GUARD_LOCAL_DIR": str(directory), "PYTHONPATH": str(_ROOT),
        }  # fmt: skip

    def bill(self) -> tuple[int, int]:
        """Return what the vendor has billed and how many requests it has had."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self._port}/bill") as answer:
            said = json.loads(answer.read())
        return said["nanousd"], said["requests"]

    def run(self, case: Case) -> dict[str, Any]:
        """Play a case and return what came of it."""
        billed, requests = self.bill()
        command = [
            sys.executable, "-m", "guard", "run", "--limit", f"{case.limit_nanousd / 1e9:.9f}",
            "--wait", "20", "--json", "--", sys.executable, "-m", "benchmarks._limit_agent",
            json.dumps(attrs.asdict(case)), self._port,
        ]  # fmt: skip
        began_s = time.monotonic()
        done = subprocess.run(
            command, env=self._env, cwd=_ROOT, capture_output=True, text=True, timeout=300,
            check=False,
        )  # fmt: skip
        lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
        report = json.loads(lines[-1]) if lines else {}
        billed_after, requests_after = self.bill()
        billed, charged = billed_after - billed, int(report.get("spent_nanousd", -1))
        refused = report.get("refused")
        is_stopped = done.returncode == 77
        left = case.limit_nanousd - max(charged, billed)
        problems = []
        if billed > case.limit_nanousd:
            problems.append("over")
        if charged < billed:
            problems.append("undercharged")
        if is_stopped and left > case.least_nanousd:
            problems.append("stopped early")
        if done.returncode not in (0, 77, -9, 137, 129, -1):
            problems.append(f"exit code {done.returncode}: {done.stderr.strip()[-300:]}")
        return {
            "billed": billed, "charged": charged, "limit": case.limit_nanousd,
            "share": round(charged / case.limit_nanousd, 3), "requests": requests_after - requests,
            "stopped": is_stopped, "seconds": round(time.monotonic() - began_s, 1),
            "problems": problems,
            "refused": None if refused is None else refused.get("reason") or refused.get("detail"),
        }  # fmt: skip


@contextlib.contextmanager
def vendor() -> Iterator[str]:
    """Run the vendor; yield its port."""
    command = [sys.executable, "-m", "benchmarks._billing_vendor"]
    with subprocess.Popen(
        command, cwd=_ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        yield process.stdout.readline().strip().rpartition(":")[2]
        process.kill()


def play(chosen: list[Case], rounds: int, results: Path | None) -> int:
    """Play cases and print what came of them.

    Args:
        chosen: which.
        rounds: how often all of them are played, one round after the other.
        results: folder for a JSON file of what came of each round; written after each.

    Returns:
        How many did not hold.
    """
    played: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as directory, vendor() as port:
        bench = Bench(Path(directory), port)
        print(f"{'':58}{'billed':>12}{'charged':>12}{'limit':>12}  share")
        for _ in range(rounds):
            found: dict[str, Any] = {}
            for case in chosen:
                row = found[case.name] = bench.run(case)
                names = ("billed", "charged", "limit")
                amounts = "".join(f"{row[name] / 1e9:12.6f}" for name in names)
                words = "; ".join(row["problems"]) or "holds"
                print(f"{case.name:58}{amounts}{row['share']:7.2f}  {words}", flush=True)
            played.append(found)
            _keep(played, results)
    broken = sum(1 for found in played for row in found.values() if row["problems"])
    print(f"{len(chosen)} cases, {rounds} rounds: {broken} did not hold")
    return broken


def _keep(played: list[dict[str, Any]], results: Path | None) -> None:
    if results is None:
        return
    results.mkdir(parents=True, exist_ok=True)
    day = time.strftime("%F")
    machine = f"{os.cpu_count()} cores, {platform.machine()}, {platform.python_version()}"
    text = json.dumps({"date": day, "machine": machine, "rounds": played}, indent=1)
    (results / f"limit-cases-{day}.json").write_text(text)


def main() -> int:
    """Play some of the cases; 1 when one does not hold."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", nargs="*", default=[], help="words that a case's name has")
    parser.add_argument("--list", action="store_true", help="name the cases")
    given = parser.parse_args()
    chosen = [case for case in cases() if all(word in case.name for word in given.only)]
    if given.list:
        print("\n".join(case.name for case in chosen))
        return 0
    return 1 if play(chosen, 1, None) else 0


if __name__ == "__main__":
    sys.exit(main())
