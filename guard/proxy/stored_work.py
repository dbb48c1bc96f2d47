"""Finds in a request what names work that is stored at the vendor; no I/O.

Files, conversations, stored answers and containers belong to the vendor's account. Where several
callers share one, a caller that knows an id could read another's. Names of members are judged by
their words, and so are those that no vendor has yet: what sounds like stored work is refused,
unless it is listed here or by the account.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection
from typing import Any, Final

from guard.core.member_names import JudgedNames, words_of
from guard.core.usage.request_body import UnreadableError

_WORDS: Final = frozenset({
    "agent", "arn", "assistant", "background", "cached", "checkpoint", "connector", "container",
    "conversation", "corpora", "corpus", "datasource", "datastore", "environment", "file", "guid",
    "handle", "id", "identifier", "knowledge", "memories", "memory", "preset", "previous",
    "reference", "resource", "session", "skill", "stores", "thread", "uri", "uuid", "vault",
    "vector", "workspace",
})  # fmt: skip
"""Words of members that name stored work; so do their plurals."""

_JOINED: Final = re.compile(
    r"agent_?id|arns?$|cached_?content|connector_?id|container|conversation|data_?source|data_?store"
    r"|file_?(?:id|uri|search)"
    r"|prompt_?id|preset|response_?id|session_?id|store_?(?:id|name)|thread_?id|vector_?store"
    r"|s3_?location"
)
"""The same without regard to how words are joined: some servers match names in any case."""

_OWN: Final = frozenset({
    # From the request itself: what a program numbers to tell its parts from one another.
    "id", "call_id", "tool_call_id", "tool_use_id", "toolUseId", "approval_request_id",
    "user_id", "safety_identifier", "filename", "file", "file_data", "fileData", "file_url",
    "tool_id", "tool_references",
})  # fmt: skip

_OPAQUE: Final = frozenset({
    "input_schema", "inputSchema", "input_examples", "parametersJsonSchema", "json_schema",
    "parameters_json_schema", "schema", "responseSchema", "response_schema", "responseJsonSchema",
    "response_json_schema", "_responseJsonSchema", "args", "logit_bias",
})  # fmt: skip
"""Members whose content is the program's own: schemas and arguments of its tools. So are its notes,
whose names have the word ``metadata``."""

_RESPONSE_OF: Final = ("functionResponse", "function_response", "functionDeclarations",
                       "function_declarations")  # fmt: skip
_TOOL_INPUT: Final = frozenset({"tool_use", "server_tool_use", "mcp_tool_use"})
_JUDGING: Final = frozenset({"content", "encrypted_content", "input", "prompt", "result", "type"})
"""Members by which others are judged: in another case, a server may read what is not seen here."""
_OWN_MACHINES: Final[tuple[Any, ...]] = (
    "browser", "mac", "windows", "ubuntu", "linux", "ENVIRONMENT_BROWSER", {"type": "local"},
)  # fmt: skip
"""Environments in which the program itself clicks and types."""

_STORED_URL: Final = re.compile(
    r"(?i)\s*(?:gs:|s3:|files?[-_/]|https?:[/\\]*[^/\\?#]*generativelanguage)"
)
_STORED_MODEL: Final = re.compile(r"(?i)@preset/|^\s*ag:")
"""Presets of OpenRouter's and agents of Mistral's, which are called as models are."""

_URL_MAX: Final = 2000
_SHOWN_MAX: Final = 200
_LETTERS: Final = re.compile(r"[a-z]+")
_PUBLIC: Final = ("https://www.youtube.com/", "https://youtu.be/")
_DEPTH_MAX: Final = 200
_BRACKETS_MAX: Final = 200_000
_MARKS_MAX: Final = 1_000_000
"""Brackets, and colons and commas besides: more than any model reads. What reads a body takes a
microsecond and some 60 bytes of memory for each."""


def stored_work(body: bytes, allowed: Collection[str] = ()) -> str | None:
    """Return the member of a request that names stored work; None where none does.

    Args:
        body: the body of the request, JSON.
        allowed: more members that may pass.

    Raises:
        UnreadableError: it is no JSON, or names a member twice.

    >>> stored_work(b'{"input": [{"type": "input_file", "file_id": "file-1"}]}')
    'input[].file_id'
    >>> stored_work(b'{"messages": [{"role": "tool", "tool_call_id": "call_1"}]}')
    """
    brackets, marks = body.count(b"{") + body.count(b"["), body.count(b":") + body.count(b",")
    if brackets > _BRACKETS_MAX or marks > _MARKS_MAX:
        raise UnreadableError("the body has too many members")
    try:
        found = json.loads(body.decode("utf-8"), object_pairs_hook=_members)
        place = _named(found, "", allowed, 0) if isinstance(found, dict | list) else None
    except UnreadableError:
        raise
    except UnicodeDecodeError:
        raise UnreadableError("the body is not UTF-8") from None
    except (ValueError, RecursionError):
        raise UnreadableError("the body is not JSON") from None
    # A name may be anything: as long as the body, or half a character.
    return None if place is None else ascii(place.lstrip("."))[1:-1][:_SHOWN_MAX]


_IS_FOLDED: Final = JudgedNames(lambda name: name.isascii() and name == name.lower())


def _members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    is_once = len(found) == len(pairs)
    for name in found:
        if not _IS_FOLDED[name]:
            is_once = is_once and len({each.casefold() for each in found}) == len(pairs)
            break
    if not is_once:
        raise UnreadableError("the body names a member twice")
    return found


def _named(value: Any, member: str, allowed: Collection[str], depth: int) -> str | None:
    """Return a place below that names stored work, such as ``.content[].file_id``.

    Args:
        value: an object or a list.
        member: its name, that of the list for what a list holds.
        allowed: more members that may pass.
        depth: how deep it is.
    """
    if depth > _DEPTH_MAX:
        raise UnreadableError("the body is nested too deeply")
    if isinstance(value, list):
        for each in value:
            if isinstance(each, dict | list):
                found = _named(each, member, allowed, depth + 1)
                if found is not None:
                    return f"[]{found}"
            elif isinstance(each, str) and _is_stored(member, each):
                return "[]"
        return None
    kind = value.get("type")
    if (what := _by_id(value, kind, member)) is not None:
        return f".{what}"
    for name, inner in value.items():
        if inner is None or inner is False or inner == [] or name in allowed:
            continue
        if _SOUNDS_STORED[name] and not _is_harmless(name, inner):
            return f".{name}"
        if isinstance(inner, dict | list):
            if not _is_opaque(name, value, member, kind):
                found = _named(inner, name, allowed, depth + 1)
                if found is not None:
                    return f".{name}{found}"
        elif isinstance(inner, str) and _is_stored(name, inner):
            return f".{name}"
    return None


def _by_id(value: dict[str, Any], kind: Any, member: str) -> str | None:
    """Return the member by which an object stands for another one that is stored."""
    if isinstance(kind, str) and "reference" in kind.casefold() and kind != "tool_reference":
        return "type"
    if value.get("id") is None:
        return None
    # 1. A part of a response that is sent by its id alone is looked up by it.
    if member == "input" and not any(
        inner for name, inner in value.items() if name not in ("id", "type", "status", "role")
    ):
        return "id"
    if member == "input" and kind in (None, "message") and value.get("content") is None:
        return "id"
    if kind in ("reasoning", "compaction") and not value.get("encrypted_content"):
        return "id"
    if kind == "image_generation_call" and not value.get("result"):
        return "id"
    # 2. A prompt that is stored, the sound of an earlier answer, somebody's voice.
    return "id" if member in ("prompt", "audio", "voice", "container", "conversation") else None


def _is_opaque(name: str, value: dict[str, Any], member: str, kind: Any) -> bool:
    """Return whether a member holds what the program's own tools take or give, or its notes."""
    if name in _OPAQUE or "metadata" in name:
        return True
    if name == "parameters":  # of a tool: those of a source of data have stored work
        return "name" in value
    if name == "headers":  # for the program's own server of tools
        return bool(kind == "mcp")
    if name == "input":
        tool = kind in _TOOL_INPUT and member == "content"
        return (tool or member == "toolUse") and isinstance(value[name], dict)
    return (name == "response" and member in _RESPONSE_OF) or (member, name) == ("content", "json")


def _sounds_stored(name: str) -> bool:
    if name in _OWN:
        return False
    folded = name.casefold()
    if not name.isascii() or (folded in _JUDGING and name != folded):
        return True
    # By both: a server that matches names in any case reads `sKILLS` as `skills`.
    words = {*words_of(name)} | {*_LETTERS.findall(folded)}
    words |= {word.removesuffix("s") for word in words}
    return not words.isdisjoint(_WORDS) or _JOINED.search(folded) is not None


_SOUNDS_STORED: Final = JudgedNames(_sounds_stored)
_IS_URL: Final = JudgedNames(lambda name: name.casefold().endswith(("url", "urls")))


def _is_harmless(name: str, value: Any) -> bool:
    """Return whether it is the address of a film that all can see, or the program's machine."""
    if name in ("fileUri", "file_uri"):
        return isinstance(value, str) and value.startswith(_PUBLIC)
    return name == "environment" and any(value == each for each in _OWN_MACHINES)


def _is_stored(name: str, value: str) -> bool:
    """Return whether a text names stored work: by an address, or as a model that somebody made."""
    if name in ("model", "models"):
        return _STORED_MODEL.search(value) is not None
    return _IS_URL[name] and _STORED_URL.match(value[:_URL_MAX]) is not None
