"""What a process waits for until it may make its first protected call, in fresh processes.

Run: ``python -m benchmarks.init [--rounds 15] [--peers PYTHON] [--results FOLDER]``

``import`` and ``init`` are timed in a new interpreter each time; guard and ``nullrun`` take turns,
round after round, so that the machine's other load affects both alike. Compare the ratio.
``PYTHON`` is an interpreter that has ``nullrun``. Both talk to a server that answers at once
(``_null_gateway.py``).

``guard run`` is the processor time of ``guard run -- sh -c true``, its
gateway included, over that of ``import httpx``: at most 1.5.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
from pathlib import Path

from benchmarks import _null_gateway

KEY = "k" * 24
_ROOT = Path(__file__).parents[1]
_PROGRAM = """
import os, sys, time
name, url = sys.argv[1:]
began = time.perf_counter()
package = __import__(name)
package.init, package.protect
imported = time.perf_counter()
package.init(api_key="{key}", api_url=url)
ready = time.perf_counter()
print((imported - began) * 1e3, (ready - imported) * 1e3, flush=True)
os._exit(0)
"""


def _measure(python: str, package: str, url: str) -> tuple[float, float]:
    """Return the milliseconds of the import and of ``init`` in a new process."""
    program = _PROGRAM.format(key=KEY)
    ran = subprocess.run(
        [python, "-c", program, package, url],
        capture_output=True, text=True, cwd=_ROOT, timeout=60, check=True,
        env={name: value for name, value in os.environ.items() if "BYTECODE" not in name},
    )  # fmt: skip
    imported, initialised = ran.stdout.split()[-2:]
    return float(imported), float(initialised)


def _run_ratio() -> float:
    """Return the processor time of an empty ``guard run`` over that of ``import httpx``."""
    commands = (
        [sys.executable, "-m", "guard", "run", "--", "sh", "-c", "true"],
        [sys.executable, "-c", "import httpx"],
    )
    took = []
    for command in commands:
        before = os.times()
        subprocess.run(command, capture_output=True, cwd=_ROOT, timeout=300, check=False)
        after = os.times()
        took.append(sum(after[2:4]) - sum(before[2:4]))
    return took[0] / took[1]


def main() -> None:
    """Run the comparison and print it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--peers", help="an interpreter that has nullrun")
    parser.add_argument("--results", type=Path, help="folder for a JSON file of the results")
    given = parser.parse_args()
    cases = {"guard": sys.executable}
    if given.peers:
        cases["nullrun"] = given.peers
    url, server = _null_gateway.serve("http")
    took: dict[str, list[tuple[float, float]]] = {name: [] for name in cases}
    runs: list[float] = []
    try:
        for number in range(given.rounds + 1):
            for name, python in cases.items():
                measured = _measure(python, name, url)
                if number:  # the first one compiles and warms the disk's cache
                    took[name].append(measured)
            if number:
                runs.append(_run_ratio())
    finally:
        server.kill()
        server.communicate()
    table = {
        name: {
            "import_ms": statistics.median(each[0] for each in found),
            "init_ms": statistics.median(each[1] for each in found),
            "both_ms": statistics.median(sum(each) for each in found),
        }
        for name, found in took.items()
    }
    for name, row in table.items():
        print(f"{name:8} " + "  ".join(f"{key} {value:7.1f}" for key, value in row.items()))
    print(f"guard run / import httpx: {statistics.median(runs):.2f} (at most 1.5)")
    if "nullrun" in table:
        for key in ("init_ms", "both_ms"):
            ratios = [
                (ours[1] if key == "init_ms" else sum(ours))
                / (theirs[1] if key == "init_ms" else sum(theirs))
                for ours, theirs in zip(took["guard"], took["nullrun"], strict=True)
            ]
            print(f"{key} / nullrun: {statistics.median(ratios):.2f}")
    if given.results:
        machine = {"python": platform.python_version(), "load": os.getloadavg()[0]}
        given.results.mkdir(parents=True, exist_ok=True)
        (given.results / "init.json").write_text(json.dumps({**machine, "cases": table}, indent=1))


if __name__ == "__main__":
    main()
