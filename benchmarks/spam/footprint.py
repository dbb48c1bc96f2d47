"""Speed, memory, load time and size of the engine, each in a fresh process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from importlib import resources
from typing import Final

import attrs

SHORT: Final = 160
LONG: Final = 1000
LOADS: Final = 10
_BYTECODE: Final = ("PYTHONPYCACHEPREFIX", "PYTHONDONTWRITEBYTECODE")

# The peak from getrusage is inherited from the parent process; the one from /proc is not.
_PEAK: Final = """
def peak_kb():
    try:
        with open("/proc/self/status") as status:
            return next(int(line.split()[1]) for line in status if line.startswith("VmHWM"))
    except (OSError, StopIteration):
        import resource
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
"""
_LOAD: Final = """
import json, sys, time
start = time.perf_counter()
from spamdetect.engine import Engine
engine = Engine.load()
loaded = time.perf_counter() - start
engine.predict("one text")
print(json.dumps([loaded, peak_kb()]))
"""
_DETECTOR: Final = """
import json
from spamdetect.engine import language
language.load().detect("one text")
print(json.dumps(peak_kb()))
"""
_SPEED: Final = """
import json, sys, time
from spamdetect.engine import Engine, language
texts = json.load(sys.stdin)
engine, detector = Engine.load(), language.load()
out = {}
for name, part in texts.items():
    def one():
        for text in part: engine.predict(text)
    def many():
        engine.predict_many(part)
    def lang():
        for text in part: detector.detect(text)
    for way, run in (("one", one), ("many", many), ("language", lang)):
        best = float("inf")
        for _ in range(3):
            start = time.process_time(); run(); best = min(best, time.process_time() - start)
        out[f"{name} {way}"] = len(part) / best
print(json.dumps(out))
"""


@attrs.frozen
class Footprint:
    """What the engine costs.

    Attributes:
        load_ms: importing and loading, best of ten fresh processes, with compiled bytecode.
        rss_mb: highest resident memory of such a process after one text.
        detector_rss_mb: the same with the language detector only.
        model_kb: size of each model file.
        per_second: texts per second of processor time, by length and way of calling.
    """

    load_ms: float
    rss_mb: float
    detector_rss_mb: float
    model_kb: dict[str, float]
    per_second: dict[str, float]


def measure(texts: Sequence[str], most: int = 2000) -> Footprint:
    """Measure the shipped engine.

    Args:
        texts: real messages, of which the short and the long ones are used.
        most: at most this many of each.
    """
    parts = samples(texts, most)
    with tempfile.TemporaryDirectory() as cache:
        loads = [json.loads(_run(_PEAK + _LOAD, cache)) for _ in range(LOADS)]
        detector_kb = json.loads(_run(_PEAK + _DETECTOR, cache))
        per_second = json.loads(_run(_SPEED, cache, json.dumps(parts)))
    folder = resources.files("spamdetect.engine")
    return Footprint(
        load_ms=min(seconds for seconds, _ in loads) * 1000.0,
        rss_mb=min(kilobytes for _, kilobytes in loads) / 1024.0,
        detector_rss_mb=detector_kb / 1024.0,
        model_kb={
            file.name: len(file.read_bytes()) / 1000.0
            for file in sorted(folder.iterdir(), key=lambda file: file.name)
            if file.name.endswith(".model")
        },
        per_second=per_second,
    )


def samples(texts: Sequence[str], most: int = 2000) -> dict[str, list[str]]:
    """The short and the long texts among these, if there are any.

    Args:
        texts: real messages.
        most: at most this many short ones, and a quarter as many long ones.
    """
    parts = {
        "short": [text for text in texts if 0 < len(text) <= SHORT][:most],
        "long": [text for text in texts if len(text) >= LONG][: max(1, most // 4)],
    }
    return {name: part for name, part in parts.items() if part}


def _run(program: str, cache: str, data: str = "") -> str:
    # With compiled bytecode, as in an installation, whatever this process was told about it.
    environment = {"PYTHONPYCACHEPREFIX": cache} | {
        name: value for name, value in os.environ.items() if name not in _BYTECODE
    }
    return subprocess.run(
        [sys.executable, "-c", program], input=data, capture_output=True, text=True, check=True,
        timeout=600, env=environment,
    ).stdout  # fmt: skip
