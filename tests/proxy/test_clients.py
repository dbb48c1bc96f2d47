"""The blocks of docs/clients.md: clients in other languages, as the page prints them."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from guard.gateway.embedded import Gateway, run_gateway
from tests.guard.instrumentation.standin.server import StandIn
from tests.proxy.test_names import Door, only_event, settings_of
from tests.proxy.test_team import serving
from tests.support.waiting import WAIT_S

PAGE = Path(__file__).parents[2] / "docs/clients.md"
PACKAGES = Path(os.environ.get("GUARD_TEST_CLIENTS") or Path(__file__).parents[1] / "clients")
"""Where the packages of JavaScript are installed: what ``nox -s clients`` fills."""

CANARY = "canary-of-the-account-0123456789"
COMMANDS = {"javascript": ["node", "main.mjs"], "java": ["java", "Main.java"],
            "bash": ["bash", "main.sh"]}  # fmt: skip
BLOCKS = {
    title: (language, block)
    for title, language, block in re.findall(
        r"## ([^\n]+)\n(?:(?!\n## ).)*?\n```(javascript|java|bash)\n(.*?)```",
        PAGE.read_text(),
        re.DOTALL,
    )
}


@pytest.fixture(scope="module")
def door(
    shared_vendor: StandIn, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Door, StandIn]]:
    folder = tmp_path_factory.mktemp("accounts")
    (folder / "key").write_text(CANARY)
    (folder / "accounts.toml").write_text(
        "".join(
            f'[{name}]\norigins = ["{shared_vendor.url}"]\ncredential_file = "key"\n'
            for name in ("openai", "anthropic")
        )
    )
    with run_gateway() as gateway:
        words = ("--accounts", str(folder / "accounts.toml"))
        with serving(*words, **settings_of(gateway)) as (url, _):
            yield Door(url, gateway), shared_vendor


@pytest.fixture(scope="module")
def gateway() -> Gateway:
    raise AssertionError("the door has one")


def test_the_page_has_a_block_for_each_client() -> None:
    assert [*BLOCKS] == ["OpenAI, JavaScript", "Anthropic, JavaScript", "Vercel's AI SDK", "Java",
                         "curl"]  # fmt: skip


@pytest.mark.parametrize("title", BLOCKS)
def test_a_client_names_who_spends(title: str, door: tuple[Door, StandIn], tmp_path: Path) -> None:
    language, block = BLOCKS[title]
    command = COMMANDS[language]
    if shutil.which(command[0]) is None or shutil.which("curl") is None:
        pytest.skip(f"{command[0]} is not installed")
    if language == "javascript":
        if not (PACKAGES / "node_modules").exists():
            pytest.skip("the clients are not installed: nox -s clients")
        (tmp_path / "node_modules").symlink_to(PACKAGES / "node_modules")
    (tmp_path / command[1]).write_text(block)
    proxy, vendor = door
    vendor.reset()
    caller = proxy.caller("user", "run", "tags")
    env = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    done = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, timeout=2 * WAIT_S, check=False,
        env=env | {"GUARD_PROXY": proxy.url, "GUARD_KEY": caller.key},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert len(vendor.bodies) == 1, done.stdout
    assert "error" not in done.stdout
    assert len(done.stdout.strip()) > 1, "nothing was answered"
    assert CANARY not in done.stdout + done.stderr
    event = only_event(caller)
    assert (event["user"], event["run_id"]) == ("alice@example.com", "run-7")
    assert event["tags"] == {"env": "prod", "job": "nightly"}
    assert event["cost_nanousd"] > 0
