"""Where agent frameworks call their tools: a row for each class whose methods are hooked.

Pure data: no framework is imported here. ``guard.integrations.tool_seams`` hooks the rows.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, Final

from msgspec import Struct

NameOf = Callable[[Any, tuple[Any, ...], dict[str, Any]], str | None]
"""Reads a tool's name from the instance and arguments of a call; None for an unchecked call."""


def _attribute(tool: Any, *_: object) -> str | None:
    return str(tool.name)


def _of_crewai(tool: Any, *_: object) -> str | None:
    """Return the name by which the model knows the tool: ``Delete Files`` is ``delete_files``."""
    strings = sys.modules.get("crewai.utilities.string_utils")
    sanitize = getattr(strings, "sanitize_tool_name", str)
    return str(sanitize(tool.name))


def _of_dspy(tool: Any, *_: object) -> str | None:
    # `ReAct` has a tool of its own by which the model says that it has finished.
    is_own = getattr(tool.func, "__module__", None) == "dspy.predict.react"
    return None if is_own else str(tool.name)


def _of_smolagents(tool: Any, *_: object) -> str | None:
    is_own = type(tool).__module__ == "smolagents.default_tools" and tool.name == "final_answer"
    return None if is_own else str(tool.name)


def _of_llama_index(tool: Any, *_: object) -> str | None:
    return str(tool.metadata.get_name())


def _of_pydantic_ai(_: Any, args: tuple[Any, ...], options: dict[str, Any]) -> str | None:
    validated = args[0] if args else options["validated"]
    # Without valid arguments the tool does not run: the framework answers the model itself.
    runs = validated.args_valid and getattr(validated, "deferral", None) is None
    return str(validated.call.tool_name) if runs else None


def _first_argument(_: Any, args: tuple[Any, ...], options: dict[str, Any]) -> str | None:
    return str(args[0] if args else options["name"])


_NO_ARGUMENTS: Final = frozenset(
    {
        "call_id", "callbacks", "cancellation_token", "color", "config", "context", "ctx",
        "metadata", "progress_callback", "read_timeout_seconds", "run_id", "run_manager",
        "run_name", "start_color", "tags", "tool_call_id", "verbose",
    }
)  # fmt: skip
"""What frameworks pass to their own methods beside the tool's arguments."""


def _given(args: tuple[Any, ...], options: dict[str, Any]) -> Any:
    """Return a tool's arguments: those of the call, without the framework's own."""
    own = {name: value for name, value in options.items() if name not in _NO_ARGUMENTS}
    return [*args, own]


def _given_pydantic_ai(args: tuple[Any, ...], options: dict[str, Any]) -> Any:
    validated = args[0] if args else options["validated"]
    return getattr(validated, "validated_args", None)


GivenOf = Callable[[tuple[Any, ...], dict[str, Any]], Any]
"""Reads a tool's arguments from those of a call; None where they are not known."""


class ToolCaller(Struct, frozen=True):
    """A class whose methods call a tool.

    Attributes:
        package: the package of the framework.
        module, owner: the class.
        name_of: reads the tool's name.
        calls, awaited, streamed: its methods that are called, awaited, or iterated over
            asynchronously.
        given_of: reads the tool's arguments, by which repeats are counted.
    """

    package: str
    module: str
    owner: str
    name_of: NameOf = _attribute
    calls: tuple[str, ...] = ()
    awaited: tuple[str, ...] = ()
    streamed: tuple[str, ...] = ()
    given_of: GivenOf = _given


def _llama_index(module: str, owner: str, *awaited: str) -> ToolCaller:
    place = f"llama_index.core.tools.{module}"
    return ToolCaller("llama_index.core", place, owner, _of_llama_index, ("call",), awaited)


TOOL_CALLERS: Final = (
    ToolCaller(
        "langchain_core", "langchain_core.tools.base", "BaseTool",
        calls=("run",), awaited=("arun",),
    ),
    ToolCaller(
        "crewai", "crewai.tools.base_tool", "BaseTool", _of_crewai, ("run",), ("arun",),
    ),
    ToolCaller("crewai", "crewai.tools.base_tool", "Tool", _of_crewai, ("run",), ("arun",)),
    ToolCaller(
        "crewai", "crewai.tools.structured_tool", "CrewStructuredTool", _of_crewai,
        ("invoke",), ("ainvoke",),
    ),
    ToolCaller(
        "dspy", "dspy.adapters.types.tool", "Tool", _of_dspy, ("__call__",), ("acall",),
    ),
    ToolCaller("smolagents", "smolagents.tools", "Tool", _of_smolagents, ("__call__",)),
    _llama_index("function_tool", "FunctionTool", "acall"),
    _llama_index("query_engine", "QueryEngineTool", "acall"),
    _llama_index("retriever_tool", "RetrieverTool", "acall"),
    _llama_index("ondemand_loader_tool", "OnDemandLoaderTool", "acall"),
    _llama_index("types", "BaseToolAsyncAdapter"),  # its `acall` has a thread run `call`
    ToolCaller(
        "pydantic_ai", "pydantic_ai.tool_manager", "ToolManager", _of_pydantic_ai,
        awaited=("execute_tool_call",), given_of=_given_pydantic_ai,
    ),
    ToolCaller(
        "autogen_core", "autogen_core.tools._base", "BaseTool", awaited=("run_json",),
    ),
    ToolCaller(
        "autogen_core", "autogen_core.tools._base", "BaseStreamTool",
        streamed=("run_json_stream",),
    ),
    ToolCaller(
        "mcp", "mcp.client.session", "ClientSession", _first_argument, awaited=("call_tool",),
    ),
)  # fmt: skip

CODE_RUNNER: Final = "smolagents.local_python_executor"
"""Runs a model's code, with its tool calls, in a thread of its own."""

ASSISTANT: Final = "autogen_agentchat.agents._assistant_agent"
"""Runs tools in a task of its own, and waits for ever for one that raises no ``Exception``."""

HANDLER: Final = "workflows.handler"
"""Streams the events of LlamaIndex's agents, for ever if a run raises no ``Exception``."""

PACKAGES: Final[dict[str, str]] = {
    **{caller.module: caller.package for caller in TOOL_CALLERS},
    CODE_RUNNER: "smolagents",
    ASSISTANT: "autogen_agentchat",
    HANDLER: "llama_index.core",
}
"""The frameworks' modules that are hooked, and the packages that they belong to."""
