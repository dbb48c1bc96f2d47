"""Repeats the tests in random order, the second half of the runs on a busy machine.

``python -m tests.support.flaky [--runs N] [--load N] [--stalls] [PYTEST ARGUMENTS] -- COMMAND``,
where the command runs pytest; ``nox -s flaky`` says which.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ET
from collections.abc import Iterator, Sequence
from pathlib import Path


@contextlib.contextmanager
def busy(processes: int) -> Iterator[None]:
    """Keep this many processes busy beside the block."""
    command = [sys.executable, "-c", "while True: pass"]
    started = [subprocess.Popen(command) for _ in range(processes)]
    try:
        yield
    finally:
        for process in started:
            process.kill()
            process.wait()


def run(command: Sequence[str], others: Sequence[str], seed: int, load: int) -> tuple[str, int]:
    """Run the tests once; return a line about the run, and how many have failed."""
    with tempfile.TemporaryDirectory() as folder, busy(load):
        report = Path(folder, "report.xml")
        order = "--random-order", f"--random-order-seed={seed}", f"--junitxml={report}"
        began_s = time.monotonic()
        done = subprocess.run([*command, *order, *others],
                              env={**os.environ, "GUARD_TEST_DRAW": str(seed)})  # fmt: skip
        took_s = time.monotonic() - began_s
        suite = ET.parse(report).getroot()[0].attrib if report.exists() else {}
    tests, skipped, failed, errors = (
        int(suite.get(name, 0)) for name in ("tests", "skipped", "failures", "errors")
    )
    # pytest may also fail without a test that does
    failed = failed + errors or int(done.returncode != 0)
    passed = max(0, tests - skipped - failed)
    return f"seed {seed}, load {load}, {passed} passed, {failed} failed, {took_s:.0f} s", failed


def main() -> None:
    """Repeat the tests, and say at last what became of each run."""
    at = sys.argv.index("--")
    parser = argparse.ArgumentParser("nox -s flaky --")
    parser.add_argument("--runs", type=int, default=8, help="how many runs (8)")
    parser.add_argument("--load", type=int, default=6, help="busy processes in the second half (6)")
    parser.add_argument("--stalls", action="store_true", help="stall loops and threads as well")
    given, others = parser.parse_known_args(sys.argv[1:at])
    if given.stalls:
        others += ["-p", "tests.support.stalls"]
    lines, failures = [], 0
    for number in range(given.runs):
        load = given.load if number >= given.runs // 2 else 0
        line, failed = run(sys.argv[at + 1 :], others, random.randrange(1_000_000), load)
        failures += failed
        lines.append(f"run {number + 1}: {line}")
        print(lines[-1], flush=True)
    print("in summary:", *lines, sep="\n")
    if failures:
        raise SystemExit(f"{failures} failed")


if __name__ == "__main__":
    main()
