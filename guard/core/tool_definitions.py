"""Names of tools in the definitions that LLM vendors take."""

from __future__ import annotations

from collections.abc import Mapping


def names_in_definition(tool: object) -> list[object]:
    """Return the names in one tool: itself, unless it is a definition.

    OpenAI nests the name in ``function`` (Responses and Anthropic do not), Bedrock in ``toolSpec``,
    Google lists several in ``function_declarations``; a vendor's own tool has a type only.

    Raises:
        ValueError: a mapping that is no definition.

    Example:
        >>> names_in_definition({"name": "search", "input_schema": {}})
        ['search']
    """
    if not isinstance(tool, Mapping):
        return [tool]
    for several in ("function_declarations", "functionDeclarations"):
        if isinstance(tool.get(several), list):
            return [name for each in tool[several] for name in names_in_definition(each)]
    for nested in ("function", "custom", "toolSpec"):
        if isinstance(tool.get(nested), Mapping):
            return names_in_definition(tool[nested])
    for key in ("name", "type"):
        if isinstance(tool.get(key), str):
            return [tool[key]]
    raise ValueError("tools holds a definition without a name")
