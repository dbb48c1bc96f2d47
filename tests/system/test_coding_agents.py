"""Real coding agents under ``guard run``, unmodified, beside a stand-in of their vendors."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from guard.gateway.embedded import run_gateway
from guard.running.routing import is_ours_alone
from tests.proxy.test_team import serving
from tests.support.agent_answers import Call, Turn
from tests.support.agent_vendor import AgentVendor, Asked, Refusing
from tests.support.coding_agents import (
    AGENTS,
    FOLDER,
    MISSING,
    CodingAgent,
    are_installed,
    direct,
)
from tests.support.programs import ROOT
from tests.support.runs import Runs
from tests.support.waiting import WAIT_S

pytestmark = [pytest.mark.matrix, pytest.mark.skipif(not are_installed(), reason=MISSING)]

LIMIT = 2_000_000_000
INTERRUPTED = 2
"""Turns of each agent; ten of each were measured once, with the figures in the docs."""


@pytest.fixture(params=AGENTS.values(), ids=AGENTS)
def agent(request: pytest.FixtureRequest) -> CodingAgent:
    found: CodingAgent = request.param
    return found


@pytest.fixture
def vendor() -> Iterator[AgentVendor]:  # type: ignore[override]  # another one than the package's
    with contextlib.closing(AgentVendor()) as vendor:
        yield vendor


class Desk:
    """Where one agent works.

    Args:
        guard: starts commands.
        agent: that works.
        vendor: that it asks.
        folder: for its home and its work.
    """

    def __init__(self, guard: Runs, agent: CodingAgent, vendor: AgentVendor, folder: Path) -> None:
        self._guard, self.agent, self.vendor = guard, agent, vendor
        self.work = folder / "work"
        self.work.mkdir()
        guard.env = agent.environment(folder / "home", vendor.url) | {
            "GUARD_LOCAL_DIR": guard.env["GUARD_LOCAL_DIR"], "GUARD_PRICE_LOCAL": "1",
            "PYTHONPATH": str(ROOT),
        }  # fmt: skip

    def start(
        self, prompt: str, *options: str, resume: bool = False, limit: int = LIMIT
    ) -> subprocess.Popen[str]:
        command = self.agent.command(prompt, resume=resume)
        process = self._guard.start(
            "run", "--limit", f"${limit / 1e9:g}", "--json", *options, "--", *command,
            cwd=self.work, start_new_session=True,
        )  # fmt: skip
        assert process.stdin is not None
        process.stdin.close()  # or some of them wait for more of their prompt
        process.stdin = None
        return process

    def end(self, process: subprocess.Popen[str]) -> tuple[dict[str, Any], str]:
        """Return the facts of a run, and what was on the screen."""
        out, err = process.communicate(timeout=WAIT_S)
        facts: dict[str, Any] = json.loads(out.splitlines()[-1])
        return facts, out + err

    @property
    def billed(self) -> int:
        fresh, cached, output = self.agent.prices
        return sum(
            bill.fresh * fresh + bill.cached * cached + bill.output * output
            for bill in self.vendor.bills
        )


@pytest.fixture
def desk(guard: Runs, agent: CodingAgent, vendor: AgentVendor, tmp_path: Path) -> Desk:
    return Desk(guard, agent, vendor, tmp_path)


def test_tools_run_and_the_session_goes_on(desk: Desk) -> None:
    """Half of each prompt comes from the vendor's cache, as it does of a real one."""
    look = Turn("I look.", (desk.agent.run_shell("echo looked > seen.txt"),), thought=300)
    desk.vendor.cached = 0.5
    desk.vendor.script = lambda asked: Turn("All is well.") if asked.results else look
    facts, screen = desk.end(desk.start("Say hello."))
    assert (facts["exit_code"], facts["refused"]) == (0, None), screen
    assert "All is well." in screen
    assert (desk.work / "seen.txt").read_text() == "looked\n"
    assert facts["spent_nanousd"] == desk.billed > 0
    if not desk.agent.resumed:
        return
    first = desk.billed
    facts, screen = desk.end(desk.start("And goodbye.", resume=True))
    assert facts["exit_code"] == 0, screen
    assert any(asked.says("Say hello.") and asked.says("And goodbye.")
               for asked in desk.vendor.asked)  # fmt: skip
    assert facts["spent_nanousd"] == desk.billed - first


def test_a_limit_is_spent_and_never_passed(desk: Desk) -> None:
    def go_on(asked: Asked) -> Turn:
        return Turn("I go on.", (desk.agent.run_shell(f"echo {asked.turns}"),), thought=8000)

    desk.vendor.script = go_on
    facts, screen = desk.end(desk.start("Go on for ever."))
    assert facts["exit_code"] == 77, screen
    assert facts["refused"]["error_code"] in ("GD-B001", "GD-B004")
    assert facts["spent_nanousd"] == desk.billed
    # What Codex sends is bounded at several times what this stand-in counts of it.
    least = 0.7 if desk.agent.name == "codex" else 0.9
    assert least * LIMIT <= desk.billed <= LIMIT
    assert facts["proxied_requests"] - facts["requests"] <= 2, "the refused one, and one more"
    assert "limit of $2 is reached" in screen


SMALL = (400_000_000, 1_000_000_000)
"""Limits that pay for a task of a few turns, as people set them."""


@pytest.mark.parametrize("limit", SMALL)
def test_a_small_limit_refuses_and_cuts_nothing_that_it_pays_for(desk: Desk, limit: int) -> None:
    """Four turns with tools of 2,000 tokens each cost about a quarter of the smaller limit."""

    def work(asked: Asked) -> Turn:
        if asked.results >= 4:
            return Turn("All is well.")
        call = desk.agent.run_shell(f"echo step {asked.results} > step-{asked.results}.txt")
        return Turn("I work.", (call,), thought=2000)

    desk.vendor.script = work
    facts, screen = desk.end(desk.start("Work in steps.", limit=limit))
    assert (facts["exit_code"], facts["refused"]) == (0, None), screen
    assert "All is well." in screen
    assert (desk.work / "step-3.txt").read_text() == "step 3\n"
    assert all(bill.is_whole for bill in desk.vendor.bills)
    assert all(asked.most is None or asked.most > 2000 for asked in desk.vendor.asked)
    assert facts["spent_nanousd"] == desk.billed


@pytest.mark.parametrize("limit", SMALL)
def test_a_small_limit_is_spent(desk: Desk, limit: int) -> None:
    def go_on(asked: Asked) -> Turn:
        call = desk.agent.run_shell(f"echo {asked.turns}")
        return Turn("I go on.", (call,), thought=limit // 125_000)  # a twelfth of it each

    desk.vendor.script = go_on
    facts, screen = desk.end(desk.start("Go on for ever.", limit=limit))
    assert facts["exit_code"] == 77, screen
    assert facts["refused"]["error_code"] in ("GD-B001", "GD-B004")
    print(f"\n{desk.agent.name}: {desk.billed / limit:.0%} of {limit / 1e9:g}")
    assert facts["spent_nanousd"] == desk.billed <= limit
    # A prompt of 90 kB is held at the dearest rate of its tokens, several times what this stand-in
    # counts of it: that much of a small limit is left.
    assert desk.billed >= 0.55 * limit


def test_a_kill_ends_it_in_mid_answer(desk: Desk, guard: Runs) -> None:
    name = f"killed-{desk.agent.name}"
    desk.vendor.script = lambda asked: Turn("word after word ", goes_on=True)
    process = desk.start("Tell a story.", "--workflow", name)
    assert desk.vendor.speaks.wait(WAIT_S)
    with guard.operator() as admin:
        began_s = time.monotonic()
        admin.directive("kill", name, reason="enough")
        facts, screen = desk.end(process)
        print(f"\n{desk.agent.name}: gone {time.monotonic() - began_s:.2f} s after the kill")
        admin.directive("revive", name)
    assert (facts["exit_code"], facts["refused"]["error_code"]) == (77, "GD-W002"), screen
    assert "enough" in screen
    assert_charged_in_doubt(desk, facts)


def assert_charged_in_doubt(desk: Desk, *runs: dict[str, Any]) -> None:
    """Nothing that was billed is missing, and what may be too much is named as uncertain.

    At a vendor that is not known to stop when its stream is closed, such as this stand-in, a model
    that may reason unseen is charged what was set aside for it.
    """
    spent = sum(facts["spent_nanousd"] for facts in runs)
    assert desk.billed <= spent
    assert spent - sum(facts["uncertain_nanousd"] for facts in runs) <= 2 * desk.billed
    assert all(facts["spent_nanousd"] <= LIMIT for facts in runs)


def test_interrupted_turns_are_charged_and_what_is_in_doubt_is_named(desk: Desk) -> None:
    desk.vendor.script = lambda asked: Turn("word after word ", goes_on=True)
    runs = []
    for _ in range(int(os.environ.get("GUARD_PROOF_SCALE", INTERRUPTED))):
        desk.vendor.speaks.clear()
        process = desk.start("Tell a story.")
        assert desk.vendor.speaks.wait(WAIT_S)
        os.killpg(process.pid, signal.SIGINT)
        facts, screen = desk.end(process)
        assert facts["refused"] is None, screen
        runs.append(facts)
    charged = sum(facts["spent_nanousd"] for facts in runs)
    print(f"\n{desk.agent.name}: charged {charged / desk.billed:.2f} times its bill")
    assert_charged_in_doubt(desk, *runs)


@pytest.mark.parametrize(
    "error",
    [Refusing(429, once=True), Refusing(500, once=True), Refusing(529, once=True),
     Refusing(500, in_stream=True, once=True), Refusing(200, resets=True, once=True)],
    ids=["429", "500", "529", "in a stream", "reset"],
)  # fmt: skip
def test_an_error_of_the_vendors_is_the_agents_own_to_handle(desk: Desk, error: Refusing) -> None:
    """Most of them ask again: each attempt is charged as it was billed, and no money is lost."""
    desk.vendor.refusing = error
    facts, screen = desk.end(desk.start("Say hello."))
    assert facts["refused"] is None, screen
    assert len(desk.vendor.asked) >= 1
    print(f"\n{desk.agent.name}: asked {len(desk.vendor.asked)} times, then {facts['exit_code']}")
    assert_charged_in_doubt(desk, facts)
    if error.status in (429, 529) and facts["exit_code"] == 0:
        assert "Done." in screen


@pytest.mark.parametrize("agent", [AGENTS["gemini"]], ids=["gemini"], indirect=False)
def test_the_gemini_cli_starts_with_a_key_alone(desk: Desk, guard: Runs) -> None:
    """It reads no file of defaults below a directory where others may write, as ``/tmp`` is."""
    Path(guard.env["HOME"], ".gemini/settings.json").unlink()
    with tempfile.TemporaryDirectory(dir=FOLDER) as place:
        if not is_ours_alone(Path(place)):
            pytest.skip("others may write above the folder of the programs")
        guard.env["XDG_RUNTIME_DIR"] = place
        facts, screen = desk.end(desk.start("Say hello."))
        places = Path(place), Path(guard.env["GUARD_LOCAL_DIR"])
        assert any((each / "gemini_cli_system_defaults_path.json").exists() for each in places)
    assert (facts["exit_code"], facts["requests"]) == (0, 1), screen


@pytest.mark.parametrize("agent", [AGENTS["claude"]], ids=["claude"], indirect=False)
def test_sub_agents_are_charged_too(desk: Desk) -> None:
    task = {"description": "Count", "prompt": "MARK-SUB count", "subagent_type": "general-purpose"}

    def script(asked: Asked) -> Turn:
        if asked.results:
            return Turn("All is well.")
        return Turn("Forty-two.") if asked.says("MARK-SUB") else Turn("", (Call("Agent", task),))

    desk.vendor.script = script
    facts, screen = desk.end(desk.start("Have it counted."))
    assert facts["exit_code"] == 0, screen
    assert len(desk.vendor.asked) >= 3
    assert facts["spent_nanousd"] == desk.billed


@pytest.mark.parametrize("agent", [AGENTS["claude"]], ids=["claude"], indirect=False)
def test_sub_agents_are_started_as_often_as_the_run_allows(desk: Desk) -> None:
    """The first example of the docs' page on coding agents."""
    task = {"description": "Count", "prompt": "MARK-SUB count", "subagent_type": "general-purpose"}

    def is_sub_agents(asked: Asked) -> bool:
        return asked.says("MARK-SUB") and not asked.results

    def script(asked: Asked) -> Turn:
        # It would go on for ever.
        return Turn("Forty-two.") if is_sub_agents(asked) else Turn("", (Call("Agent", task),))

    desk.vendor.script = script
    facts, screen = desk.end(desk.start("Have it counted.", "--max-calls", "Agent=2"))
    assert facts["exit_code"] == 77, screen
    assert "2 calls of Agent" in facts["refused"]["message"], facts
    # They work in the background: the third call may be refused before the first of them asks.
    assert sum(map(is_sub_agents, desk.vendor.asked)) <= 2
    assert sum(not is_sub_agents(each) for each in desk.vendor.asked if each.tools) == 3


@pytest.fixture
def custodys(tmp_path: Path, vendor: AgentVendor) -> Iterator[tuple[str, str]]:
    """Serve a proxy that holds the vendors' keys; gives its address and a key of guard."""
    (tmp_path / "key").write_text("canary-of-the-account")
    (tmp_path / "accounts.toml").write_text("".join(
        f'[{name}]\norigins = ["{vendor.url}"]\ncredential_file = "key"\n'
        for name in ("openai", "anthropic", "gemini")
    ))  # fmt: skip
    with run_gateway() as gateway:
        proxys = gateway.admin.create_key_full("proxy", role="proxy", every_organisation=True)
        settings = {"GUARD_API_URL": gateway.base_url, "GUARD_API_KEY": proxys["api_key"]}
        made = gateway.admin.create_key_full("agent")
        with serving("--accounts", str(tmp_path / "accounts.toml"), **settings) as (url, _):
            yield url, made["api_key"]


@pytest.mark.parametrize("agent", [each for each in AGENTS.values() if each.reads_address],
                         ids=lambda each: each.name, indirect=True)  # fmt: skip
def test_it_works_with_guards_key_alone(
    agent: CodingAgent, vendor: AgentVendor, custodys: tuple[str, str], tmp_path: Path
) -> None:
    """Nothing that an agent sends by itself is refused where callers share the vendor's account."""
    url, key = custodys
    name = {"anthropic": "anthropic", "gemini": "gemini"}.get(agent.shape, "openai")
    environment = agent.environment(tmp_path / "home", f"{url}/{name}")
    environment = {
        variable: key if value in ("sk-ant-none", "sk-none", "none") else value
        for variable, value in environment.items()
    }
    work = tmp_path / "work"
    work.mkdir()
    look = Turn("I look.", (agent.run_shell("echo looked > seen.txt"),), thought=300)
    vendor.script = lambda asked: Turn("All is well.") if asked.results else look
    command = direct(agent.command("Say hello."), agent, f"{url}/{name}")
    done = subprocess.run(
        command, env=environment, cwd=work, stdin=subprocess.DEVNULL, capture_output=True,
        text=True, timeout=WAIT_S, check=False,
    )  # fmt: skip
    screen = done.stdout + done.stderr
    assert done.returncode == 0, screen
    assert "All is well." in screen
    assert (work / "seen.txt").read_text() == "looked\n"
    assert key not in str(vendor.seen)
    assert any(asked.results for asked in vendor.asked)
