"""Children of a run stay in it, however they are started and whatever environment they get."""

from __future__ import annotations

import itertools
import json
import sys
from pathlib import Path

import pytest

from tests.support import child_starts
from tests.support.child_starts import ENVIRONMENTS, STARTS
from tests.support.runs import AGENT, LIMIT, Runs
from tests.support.waiting import until

CHILD = """
import sys, httpx
body = {"model": "gpt-4o", "max_tokens": 1, "messages": [{"role": "user", "content": "hi"}]}
httpx.post(sys.argv[1] + "/v1/chat/completions", json=body, timeout=60).raise_for_status()
print("sent", sys.argv[2], "guard.running.child" in sys.modules, flush=True)
"""
CASES = [f"{start}/{environment}" for start, environment in itertools.product(STARTS, ENVIRONMENTS)]
USUAL = [
    "popen/empty", "popen/own", "spawning/empty", "posix_spawn/path", "execve/empty", "spawnve/own",
    "with_asyncio/path", "with_uvloop/empty", "env_assigning/full", "cleared-spawn/empty",
]  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "child.py").write_text(CHILD)
    return tmp_path


@pytest.mark.parametrize(
    "cases",
    [
        pytest.param(USUAL, id="usual"),
        pytest.param(CASES[0::2], id="even", marks=pytest.mark.matrix),
        pytest.param(CASES[1::2], id="odd", marks=pytest.mark.matrix),
    ],
)
def test_a_child_is_charged_to_the_run(
    guard: Runs, vendor: str, folder: Path, cases: list[str]
) -> None:
    program = [child_starts.__file__, str(folder / "child.py"), vendor, ",".join(cases)]
    done = guard("run", "--limit", "$2", "--json", "--", sys.executable, *program)
    lines = done.stdout.split("\n")
    facts = json.loads(lines[-2])
    sent = sorted(line.strip() for line in lines if line.startswith("sent "))
    assert sent == sorted(f"sent {case} True" for case in cases), done.stderr
    assert facts["requests"] == len(cases), done.stderr
    assert facts["guarded_processes"] > len(cases)


def test_a_child_without_the_variables_of_keys_is_charged_too(
    guard: Runs, vendor: str, folder: Path
) -> None:
    """Gemini CLI gives its MCP servers none whose names look like secrets."""
    shell = 'unset GUARD_API_KEY GUARD_HMAC_SECRET GUARD_SPOOL_DIR; exec "$@"'
    program = ["bash", "-c", shell, "bash", sys.executable, str(folder / "child.py"), vendor, "x"]
    done = guard("run", "--limit", "$2", "--json", "--", *program)
    assert "sent x True" in done.stdout, done.stderr
    assert json.loads(done.stdout.splitlines()[-1])["requests"] == 1


MCP = """
import asyncio, sys, httpx
from mcp import Client, StdioServerParameters, stdio_client
from mcp.server.mcpserver import MCPServer

server = MCPServer("spender")

@server.tool()
def spend() -> str:
    body = {"model": "gpt-4o", "max_tokens": 50, "messages": [{"role": "user", "content": "hi"}]}
    reply = httpx.post(sys.argv[2] + "/v1/chat/completions", json=body, timeout=60)
    return str(reply.status_code)

async def main():
    arguments = [__file__, "serve", sys.argv[1]]
    parameters = StdioServerParameters(command=sys.executable, args=arguments)
    async with Client(stdio_client(parameters)) as client:
        for number in range(9):
            answer = await client.session.call_tool("spend", {})
            print(number, answer.content[0].text, flush=True)

if sys.argv[1] == "serve":
    server.run()
else:
    asyncio.run(main())
"""


def test_a_tool_server_of_mcp_stays_in_the_run(guard: Runs, vendor: str, tmp_path: Path) -> None:
    """Its client passes on six variables, none of them guard's."""
    pytest.importorskip("mcp")
    (tmp_path / "mcp_agent.py").write_text(MCP)
    done = guard("run", "--limit", LIMIT, "--json", "--", str(tmp_path / "mcp_agent.py"), vendor)
    lines = done.stdout.splitlines()
    assert lines[:3] == ["0 200", "1 200", "2 200"], done.stderr
    facts = json.loads(lines[-1])
    assert (facts["requests"], done.returncode) == (3, 77), done.stderr


def test_what_is_not_of_the_run(guard: Runs, tmp_path: Path) -> None:
    """A gateway is left alone; so is a child that its caller has put under another key."""
    script = tmp_path / "others.py"
    show = "import sys; print('guard.running.child' in sys.modules)"
    script.write_text(
        "import os, subprocess, sys\n"
        f"subprocess.run([sys.executable, '-c', {show!r}], env={{'GUARD_API_KEY': 'own'}})\n"
        "subprocess.run([sys.executable, '-v', '-m', 'guard', 'gateway', '--help'],\n"
        "               env={'PYTHONPATH': os.environ['PYTHONPATH']}, stdout=subprocess.DEVNULL)\n"
        f"given = {{'A': 'b'}}\n"
        f"subprocess.run([sys.executable, '-c', {show!r}], env=given)\n"
        "assert given == {'A': 'b'}\n"
    )
    done = guard("run", "--", str(script))
    assert (done.stdout, done.returncode) == ("False\nTrue\n", 0), done.stderr
    assert "import 'guard'" in done.stderr
    assert "guard.running.child" not in done.stderr


def test_a_run_within_a_run_stands_under_both_limits(
    guard: Runs, vendor: str, tmp_path: Path
) -> None:
    agent = tmp_path / "agent.py"
    agent.write_text(AGENT)
    nested = [sys.executable, "-m", "guard", "run", "--limit"]
    program = ["--", str(agent), vendor, "9"]
    outer = ["--limit", LIMIT, "--json", "--", *nested]

    done = guard("run", *outer, "$1", *program)
    facts = json.loads(done.stdout.splitlines()[-1])
    assert (facts["requests"], done.returncode) == (3, 77), done.stderr
    assert "3 LLM requests, $0.0015375 of $1" in done.stderr

    done = guard("run", *outer, "$0.0015", *program)
    facts = json.loads(done.stdout.splitlines()[-1])
    assert (facts["requests"], facts["spent_nanousd"]) == (2, 1_025_000), done.stderr
    assert (facts["refused"], done.returncode) == (None, 77)

    rules = ["--allow-model", "claude-*", "--rate", "1/h", "--json", "--", *nested]
    done = guard("run", *rules, "$1", *program)
    assert (json.loads(done.stdout.splitlines()[-1])["requests"], done.returncode) == (0, 77)


def test_what_a_run_within_a_run_leaves_ends_with_the_outer_one(
    guard: Runs, vendor: str, tmp_path: Path
) -> None:
    script = tmp_path / "lasting.py"
    script.write_text(
        "import os, sys, time, httpx\n"
        "print('up', flush=True)\n"
        "while not os.path.exists(sys.argv[3]):\n"
        "    time.sleep(0.05)\n"
        "body = {'model': 'gpt-4o', 'max_tokens': 1, 'messages': []}\n"
        "try:\n"
        "    httpx.post(sys.argv[1] + '/v1/chat/completions', json=body, timeout=60)\n"
        "finally:\n"
        "    open(sys.argv[2], 'w').write('over')\n"
    )
    outer = tmp_path / "outer.py"
    outer.write_text(
        "import subprocess, sys\n"
        "command = [sys.executable, '-m', 'guard', 'run', '--', *sys.argv[1:]]\n"
        "process = subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True,\n"
        "                           stderr=open(sys.argv[-1] + '.err', 'w'))\n"
        "sys.exit(process.stdout.readline() != b'up\\n')\n"
    )
    over, go = tmp_path / "over", tmp_path / "go"
    done = guard("run", "--json", "--", str(outer), str(script), vendor, str(over), str(go))
    assert done.returncode == 0, go.with_name("go.err").read_text()
    go.touch()
    until(over.exists)
    with guard.operator() as admin:
        listed = admin.keys()
        mine = [key for key in listed if "lasting" in key["name"]]
        assert mine
        assert all(key["revoked_at_ms"] for key in mine)
        spent = {row["group"]: row["llm_calls"] for row in admin.usage("key", limit=1000)}
        assert not any(spent.get(key["key_id"]) for key in mine)
