"""``guard run``: whatever ends its processes, what they have sent is charged before the report."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

import httpx
import pytest

from guard.local_gateway import Files, read_json
from tests.support.cutting_vendor import cutting_vendor
from tests.support.llm_vendor import vendor_process
from tests.support.runs import Runs
from tests.support.waiting import WAIT_S, until

OUTPUT_NANOUSD = 50 * 10_000
"""Of gpt-4o."""

ASK = """
import os, signal, sys, threading, time
import httpx
URL = sys.argv[1] + "/v1/chat/completions"
BODY = {"model": "gpt-4o", "max_tokens": 50, "messages": [{"role": "user", "content": "hi"}]}
"""
CHILDREN = (
    ASK
    + """
children = []
for _ in range(15):
    child = os.fork()
    if not child:
        httpx.post(URL, json=BODY, timeout=60)
        os._exit(0)
    children.append(child)
for child in children:
    os.waitpid(child, 0)
"""
)
UNANSWERED = (
    ASK
    + """
def send():
    try:
        httpx.post(URL, json=BODY, timeout=300)
    except httpx.HTTPError:
        pass

threading.Thread(target=send, daemon=True).start()
while not os.path.exists(sys.argv[2]):
    time.sleep(0.01)
"""
)
ENDS = {
    "os._exit": "os._exit(0)",
    "SIGKILL": "os.kill(os.getpid(), signal.SIGKILL)",
    "SIGHUP": "signal.signal(signal.SIGHUP, signal.SIG_DFL)\n"  # nohup may have it ignored
    "os.kill(os.getpid(), signal.SIGHUP); time.sleep(60)",
    "SIGTERM": "os.kill(os.getpid(), signal.SIGTERM); time.sleep(60)",
}


def report_of(out: str) -> dict[str, int]:
    found: dict[str, int] = json.loads(out.strip().splitlines()[-1])
    return found


def test_forked_children_that_exit_at_once_are_all_charged(guard: Runs, vendor: str) -> None:
    done = guard("run", "--json", "--limit", "$5", "--", "python", "-c", CHILDREN, vendor)
    report = report_of(done.stdout)
    assert done.returncode == 0, done.stderr
    assert report["requests"] == 15
    assert report["spent_nanousd"] >= 15 * OUTPUT_NANOUSD
    assert report["undelivered"] == 0


@pytest.mark.parametrize("end", ENDS)
def test_a_request_that_was_under_way_is_charged(end: str, guard: Runs, tmp_path: Path) -> None:
    mark = tmp_path / "go"
    program = f"{UNANSWERED}\n{ENDS[end]}"
    with cutting_vendor("no answer", "hang") as vendor:
        process = guard.start(
            "run", "--json", "--limit", "$5", "--", "python", "-c", program, vendor.url, str(mark)
        )
        until(lambda: vendor.reached)
        mark.write_text("")
        out, err = process.communicate(timeout=WAIT_S)
    report = report_of(out)
    assert report["requests"] == 1, err
    assert report["spent_nanousd"] == report["uncertain_nanousd"] >= OUTPUT_NANOUSD


def test_sigterm_waits_for_answers(guard: Runs, tmp_path: Path) -> None:
    """The answer comes after the signal, and says what was used: nothing is uncertain."""
    mark = tmp_path / "go"
    program = f"{UNANSWERED}\n{ENDS['SIGTERM']}"
    with vendor_process() as slow:
        httpx.get(f"{slow}/delay/1")
        process = guard.start(
            "run", "--json", "--limit", "$5", "--", "python", "-c", program, slow, str(mark)
        )
        until(lambda: httpx.get(f"{slow}/stats").json()["asked"])
        mark.write_text("")
        out, err = process.communicate(timeout=WAIT_S)
    report = report_of(out)
    assert (report["requests"], report["uncertain_nanousd"]) == (1, 0), err
    assert report["spent_nanousd"] >= OUTPUT_NANOUSD


def test_the_report_says_what_is_uncertain(guard: Runs, vendor: str) -> None:
    program = f"{ASK}\nhttpx.post(URL, json=BODY, timeout=60)\n"
    program += "httpx.post(sys.argv[2] + URL[len(sys.argv[1]):], json=BODY, timeout=60)"
    with cutting_vendor("no answer", "disconnect") as lost:
        done = guard("run", "--limit", "$5", "--", "python", "-c", program, vendor, lost.url)
    assert "2 LLM requests" in done.stderr
    assert "uncertain" in done.stderr


def test_a_gateway_that_was_killed_gets_what_waits(
    guard: Runs, vendor: str, directory: Path
) -> None:
    """It is killed while the program runs, and the program ends before it is back."""
    program = f"{ASK}\nhttpx.post(URL, json=BODY, timeout=60)\nprint('sent', flush=True)\n"
    program += "sys.stdin.readline()\nhttpx.post\nos._exit(0)"
    process = guard.start("run", "--json", "--limit", "$5", "--", "python", "-c", program, vendor)
    assert process.stdout is not None
    assert process.stdout.readline() == "sent\n"
    os.kill(read_json(Files(directory).address)["pid"], signal.SIGKILL)
    out, err = process.communicate("\n", timeout=WAIT_S)
    assert process.returncode == 0, err
    report = report_of(out)
    assert report["requests"] == 1, err
    assert report["spent_nanousd"] >= OUTPUT_NANOUSD


def test_a_child_that_was_killed_is_charged_while_the_run_goes_on(
    guard: Runs, tmp_path: Path
) -> None:
    """Nothing else in the run is guarded: only `guard run` can find what it has left."""
    mark, over = tmp_path / "go", tmp_path / "over"
    child = tmp_path / "child.py"
    child.write_text(f"{UNANSWERED}\n{ENDS['SIGKILL']}")
    shell = f'"$0" "$@"; until [ -e {over} ]; do sleep 0.05; done'
    with cutting_vendor("no answer", "hang") as vendor:
        process = guard.start(
            "run", "--json", "--watch", "--limit", "$5", "--",
            "sh", "-c", shell, sys.executable, str(child), vendor.url, str(mark),
        )  # fmt: skip
        until(lambda: vendor.reached)
        mark.write_text("")
        assert process.stderr is not None
        assert any("1 LLM request" in line for line in process.stderr), "charged meanwhile"
        over.write_text("")
        out, err = process.communicate(timeout=WAIT_S)
    report = report_of(out)
    assert report["requests"] == 1, err
    assert report["spent_nanousd"] == report["uncertain_nanousd"] >= OUTPUT_NANOUSD


def test_a_run_within_the_run_that_was_killed_is_charged_to_the_outer_one(
    guard: Runs, tmp_path: Path
) -> None:
    """Its key is revoked, so what its program has under way can only be charged to the run's."""
    mark, over = tmp_path / "go", tmp_path / "over"
    child = tmp_path / "child.py"
    ends = "os.kill(os.getppid(), signal.SIGKILL)\n"
    child.write_text(f"{UNANSWERED}\n{ends}{ENDS['SIGKILL']}")
    shell = f'"$0" "$@"; until [ -e {over} ]; do sleep 0.05; done'
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    with cutting_vendor("no answer", "hang") as vendor:
        process = guard.start(
            "run", "--json", "--watch", "--limit", "$5", "--",
            "sh", "-c", shell, sys.executable, "-m", "guard", "run", "--workflow", "inner", "--",
            str(child), vendor.url, str(mark),
            env={"TMPDIR": str(temporary)},
        )  # fmt: skip
        until(lambda: vendor.reached)
        mark.write_text("")
        assert process.stderr is not None
        assert any("1 LLM request" in line for line in process.stderr), "charged meanwhile"
        over.write_text("")
        out, err = process.communicate(timeout=WAIT_S)
    report = report_of(out)
    assert report["requests"] == 1, err
    assert report["spent_nanousd"] == report["uncertain_nanousd"] >= OUTPUT_NANOUSD
    assert list(temporary.glob("guard-run-*")) == [], "what it has left is removed"
    with guard.operator() as admin:
        rows = {row["group"]: row for row in admin.usage("workflow")}
    assert rows["inner"]["llm_calls"] == 1
