"""Agents as their frameworks publish them, under ``guard run``: nothing in them is changed.

Each program is an example of a package's own description, as it is installed here. Only the
environment says where the vendor is.
"""

from __future__ import annotations

import importlib.metadata
import json
import re
import secrets
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest

from tests.support.runs import Runs
from tests.support.tool_loop import ToolLoop
from tests.support.waiting import until


@attrs.frozen
class Agent:
    """A published example.

    Attributes:
        package: whose description holds it.
        marks: of each block of the program, in their order, a text that it holds; in
            a description, a program can be written down in several steps.
        address: the variable for the vendor's address.
        more: other variables that it needs.
        limit: in dollars, what pays for two of its requests with the least output that is of use,
            and not for a third; None if it makes one only.
    """

    package: str
    marks: tuple[str, ...]
    address: str
    more: dict[str, str]
    limit: str | None
    costs: tuple[int, ...]
    tool: str | None = None
    needs: str = ""

    def __str__(self) -> str:
        return self.package

    def program(self) -> str:
        """Return the example, or skip the test."""
        for package in (self.package, *filter(None, [self.needs])):
            try:
                description = importlib.metadata.metadata(self.package).get_payload()
                importlib.metadata.distribution(package)
            except importlib.metadata.PackageNotFoundError:
                pytest.skip(f"{package} is not installed")
        blocks = re.findall(r"^```python\n(.*?)^```", str(description), re.DOTALL | re.MULTILINE)
        return "\n".join(next(block for block in blocks if mark in block) for mark in self.marks)


AGENTS = [
    Agent("langgraph-prebuilt", ("create_react_agent(model, tools)",), "ANTHROPIC_BASE_URL",
          {"ANTHROPIC_API_KEY": "k"}, "0.0245", (4_500_000,) * 2, "search",
          needs="langchain-anthropic"),
    Agent("google-genai", ("Client(api_key=", "tools=[get_current_weather]),\n)"),
          "GOOGLE_GEMINI_BASE_URL", {}, "0.0172", (1_125_000,) * 2, "get_current_weather"),
    Agent("openai-agents", ('Runner.run_sync(agent, "Write a haiku',), "OPENAI_BASE_URL",
          {"OPENAI_API_KEY": "k", "OPENAI_AGENTS_DISABLE_TRACING": "1",
           "GUARD_PRICE_LOCAL": "1"},
          None, (303_960,)),  # of the model that it asks for: the one that answers has no price
]  # fmt: skip


@pytest.fixture(scope="module")
def server() -> Iterator[ToolLoop]:
    running = ToolLoop()
    yield running
    running.close()


@pytest.fixture
def model(server: ToolLoop) -> ToolLoop:
    server.reset()
    return server


class Started:
    """An agent, its program in a folder of its own."""

    def __init__(self, guard: Runs, model: ToolLoop, folder: Path, agent: Agent) -> None:
        (folder / "agent.py").write_text(agent.program())
        self._guard = guard
        self._folder = folder
        path = "/v1" if agent.address.startswith("OPENAI") else ""
        self._env = {agent.address: model.url + path, **agent.more}

    def start(self, *options: str) -> subprocess.Popen[str]:
        """Start it under guard."""
        return self._guard.start("run", *options, "--", "agent.py", env=self._env, cwd=self._folder)

    def __call__(self, *options: str) -> tuple[int, dict[str, Any], str]:
        """Run it under guard; return the exit code, the report and standard error."""
        process = self.start(*options, "--json")
        out, err = process.communicate(timeout=300)
        return process.returncode, json.loads(out.splitlines()[-1]), err


# An agent without tools, which takes the longest to import, shows nothing that the others do not.
@pytest.fixture(
    params=[
        each if each.package == "google-genai" else pytest.param(each, marks=pytest.mark.matrix)
        for each in AGENTS
    ],
    ids=str,
)
def agent(request: pytest.FixtureRequest) -> Agent:
    chosen: Agent = request.param
    return chosen


@pytest.fixture
def run(guard: Runs, model: ToolLoop, tmp_path: Path, agent: Agent) -> Started:
    return Started(guard, model, tmp_path, agent)


def test_an_agent_within_its_limit(run: Started, model: ToolLoop, agent: Agent) -> None:
    code, report, err = run("--limit", "1")
    assert code == 0, err
    assert report["requests"] == len(model.bodies) == (1 if agent.limit is None else 2)
    assert report["spent_nanousd"] == sum(agent.costs[: report["requests"]])
    assert report["refused"] is None


def test_an_agent_that_runs_away_is_limited(run: Started, model: ToolLoop, agent: Agent) -> None:
    model.turns = 1000
    code, report, err = run("--limit", agent.limit or "0.000001")
    assert (code, report["refused"]["error_code"]) == (77, "GD-B004"), err
    asked = (report["requests"], len(model.bodies))
    if agent.limit is None:
        assert asked == (0, 0), report["refused"]
    else:  # how many fit depends on the bounds, which are by kinds of bytes
        assert asked[0] == asked[1], report
        assert 1 <= asked[0] <= 3, report["refused"]
        assert report["spent_nanousd"] == asked[0] * agent.costs[0]
    assert report["spent_nanousd"] <= report["limit_nanousd"]
    assert "could cost" in report["refused"]["reason"]


def test_its_tool_is_blocked(run: Started, model: ToolLoop, agent: Agent) -> None:
    if agent.tool is None:
        pytest.skip("it has no tools")
    code, report, err = run("--block-tool", agent.tool[:6] + "*")
    assert (code, report["refused"]["error_code"]) == (77, "GD-T001"), err
    assert len(model.bodies) == 1, "the framework does not get the answer that asks for it"


def test_an_agent_is_watched_and_killed(guard: Runs, run: Started, model: ToolLoop) -> None:
    """From another terminal, while it waits for the vendor."""
    model.turns, model.delay_s = 1000, 1.0
    name = f"watched-{secrets.token_hex(3)}"
    process = run.start("--watch", "--workflow", name)
    assert process.stderr is not None
    said: list[str] = []
    reader = threading.Thread(target=said.extend, args=(process.stderr,))
    reader.start()
    try:
        until(lambda: model.bodies)
        with guard.operator() as operator:
            operator.kill(name, reason="runaway")
        assert process.wait(120) == 77
    finally:
        process.kill()
        reader.join(120)
        for pipe in (process.stdin, process.stdout, process.stderr):
            assert pipe is not None
            pipe.close()
    shown = "".join(said)
    assert f"guard run: {name}: started" in shown
    assert "runaway" in shown
    assert "Traceback" not in shown
