"""One way to say money and time: each option, help text and page is walked.

People write and read dollars and lengths of time; cents, nano-dollars and milliseconds stay in the
wire, in ``--json`` and in the names of older releases, which help does not show.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import click
import pytest

from guard.cli import cli as guard_cli
from spamdetect.cli.main import cli as spamdetect_cli

ROOT: Final = Path(__file__).parents[2]
TEMPLATES: Final = ROOT / "guard" / "gateway" / "dashboard" / "templates"
UNITS: Final = re.compile(
    r"\bcents?\b|\bct\b|nano-?(dollar|usd)|\bmilliseconds?\b|\bms\b|[-_](ms|cents|nanousd)\b",
    re.IGNORECASE,
)
OLD: Final = re.compile(r"--\S+-(ms|cents|per-mtok)$")
AMOUNTS: Final = {"$2": 2 * 10**9, "0.50": 5 * 10**8, "$1,500": 1_500 * 10**9, "2 usd": 2 * 10**9}
TIMES: Final = {"30s": 30_000, "5m": 300_000, "24h": 86_400_000, "250ms": 250}
Command = tuple[str, click.Command, click.Context]


def commands() -> Iterator[Command]:
    """Each command of both programs, with its words."""

    def below(
        command: click.Command, words: str, parent: click.Context | None
    ) -> Iterator[Command]:
        context = click.Context(command, info_name=words.split()[-1], parent=parent)
        yield words, command, context
        if isinstance(command, click.Group):
            for name in command.list_commands(context):
                inner = command.get_command(context, name)
                assert inner is not None
                yield from below(inner, f"{words} {name}", context)

    yield from below(guard_cli, "guard", None)
    yield from below(spamdetect_cli, "spamdetect", None)


COMMANDS: Final = {words: (command, context) for words, command, context in commands()}


def options_of(words: str) -> list[click.Option]:
    return [each for each in COMMANDS[words][0].params if isinstance(each, click.Option)]


@pytest.mark.generator("help texts without cents, nano-dollars and milliseconds")
def test_no_help_shows_units_of_the_wire(count_cases: Callable[[int], None]) -> None:
    for words, (command, context) in COMMANDS.items():
        found = UNITS.search(command.get_help(context))
        assert found is None, f"{words} --help says {found}"
    count_cases(len(COMMANDS))


@pytest.mark.generator("options of money and time")
def test_each_option_of_money_takes_what_people_write(
    count_cases: Callable[[int], None],
) -> None:
    seen = 0
    for words, (_, context) in COMMANDS.items():
        for option in options_of(words):
            name = option.opts[0]
            if OLD.match(name):
                assert option.hidden, f"{words} {name} shows a unit of the wire"
                continue
            wanted = {"AMOUNT": AMOUNTS, "TIME": TIMES}.get(option.metavar or "")
            if wanted is None or words.endswith(" serve"):  # its table has tests of its own
                continue
            for text, number in wanted.items():
                read = option.process_value(context, text)
                if name not in ("--since", "--until"):
                    assert read in (number, {"usd": number}), (words, name, text)
                seen += 1
            for text in ("two", "", "-1", "1e999", "nan", "5 elephants", "1,5"):
                with pytest.raises(click.BadParameter) as refused:
                    option.process_value(context, text)
                assert UNITS.search(refused.value.message.replace(text, "")) is None
                seen += 1
    assert seen > 50
    count_cases(seen)


@pytest.mark.generator("lines of the dashboard's templates")
def test_no_page_says_units_of_the_wire(count_cases: Callable[[int], None]) -> None:
    lines = 0
    for path in sorted(TEMPLATES.glob("*.html")):
        for number, line in enumerate(path.read_text("utf-8").splitlines(), 1):
            lines += 1
            where = f"{path.name}:{number}"
            said = re.sub(r"\{\{.*?\}\}|\{%.*?%\}|<[^>]*>", " ", line)
            assert UNITS.search(said) is None, f"{where} says {said.strip()}"
            read_by_scripts = re.sub(r'\bdata-[a-z]+="[^"]*"', "", line)
            for shown in re.findall(r"\{\{(.*?)\}\}", read_by_scripts):
                if re.search(r"_nanousd|_ms\b", shown) and "(" not in shown.split("|")[0]:
                    assert "|" in shown or re.search(r"[/*]", shown), f"{where} prints {shown}"
    count_cases(lines)
