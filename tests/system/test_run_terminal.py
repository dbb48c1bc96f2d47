"""``guard run`` in a terminal: the program has it, as if nothing were in between."""

from __future__ import annotations

import os
import shutil
import signal
import sys
from pathlib import Path

import pytest

from tests.support.runs import LIMIT, Runs
from tests.support.terminal import TerminalSession
from tests.support.waiting import until

GUARD = [sys.executable, "-m", "guard", "run"]
# In short naps: a signal that comes just before a sleep is taken by Python only after it.
WAITS = "for _ in range(1200): time.sleep(0.05)\n"


def terminal(guard: Runs, folder: Path, script: str, *options: str) -> TerminalSession:
    """Start a script under guard in a terminal."""
    (folder / "program.py").write_text(script)
    return TerminalSession([*GUARD, *options, "--", "program.py"], env=guard.env, cwd=folder)


def test_a_program_that_talks(guard: Runs, tmp_path: Path) -> None:
    script = """
import os, signal, sys, time
print([stream.isatty() for stream in (sys.stdin, sys.stdout, sys.stderr)])
sizes = []
signal.signal(signal.SIGWINCH, lambda *_: sizes.append(os.get_terminal_size()))
name = input("name? ")
print("hello", name, os.get_terminal_size().columns)
while not sizes: time.sleep(0.01)
print("now", sizes[-1].columns)
sys.exit(3)
"""
    with terminal(guard, tmp_path, script) as session:
        session.expect("[True, True, True]")
        session.expect("name? ")
        session.type("Ada\n")
        session.expect("hello Ada 80")
        session.resize(40, 132)
        session.expect("now 132")
        assert session.wait() == 3
        assert "0 LLM requests" in session.shown


def test_ctrl_c_is_the_programs(guard: Runs, tmp_path: Path) -> None:
    script = """
import time
for number in range(3):
    try:
        print("ready", number, flush=True)
        for _ in range(1200): time.sleep(0.05)
    except KeyboardInterrupt:
        print("interrupted", number, flush=True)
"""
    with terminal(guard, tmp_path, script) as session:
        for number in range(3):
            session.expect(f"ready {number}")
            session.type("\x03")
            session.expect(f"interrupted {number}")
        assert session.wait() == 0, session.shown
        assert session.shown.count("interrupted") == 3, "once for each key"
        assert "Traceback" not in session.shown


def test_a_program_that_ctrl_c_ends(guard: Runs, tmp_path: Path) -> None:
    """The shell is told so: it ends its own loop too."""
    script = "import time\nprint('ready', flush=True)\n" + WAITS
    with terminal(guard, tmp_path, script) as session:
        session.expect("ready")
        session.type("\x03")
        assert session.wait() == -signal.SIGINT, session.shown
        assert session.shown.count("KeyboardInterrupt") == 1
        assert "0 LLM requests" in session.shown


def test_what_other_threads_run_does_not_change_how_ctrl_c_ends_it(
    guard: Runs, tmp_path: Path
) -> None:
    """Python forgets an uncaught interrupt when code from a string is run after it."""
    script = tmp_path / "program.py"
    script.write_text("""
import threading
def work():
    threading.main_thread().join()
    eval("1")
threading.Thread(target=work).start()
raise KeyboardInterrupt
""")
    done = guard("run", "--", str(script))
    assert done.returncode == -signal.SIGINT, done.stderr


def test_an_interrupt_from_elsewhere_reaches_the_program_too(guard: Runs, tmp_path: Path) -> None:
    """In the foreground, where Ctrl-C is not passed on, because the program gets it anyway."""
    if sys.platform != "linux":
        pytest.skip("only Linux tells where a signal comes from")
    script = """
import time
try:
    print("ready", flush=True)
    for _ in range(1200): time.sleep(0.05)
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""
    with terminal(guard, tmp_path, script) as session:
        session.expect("ready")
        session.process.send_signal(signal.SIGINT)
        session.expect("interrupted")
        assert session.wait() == 0


SUSPENDED = """
import os, signal, sys, time
print("pid", os.getpid(), flush=True)
print("answer", input(), flush=True)
"""


@pytest.mark.parametrize("how", ["key", "itself"])
def test_suspended_and_continued(guard: Runs, tmp_path: Path, how: str) -> None:
    """By a shell with job control: Ctrl-Z stops both, also where the program stops itself."""
    script = SUSPENDED
    if how == "itself":
        script = script.replace(
            'print("answer"', "os.kill(os.getpid(), signal.SIGTSTP)\nprint('answer'"
        )
    (tmp_path / "program.py").write_text(script)
    env = {**guard.env, "PS1": "shell> ", "HISTFILE": "/dev/null", "TERM": "dumb"}
    with TerminalSession(["bash", "--norc", "-i"], env=env, cwd=tmp_path) as session:
        session.expect("shell> ")
        session.type(" ".join([*GUARD, "--", "program.py"]) + "\n")
        session.expect("pid ")
        session.expect("\n")
        if how == "key":
            session.type("\x1a")
        session.expect("Stopped")
        session.expect("shell> ")
        session.type("echo $((6 * 7))\n")
        session.expect("42")
        session.type("fg\n")
        session.expect("program.py")
        session.type("forty-two\n")
        session.expect("answer forty-two")
        session.expect("0 LLM requests")
        session.expect("shell> ")
        session.type("exit 5\n")
        assert session.wait() == 5


ASKS = """
ask() {
  body='{"model": "gpt-4o", "max_tokens": 5, "messages": [{"role": "user", "content": "hi"}]}'
  curl -s -o /dev/null -w "$1 %{http_code}\\n" -d "$body" $OPENAI_BASE_URL/chat/completions
}
ask before
read line
ask after
echo answer $line
"""


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
def test_the_proxy_outlives_a_pause_and_an_interrupt(
    guard: Runs, vendor: str, tmp_path: Path
) -> None:
    """The keys of the terminal reach the program, and not the proxy that it asks."""
    (tmp_path / "asks.sh").write_text(f"trap 'echo interrupted' INT\n{ASKS}")
    env = {**guard.env, "PS1": "shell> ", "HISTFILE": "/dev/null", "TERM": "dumb",
           "OPENAI_BASE_URL": f"{vendor}/v1"}  # fmt: skip
    with TerminalSession(["bash", "--norc", "-i"], env=env, cwd=tmp_path) as session:
        session.expect("shell> ")
        session.type(" ".join([*GUARD, "--", "bash", "asks.sh"]) + "\n")
        session.expect("before 200")
        job = session.foreground()
        session.type("\x1a")
        session.expect("Stopped")
        session.expect("shell> ")
        session.continue_job(job)
        session.expect("asks.sh")
        session.type("\x03")
        session.expect("interrupted")
        session.type("word\n")
        session.expect("after 200")
        session.expect("2 LLM requests")
        session.expect("shell> ")
        session.type("exit 5\n")
        assert session.wait() == 5


def test_a_refused_program_leaves_the_terminal_as_it_was(
    guard: Runs, vendor: str, tmp_path: Path
) -> None:
    script = f"""
import httpx, os, signal, sys, termios, time, tty
signal.signal(signal.SIGTERM, signal.SIG_IGN)
sys.stdin.readline()
tty.setraw(0)
os.write(1, b"raw\\r\\n")
body = {{"model": "gpt-4o", "max_tokens": 50, "messages": [{{"role": "user", "content": "hi"}}]}}
while True:
    try:
        httpx.post("{vendor}/v1/chat/completions", json=body, timeout=60)
    except BaseException:
        time.sleep(60)
"""
    with terminal(guard, tmp_path, script, "--limit", LIMIT, "--on-limit", "end") as session:
        assert session.echoes()
        session.type("go on\n")
        session.expect("raw")
        assert not session.echoes()
        session.expect("stopped: this run's --limit of $0.002 is reached")
        assert session.echoes()
        assert session.wait() == 77


def test_a_terminal_that_hangs_up(guard: Runs, tmp_path: Path) -> None:
    script = (
        """
import os, signal, sys, time
def told(*_):
    open("hung-up", "w").close()
    os._exit(0)
signal.signal(signal.SIGHUP, told)
print("ready", flush=True)
"""
        + WAITS
    )
    with terminal(guard, tmp_path, script) as session:
        session.expect("ready")
        session.process.send_signal(signal.SIGHUP)
        until(lambda: os.path.exists(tmp_path / "hung-up"))
        assert session.wait() == 0
