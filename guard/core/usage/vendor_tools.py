"""What an answer says of the tools that its vendor has run: units by line of ``guard.core.fees``.

Only what the answer shows whole is counted; for the rest, ``None``, the bound counts.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import msgspec

from guard.core import fees
from guard.core.usage.message import Message, count, items, mapping, parse

_NO_SEARCH: Final = frozenset({"open_page", "find_in_page"})
"""Actions of a web search call that cost nothing: "Search actions incur a tool call cost"
(https://developers.openai.com/api/docs/guides/tools-web-search, 2026-11)."""


class OutputItem(msgspec.Struct):
    """What is read of an item; its texts are skipped without being turned into objects."""

    type: Any = None
    container_id: Any = None
    action: Any = None
    environment: Any = None


def of_response(response: Message, model: str | None) -> dict[str, int] | None:
    """Count what the items of an OpenAI response have cost besides tokens.

    Args:
        response: the response; its ``tools`` may still be bytes.
        model: that answered.
    """
    output = response.get("output")
    if not isinstance(output, list):
        return None
    if output and not isinstance(output[0], OutputItem):  # of a stream, decoded whole
        known = OutputItem.__struct_fields__
        output = [OutputItem(*map(mapping(item).get, known)) for item in output]
    found: dict[str, int] = {}
    places: dict[str, str] = {}
    drew = False
    for item in output:
        kind = item.type
        if kind == "web_search_call":
            if mapping(item.action).get("type") not in _NO_SEARCH:
                _add(found, fees.openai_search(model, _search_tool(_offered(response))))
        elif kind == "image_generation_call":
            drew = True
        elif kind == "file_search_call":
            _add(found, fees.OPENAI_FILE_SEARCH)
        else:
            place = item.container_id or mapping(item.environment).get("container_id")
            if isinstance(place, str):
                places[place] = _container(_offered(response), kind)
    for line in places.values():
        _add(found, line)
    if not drew:
        return found
    drawn = _drawn(response)
    return None if drawn is None else {**found, **drawn}


def _drawn(response: Message) -> dict[str, int] | None:
    """Count the tokens of the images that a response has made; None where it does not say."""
    said = mapping(mapping(response.get("tool_usage")).get("image_gen"))
    if "output_tokens" not in said:
        return None
    images = count(mapping(said.get("input_tokens_details")).get("image_tokens"))
    models = [t.get("model") for t in _offered(response) if t.get("type") == "image_generation"]
    line = fees.image_tool(models[0] if len(models) == 1 else None)
    tokens = {
        f"{line} output": count(said["output_tokens"]),
        f"{line} image": images,
        f"{line} text": max(0, count(said.get("input_tokens")) - images),
    }
    return {name: number for name, number in tokens.items() if number}


def _offered(response: Message) -> list[Message]:
    offered = response.get("tools")
    if isinstance(offered, msgspec.Raw):
        offered = parse(bytes(offered))
    return [mapping(tool) for tool in items(offered)]


def _search_tool(tools: Iterable[Message]) -> str:
    kinds = (str(tool.get("type")) for tool in tools)
    return next((kind for kind in kinds if kind.startswith("web_search")), "web_search")


def _container(tools: Iterable[Message], kind: object) -> str:
    """Return the line of the container of a call, by the tool that was offered."""
    offered = "shell" if isinstance(kind, str) and kind.startswith("shell") else "code_interpreter"
    found = [fees.openai_container_of(tool) for tool in tools if tool.get("type") == offered]
    lines = [line for line in found if line is not None]
    dearest = max(lines, key=lambda line: fees.FEES[line].nanousd, default=None)
    return fees.openai_container(None) if dearest is None else dearest


class Candidate(msgspec.Struct):
    """What is read of one of Gemini's candidates."""

    grounding: Any = msgspec.field(default=None, name="groundingMetadata")


def of_candidates(candidates: Any, model: str | None, request: bytes) -> dict[str, int] | None:
    """Count the searches that Gemini's candidates name.

    Args:
        candidates: the candidates of one answer, or of all messages of a stream.
        model: that answered.
        request: its body. An answer does not say which search it was.
    """
    if not isinstance(candidates, list):
        return None
    queries: set[str] = set()
    is_grounded = is_mapped = False
    for candidate in candidates:
        found = (
            candidate.grounding
            if isinstance(candidate, Candidate)
            else mapping(candidate).get("groundingMetadata")
        )
        if found is None:
            continue
        said = mapping(found)
        asked = {query for query in items(said.get("webSearchQueries")) if isinstance(query, str)}
        queries |= asked
        chunks = items(said.get("groundingChunks"))
        on_maps = sum("maps" in mapping(chunk) for chunk in chunks)
        is_mapped = is_mapped or on_maps > 0
        is_grounded = is_grounded or len(chunks) > on_maps or (bool(asked) and not on_maps)
    if not (is_grounded or is_mapped):
        return {}
    if fees.google_search(model) == fees.GOOGLE_SEARCH:
        return {fees.GOOGLE_SEARCH: max(1, len(queries))}
    lines = {fees.GOOGLE_MAPPED_PROMPT: 1} if is_mapped else {}
    if is_grounded:
        is_enterprise = b"nterpriseWebSearch" in request or b"enterprise_web_search" in request
        lines[fees.GOOGLE_ENTERPRISE_PROMPT if is_enterprise else fees.GOOGLE_SEARCHED_PROMPT] = 1
    return lines


def _add(found: dict[str, int], line: str) -> None:
    found[line] = found.get(line, 0) + 1
