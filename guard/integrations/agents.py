"""OpenAI Agents SDK: tools pass the tool policy, model calls are checked first.

For a run::

    from guard.integrations.agents import GuardRunHooks

    with guard.workflow("support"):
        result = await Runner.run(agent, "Hello", hooks=GuardRunHooks())

or for one tool in every run: ``@function_tool(tool_input_guardrails=[guard_tool_input])``.
Token usage is read once, at the HTTP client, and not from the run's result.
"""

from __future__ import annotations

import time
from typing import Any

from agents import (
    RunHooks,
    ToolGuardrailFunctionOutput,
    ToolInputGuardrail,
    ToolInputGuardrailData,
)

from guard.asking.tool_calls import Checkpoint
from guard.integrations import tools


class GuardRunHooks(RunHooks[Any]):
    """Hooks of a run that refuse tools and model calls.

    A refusal stops the run and becomes the public exception at the end of the enclosing
    ``workflow`` or ``@protect``. (An ordinary exception would become text for the model.)
    """

    def __init__(self) -> None:
        # When a tool was started, by the identity of its call's context, which lives until its end.
        self._started_s: dict[int, float] = {}

    async def on_llm_start(self, *arguments: Any, **options: Any) -> None:
        """Refuse when the workflow is killed, paused or out of budget; reads local state only."""
        tools.check_llm_request()

    async def on_tool_start(self, context: Any, agent: Any, tool: Any) -> None:
        """Ask the gateway for the tool."""
        call_id = getattr(context, "tool_call_id", None)
        await tools.gate_tool_async(
            tool.name, Checkpoint("hooks", call_id, runs_tool=False),
            getattr(context, "tool_arguments", None),
        )  # fmt: skip
        self._started_s[id(context)] = time.monotonic()

    async def on_tool_end(self, context: Any, agent: Any, tool: Any, result: Any) -> None:
        """Report the tool."""
        call_id = getattr(context, "tool_call_id", None)
        if call_id is not None:
            tools.tool_ended(call_id)
        tools.report_tool(tool.name, self._started_s.pop(id(context), time.monotonic()))


async def _ask(data: ToolInputGuardrailData) -> ToolGuardrailFunctionOutput:
    watcher = Checkpoint("guardrail", data.context.tool_call_id, runs_tool=False)
    await tools.gate_tool_async(data.context.tool_name, watcher, data.context.tool_arguments)
    return ToolGuardrailFunctionOutput.allow()


guard_tool_input: ToolInputGuardrail[Any] = ToolInputGuardrail(_ask, name="guard")
"""A tool input guardrail that asks the gateway for the tool."""
