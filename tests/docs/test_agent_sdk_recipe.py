"""The recipe for the Claude Agent SDK, as printed: its ``claude`` reaches a limit, and is killed.

In an environment of its own: ``nox -s frameworks``.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from decimal import Decimal
from pathlib import Path

import attrs
import pytest

from tests.support.agent_answers import Turn
from tests.support.agent_vendor import AgentVendor
from tests.support.coding_agents import AGENTS
from tests.support.pages import ConsoleStep, flaw_in_output, pages, steps_of
from tests.support.programs import ROOT, killed_at_last
from tests.support.runs import local_directory
from tests.support.waiting import PATIENT, WAIT_S

AGENT, LIMITED, KILL, KILLED = pages()["docs/recipes/claude-agent-sdk.md"]
CLAUDE = AGENTS["claude"]
LIMIT = 1_000_000_000


def _missing() -> str:
    """What the recipe needs and is not installed; the SDK brings ``claude`` on most platforms."""
    package = importlib.util.find_spec("claude_agent_sdk")
    if package is None or package.origin is None:
        return "needs claude-agent-sdk"
    bundled = Path(package.origin).parent / "_bundled" / "claude"
    return "" if bundled.exists() or shutil.which("claude") else "needs claude"


pytestmark = pytest.mark.skipif(bool(_missing()), reason=_missing())


@attrs.frozen
class Terminal:
    """Where a reader types what the page says."""

    folder: Path
    environ: Mapping[str, str]

    def start(self, step: ConsoleStep) -> subprocess.Popen[str]:
        """Start a command."""
        return subprocess.Popen(
            ["bash", "-c", step.command], cwd=self.folder, env=dict(self.environ),
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip


@pytest.fixture
def vendor() -> Iterator[AgentVendor]:
    with contextlib.closing(AgentVendor()) as running:
        yield running


@pytest.fixture
def terminal(vendor: AgentVendor, tmp_path: Path) -> Iterator[Terminal]:
    folder = tmp_path / "page"
    folder.mkdir()
    (folder / AGENT.value).write_text(AGENT.text)
    with local_directory(tmp_path / "local") as local:
        yield Terminal(folder, CLAUDE.environment(tmp_path / "home", vendor.url) | {
            **PATIENT, "PYTHONPATH": str(ROOT),
            "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
            "GUARD_LOCAL_DIR": str(local),
            "GUARD_PRICE_LOCAL": "1",  # the stand-in's address is one of this machine
        })  # fmt: skip


def ended(process: subprocess.Popen[str]) -> str:
    """Return what a run that was stopped has shown."""
    out, err = process.communicate(timeout=WAIT_S)
    screen = out + err
    assert process.returncode == 77, screen
    assert "not guarded" not in screen
    assert "not counted" not in screen
    return screen


def spent(screen: str) -> tuple[int, int]:
    """Return how many requests guard has counted, and what they cost in nano-dollars."""
    found = re.search(r"guard run: fixer: (\d+) LLM requests?, \$([\d.]+) of \$1\.00", screen)
    assert found is not None, screen
    return int(found[1]), int(Decimal(found[2]) * 1_000_000_000)


def billed(vendor: AgentVendor) -> int:
    fresh, cached, output = CLAUDE.prices
    return sum(bill.fresh * fresh + bill.cached * cached + bill.output * output
               for bill in vendor.bills)  # fmt: skip


def assert_shows(text: str, screen: str) -> None:
    missing = flaw_in_output(text.splitlines(), screen)
    assert missing is None, f"{missing!r} was not printed, but:\n{screen}"


def test_the_limit_stops_it_and_nothing_goes_past(vendor: AgentVendor, terminal: Terminal) -> None:
    """Each request that reached the vendor was counted, and charged as it was billed."""
    look = CLAUDE.run_shell("echo looked >> seen.txt")
    vendor.script = lambda asked: Turn("One of them still fails.", (look,), thought=8_000)
    [step] = steps_of(LIMITED.text)
    with killed_at_last(terminal.start(step)) as process:
        screen = ended(process)
    # How many requests the dollar pays for depends on the length of Claude Code's prompt.
    counted = re.compile(r"\d+ LLM requests, \$0\.9\S+")
    assert_shows(counted.sub("... LLM requests, $...", "\n".join(step.printed)), screen)
    assert (terminal.folder / "seen.txt").read_text().splitlines()[:2] == ["looked"] * 2
    assert spent(screen) == (len(vendor.bills), billed(vendor))
    assert len(vendor.asked) == len(vendor.bills)
    assert LIMIT * 0.8 < billed(vendor) <= LIMIT


def test_a_kill_stops_it_in_mid_answer(vendor: AgentVendor, terminal: Terminal) -> None:
    """At a vendor that may bill on, as this one, what was set aside is charged in doubt."""
    vendor.script = lambda asked: Turn("word after word ", goes_on=True)
    [run], [kill] = steps_of(LIMITED.text), steps_of(KILL.text)
    with killed_at_last(terminal.start(run)) as process:
        assert vendor.speaks.wait(WAIT_S)
        with killed_at_last(terminal.start(kill)) as killing:
            said, err = killing.communicate(timeout=WAIT_S)
        assert (killing.returncode, err) == (0, "")
        screen = ended(process)
    assert_shows("\n".join(kill.printed), said)
    assert_shows(KILLED.text, screen)
    requests, charged = spent(screen)
    assert requests == len(vendor.asked)
    assert 0 < billed(vendor) <= charged <= LIMIT
    assert not any(bill.is_whole for bill in vendor.bills)
