"""Record a coding agent under ``guard run``: it reaches its limit, and is killed in mid-answer.

Run as ``python docs/recording/make_coding_agent.py [FILE]``, after ``nox -s programs``. Claude Code
is the real one; it talks to the stand-in of its vendor that the tests have.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parents[1]))

from docs.recording.make import Screen, local_gateway, record, write  # noqa: E402
from tests.support.agent_answers import Turn  # noqa: E402
from tests.support.agent_vendor import AgentVendor, Asked  # noqa: E402
from tests.support.coding_agents import AGENTS, FOLDER  # noqa: E402

CLAUDE = AGENTS["claude"]
TITLE = "a coding agent is stopped at its limit, and killed in mid-answer"
LIMITED = "guard run --limit '$1' --watch -- claude -p 'make the tests pass'"
KILLED = "guard run --limit '$1' --workflow report -- claude -p 'write the report'"
KILL = "guard kill report --local --reason 'that is enough'"
SPEAKS_S = 2.0
TURN_S = 0.6


def works_for_ever(asked: Asked) -> Turn:
    """Have the tests run, again and again."""
    time.sleep(TURN_S)
    steps = ["pytest -q | tail -3", "git diff --stat", "sed -n 1,40p app.py"]
    step = CLAUDE.run_shell(steps[asked.turns % len(steps)])
    return Turn("One of them still fails.", (step,), thought=8_000)


def tells_a_story(asked: Asked) -> Turn:
    """Answer without an end."""
    return Turn("word after word ", goes_on=True)


def kill_in_mid_answer(vendor: AgentVendor, env: dict[str, str], work: Path) -> None:
    """Kill the run once its vendor has answered for a while."""
    vendor.speaks.wait(60)
    time.sleep(SPEAKS_S)
    subprocess.run(["/bin/sh", "-c", KILL], env=env, cwd=work, check=True, capture_output=True)


def main() -> None:
    """Record, and write the file."""
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else HERE / "coding-agent.svg"
    folder = tempfile.TemporaryDirectory(prefix="recording-", ignore_cleanup_errors=True)
    with contextlib.closing(AgentVendor()) as vendor, folder as name:
        home, work = Path(name, "home"), Path(name, "work")
        work.mkdir()
        path = os.pathsep.join(
            [
                str(Path(sys.executable).parent),
                str(FOLDER / "node_modules/.bin"),
                os.environ["PATH"],
            ]
        )
        env = CLAUDE.environment(home, vendor.url) | {
            "PATH": path,
            "GUARD_LOCAL_DIR": str(Path(name, "local")),
            "GUARD_PRICE_LOCAL": "1",  # the stand-in's address is one of this machine
            "ANTHROPIC_MODEL": CLAUDE.model,
            "CI": "1",  # nobody is there to be asked at the limit
        }
        # What a person allows once: this folder, and its shell.
        settings = work / ".claude" / "settings.json"
        settings.parent.mkdir()
        settings.write_text('{"permissions": {"allow": ["Bash"]}}')
        trusted = {"projects": {str(work): {"hasTrustDialogAccepted": True}}}
        (home / ".claude.json").write_text(json.dumps(trusted))
        with local_gateway(env):
            screen = Screen()
            vendor.script = works_for_ever
            record(screen, LIMITED, env, work)
            vendor.script = tells_a_story
            other = threading.Thread(target=kill_in_mid_answer, args=(vendor, env, work))
            other.start()
            record(screen, KILLED, env, work, before=f"# in another terminal: {KILL}")
            other.join()
    write(screen, target, TITLE)


if __name__ == "__main__":
    main()
