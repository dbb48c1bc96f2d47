"""``guard run`` in front of the programs that people start: notebooks, servers, test runs."""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.support.programs import killed_at_last
from tests.support.runs import AGENT, LIMIT, Runs
from tests.support.waiting import until

PATIENTLY = ["--timeout-worker-healthcheck", "120"]
"""Else uvicorn kills a worker that has not begun within five seconds, and starts it anew."""

APP = """
import os, httpx

async def app(scope, receive, send):
    if scope["type"] == "lifespan":
        return
    status = 200
    body = {"model": "gpt-4o", "max_tokens": 50, "messages": [{"role": "user", "content": "hi"}]}
    if scope["path"] != "/version":
        async with httpx.AsyncClient(timeout=60) as client:
            reply = await client.post(os.environ["VENDOR"] + "/v1/chat/completions", json=body)
            status = reply.status_code
    headers = [(b"connection", b"close")]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": VERSION})

VERSION = b"one"
"""


def notebook(path: Path, *cells: str) -> None:
    """Write a notebook."""
    document = {
        "nbformat": 4, "nbformat_minor": 5, "metadata": {},
        "cells": [
            {"cell_type": "code", "id": f"cell-{number}", "metadata": {}, "outputs": [],
             "execution_count": None, "source": source}
            for number, source in enumerate(cells)
        ],
    }  # fmt: skip
    path.write_text(json.dumps(document))


@pytest.fixture
def home(tmp_path: Path) -> dict[str, str]:
    """A home directory for programs that keep files in it."""
    return {"HOME": str(tmp_path), "IPYTHONDIR": str(tmp_path / "ipython"), "NO_COLOR": "1"}


EXECUTE = ["jupyter", "nbconvert", "--to", "notebook", "--execute", "--output", "out.ipynb"]


@pytest.mark.parametrize(
    "program",
    [
        pytest.param(EXECUTE, id="nbconvert"),
        pytest.param(["jupyter", "execute"], id="execute", marks=pytest.mark.matrix),
    ],
)
def test_a_notebook(
    guard: Runs, vendor: str, tmp_path: Path, home: dict[str, str], program: list[str]
) -> None:
    """Its kernel is a child process of a child process."""
    pytest.importorskip("nbconvert")
    pytest.importorskip("ipykernel")
    path = tmp_path / "agent.ipynb"
    arguments = f"import sys\nsys.argv = ['', {vendor!r}, '{{}}']"
    notebook(path, arguments.format(9), AGENT, "open('after', 'w').close()")
    done = guard("run", "--limit", LIMIT, "--json", "--", *program, str(path), cwd=tmp_path,
                 env=home)  # fmt: skip
    facts = json.loads(done.stdout.splitlines()[-1])
    assert (facts["requests"], done.returncode) == (3, 77), done.stderr
    assert not (tmp_path / "after").exists()
    shown = re.sub(r"\x1b\[[\d;]*m", "", done.stderr)
    assert "GuardBudgetError: [GD-B004] a request to openai for gpt-4o could cost" in shown
    assert "guard explain GD-B004" in shown
    assert "guard/runtime" not in shown, "guard's own frames tell the reader nothing"

    # Jupyter kills a kernel that takes long to end, which leaves in doubt what it has not told.
    notebook(path, arguments.format(2), AGENT, "import guard; guard.shutdown(); open('after', 'w')")
    done = guard("run", "--limit", LIMIT, "--", *program, str(path), cwd=tmp_path, env=home)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "after").exists()
    assert "2 LLM requests, $0.001025 of $0.002" in done.stderr


@pytest.mark.long  # a worker that is refused ends, and pytest starts another
@pytest.mark.timeout(300)
def test_pytest_with_workers(guard: Runs, vendor: str, tmp_path: Path) -> None:
    pytest.importorskip("xdist")
    (tmp_path / "test_agents.py").write_text(
        f"import pytest, sys\n\n@pytest.mark.parametrize('number', range(4))\n"
        f"def test_it(number):\n    sys.argv = ['', {vendor!r}, '3']\n    exec({AGENT!r})\n"
    )
    program = ["pytest", "-q", "-n", "2", "-p", "no:cacheprovider"]
    done = guard("run", "--limit", LIMIT, "--json", "--", *program, cwd=tmp_path)
    facts = json.loads(done.stdout.splitlines()[-1])
    assert (facts["requests"], done.returncode) == (3, 77), done.stdout


def test_processes_of_multiprocessing(guard: Runs, vendor: str, tmp_path: Path) -> None:
    (tmp_path / "pool.py").write_text(
        textwrap.dedent(f"""
            import multiprocessing, sys

            def work(number):
                sys.argv = ["", {vendor!r}, "1"]
                exec({AGENT!r}, {{}})

            if __name__ == "__main__":
                for kind in ("fork", "spawn", "forkserver") * 3:
                    with multiprocessing.get_context(kind).Pool(1) as pool:
                        pool.map(work, range(1))
        """)
    )
    # Every worker ends by SIGTERM, often in the middle of its own end.
    done = guard("run", "--limit", "$2", "--", "pool.py", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "9 LLM requests, $0.0046125 of $2" in done.stderr


@contextlib.contextmanager
def serving(guard: Runs, vendor: str, folder: Path, *options: str) -> Iterator[tuple[str, Server]]:
    """Run uvicorn under guard; gives the app's address."""
    (folder / "site_app.py").write_text(APP)
    program = ["uvicorn", "site_app:app", "--port", "0", *options]
    process = guard.start("run", "--limit", LIMIT, "--", *program, cwd=folder,
                          env={"VENDOR": vendor})  # fmt: skip
    with killed_at_last(process):
        server = Server(process)
        try:
            yield server.url(), server
        finally:
            process.terminate()
            server.wait()


class Server:
    """A server, and what it says on standard error."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self.said: list[str] = []
        assert process.stderr is not None
        self._reader = threading.Thread(target=self.said.extend, args=(process.stderr,))
        self._reader.start()

    def url(self) -> str:
        until(lambda: "Uvicorn running on" in "".join(self.said))
        match = re.search(r"running on (http://127\.0\.0\.1:\d+)", "".join(self.said))
        assert match is not None
        return match[1]

    def wait(self) -> int:
        code = self._process.wait(120)
        self._reader.join(120)
        return code


def ask(url: str) -> str:
    """Return the version that answers; nothing if there is no answer, or an error."""
    with contextlib.suppress(httpx.HTTPError):
        reply = httpx.get(url, timeout=120)
        return reply.text if reply.status_code == 200 else ""
    return ""


@pytest.mark.parametrize("options", [[], ["--workers", "2", *PATIENTLY]], ids=["alone", "workers"])
def test_uvicorn(guard: Runs, vendor: str, tmp_path: Path, options: list[str]) -> None:
    with serving(guard, vendor, tmp_path, *options) as (url, server):
        until(lambda: ask(url) == "one")
        assert [ask(url) for _ in range(3)] == ["one", "one", ""], "there is money for three"
        assert server.wait() == 77
    assert "3 LLM requests, $0.0015375 of $0.002" in "".join(server.said)
    with pytest.raises(httpx.ConnectError):
        httpx.get(url)


def test_uvicorn_that_reloads(guard: Runs, vendor: str, tmp_path: Path) -> None:
    with serving(guard, vendor, tmp_path, "--reload") as (url, server):
        until(lambda: ask(url) == "one")
        (tmp_path / "site_app.py").write_text(APP.replace("one", "another"))
        until(lambda: "Reloading" in "".join(server.said))
        # Until the new one is there the old one answers, and each request has its price.
        until(lambda: ask(f"{url}/version") == "another")
        until(lambda: ask(url) == "")
        assert server.wait() == 77
    assert "3 LLM requests, $0.0015375 of $0.002" in "".join(server.said)


def test_a_console_script(guard: Runs, vendor: str, tmp_path: Path) -> None:
    script = tmp_path / "bin" / "my-agent"
    script.parent.mkdir()
    script.write_text(f"#!{sys.executable}\n{AGENT}")
    script.chmod(0o755)
    env = {"PATH": f"{script.parent}{os.pathsep}{os.environ['PATH']}"}
    done = guard("run", "--limit", LIMIT, "--", "my-agent", vendor, "9", env=env)
    assert (done.stdout, done.returncode) == ("0 200\n1 200\n2 200\n", 77)
    assert "guard run: my-agent-" in done.stderr


def test_a_shell_script(guard: Runs, vendor: str, tmp_path: Path) -> None:
    script = tmp_path / "run.sh"
    (tmp_path / "agent.py").write_text(AGENT)
    script.write_text(f"{sys.executable} agent.py {vendor} 2 | sed 's/^/> /'\nexit 3\n")
    done = guard("run", "--limit", LIMIT, "--", "sh", "run.sh", cwd=tmp_path)
    assert (done.stdout, done.returncode) == ("> 0 200\n> 1 200\n", 3)
    assert "2 LLM requests" in done.stderr


@pytest.fixture(scope="module")
def other_python(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A Python of another environment, in which guard is not installed."""
    folder = tmp_path_factory.mktemp("other")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    return str(folder / "bin" / "python")


def test_a_python_without_guard(guard: Runs, other_python: str, tmp_path: Path) -> None:
    env = {"PYTHONPATH": ""}
    if subprocess.run([sys.executable, "-c", "import guard"], cwd=tmp_path, env={}).returncode:
        pytest.skip("guard is not installed")
    program = ["--", other_python, "-c", "print('ran')"]
    done = guard("run", *program, env=env, cwd=tmp_path)
    assert (done.stdout, done.returncode) == ("ran\n", 0)
    said, *_ = done.stderr.splitlines()
    assert said == (
        f"guard run: guard is not installed for {other_python}: its LLM requests go through "
        "guard's proxy, and what it does itself is not checked"
    )
    assert "nothing was guarded" in done.stderr
    limited = guard("run", "--limit", "$2", *program, env=env, cwd=tmp_path)
    assert (limited.stdout, limited.returncode) == ("ran\n", 78)


def test_a_tool_without_guard_of_a_guarded_program(
    guard: Runs, other_python: str, tmp_path: Path
) -> None:
    (tmp_path / "agent.py").write_text(
        f"import subprocess\nsubprocess.run([{other_python!r}, '-c', 'print(1)'], check=True)\n"
    )
    done = guard("run", "--", "agent.py", env={"PYTHONPATH": ""}, cwd=tmp_path)
    assert (done.stdout, done.returncode) == ("1\n", 0), done.stderr
    assert f"not installed for {other_python}: its LLM requests go through" in done.stderr
