"""``guard run`` in front of programs that are not Python: each is led to the proxy of the run."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from guard.running import processes
from tests.support.llm_vendor import vendor_process
from tests.support.programs import is_gone, killed_at_last
from tests.support.runs import AGENT, LIMIT, Runs, facts_of
from tests.support.waiting import WAIT_S, until

COST = 512_500
"""Of one request of these programs at gpt-4o, in nano-dollars."""

BODY = '{"model": "gpt-4o", "max_tokens": 50, "messages": [{"role": "user", "content": "hi"}]}'
CURL = f"curl -s -o /dev/null -w '%{{http_code}}\\n' -d '{BODY}' $OPENAI_BASE_URL/chat/completions"
NODE = """
const body = JSON.stringify({model: "gpt-4o", max_tokens: 50,
                             messages: [{role: "user", content: "hi"}]});
async function main() {
  for (let number = 0; number < Number(process.argv[2]); number++) {
    try {
      const reply = await fetch(process.env.OPENAI_BASE_URL + "/chat/completions",
                                {method: "POST", body});
      const said = await reply.json();
      console.log(number, reply.status, said.error ? said.error.message : "");
    } catch (error) {
      console.log(number, "failed");
    }
    await new Promise((resolve) => setTimeout(resolve, Number(process.argv[3] || 0)));
  }
}
main();
"""

needs_curl = pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
needs_node = pytest.mark.skipif(shutil.which("node") is None, reason="node is not installed")
on_linux = pytest.mark.skipif(sys.platform != "linux", reason="it reads /proc")


def env_of(vendor: str) -> dict[str, str]:
    return {"OPENAI_BASE_URL": f"{vendor}/v1", "ANTHROPIC_BASE_URL": vendor}


@pytest.fixture
def node(tmp_path: Path) -> str:
    path = tmp_path / "agent.js"
    path.write_text(NODE)
    return str(path)


@pytest.fixture
def agent(tmp_path: Path) -> str:
    path = tmp_path / "agent.py"
    path.write_text(AGENT)
    return str(path)


@pytest.fixture
def program(tmp_path: Path) -> Callable[[str, str], dict[str, str]]:
    """Put a shell script on the ``PATH``, in place of a program that is not installed here."""
    folder = tmp_path / "bin"
    folder.mkdir()

    def put(name: str, script: str) -> dict[str, str]:
        (folder / name).write_text(f"#!/bin/sh\n{script}\n")
        (folder / name).chmod(0o755)
        path = f"{folder}{os.pathsep}{os.environ['PATH']}"
        return {"PATH": path, "HOME": str(tmp_path)}

    return put


# -- what is held ----------------------------------------------------------------------------------


@needs_node
def test_a_program_in_another_language_is_cut_when_its_money_is_used_up(
    guard: Runs, vendor: str, node: str
) -> None:
    done = guard("run", "--limit", LIMIT, "--", "node", node, "9", "200", env=env_of(vendor))
    assert [line.split()[1] for line in done.stdout.splitlines()[:4]] == [
        "200",
        "200",
        "200",
        "400",
    ]
    assert "the limit of $0.002 is reached" in done.stdout
    assert done.returncode == 77
    assert "3 LLM requests, $0.0015375 of $0.002" in done.stderr
    assert "stopped: this run's --limit of $0.002 is reached" in done.stderr
    assert "not guarded" not in done.stderr


@needs_curl
def test_each_request_is_charged_once(guard: Runs, vendor: str, agent: str) -> None:
    """Guarded Python holds its own; what a shell sends is the proxy's."""
    script = f"{sys.executable} {agent} {vendor} 2; {CURL}; {sys.executable} {agent} {vendor} 1"
    before = httpx.get(f"{vendor}/stats").json()["answered"]
    done = guard("run", "--limit", "$2", "--json", "--", "bash", "-c", script, env=env_of(vendor))
    facts = facts_of(done)
    assert done.stdout.splitlines()[:4] == ["0 200", "1 200", "200", "0 200"], done.stderr
    assert httpx.get(f"{vendor}/stats").json()["answered"] - before == 4
    assert (facts["requests"], facts["spent_nanousd"]) == (4, 4 * COST)
    assert (facts["proxied_requests"], facts["guarded_processes"], facts["seen"]) == (1, 2, True)


EXPLICIT = """
import asyncio, os, sys, urllib.request
import aiohttp, httpx, requests
url = os.environ["GUARD_PROXY_URL"] + "/openai/v1/chat/completions"
body = sys.argv[1].encode()
kind = {"Content-Type": "application/json"}

async def by_aiohttp():
    async with aiohttp.ClientSession() as session:
        async with session.post(url, data=body, headers=kind) as reply:
            return reply.status

print(httpx.post(url, content=body, headers=kind, timeout=60).status_code)
print(requests.post(url, data=body, headers=kind).status_code)
print(asyncio.run(by_aiohttp()))
print(urllib.request.urlopen(urllib.request.Request(url, body, kind)).status)
own = os.environ["OPENAI_BASE_URL"] + "/chat/completions"
print(httpx.post(own, content=body, timeout=60).status_code)
"""


def test_a_guarded_process_that_sends_to_the_proxy_leaves_it_to_that(
    guard: Runs, vendor: str, tmp_path: Path
) -> None:
    pytest.importorskip("aiohttp")
    pytest.importorskip("requests")
    script = tmp_path / "explicit.py"
    script.write_text(EXPLICIT)
    done = guard("run", "--limit", "$2", "--json", "--", str(script), BODY, env=env_of(vendor))
    facts = facts_of(done)
    assert done.stdout.split()[:5] == ["200"] * 5, done.stderr
    assert (facts["requests"], facts["spent_nanousd"]) == (5, 5 * COST)
    assert facts["proxied_requests"] == 4, "the last one went to the vendor itself"
    assert (facts["unmetered_requests"], done.returncode) == ({}, 0)


SHOWS = """
import os, subprocess, sys
print(os.environ.get("OPENAI_BASE_URL"), os.environ.get("ANTHROPIC_BASE_URL"), flush=True)
show = 'echo "$OPENAI_BASE_URL $ANTHROPIC_BASE_URL"'
for env in (None, dict(os.environ), {"PATH": os.environ["PATH"]}):
    subprocess.run(["sh", "-c", show], env=env)
subprocess.run(["sh", "-c", show], env={**os.environ, "OPENAI_BASE_URL": "http://its.own"})
subprocess.run([sys.executable, "-c", "import os; print(os.environ.get('OPENAI_BASE_URL'))"])
"""


def test_guarded_python_has_its_own_environment_and_its_children_are_led(
    guard: Runs, tmp_path: Path
) -> None:
    script = tmp_path / "shows.py"
    script.write_text(SHOWS)
    done = guard("run", "--", str(script), env={"OPENAI_BASE_URL": "http://mine/v1"})
    own, *shells, python = done.stdout.splitlines()
    assert own == "http://mine/v1 None"
    for words in map(str.split, shells[:2]):
        assert words[0].endswith("/openai/v1")
        assert words[1].endswith("/anthropic")
        assert words[0].startswith("http://127.0.0.1:")
    # One that has nothing of it would go to the vendor, and not to what its parent has set.
    assert shells[2].startswith(" http://127.0.0.1:")
    assert shells[3].startswith("http://its.own http://127.0.0.1:")
    assert python == "http://mine/v1"


URLLIB = """
import os, sys, urllib.request
url = os.environ["OPENAI_BASE_URL"] + "/chat/completions"
print(urllib.request.urlopen(urllib.request.Request(url, sys.argv[1].encode())).status)
"""


@pytest.mark.parametrize("flag", ["-I", "-E", "-S"])
def test_python_that_does_not_load_guard_is_led(
    guard: Runs, vendor: str, tmp_path: Path, flag: str
) -> None:
    script = tmp_path / "agent.py"
    script.write_text(URLLIB)
    done = guard("run", "--limit", "$2", "--json", "--", sys.executable, flag, str(script), BODY,
                 env=env_of(vendor))  # fmt: skip
    facts = facts_of(done)
    assert (done.returncode, facts["spent_nanousd"]) == (0, COST), done.stderr
    assert (facts["proxied_requests"], facts["guarded_processes"]) == (1, 0)


@needs_curl
def test_a_run_within_a_run_is_charged_once_to_each(guard: Runs, vendor: str) -> None:
    inner = [sys.executable, "-m", "guard", "run", "--limit", "$1", "--json", "--"]
    done = guard("run", "--limit", "$2", "--json", "--", *inner, "bash", "-c", CURL,
                 env=env_of(vendor))  # fmt: skip
    lines = [line for line in done.stdout.splitlines() if line]
    assert (lines[0], done.returncode) == ("200", 0), done.stderr
    found = [json.loads(line) for line in lines[1:]]
    assert [each["spent_nanousd"] for each in found] == [COST, COST]
    assert [each["proxied_requests"] for each in found] == [1, 0]


# -- closed by default -----------------------------------------------------------------------------


def test_a_limit_of_which_nothing_was_seen_ends_with_78(guard: Runs) -> None:
    program = ["--", "sh", "-c", "echo ran; exit 3"]
    done = guard("run", "--limit", "$2", *program)
    assert (done.stdout, done.returncode) == ("ran\n", 78)
    assert "not guarded: its limit has stopped nothing" in done.stderr
    assert "--allow-unseen" in done.stderr
    facts = facts_of(guard("run", "--limit", "$2", "--json", *program))
    assert (facts["exit_code"], facts["program_exit_code"], facts["seen"]) == (78, 3, False)
    for options in (["--limit", "$2", "--allow-unseen"], ["--limit", "$2", "--dry-run"], []):
        done = guard("run", *options, *program)
        assert done.returncode == 3, options
        assert "nothing was seen of the program" in done.stderr
    killed = guard("run", "--limit", "$2", "--", "sh", "-c", "kill -TERM $$")
    assert killed.returncode == 128 + signal.SIGTERM


def test_one_that_was_seen_keeps_its_exit_code_without_any_request(guard: Runs) -> None:
    done = guard("run", "--limit", "$2", "--", sys.executable, "-c", "raise SystemExit(3)")
    assert done.returncode == 3
    assert "nothing was seen" not in done.stderr


def launched(tmp_path: Path, agent: str, vendor: str) -> dict[str, list[str]]:
    """Return the commands by which people start an agent, by their launcher."""
    command = f"{sys.executable} {agent} {vendor} 1"
    (tmp_path / "Makefile").write_text(f"agent:\n\t@{command}\n")
    (tmp_path / "run.sh").write_text(f"#!/bin/sh\n{command}\n")
    (tmp_path / "run.sh").chmod(0o755)
    package = tmp_path / "node_modules/.bin"
    package.mkdir(parents=True)
    (tmp_path / "package.json").write_text("{}")
    (package / "my-agent").write_text(f"#!/bin/sh\n{command}\n")
    (package / "my-agent").chmod(0o755)
    return {
        "sh": ["sh", "run.sh"],
        "make": ["make", "-s", "agent"],
        "npx": ["npx", "--no-install", "my-agent"],
        "uv": ["uv", "run", "--no-project", "--python", sys.executable, *command.split()],
    }


@pytest.mark.parametrize("launcher", ["sh", "make", "npx", "uv"])
def test_launchers_go_on_working(
    guard: Runs, vendor: str, agent: str, tmp_path: Path, launcher: str
) -> None:
    if shutil.which(launcher) is None:
        pytest.skip(f"{launcher} is not installed")
    command = launched(tmp_path, agent, vendor)[launcher]
    done = guard("run", "--limit", "$2", "--json", "--", *command, cwd=tmp_path,
                 env={"HOME": str(tmp_path)})  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "0 200" in done.stdout.splitlines()
    assert (facts_of(done)["requests"], facts_of(done)["seen"]) == (1, True)


def test_pytest_with_mocks_goes_on_working(guard: Runs, tmp_path: Path) -> None:
    (tmp_path / "test_mocked.py").write_text(
        "import httpx, os\n\n"
        "def test_it(monkeypatch):\n"
        "    monkeypatch.setattr(httpx, 'post', lambda url: 'mocked')\n"
        "    assert httpx.post('https://api.openai.com/v1/chat/completions') == 'mocked'\n"
        "    assert 'OPENAI_BASE_URL' not in os.environ\n"
    )
    done = guard("run", "--limit", "$2", "--json", "--", "pytest", "-q", "-p", "no:cacheprovider",
                 cwd=tmp_path, env={"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"})  # fmt: skip
    assert (done.returncode, facts_of(done)["requests"]) == (0, 0), done.stdout


@pytest.mark.parametrize(
    ("name", "env", "says"),
    [
        ("docker", {}, "docker runs its program elsewhere"),
        ("copilot", {}, "its subscription has no address that can be set"),
        ("claude", {"CLAUDE_CODE_USE_BEDROCK": "1"}, "CLAUDE_CODE_USE_BEDROCK is set"),
    ],
)
def test_what_cannot_be_led_to_the_proxy_does_not_start(
    guard: Runs, program: Any, name: str, env: dict[str, str], says: str
) -> None:
    env = {**program(name, "echo started"), **env}
    done = guard("run", "--limit", "$2", "--", name, "run", env=env)
    assert (done.stdout, done.returncode) == ("", 77)
    assert says in " ".join(done.stderr.split())
    assert "--allow-unseen" in done.stderr
    allowed = guard("run", "--limit", "$2", "--allow-unseen", "--", name, "run", env=env)
    assert (allowed.stdout, allowed.returncode) == ("started\n", 0)
    assert f"not guarded: {says}" in " ".join(allowed.stderr.split())


def test_codex_gets_the_address_as_an_argument(guard: Runs, program: Any, vendor: str) -> None:
    script = 'url=$(echo "$2" | cut -d\'"\' -f2); echo "$1 $3 $4 $5"; ' + CURL.replace(
        "$OPENAI_BASE_URL", '"$url"'
    )
    env = {**program("codex", script), **env_of(vendor)}
    done = guard("run", "--limit", "$2", "--json", "--", "codex", "exec", env=env)
    said = ['-c -c web_search="disabled" exec', "200"]
    assert done.stdout.splitlines()[:2] == said, done.stderr
    assert facts_of(done)["requests"] == 1


# -- how it ends -----------------------------------------------------------------------------------

STUBBORN = """
process.on("SIGTERM", () => console.log("told to end"));
process.on("SIGHUP", () => {});
console.log("up", process.pid);
setInterval(() => {}, 1000);
"""


@on_linux
@needs_node
def test_a_kill_ends_all_that_the_program_has_started_and_nothing_of_its_caller(
    guard: Runs, tmp_path: Path
) -> None:
    stubborn = tmp_path / "stubborn.js"
    stubborn.write_text(STUBBORN)
    # One in a session of its own, whose parent has ended; one that ignores SIGTERM.
    apart = "(setsid sh -c 'echo up $$; exec sleep 600' &)"
    script = f"{apart}; sleep 600 & echo up $!; exec node {stubborn}"
    run = f"{sys.executable} -m guard run --workflow felled"
    caller = f'sleep 600 & echo $!; exec {run} -- sh -c "$SCRIPT"'
    with killed_at_last(
        subprocess.Popen(["sh", "-c", caller], env=guard.env | {"SCRIPT": script}, text=True,
                         stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    ) as process:  # fmt: skip
        assert process.stdout is not None
        sibling = psutil.Process(int(process.stdout.readline()))
        try:
            pids = [int(process.stdout.readline().split()[1]) for _ in range(3)]
            assert guard("kill", "felled", "--reason", "enough").returncode == 0
            assert process.wait(WAIT_S) == 77
            until(lambda: all(map(is_gone, pids)))
            assert not is_gone(sibling.pid), "it is in the caller's group, and was there before"
        finally:
            sibling.kill()
        assert process.stderr is not None
        said = process.stderr.read()
    assert guard("revive", "felled").returncode == 0
    assert "stopped: felled is killed" in said
    assert "enough" in said


@on_linux
@needs_node
def test_a_kill_reaches_a_program_that_waits_for_an_answer(guard: Runs, node: str) -> None:
    with vendor_process() as slow:
        httpx.get(f"{slow}/delay/600")
        process = guard.start("run", "--workflow", "waiting", "--", "node", node, "9",
                              env=env_of(slow))  # fmt: skip
        until(lambda: is_connected(process.pid, slow))
        assert "1 run stopped" in guard("kill", "waiting", "--reason", "enough").stdout
        out, err = process.communicate(timeout=WAIT_S)
    assert guard("revive", "waiting").returncode == 0
    first = out.splitlines()[0]
    assert first.startswith("0 400 guard: an operator has stopped this: enough"), out
    assert process.returncode == 77
    assert "stopped: waiting is killed" in err
    assert "1 LLM request, " in err, "what was under way is charged"


def is_connected(pid: int, url: str) -> bool:
    """Tell whether the proxy of a run has a connection to a vendor."""
    port = int(url.rpartition(":")[2])
    return any(
        address == ("127.0.0.1", port)
        for child in psutil.Process(pid).children()
        if child.status() != psutil.STATUS_ZOMBIE and "guard.proxy" in child.cmdline()
        for address in processes.peers(child.pid)
    )


@on_linux
@needs_node
def test_a_proxy_that_dies_is_started_again(guard: Runs, vendor: str, node: str) -> None:
    process = guard.start("run", "--limit", "$2", "--json", "--", "node", node, "60", "100",
                          env=env_of(vendor))  # fmt: skip
    assert process.stdout is not None
    lines = [process.stdout.readline() for _ in range(3)]
    [proxy] = [
        child for child in psutil.Process(process.pid).children()
        if "guard.proxy" in child.cmdline()
    ]  # fmt: skip
    proxy.kill()
    lines += process.stdout.readlines()
    assert process.wait(WAIT_S) == 0
    answered = sum(line.split()[1:2] == ["200"] for line in lines)
    facts = json.loads(lines[-1])
    assert answered > 3
    # What it had not delivered is charged in doubt, and shown as such.
    sure = facts["spent_nanousd"] - facts["uncertain_nanousd"]
    assert sure <= answered * COST <= facts["spent_nanousd"]
    assert facts["requests"] - answered in (0, 1), "one may have been under way"


@needs_node
def test_a_program_in_another_language_is_watched(guard: Runs, vendor: str, node: str) -> None:
    script = f"node {node} 1; read line"
    process = guard.start("run", "--watch", "--workflow", "seen", "--", "sh", "-c", script,
                          env=env_of(vendor))  # fmt: skip
    assert process.stdin is not None
    assert process.stderr is not None
    text = "guard run: seen: 1 LLM request, $0.0005125"
    assert any(text in line for line in process.stderr), "shown while it runs"
    process.stdin.write("\n")
    process.stdin.close()
    assert process.stderr.read().count(text) == 1, "and in the end"
    assert process.wait(WAIT_S) == 0


@needs_node
def test_a_dry_run_refuses_nothing(guard: Runs, vendor: str, node: str) -> None:
    done = guard("run", "--limit", LIMIT, "--dry-run", "--json", "--", "node", node, "5",
                 env=env_of(vendor))  # fmt: skip
    facts = facts_of(done)
    assert (done.returncode, facts["requests"], facts["refused"]) == (0, 5, None)
    assert [each["error_code"] for each in facts["would_refuse"]] == ["GD-B004"] * 2
