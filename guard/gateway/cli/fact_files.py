"""Facts files, in the form of those of ``guard.core.vendors``."""

from __future__ import annotations

import datetime as dt
import itertools
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final

import click
import msgspec

from guard.core.gateway_facts import TRUST
from guard.core.vendors.bodies import FORMATS
from guard.gateway.cli.files import read_file
from guard.gateway.cli.output import safe
from guard.gateway.domain.facts import JUDGED, OwnFact, check, distinct

FILE_BYTES_MAX: Final = 1024 * 1024
_RELEASES: Final = frozenset({"bounds", "any", "like", "named", "tokens", "results"})
"""Judgements that only a release can act on: its code reads these members."""
_ABOUT: Final = frozenset({"at", "source", "date"})


def read_facts(path: Path) -> tuple[list[OwnFact], list[str]]:
    """Read a facts file.

    Returns:
        The facts, and sentences about what was not taken.

    Raises:
        ClickException: it is too large, is none, or holds something that cannot be a fact.
    """
    if path.stat().st_size > FILE_BYTES_MAX:
        raise click.ClickException(f"{path.name} has more than {FILE_BYTES_MAX:,} bytes")
    found = read_file(path, dates=True)
    if not isinstance(found, dict):
        raise click.ClickException(f"{path.name}: a table of names and values is expected")
    left_out: list[str] = []
    facts: list[OwnFact] = []
    try:
        for kind, groups in found.items():
            if kind not in (*FORMATS, TRUST):
                left_out.append(f"{kind!r} is not known here, and was not taken")
                continue
            if not isinstance(groups, list) or not all(isinstance(each, dict) for each in groups):
                raise ValueError(f"{kind} is written as [[{kind}]], once for each place")
            for number, group in enumerate(groups, 1):
                facts += _facts_of(kind, f"[[{kind}]] number {number}", group)
        given = {
            name
            for kind, groups in found.items()
            if kind in (*FORMATS, TRUST)
            for group in groups
            for name in group
        }.difference(_ABOUT, JUDGED)
        if given & _RELEASES:
            names = ", ".join(sorted(given & _RELEASES))
            left_out.append(f"{names}: only a release can act on these, so they were not taken")
        strange = sorted(given - _RELEASES)
        left_out += [f"{name!r} is not known here, and was not taken" for name in strange]
        if not facts:
            raise ValueError("; ".join(["there are no facts in it", *left_out]))
    except ValueError as exc:
        raise click.ClickException(f"{path.name}: {safe(exc)}") from None
    return distinct(facts), left_out


def _facts_of(kind: str, where: str, group: dict[str, Any]) -> Iterator[OwnFact]:
    date = group.get("date", "")
    if type(date) is dt.date:
        date = date.isoformat()
    shared = {"format": kind, "at": group.get("at", ""), "source": group.get("source", ""),
              "date": date}  # fmt: skip
    for judged in JUDGED:
        for name in _names(where, judged, group.get(judged, [])):
            try:
                fact = msgspec.convert({**shared, "judged": judged, "name": name}, OwnFact)
                check(fact)
            except msgspec.ValidationError as exc:
                raise ValueError(f"{where}: {exc}") from None
            except ValueError as exc:
                raise ValueError(f"{where}: {exc}") from None
            yield fact


def _names(where: str, judged: str, value: Any) -> list[str]:
    if isinstance(value, str):
        return value.split()
    if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
        raise ValueError(f"{where}: {judged} takes names in one text, or a list of them")
    return value


def written(facts: Iterable[OwnFact]) -> str:
    """Return the text of a file that :func:`read_facts` reads as the same facts."""

    def group(fact: OwnFact) -> tuple[str, str, str, str]:
        return fact.format, fact.at, fact.source, fact.date

    lines: list[str] = []
    for (kind, *about), each in itertools.groupby(sorted(facts, key=group), group):
        lines += ["", f"[[{_quoted(kind)}]]"]
        lines += [
            f"{name} = {text if name == 'date' else _quoted(text)}"
            for name, text in zip(("at", "source", "date"), about, strict=True)
            if text
        ]
        names: dict[str, list[str]] = {}
        for fact in each:
            names.setdefault(fact.judged, []).append(_quoted(fact.name))
        lines += [f"{judged} = [{', '.join(names[judged])}]" for judged in sorted(names)]
    return "\n".join(lines[1:])


def _quoted(text: str) -> str:
    """Return a text in TOML's quotes; what a terminal could obey is written by its number."""
    return '"{}"'.format("".join(
        each if each.isprintable() and each not in '"\\' else f"\\U{ord(each):08X}"
        for each in text
    ))  # fmt: skip
