"""What a gateway says of a value that it does not take, in the words of the command line; pure."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

_PLACE: Final = re.compile(
    r"^(?P<what>.*?)(?: - at `(?P<key>key in )?\$?(?P<path>[^`]*)`)?$", re.DOTALL
)
_STEP: Final = re.compile(r"\.?(?P<name>[^.\[\]]+)|\[(?P<number>\d+|\.\.\.)\]")
_KINDS: Final = {
    "str": "a text", "int": "a whole number", "float": "a number", "bool": "true or false",
    "array": "a list", "object": "a table", "null": "nothing",
}  # fmt: skip
_SIGNS: Final = {">=": "at least", "<=": "at most", ">": "more than", "<": "less than"}
_OPTIONS: Final = {
    "limit_nanousd": "--limit", "limit_cents": "--limit-cents",
    "scope_id": "--id", "scope_kind": "--scope",
    "window": "--window", "reason": "--reason", "run_id": "--run", "expect": "--expect",
    "workflow_id": "the workflow", "resume_after_ms": "--for-seconds", "after": "--after",
    "limit": "--limit", "since_ms": "--since", "provider": "--provider",
    "overlap_ms": "--overlap", "document": "the rules", "tools_block": "--block-tool",
    "approval_tools": "--approve-tool", "models_block": "--block-model",
    "organisation": "--organisation", "password": "the password",
}  # fmt: skip


def plain(detail: str) -> str:
    """Return a gateway's complaint about a value, without paths and types of JSON.

    >>> plain("Expected `str` of length >= 12 - at `$.password`")
    'the password takes a text of at least 12 characters'
    >>> plain("Object missing required field `rates` - at `$.prices[0]`")
    'prices, number 1 lacks rates'
    >>> plain("the budget is used up")
    'the budget is used up'
    >>> plain("name the organisation: ?organisation=ID or its name, one of default, acme")
    'name the organisation: --organisation NAME, one of default, acme'
    """
    detail = detail.replace("?organisation=ID or its name", "--organisation NAME")
    found = _PLACE.match(detail.removeprefix("bad body: "))
    assert found is not None  # it takes any text
    place = _place(found["path"] or "")
    for pattern, words in _FORMS:
        if (match := pattern.fullmatch(found["what"])) is not None:
            return words(place, match)
    return detail if found["path"] is None else f"{place}: {found['what']}"


def _place(path: str) -> str:
    steps: list[str] = []
    for step in _STEP.finditer(path):
        if step["number"] is not None:
            is_known = step["number"].isdigit()
            steps.append(f"number {int(step['number']) + 1}" if is_known else "each")
        else:
            steps.append(step["name"])
    if len(steps) == 1 or (steps and steps[0] == "document"):
        own = [_OPTIONS.get(step, step) for step in steps]
        steps = own[1:] or own
    return ", ".join(steps) or "what was given"


def _kinds(text: str) -> str:
    names = [name.strip().strip("`") for name in text.split("|")]
    known = [_KINDS.get(name, name) for name in names if name != "null"]
    return " or ".join(known) or "nothing"


def _sized(place: str, match: re.Match[str]) -> str:
    if match["sign"] == ">=" and match["size"] == "1":
        return f"{place} must not be empty"
    unit = "characters" if match["kind"] == "str" else "entries"
    size = f"{_SIGNS[match['sign']]} {match['size']} {unit}"
    return f"{place} takes {_kinds(match['kind'])} of {size}"


_Words = Callable[[str, "re.Match[str]"], str]
_FORMS: Final[tuple[tuple[re.Pattern[str], _Words], ...]] = (
    (re.compile(r"Expected `(?P<kind>\w+)` of length (?P<sign>[<>]=?) (?P<size>\d+)"), _sized),
    (
        re.compile(r"Expected `(?P<kind>[\w |]+)` (?P<sign>[<>]=?) (?P<size>[\d.e+-]+)"),
        lambda place, m: (
            f"{place} takes {_kinds(m['kind'])}, {_SIGNS[m['sign']]} {_number(m['size'])}"
        ),
    ),
    (
        re.compile(r"Expected `(?P<kind>[\w |]+)`, got `(?P<got>\w+)`"),
        lambda place, m: f"{place} takes {_kinds(m['kind'])}, not {_kinds(m['got'])}",
    ),
    (
        re.compile(r"Expected `\w+` matching regex (?P<regex>.*)", re.DOTALL),
        lambda place, m: f"{place} is not written as it has to be; see --help",
    ),
    (
        re.compile(r"Object missing required field `(?P<name>[^`]*)`"),
        lambda place, m: (
            f"{_OPTIONS.get(m['name'], m['name'])} is missing"
            if place == "what was given"
            else f"{place} lacks {m['name']}"
        ),
    ),
    (
        re.compile(r"Object contains unknown field `(?P<name>[^`]*)`"),
        lambda place, m: (
            f"{m['name']} is not known"
            if place == "what was given"
            else f"{place} has {m['name']}, which is not known"
        ),
    ),
    (
        re.compile(r"Invalid enum value (?P<value>.*)|Expected one of the protocol's values"),
        lambda place, m: (
            f"{place} has a value that is not taken; see --help and docs/gateway/operating.md"
        ),
    ),
    (
        re.compile(r"(?:JSON is malformed|Input data was truncated).*", re.DOTALL),
        lambda place, m: "what was given cannot be sent as JSON",
    ),
    (
        re.compile(r"Integer value out of range|Number out of range"),
        lambda place, m: f"{place} is too large a number",
    ),
)


def _number(text: str) -> str:
    number = float(text)
    return f"{number:,.0f}" if number.is_integer() else text
