"""Claude Code and Codex, unmodified, whose key is what ``guard key print`` prints."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import attrs
import pytest

from guard.gateway.embedded import run_gateway
from tests.proxy.test_team import serving
from tests.support.agent_answers import Turn
from tests.support.agent_vendor import AgentVendor
from tests.support.coding_agents import AGENTS, MISSING, CodingAgent
from tests.support.logins import LOGIN_KEY, LoginSite, MovedClock, client_of
from tests.support.openid_provider import openid_provider
from tests.support.waiting import WAIT_S, until

PAGE: Final = (Path(__file__).parents[2] / "docs/signing-in.md").read_text()
PEOPLE: Final[list[dict[str, Any]]] = [
    {"sub": each, "email": f"{each}@example.com", "email_verified": True, "groups": ["dev"]}
    for each in ("claude", "codex")
]


@attrs.frozen
class Desk:
    """A person's machine, behind a proxy that has the vendors' keys."""

    site: LoginSite
    vendor: AgentVendor
    proxy: str
    home: Path

    def sign_in(self, person: str) -> dict[str, Any]:
        """Keep a login whose access token has ended."""
        tokens = self.site.sign_in(person)
        file = self.home / ".config/guard/login.json"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps({
            "url": self.site.gateway.base_url, "access_token": tokens["access_token"],
            "ends_ms": time.time_ns() // 1_000_000, "refresh_token": tokens["refresh_token"],
            "tls_fingerprint": "",
        }))  # fmt: skip
        file.chmod(0o600)
        return tokens

    def set_up(self, agent: CodingAgent) -> None:
        """Write the settings that the docs print, with this proxy's address."""
        language, name = {
            "claude": ("json", ".claude/settings.json"), "codex": ("toml", ".codex/config.toml"),
        }[agent.name]  # fmt: skip
        block = re.search(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)
        assert block is not None
        (self.home / name).parent.mkdir(parents=True, exist_ok=True)
        printed = block[1].replace("https://proxy.example.com:8788", self.proxy)
        (self.home / name).write_text(printed)

    def run(self, agent: CodingAgent, work: Path, prompt: str = "Say hello.") -> str:
        """Let an agent answer one prompt, and return its screen."""
        work.mkdir(exist_ok=True)
        given = agent.environment(self.home, "unused").items()
        env = {name: text for name, text in given if not name.endswith(("_KEY", "_BASE_URL"))}
        env["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{env['PATH']}"
        env["CODEX_HOME"] = str(self.home / ".codex")
        done = subprocess.run(
            agent.command(prompt), env=env, cwd=work, stdin=subprocess.DEVNULL,
            capture_output=True, text=True, timeout=WAIT_S, check=False,
        )  # fmt: skip
        return done.stdout + done.stderr


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    clock, vendor = MovedClock(), AgentVendor()
    (tmp_path / "key").write_text("canary-of-the-account")
    (tmp_path / "accounts.toml").write_text("".join(
        f'[{name}]\norigins = ["{vendor.url}"]\ncredential_file = "key"\n'
        for name in ("openai", "anthropic")
    ))  # fmt: skip
    with (
        openid_provider(PEOPLE) as issuer,
        run_gateway(clock_ms=clock, login_key=LOGIN_KEY, **client_of(issuer)) as gateway,
    ):
        proxys = gateway.admin.create_key_full("proxy", role="proxy", every_organisation=True)
        gateway.admin.put_sign_on_group("dev", team="search")
        settings = {"GUARD_API_URL": gateway.base_url, "GUARD_API_KEY": proxys["api_key"]}
        with serving("--accounts", str(tmp_path / "accounts.toml"), **settings) as (url, _):
            yield Desk(LoginSite(gateway, issuer, clock), vendor, url, tmp_path / "home")
    vendor.close()


@pytest.mark.parametrize("name", ["claude", "codex"])
def test_an_agent_works_for_a_person_until_they_are_suspended(
    desk: Desk, name: str, tmp_path: Path
) -> None:
    agent = AGENTS[name]
    if not agent.path.exists():
        pytest.skip(MISSING)
    desk.home.mkdir()
    desk.vendor.script = lambda _: Turn("All is well.")
    tokens = desk.sign_in(name)
    desk.set_up(agent)
    screen = desk.run(agent, tmp_path / "work")
    assert "All is well." in screen, screen
    stored = json.loads((desk.home / ".config/guard/login.json").read_text())
    assert stored["access_token"] != tokens["access_token"], "the helper has refreshed it"
    assert stored["access_token"] not in str(desk.vendor.seen)
    own = f"{name}@example.com"
    usage = until(lambda: desk.site.gateway.admin.usage("person"))
    assert [(row["group"], row["cost_nanousd"] > 0) for row in usage] == [(own, True)]
    asked = len(desk.vendor.asked)
    desk.site.suspend(name)
    file = desk.home / ".config/guard/login.json"
    file.write_text(json.dumps(stored | {"ends_ms": 0}))
    screen = desk.run(agent, tmp_path / "work")
    assert "All is well." not in screen
    assert len(desk.vendor.asked) == asked, screen
    assert not file.exists()
