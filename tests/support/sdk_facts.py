"""What vendors' installed SDKs can send that no facts file judges.

Run as a program it prints that, one name in a line, and ends with 1 if there is any: ``nox -s
facts``, and ``nox -s facts -- newest`` with the newest SDKs.
"""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any, Final

from guard.core.bounds.unknown import _DATE, _is_costly
from guard.core.usage.vendors import find_endpoint
from guard.core.vendors.bodies import BodyPart, body_of
from tests.support.sdk_members import members

SDK: Final = {
    "chat": ("openai.types.chat.completion_create_params:CompletionCreateParams", "messages"),
    "responses": ("openai.types.beta.response_create_params:ResponseCreateParams", "input"),
    "messages": ("anthropic.types.beta.message_create_params:MessageCreateParams", "messages"),
}
"""The type of a body of each format, and the place whose objects are nested."""

HOSTS: Final = {"openai": ("api.openai.com", "/v1"), "anthropic": ("api.anthropic.com", "")}
"""Where each SDK sends its paths."""

NO_TOOLS: Final = frozenset({"auto", "text", "grammar", "and", "or"})
"""Values of ``type`` inside of tools that are formats of them and operators of filters."""

_SENT: Final = re.compile(r"_(?:post|put|patch)\(\s*(?:path_template\(\s*)?f?\"(/[^\"]*)\"")


def place_at(kind: str, path: str) -> BodyPart | None:
    """Return what is known of a place in a body; None where nothing is looked at."""
    place: BodyPart | None = body_of(kind)
    for name in filter(None, path.split(".")):
        if place is None or place.any_name:
            return None
        place = place.known.get(name)
    return place


def is_opaque(kind: str, path: str, name: str) -> bool:
    """Return whether the objects in a member are the caller's own."""
    place = place_at(kind, path)
    return place is not None and place.known.get(name, place) is None


def unjudged(kind: str) -> list[str]:
    """Return what a format's SDK can put into a body that could cost and is on no list."""
    named, below = SDK[kind]
    module, _, name = named.partition(":")
    root: Any = getattr(importlib.import_module(module), name)
    names, types = members(root, [below], lambda path, name: is_opaque(kind, path, name))
    tools, blocks = place_at(kind, "tools"), place_at(kind, below)
    assert tools is not None
    assert blocks is not None
    known = tools.client | tools.vendor
    found = [
        f"member:{path}.{name}".replace(":.", ":")
        for path, each in names.items()
        if (place := place_at(kind, path)) is not None and not place.any_name
        for name in each
        if name not in place.known and _is_costly(name)
        # A message that adds tools has their members, in a place of their own.
        if path != below or name not in tools.known
    ]
    found += [f"tool:{t}" for t in _others(types["tools"], known | NO_TOOLS)]
    found += [f"block:{t}" for t in _others(types[below], known | blocks.blocks) if _is_costly(t)]
    return sorted(found)


def _others(types: set[str], known: frozenset[str]) -> list[str]:
    return [each for each in types if each not in known and _DATE.sub("", each) not in known]


def unjudged_paths(package: str) -> list[str]:
    """Return the paths that an SDK posts to of which it is not known what they cost."""
    host, base = HOSTS[package]
    folder = Path(str(importlib.import_module(package).__file__)).parent / "resources"
    sent = {path for file in folder.rglob("*.py") for path in _SENT.findall(file.read_text())}
    assert len(sent) > 10, "the SDK's source is written in another way"
    return sorted(f"path:{host}{base}{path}" for path in sent if _is_unknown(host, base + path))


def _is_unknown(host: str, path: str) -> bool:
    plain = re.sub(r"\{[^}]*\}", "x", path).partition("?")[0]
    endpoint = find_endpoint("POST", host, plain)
    return endpoint is not None and endpoint.is_unknown


def walk() -> Iterator[str]:
    """Yield all of it, each with its format or SDK."""
    for kind in SDK:
        yield from (f"{kind} {name}" for name in unjudged(kind))
    for package in HOSTS:
        yield from (f"{package} {name}" for name in unjudged_paths(package))


if __name__ == "__main__":
    print(*(f"{each} {metadata.version(each)}" for each in HOSTS), sep=", ", file=sys.stderr)
    names = list(walk())
    for each in names:
        print(each)
    print(f"{len(names)} that no facts file judges", file=sys.stderr)
    sys.exit(1 if names else 0)
