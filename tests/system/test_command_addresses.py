"""Where a command goes: one rule for all of them, said with the answer.

Every directive, in both spellings, by every way to give an address, for a name that exists, one
that is mistyped and a glob.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import attrs
import pytest

from guard.gateway.admin import AdminClient
from guard.gateway.cli.address import DEFAULT_URL, LOCAL, AddressError, address_of
from guard.gateway.embedded import Gateway
from guard.settings import DEFAULT_API_URL
from tests.support.commands import Command, run_commands
from tests.support.runs import Runs

KEYS: Final = {"GUARD_ADMIN_KEY": "ADMIN", "GUARD_API_KEY": "SDK"}
ACTIONS: Final = {"kill": "killed", "pause": "paused", "resume": "resumed", "revive": "revived"}
SPELLINGS: Final = ((), ("gateway",))
NAMES: Final = ("nightly", "nigthly", "night*", "day*")
"""One that exists, the same mistyped, a glob, and one that matches nothing."""


@attrs.frozen
class Way:
    """A way to give an address: options, variables, and where commands go then."""

    goes_to: str
    options: tuple[str, ...] = ()
    env: Mapping[str, str] = attrs.field(factory=dict)


WAYS: Final = {
    "nothing": Way("local"),
    "--local": Way("local", ("--local",), KEYS | {"GUARD_API_URL": "URL"}),
    "--url local": Way("local", ("--url", "LOCAL"), KEYS | {"GUARD_API_URL": "URL"}),
    "GUARD_API_URL=local": Way("local", (), KEYS | {"GUARD_API_URL": "local"}),
    "--url": Way("gateway", ("--url", "URL"), KEYS | {"GUARD_API_URL": "local"}),
    "--url, a key by option": Way("gateway", ("--url", "URL", "--admin-key", "ADMIN")),
    "GUARD_API_URL=http": Way("gateway", (), KEYS | {"GUARD_API_URL": "URL"}),
    "GUARD_API_KEY": Way("default", (), {"GUARD_API_KEY": "SDK"}),
    "GUARD_API_KEY, README": Way("default", (), {"GUARD_API_KEY": "SDK", "GUARD_API_URL": ""}),
}


@attrs.frozen
class Site:
    """A gateway of its own and this user's local one; both know a workflow of the same name."""

    gateway: Gateway
    guard: Runs
    local: AdminClient
    local_url: str

    def filled(self, text: str) -> str:
        known = {"ADMIN": self.gateway.admin_key, "URL": self.gateway.base_url, "SDK": "gdk_any"}
        return known.get(text, text)

    def audits(self) -> dict[str, list[tuple[str, str]]]:
        """Return what was ordered at each."""
        found = {"local": self.local, "gateway": self.gateway.admin}
        return {
            name: [
                (each["action"], each["target"])
                for each in admin.audit()
                if each["action"].startswith("workflow.")
            ]
            for name, admin in found.items()
        }


@pytest.fixture(scope="module")
def site(directory: Path, gateway: Gateway) -> Iterator[Site]:
    guard = Runs(directory)
    with guard.operator() as local:
        for admin in (local, gateway.admin):
            admin.announce_workflow("nightly")
        yield Site(gateway, guard, local, local.base_url)
    guard.close()


def commands(site: Site, way: Way) -> list[Command]:
    options = tuple(site.filled(option) for option in way.options)
    env = {name: site.filled(text) for name, text in way.env.items()}
    env = {"GUARD_LOCAL_DIR": site.guard.env["GUARD_LOCAL_DIR"], **env}
    return [
        Command((*spelling, action, name, *options), env)
        for action, spelling, name in itertools.product(ACTIONS, SPELLINGS, NAMES)
    ]


@pytest.mark.generator("commands, and the gateway that each goes to")
@pytest.mark.parametrize("way", WAYS.values(), ids=list(WAYS))
def test_a_directive_goes_where_the_rule_says_and_says_so(
    site: Site, way: Way, count_cases: Callable[[int], None]
) -> None:
    before = site.audits()
    asked = commands(site, way)
    shown = {
        "local": f"{site.local_url}, this user's local gateway",
        "gateway": site.gateway.base_url,
        "default": DEFAULT_URL,
    }[way.goes_to]
    ordered = []
    for command, done in zip(asked, run_commands(*asked), strict=True):
        action, name = [word for word in command.arguments if word != "gateway"][:2]
        said = " ".join((done.stdout + done.stderr).split())
        if way.goes_to == "default":  # no admin key, so nothing is sent to an address of others
            assert (done.returncode, done.stdout) == (1, ""), said
            assert f"an admin key is required for {shown}" in said
        elif name == "nigthly":
            assert (done.returncode, done.stdout) == (1, ""), said
            assert f"no such workflow on {shown}: nigthly; did you mean nightly?" in said
        elif name == "day*":
            assert (done.returncode, done.stdout) == (1, ""), said
            assert f"no workflow matches 'day*' on {shown}" in said
        else:
            quoted = name if name == "nightly" else f"'{name}'"
            assert (done.returncode, done.stderr) == (0, ""), said
            assert f"{ACTIONS[action]} {quoted} on {shown}" in said
            ordered.append((f"workflow.{action}", name))
    after = site.audits()
    for place, known in before.items():
        reached = ordered if place == way.goes_to else []
        assert after[place] == known + reached, place
    for admin in (site.local, site.gateway.admin):
        assert [each["workflow_id"] for each in admin.workflows()] == ["nightly"], "no phantoms"
    count_cases(len(asked))


@pytest.mark.generator("commands, and the gateway that each goes to")
@pytest.mark.parametrize("way", WAYS.values(), ids=list(WAYS))
def test_other_commands_follow_the_same_rule(site: Site, way: Way) -> None:
    options = [site.filled(option) for option in way.options]
    env = {name: site.filled(text) for name, text in way.env.items()}
    env |= {"GUARD_LOCAL_DIR": site.guard.env["GUARD_LOCAL_DIR"]}
    (done,) = run_commands(Command(("gateway", "prices", "list", *options), env))
    if way.goes_to == "default":
        assert f"an admin key is required for {DEFAULT_URL}" in " ".join(done.stderr.split())
    else:
        url = site.local_url if way.goes_to == "local" else site.gateway.base_url
        assert done.stdout.startswith(f"none on {url}")


def test_the_rule() -> None:
    assert DEFAULT_URL == DEFAULT_API_URL, "commands go where programs go"

    def at(url: str | None = None, local: bool = False, key: str | None = None, **env: str) -> str:
        return address_of(env, url=url, local=local, admin_key=key)

    assert at() == at(local=True) == at("Local") == at(GUARD_API_URL=" local ") == LOCAL
    assert at(local=True, GUARD_API_URL="https://g") == at("local", GUARD_API_URL="https://g")
    assert at("https://a/", GUARD_API_URL="https://g") == "https://a"
    assert at(GUARD_API_URL="https://g") == "https://g"
    assert at(key="k") == at(GUARD_ADMIN_KEY="k") == at(GUARD_API_KEY="k") == DEFAULT_URL
    assert at(GUARD_API_KEY=" ") == LOCAL
    with pytest.raises(AddressError, match="not both"):
        at("https://a", local=True)
    with pytest.raises(AddressError, match="set GUARD_API_URL"):
        at(GUARD_GATEWAY_URL="https://old")


def test_help_names_the_rule_and_no_other_address(site: Site) -> None:
    asked = [
        Command((*spelling, action, "--help"))
        for action, spelling in itertools.product(ACTIONS, SPELLINGS)
    ]
    for done in run_commands(*asked):
        said = " ".join(done.stdout.split())
        assert f"GUARD_API_URL; else {DEFAULT_URL} if a key is set" in said
        assert "else this user's local gateway" in said
        assert said.count("http://") == 1


def test_a_name_that_comes_later_is_killed_anyway_and_leaves_no_phantom(site: Site) -> None:
    env = {"GUARD_LOCAL_DIR": site.guard.env["GUARD_LOCAL_DIR"]}

    def names() -> list[tuple[str, str]]:
        return [(each["workflow_id"], each["state"]) for each in site.local.workflows()]

    killed, again, revived, unknown = run_commands(
        *(Command(("kill", "later", "--anyway"), env), Command(("kill", "later"), env)),
        *(Command(("revive", "later"), env), Command(("revive", "later"), env)),
    )
    assert killed.stdout.startswith("killed later on"), killed.stderr
    assert again.returncode == revived.returncode == 0
    assert unknown.returncode == 1
    assert "no such workflow" in unknown.stderr
    assert names() == [("nightly", "active")]


def test_resume_says_that_a_kill_stays_and_how_to_lift_it(site: Site) -> None:
    env = {"GUARD_LOCAL_DIR": site.guard.env["GUARD_LOCAL_DIR"]}
    killed, resumed, revived = run_commands(
        Command(("kill", "n*"), env), Command(("resume", "nightly"), env),
        Command(("revive", "n*"), env),
    )  # fmt: skip
    assert "1 workflow, no runs seen in the last 10 minutes" in killed.stdout
    assert "it is still killed; lift that with: guard revive 'n*' --local" in resumed.stdout
    assert revived.returncode == 0


def test_json_says_where_it_went(site: Site) -> None:
    env = {"GUARD_LOCAL_DIR": site.guard.env["GUARD_LOCAL_DIR"]}
    (done,) = run_commands(Command(("revive", "nightly", "--json"), env))
    facts: dict[str, Any] = json.loads(done.stdout)
    assert (facts["gateway"], facts["workflows"], facts["type"]) == (site.local_url, 1, "revive")


def test_a_run_is_named_by_its_id(site: Site) -> None:
    env = {"GUARD_LOCAL_DIR": site.guard.env["GUARD_LOCAL_DIR"]}
    (done,) = run_commands(Command(("kill", "nightly", "--run", "r9"), env))
    assert "no such run on" in done.stderr
