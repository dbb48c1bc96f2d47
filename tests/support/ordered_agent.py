"""An agent whose bodies run until an operator stops them, in a process of its own.

Run as ``python -m tests.support.ordered_agent WORKFLOW...``; the environment configures guard. Each
workflow has a thread. Those named ``pause-...`` make one short call after another; the others make
one call that does not end. It prints what each of them sees, a JSON line each.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from typing import Final

import guard

_AFTERWARDS_S: Final = 2.0
_printing = threading.Lock()


def tell(workflow: str, what: str) -> None:
    """Print what a workflow's body has seen."""
    with _printing:
        print(json.dumps([workflow, what]), flush=True)


@guard.protect
def body(workflow: str) -> None:
    """Run until it is killed, and look whether it is told so again."""
    tell(workflow, "running")
    try:
        while True:
            time.sleep(0.01)
    except guard.WorkflowKilledInterrupt:
        tell(workflow, "killed")
        ends = time.monotonic() + _AFTERWARDS_S
        while time.monotonic() < ends:
            try:
                time.sleep(0.01)
            except guard.WorkflowKilledInterrupt:
                tell(workflow, "killed")
        raise


@guard.protect
def step() -> None:
    """Do next to nothing."""
    time.sleep(0.01)


def run_until_killed(workflow: str) -> None:
    """Make one call that does not end; what an operator has not said does not end it."""
    with guard.workflow(workflow):
        while True:
            try:
                body(workflow)
            except guard.WorkflowKilledInterrupt:
                return
            except guard.GuardError:
                time.sleep(0.1)


def run_while_allowed(workflow: str) -> None:
    """Make one call after another, and tell when pauses begin and end."""
    state = ""
    with guard.workflow(workflow):
        while True:
            before = state
            try:
                step()
                state = "running"
            except guard.WorkflowPausedException:
                state = "paused"
            except guard.GuardError:
                time.sleep(0.1)
            if state != before:
                tell(workflow, state)
            time.sleep(0.01)


def main() -> None:
    """Run all workflows until the process is killed."""
    guard.init()
    for workflow in sys.argv[1:]:
        run = run_while_allowed if workflow.startswith("pause-") else run_until_killed
        threading.Thread(target=run, args=(workflow,), daemon=True).start()
    sys.stdin.read()
    guard.shutdown(10)


if __name__ == "__main__":
    main()
