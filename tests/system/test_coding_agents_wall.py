"""The same coding agents behind a wall: what they need of the network is guard."""

from __future__ import annotations

import pytest

from tests.support.agent_answers import Turn
from tests.support.agent_vendor import Asked
from tests.support.coding_agents import MISSING, are_installed
from tests.system.test_coding_agents import Desk, agent, desk, vendor  # noqa: F401  # fixtures
from tests.system.test_run_wall import require_namespaces

pytestmark = [pytest.mark.matrix, pytest.mark.skipif(not are_installed(), reason=MISSING)]


@pytest.fixture(autouse=True)
def _namespaces() -> None:
    require_namespaces()


def test_an_agent_works_behind_a_wall(desk: Desk) -> None:  # noqa: F811
    look = Turn("I look.", (desk.agent.run_shell("echo looked > seen.txt"),), thought=300)
    desk.vendor.script = lambda asked: Turn("All is well.") if asked.results else look
    facts, screen = desk.end(desk.start("Say hello.", "--wall"))
    assert (facts["exit_code"], facts["refused"]) == (0, None), screen
    assert "All is well." in screen
    assert (desk.work / "seen.txt").read_text() == "looked\n"
    assert facts["spent_nanousd"] == desk.billed > 0


def test_what_its_tools_ask_beside_guard_is_not_there(desk: Desk) -> None:  # noqa: F811
    """The vendor itself, at its address: outside it answers."""
    ask = f"curl -s -m 5 --noproxy '*' {desk.vendor.url}/ > asked.txt; echo $? > code.txt"

    def script(asked: Asked) -> Turn:
        return Turn("Done.") if asked.results else Turn("I ask.", (desk.agent.run_shell(ask),))

    desk.vendor.script = script
    facts, screen = desk.end(desk.start("Ask for it.", "--wall"))
    assert facts["exit_code"] == 0, screen
    assert (desk.work / "code.txt").read_text() == "7\n", "cannot connect"
    assert facts["spent_nanousd"] == desk.billed > 0
