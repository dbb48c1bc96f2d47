"""``guard`` commands, one after another in one interpreter: starting it takes the longest."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping

import attrs

from tests.support.programs import environment

_PROGRAM = """
import contextlib, io, json, os, sys
from guard.__main__ import main

def text(content=b""):
    return io.TextIOWrapper(io.BytesIO(content), "utf-8", write_through=True)

usual = dict(os.environ)
for line in sys.stdin:
    arguments, env, typed = json.loads(line)
    os.environ.clear()
    os.environ.update(usual | env)
    sys.argv, sys.stdin = ["guard", *arguments], text(typed.encode())
    code = 0
    with contextlib.redirect_stdout(text()) as out, contextlib.redirect_stderr(text()) as err:
        try:
            main()
        except SystemExit as exc:
            code = exc.code or 0
    said = [stream.buffer.getvalue().decode() for stream in (out, err)]
    print(json.dumps([code, *said]), flush=True)
"""


@attrs.frozen
class Command:
    """One command line after ``guard``, with its own environment and standard input."""

    arguments: tuple[str, ...]
    env: Mapping[str, str] = attrs.field(factory=dict)
    stdin: str = ""


def run_commands(*commands: Command) -> list[subprocess.CompletedProcess[str]]:
    """Run them in one process; a command must not change what the next one finds."""
    asked = [[each.arguments, dict(each.env), each.stdin] for each in commands]
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM], env=environment(),
        input="".join(f"{json.dumps(each)}\n" for each in asked),
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    return [
        subprocess.CompletedProcess(each.arguments, *answer)
        for each, answer in zip(commands, answers, strict=True)
    ]
