"""Thirty people, their machines, and who types for them what ``docs/teams.md`` prints."""

from __future__ import annotations

import csv
import io
import json
import re
import shlex
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from pathlib import Path
from typing import Any, Final

import attrs
import httpx

from tests.support.agent_vendor import AgentVendor
from tests.support.crowd import Crowd, Started
from tests.support.logins import HOUR_MS, LoginSite
from tests.support.pages import pages
from tests.support.programs import environment
from tests.support.waiting import until

NANO: Final = 10**9
GROUPS: Final = {"search": "search-developers", "ads": "ads-developers", "research": "research",
                 "platform": "platform"}  # fmt: skip
SIZES: Final = {"search": 11, "ads": 8, "research": 7, "platform": 4}
TEAMS: Final = {f"{team}{number}": team for team, size in SIZES.items() for number in range(size)}
CLAUDE: Final = """
import os, sys, anthropic
_, name, session, most, stop = sys.argv
client = anthropic.Anthropic(max_retries=0, default_headers={
    "user-agent": "claude-cli/2.1", "X-Claude-Code-Session-Id": session})
for number in range(int(most)):
    if os.path.exists(stop):
        break
    client.messages.create(model="claude-sonnet-5", max_tokens=100, messages=[
        {"role": "user", "content": f"I am <{name}>"}])
"""
CODEX: Final = """
import os, sys, openai
_, name, session, most, stop = sys.argv
client = openai.OpenAI(max_retries=0, default_headers={
    "user-agent": "codex_cli_rs/0.4", "session-id": session})
for number in range(int(most)):
    if os.path.exists(stop):
        break
    client.responses.create(model="gpt-5", max_output_tokens=100, store=False,
                            input=f"I am <{name}>")
"""
PYTHON: Final = """
import os, sys, openai
_, name, session, most, stop = sys.argv
tool = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}
client = openai.OpenAI(max_retries=0, default_headers={"x-session-id": session})
for number in range(int(most)):
    if os.path.exists(stop):
        break
    client.chat.completions.create(
        model="gpt-5", max_completion_tokens=30_000, tools=[tool] if session == "circles" else [],
        messages=[{"role": "user", "content": f"I am <{name}>"}])
"""
TOOLS: Final = {"search": CLAUDE, "ads": CODEX, "research": PYTHON, "platform": CLAUDE}


BLOCKS: Final = [
    block.text.strip().splitlines()
    for block in pages()["docs/teams.md"] if block.value == "teams"
]  # fmt: skip
LOGIN: Final = BLOCKS[2][0]
ENV: Final = BLOCKS[3][0].removeprefix('eval "$(').removesuffix(')"')


@attrs.define
class Person:
    """Somebody, on a machine of their own."""

    name: str
    team: str
    home: Path
    shell: dict[str, str] = attrs.field(factory=dict, repr=False)

    @property
    def mail(self) -> str:
        """Their address, by which guard knows them."""
        return f"{self.name}@example.com"

    @property
    def login_file(self) -> Path:
        """What `guard login` keeps."""
        return self.home / ".config/guard/login.json"

    @property
    def env(self) -> dict[str, str]:
        """The environment of what they start."""
        left_out = ("ANTHROPIC_", "OPENAI_", "GEMINI_", "GOOGLE_", "XDG_")
        kept = environment({"HOME": str(self.home)}).items()
        return {name: text for name, text in kept if not name.startswith(left_out)} | self.shell

    @property
    def login(self) -> dict[str, Any]:
        """Their login."""
        return dict(json.loads(self.login_file.read_text()))


@attrs.frozen
class Company:
    """All of them, and what they use."""

    site: LoginSite
    vendor: AgentVendor
    crowd: Crowd
    folder: Path
    people: dict[str, Person]
    blocks: Iterator[list[str]]
    proxy: list[str]

    # -- what the administrator types -----------------------------------------------------------

    def types(self, **meant: str) -> list[str]:
        """Type the next block of the page; return what each command has printed."""
        return [self.typed(line, **meant) for line in next(self.blocks)]

    def typed(self, line: str, **meant: str) -> str:
        """Type a line of the page, with what its words in capitals mean."""
        line, _, file = line.partition(" > ")
        words = [meant.get(word, word) for word in shlex.split(line)]
        own = {"GUARD_API_URL": self.site.gateway.base_url,
               "GUARD_ADMIN_KEY": self.site.gateway.admin_key}  # fmt: skip
        code, out, err = self.crowd.start(words, environment(own)).ended()
        assert code == 0, (line, err)
        if file:
            (self.folder / file).write_text(out)
        return out

    # -- what people do -------------------------------------------------------------------------

    def sign_in(self, *names: str) -> None:
        """Let people type the page's two commands, and sign in at the provider."""
        whole = {name: self.start(name, LOGIN) for name in names}

        def browse(name: str) -> None:
            line = until(lambda: re.search(r"the code (\S+):", whole[name].said()))
            assert line is not None
            page = self.site.browse(line[1], name)
            assert "The program is signed in" in page.text, page.text

        with ThreadPoolExecutor(4) as pool:
            list(pool.map(browse, names))
        for name, each in whole.items():
            code, _, err = each.ended()
            assert code == 0, (name, err)
        self.open_shells(*names)

    def start(self, name: str, line: str) -> Started:
        """Start what the page says that a person types."""
        addresses = {"https://guard.example.com": self.site.gateway.base_url,
                     "https://proxy.example.com:8788": self.proxy[0]}  # fmt: skip
        words = [addresses.get(word, word) for word in shlex.split(line)]
        return self.crowd.start(words, self.people[name].env)

    def open_shells(self, *names: str) -> dict[str, str]:
        """Give people's shells the variables; return what those are told who get none."""
        refused = {}
        for name, each in {name: self.start(name, ENV) for name in names}.items():
            code, out, err = each.ended()
            if code:
                refused[name] = err
                continue
            words = shlex.split(out.replace("export ", ""))
            self.people[name].shell = dict(word.split("=", 1) for word in words)
        return refused

    def work(
        self, names: Iterable[str], most: int = 1, session: str = "", stop: str = ""
    ) -> dict[str, Started]:
        """Let people's programs ask models, each so many times."""
        return {
            name: self.crowd.start(
                ["python", TOOLS[self.people[name].team], name, session or f"session-of-{name}",
                 str(most), stop or str(self.folder / "never")],
                self.people[name].env,
            )
            for name in names
        }  # fmt: skip

    def works(self, *names: str, session: str = "") -> None:
        """See that people's programs get their answers."""
        for name, each in self.work(names, session=session).items():
            code, _, err = each.ended()
            assert code == 0, (name, err)

    def hears(self, *names: str, session: str = "") -> list[str]:
        """Return what people are told whose programs are refused."""
        heard = []
        for name, each in self.work(names, session=session).items():
            code, _, err = each.ended()
            assert code == 1, name
            heard.append(err)
        return heard

    def asks(self, key: str) -> httpx.Response:
        """Ask a model by hand."""
        return httpx.post(
            f"{self.proxy[0]}/anthropic/v1/messages", headers={"x-api-key": key},
            json={"model": "claude-sonnet-5", "max_tokens": 1,
                  "messages": [{"role": "user", "content": "I am <thief>"}]},
        )  # fmt: skip

    def is_refused(self, key: str) -> bool:
        """Tell whether a key opens nothing at the proxy."""
        return self.asks(key).status_code == 401

    def says(self, name: str, *groups: str) -> None:
        """Put a person into other groups at the provider."""
        mail = self.people[name].mail
        self.site.says(name, email=mail, email_verified=True, groups=list(groups))

    def works_again(self, *names: str) -> None:
        """Wait until people's programs are let through: the proxy hears of it after the command."""
        until(lambda: all(each.ended()[0] == 0 for each in self.work(names).values()))

    def put_key(self, key: str) -> None:
        """Write the vendors' key."""
        (self.folder / "key.new").write_text(key)
        (self.folder / "key.new").replace(self.folder / "key")

    def is_settled(self, billed: Counter[tuple[str, str]]) -> bool:
        """Tell whether everything that was answered has been charged."""
        [row] = self.site.gateway.admin.usage("total")
        return bool(row["cost_nanousd"] == sum(billed.values()))

    def reported(self, meant: dict[str, str]) -> list[Counter[tuple[str, str]]]:
        """Type the block of the reports; return what each says of a name and a model."""
        found = []
        for line in next(self.blocks):
            for printed, date in meant.items():
                line = line.replace(printed, date)
            self.typed(line)
            file = self.folder / line.partition(" > ")[2]
            found.append(Counter({
                (row["group"], row["model"]): int(Decimal(row["cost_usd"]) * NANO)
                for row in csv.DictReader(io.StringIO(file.read_text()))
            }))  # fmt: skip
        return found

    def key_id(self, name: str) -> str:
        """Return the id of a person's account."""
        keys = self.site.gateway.admin.keys()
        [found] = [each for each in keys if each["person"] == self.people[name].mail]
        return str(found["key_id"])

    def of(self, *teams: str) -> list[str]:
        """Return the people of teams."""
        return [each.name for each in self.people.values() if each.team in teams]

    def an_hour_passes(self) -> None:
        """Let it be an hour later, here and on everybody's machine."""
        self.site.later(HOUR_MS)
        for each in self.people.values():
            if each.login_file.exists():
                changed = each.login | {"ends_ms": each.login["ends_ms"] - HOUR_MS}
                each.login_file.write_text(json.dumps(changed))
