"""What is known of the members of a request's body: the facts files beside the vendors' rows."""

from __future__ import annotations

import datetime as dt
import functools
import re
import tomllib
from collections.abc import Collection, Mapping
from importlib import resources
from typing import Any, Final

from msgspec import Struct

from guard.core.wire import FactGroup


class BodyPart(Struct):
    """One kind of object in a body, and what its members can change.

    Attributes:
        known: by the name of a member, the kind of the objects in it; None where they are opaque.
        any_name: whether its members have names of the caller's.
        opens, repeats: members that bring more into the prompt than the body holds, and those that
            let the vendor ask models as often as it decides.
        client, vendor: the types of tools that the caller runs, and that the vendor runs; both
            empty where its objects are no tools.
        names_tools: whether its members are tools, each under its own name.
        models, attempts, routes: members that name further models: one of which answers, or each of
            which may be asked in turn and charged; and those that let the vendor choose.
        blocks: the types of its objects; empty where they say nothing.
        tokens: what the vendor adds to the prompt for a tool, by its type or name, in tokens; as
            ``any`` what it adds once where there are tools.
        results: how many results a call of a tool has at most that the vendor runs, and how many
            tokens each has.
        lent: what an operator's facts let go that this release's do not: names of members, and
            types as ``tool:NAME``. Each run names what it has used of them.
    """

    known: dict[str, BodyPart | None] = {}
    any_name: bool = False
    names_tools: bool = False
    opens: frozenset[str] = frozenset()
    repeats: frozenset[str] = frozenset()
    models: frozenset[str] = frozenset()
    attempts: frozenset[str] = frozenset()
    routes: frozenset[str] = frozenset()
    client: frozenset[str] = frozenset()
    vendor: frozenset[str] = frozenset()
    blocks: frozenset[str] = frozenset()
    tokens: dict[str, int] = {}
    results: dict[str, list[int]] = {}
    lent: frozenset[str] = frozenset()


_CHANGING: Final = ("opens", "repeats", "models", "attempts", "routes")
"""Kinds of members that change what a request can cost."""

_NOTHING: Final = BodyPart()
"""The members of a scalar: in an object there, nothing is known."""

_DEEP: Final = "**"
"""Ends the path of a place whose objects are of one kind, however deep they are nested."""


def body_of(kind: str, own: Collection[FactGroup] = ()) -> BodyPart:
    """Return what is known of the body of a request.

    Args:
        kind: that of the request, one of ``FORMATS``.
        own: what operators have judged, which counts instead of what is known here.
    """
    places: dict[str, BodyPart] = {"": BodyPart()}
    groups = [group for file in _files() for group in file.get(kind, ())]
    for group in groups:
        _note(places.setdefault(group["at"], BodyPart()), group)
    for group in groups:
        if "like" in group:
            places[group["at"]] = places[group["like"]]
    released = set(places)
    for group in own:
        if group.format == kind:
            _overrule(places.setdefault(group.at, BodyPart()), group)
    # Inner places last, so that they replace what a scalar's member leads to.
    for path in sorted(places, key=lambda each: each.count(".")):
        outer, _, name = path.removesuffix(f".{_DEEP}").rpartition(".")
        # What an operator has judged inside of a member does not make the member itself known.
        if path and (path in released or (outer in places and name in places[outer].known)):
            places[outer].known[name] = places[path]
    if kind in _CAMEL_CASE:
        for place in places.values():
            _add_snake_case(place)
    return places[""]


_CAMEL_CASE: Final = ("gemini", "embeddings", "predict")
"""Formats of Google's, who takes each name in snake case as well."""


def _add_snake_case(place: BodyPart) -> None:
    def snake(name: str) -> str:
        return re.sub("([A-Z])", lambda found: f"_{found[1].lower()}", name)

    place.known.update({snake(name): inner for name, inner in place.known.items()})
    for kind in _CHANGING:
        setattr(place, kind, getattr(place, kind) | set(map(snake, getattr(place, kind))))
    place.lent |= set(map(snake, place.lent))
    place.tokens |= {snake(name): tokens for name, tokens in place.tokens.items()}


@functools.cache
def _files() -> list[dict[str, Any]]:
    files = [
        each
        for each in resources.files("guard.core.vendors").iterdir()
        if each.name.endswith(".toml")
    ]
    return [
        tomllib.loads(each.read_text("utf-8")) for each in sorted(files, key=lambda file: file.name)
    ]


def _note(place: BodyPart, group: dict[str, Any]) -> None:
    inner = place if group["at"].endswith(_DEEP) else _NOTHING
    words = {name: str(text).split() for name, text in group.items()}
    place.tokens |= group.get("tokens", {})
    place.results |= group.get("results", {})
    for name in ("neutral", "bounds"):
        for member in words.get(name, ()):
            place.known.setdefault(member, inner)
    for name in (*_CHANGING, "opaque"):  # what opens a request is dear, whatever it holds
        place.known.update(dict.fromkeys(words.get(name, ())))
    place.any_name = place.any_name or group.get("any", False)
    place.names_tools = place.names_tools or group.get("named", False)
    for name in (*_CHANGING, "client", "vendor", "blocks"):
        setattr(place, name, getattr(place, name) | set(words.get(name, ())))


def _overrule(place: BodyPart, group: FactGroup) -> None:
    """Let an operator's judgement of some names count instead of the release's."""
    names, judged = frozenset(group.names), group.judged
    match judged:
        case "neutral" | "opaque" | "opens" | "repeats" | "models" | "attempts" | "routes":
            dear: set[str] = set()
            for kind in _CHANGING:
                dear |= getattr(place, kind)
                setattr(place, kind, getattr(place, kind) - names)
            inner = (
                (place if group.at.endswith(_DEEP) else _NOTHING) if judged == "neutral" else None
            )
            for name in names:
                if judged == "opaque" or name not in place.known or name in dear:
                    place.lent |= {name}
                if judged != "neutral" or place.known.get(name) is None:
                    place.known[name] = inner
            if judged in _CHANGING:
                setattr(place, judged, getattr(place, judged) | names)
                place.lent -= names
        case "client":
            place.lent |= {f"tool:{name}" for name in names - place.client}
            place.client, place.vendor = place.client | names, place.vendor - names
        case "vendor":
            place.client, place.vendor = place.client - names, place.vendor | names
        case "blocks" if place.blocks:
            place.lent |= {f"block:{name}" for name in names - place.blocks}
            place.blocks |= names


def newest() -> dt.date:
    """Return when the newest of this release's facts was judged."""
    dates: list[dt.date] = [
        group["date"] for file in _files() for groups in file.values() for group in groups
    ]
    return max(dates)


FORMATS: Final = (
    "chat", "responses", "messages", "gemini", "interactions", "converse", "invoke", "cohere",
    "ollama", "embeddings", "images", "sound", "videos", "predict", "runs", "realtime",
)  # fmt: skip
"""The formats of bodies that the facts files speak of."""

BODIES: Final[Mapping[str, BodyPart]] = {kind: body_of(kind) for kind in FORMATS}
"""What this release knows of the body of each format."""
