"""How many functions of guard a call or a request passes on its way: ceilings, best of five rounds.

Whoever raises one says in the commit what a user gets for it; whoever shortens a flow lowers it.
Of a process that asks only the caller's thread is counted: what the background loop does beside a
question depends on which of its services are due. Of a gateway all threads are.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
CEILINGS: Final = {
    ("call, covered", "socket"): 26,
    ("request, covered", "socket"): 106,
    ("streamed, covered", "socket"): 136,
    ("call, asked", "socket"): 65,
    ("request, asked", "socket"): 138,
    ("call, asked", "HTTP"): 65,
    ("request, asked", "HTTP"): 138,
    ("a decision", "socket"): 170,
    ("three events", "HTTP"): 165,
    ("a budget", "HTTP"): 155,
    ("/budgets", "HTTP"): 135,
}
"""Distinct functions, by flow and by how the gateway is asked. Those that wait have about ten to
spare, since how a caller waits depends on when its answer comes; the others five to seven, since
interpreters differ, and since once a second a request looks whether all is still patched: on a busy
machine each of the five rounds does."""


def test_no_flow_grows_longer() -> None:
    environment = {key: text for key, text in os.environ.items() if not key.startswith("GUARD_")}
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.hops"],
        cwd=ROOT, env=environment, capture_output=True, text=True, timeout=500, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    found = {}
    for line in done.stdout.splitlines()[1:]:
        flow, (over, thread, functions, *_) = line[:18].strip(), line[18:].split()
        if thread in ("caller", "gateway") and (flow, over) not in found:
            found[flow, over] = int(functions)
    found = {key: number for key, number in found.items() if number}
    assert found.keys() == CEILINGS.keys()
    too_long = {key: number for key, number in found.items() if number > CEILINGS[key]}
    assert not too_long, "python -m benchmarks.hops --list shows each step"
