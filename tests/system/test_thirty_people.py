"""A month of thirty people, as ``docs/teams.md`` prints it: every command there is typed here.

They sign in at a provider, work behind a proxy that has the vendors' keys, live through a night,
change their keys, leave and move; at the end the reports are the vendor's own bill.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

import pytest

from guard.gateway.embedded import run_gateway
from tests.proxy.test_team import serving
from tests.support.agent_answers import Turn
from tests.support.agent_vendor import AgentVendor, Asked
from tests.support.coding_agents import AGENTS, MISSING, are_installed
from tests.support.company import BLOCKS, GROUPS, TEAMS, Company, Person
from tests.support.crowd import crowd
from tests.support.logins import LOGIN_KEY, LoginSite, MovedClock, client_of
from tests.support.openid_provider import openid_provider
from tests.support.waiting import until
from tests.system.test_login_agents import Desk

PRICES: Final = {AGENTS[name].model: AGENTS[name].prices for name in ("claude", "codex")}
OLD, NEW = "canary-of-the-first-account", "canary-of-the-second-account"
RUNAWAY: Final = 30_000
"""Output tokens of an answer to somebody whose agent has tools."""


@pytest.fixture
def company(tmp_path: Path) -> Iterator[Company]:
    (tmp_path / "commands").mkdir()
    (tmp_path / "key").write_text(OLD)
    people = {}
    for name, team in TEAMS.items():
        people[name] = Person(name, team, tmp_path / name)
        people[name].home.mkdir()
    claims = [
        {"sub": each.name, "email": each.mail, "email_verified": True,
         "groups": ["staff", GROUPS[each.team]]}
        for each in people.values()
    ]  # fmt: skip
    with (
        contextlib.closing(AgentVendor()) as vendor,
        openid_provider(claims) as issuer,
        run_gateway(
            clock_ms=(clock := MovedClock()), login_key=LOGIN_KEY, **client_of(issuer)
        ) as gateway,
        crowd(tmp_path / "commands") as forks,
    ):
        vendor.accepts = frozenset({OLD})
        vendor.script = script
        (tmp_path / "accounts.toml").write_text("".join(
            f'[{name}]\norigins = ["{vendor.url}"]\ncredential_file = "key"\n'
            for name in ("openai", "anthropic")
        ))  # fmt: skip
        blocks = iter([each for at, each in enumerate(BLOCKS) if at not in (2, 3)])
        made = Company(LoginSite(gateway, issuer, clock), vendor, forks, tmp_path, people, blocks,
                       [])  # fmt: skip
        made.types()
        [printed] = made.types()
        key = re.search(r"gdp_\S+", printed)
        assert key is not None
        settings = {"GUARD_API_URL": gateway.base_url, "GUARD_API_KEY": key[0]}
        with serving("--accounts", str(tmp_path / "accounts.toml"), **settings) as (url, _):
            made.proxy.append(url)
            yield made


def script(asked: Asked) -> Turn:
    return Turn("All is well.", thought=RUNAWAY if "look" in asked.tools else 0)


AT_WORK: Final = {"search5": "claude", "search0": "claude", "ads0": "codex", "ads1": "codex"}
"""Who works with the real programs, where they are installed; the first one leaves."""


WITH_AGENTS: Final = pytest.mark.long, pytest.mark.skipif(not are_installed(), reason=MISSING)


@pytest.mark.parametrize("installed", [False, pytest.param(True, marks=WITH_AGENTS)])
def test_thirty_people(company: Company, installed: bool) -> None:
    agents = AT_WORK if installed else {}
    onboarding(company)
    with_agents(company, agents, "All is well.")
    the_runaway(company)
    the_pause(company)
    the_vendors_key(company)
    with_agents(company, agents, "All is well.")
    the_lost_laptop(company)
    leaving_and_moving(company)
    with_agents(company, dict([*agents.items()][:1]), "guard login")
    with_agents(company, dict([*agents.items()][1:]), "All is well.")
    the_bill(company)


def with_agents(company: Company, agents: Mapping[str, str], said: str) -> None:
    """Let people work in Claude Code and Codex, set up as the page of signing in says."""

    def run(name: str) -> None:
        home, agent = company.people[name].home, AGENTS[agents[name]]
        desk = Desk(company.site, company.vendor, company.proxy[0], home)
        desk.set_up(agent)
        screen = desk.run(agent, company.folder / f"work-of-{name}", f"I am <{name}>")
        assert said in screen, screen

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(run, agents))


def onboarding(company: Company) -> None:
    company.sign_in(*company.people)
    [listed] = company.types()
    for each in company.people.values():
        [line] = [line for line in listed.splitlines() if each.mail in line.split()]
        assert {each.team, "sdk"} <= {*line.split()}
    company.works(*company.people)
    key = company.people["ads0"].shell["ANTHROPIC_API_KEY"]
    assert "claude-sonnet-5" in company.asks(key).json()["error"]["message"], "not of its models"


def the_runaway(company: Company) -> None:
    [running] = company.work(["research0"], 100, "circles").values()
    code, _, err = running.ended()
    assert (code, "the limit of $10 on tag team=research (day) is reached" in err) == (1, True), err
    assert "the limit of $10 on tag team=research (day) is reached" in company.hears("research1")[0]
    company.works("search0", "ads0", "platform0")
    budgets, runs, killed, raised = company.types(SESSION="circles")
    [line] = [line for line in budgets.splitlines() if "team=research" in line]
    assert {"$10", "yes"} <= {*line.split()}, budgets
    assert "circles" in runs.splitlines()[1], runs
    assert "killed research" in killed or "killed run circles" in killed
    assert "to $15" in raised
    company.works_again("research0", "research1")
    assert (
        "an operator has stopped this: runs in circles"
        in (company.hears("research0", session="circles")[0])
    )
    company.works("research0")


def the_pause(company: Company) -> None:
    pause, resume = next(company.blocks)
    company.typed(pause)
    for heard in company.hears(*company.of("ads")):
        assert "wrong prompt" in heard
    company.works("search0", "research1", "platform0")
    company.typed(resume)
    company.works_again(*company.of("ads"))


def the_vendors_key(company: Company) -> None:
    """Another one is put in its place while people work."""
    vendor, stop = company.vendor, company.folder / "stop"
    vendor.accepts = frozenset({OLD, NEW})
    names = "search0", "ads0", "research1", "platform0"
    working = company.work(names, 10**6, stop=str(stop))
    before = len(vendor.paid_with)
    until(lambda: len(vendor.paid_with) > before + 8)
    company.put_key(NEW)
    until(lambda: {*vendor.paid_with[-8:]} == {NEW})
    stop.touch()
    for name, each in working.items():
        code, _, err = each.ended()
        assert code == 0, (name, err)
    vendor.accepts = frozenset({NEW})
    company.works(*names)


def the_lost_laptop(company: Company) -> None:
    person = company.people["search3"]
    stolen, key_id = person.login, company.key_id("search3")
    company.types(KEY_ID=key_id)
    until(lambda: company.is_refused(stolen["access_token"]))
    assert company.site.refresh(stolen).status_code == 400, "or the thief would get the next one"
    company.works("search4")
    company.sign_in("search3")
    assert company.key_id("search3") == key_id
    company.works("search3")


def leaving_and_moving(company: Company) -> None:
    left, dropped, moved, revoked = "search5", "research2", "search6", "platform1"
    keys = {name: each.login["access_token"] for name, each in company.people.items()}
    company.site.suspend(left)
    company.says(dropped, "staff")
    company.says(moved, "staff", GROUPS["ads"])
    company.types(KEY_ID=company.key_id(revoked))
    until(lambda: company.is_refused(keys[revoked]))
    company.an_hour_passes()
    refused = company.open_shells(*company.people)
    assert {*refused} == {left, dropped, moved, revoked}
    for said in refused.values():
        assert "guard login" in said
    for name in (left, dropped, moved):
        until(lambda name=name: company.is_refused(keys[name]))  # type: ignore[misc]
    company.people[moved].team = "ads"
    company.sign_in(moved)
    company.works(*(name for name in company.people if name not in (left, dropped, revoked)))


def the_bill(company: Company) -> None:
    now = dt.datetime.fromtimestamp(company.site.clock() / 1000, dt.UTC).date()
    since, until_ = now - dt.timedelta(days=2), now + dt.timedelta(days=2)
    billed: Counter[tuple[str, str]] = Counter()
    for bill in company.vendor.bills:
        who = re.search(r"I am <(\w+)>", json.dumps(bill.asked.body))
        assert who is not None
        tokens = (bill.fresh, bill.cached, bill.output)
        cost = sum(map(int.__mul__, tokens, PRICES[bill.model]))
        billed[f"{who[1]}@example.com", bill.model] += cost
    meant = {"2027-03-01": str(since), "2027-04-01": str(until_)}
    until(lambda: company.is_settled(billed))
    teams, people, models = company.reported(meant)
    assert people == billed
    assert sum_by(models, 0) == sum_by(billed, 1)
    assert sum_by(teams, 1) == sum_by(billed, 1)
    by_person = sum_by(billed, 0)
    moved = company.people["search6"].mail
    assert {model for person, model in billed if person == moved} == {*PRICES}, "in both teams"
    spent = sum_by(teams, 0)
    assert {*spent} == {*GROUPS}
    for team in ("research", "platform"):
        assert spent[team] == sum(by_person[each] for each in by_person if each.startswith(team))
    assert (
        spent["ads"]
        == sum(by_person[each] for each in by_person if each.startswith("ads"))
        + (billed[moved, "gpt-5"])
    )


def sum_by(costs: Counter[tuple[str, str]], place: int) -> Counter[str]:
    summed: Counter[str] = Counter()
    for names, cost in costs.items():
        summed[names[place]] += cost
    return summed
