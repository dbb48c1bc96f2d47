"""Speed of the engine: one by one, in batches, on all cores; as ratios to the targets.

First come the compiled inner loops beside their twins in Python, in turns: texts per second of
processor time of each, and the median of their ratios.

    python benchmarks/spam_engine.py [DATA_DIR] [--quick]

``DATA_DIR`` (or the environment variable SPAMDETECT_DATA) holds ``spam/``; without it the
benchmark makes its texts up.
"""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random

from benchmarks.spam import footprint
from spamdetect.engine import Engine, classify_many, language
from spamdetect.training.dataset import read_spam
from spamdetect.training.mirror import STEMS, ordinary_link

SHORT_TARGET = 8_000.0
LONG_TARGET = 1_000.0
BATCH_TARGET = 3 * SHORT_TARGET


def texts() -> list[str]:
    quick = "--quick" in sys.argv  # to see that it runs
    places = [word for word in sys.argv[1:] if word != "--quick"]
    place = places[0] if places else os.environ.get("SPAMDETECT_DATA")
    if place and not quick:
        return [row.text for row in read_spam([Path(place) / "spam"])]
    random = Random(0)
    made = []
    for number in range(400 if quick else 8000):
        words = random.choices(STEMS, k=300 if number % 4 == 0 else random.randint(4, 20))
        made.append(" ".join(words) + (f" {ordinary_link(random)}" if number % 3 == 0 else ""))
    return made


def rate(run: Callable[[], object], count: int, repeats: int = 3) -> float:
    """Runs of ``count`` per second of processor time: what else the machine does matters little."""
    best = float("inf")
    for _ in range(repeats):
        start = time.process_time()
        run()
        best = min(best, time.process_time() - start)
    return count / best


async def on_all_cores(part: Sequence[str]) -> float:
    """Texts per second once the workers are up."""
    results = classify_many(list(part[:512]) + list(part) * 4)
    done = 0
    start = time.perf_counter()
    async for _ in results:
        done += 1
        if done == 512:
            start = time.perf_counter()
    return (done - 512) / (time.perf_counter() - start)


class Twin:
    """An engine in a process of its own, which reads texts as they are asked for."""

    _PROGRAM = """
import json, sys, time
from spamdetect.engine import Engine, native
engine = Engine.load()
print(native.compiled is not None, flush=True)
for line in sys.stdin:
    size, texts = json.loads(line)
    start = time.process_time()
    if size == 1:
        for text in texts: engine.predict(text)
    else:
        for at in range(0, len(texts), size): engine.predict_many(texts[at : at + size])
    print(len(texts) / (time.process_time() - start), flush=True)
"""

    def __init__(self, speedups: bool) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", self._PROGRAM],
            env={**os.environ, "SPAMDETECT_SPEEDUPS": str(int(speedups))},
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        self.compiled = self._line() == "True"

    def rate(self, size: int, texts: Sequence[str]) -> float:
        """Texts per second of processor time, so many at once."""
        assert self._process.stdin
        print(json.dumps([size, texts]), file=self._process.stdin, flush=True)
        return float(self._line())

    def stop(self) -> None:
        self._process.communicate()

    def _line(self) -> str:
        assert self._process.stdout
        return self._process.stdout.readline().strip()


def twins(short: Sequence[str], long: Sequence[str]) -> None:
    """The compiled inner loops beside their twins, on texts not read before, in turns."""
    python, compiled = Twin(speedups=False), Twin(speedups=True)
    if not compiled.compiled:
        print("nothing is compiled here: see spamdetect doctor")
    for name, texts, size, part in (
        ("short, one by one", short, 1, 128), ("short, 16 at a time", short, 16, 256),
        ("short, 256 at a time", short, 256, 256), ("long, one by one", long, 1, 16),
    ):  # fmt: skip
        rates = [
            (compiled.rate(size, texts[at : at + part]), python.rate(size, texts[at : at + part]))
            for at in range(0, len(texts) - part + 1, part)
        ]
        ratio = statistics.median(fast / slow for fast, slow in rates)
        with_c, without = (statistics.median(found) for found in zip(*rates, strict=True))
        print(f"{name:42s} {with_c:10,.0f} texts/s {ratio:6.2f} x Python ({without:,.0f})")
    python.stop()
    compiled.stop()


def line(name: str, found: float, target: float | None = None) -> None:
    ratio = f"{found / target:6.2f} x target" if target else ""
    print(f"{name:42s} {found:10,.0f} texts/s {ratio}")


def main() -> None:
    engine, detector = Engine.load(), language.load()
    every = texts()
    short = [text for text in every if 0 < len(text) <= footprint.SHORT][:4000]
    long = [text for text in every if len(text) >= footprint.LONG][:500]
    twins(short, long)
    line(
        "short, one by one",
        rate(lambda: [engine.predict(t) for t in short], len(short)),
        SHORT_TARGET,
    )
    line(
        "long, one by one", rate(lambda: [engine.predict(t) for t in long], len(long)), LONG_TARGET
    )
    line("short, predict_many", rate(lambda: engine.predict_many(short), len(short)))
    line("long, predict_many", rate(lambda: engine.predict_many(long), len(long)))
    line("short, classify_many", asyncio.run(on_all_cores(short)), BATCH_TARGET)
    line(
        "short, language alone",
        rate(lambda: [detector.detect(t) for t in short], len(short)),
        SHORT_TARGET,
    )
    cost = footprint.measure([])
    print(f"{'import and load':42s} {cost.load_ms:10.0f} ms      {cost.load_ms / 250:6.2f} x limit")
    print(f"{'resident memory':42s} {cost.rss_mb:10.0f} MB      {cost.rss_mb / 60:6.2f} x limit")


if __name__ == "__main__":
    main()
