"""Fixtures: the vendors' stand-in with scripted answers that call tools."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Iterator
from typing import Any

import pytest

from guard.core.usage import Usage
from tests.guard.instrumentation.standin.reply import Reply, encoded
from tests.guard.instrumentation.standin.server import StandIn


class ToolCaller(StandIn):
    """A model that calls a tool first and answers in words once it has its result.

    Attributes:
        tool: which one.
    """

    tool = "delete_files"

    def _by_path(self, number: int, path: str, request: dict[str, Any]) -> Reply:
        reply = super()._by_path(number, path, request)
        turns: Any = request.get("messages") or request.get("input") or []
        if "tool" in str(turns[-1].get("role")) or "output" in str(turns[-1].get("type")):
            return reply
        said = Usage(model=request["model"], input_tokens=50, output_tokens=9)
        if path.endswith("/chat/completions"):
            call = {"id": f"call_{number}", "type": "function",
                    "function": {"name": self.tool, "arguments": "{}"}}  # fmt: skip
            message = {"role": "assistant", "content": None, "tool_calls": [call]}
            usage = {"prompt_tokens": 50, "completion_tokens": 9, "total_tokens": 59}
            return Reply(said, encoded({
                "id": f"chatcmpl-t{number}", "object": "chat.completion", "created": 1,
                "model": request["model"], "usage": usage,
                "choices": [{"index": 0, "message": message, "finish_reason": "tool_calls"}],
            }))  # fmt: skip
        item = {"type": "function_call", "id": f"fc_{number}", "call_id": f"call_{number}",
                "name": self.tool, "arguments": "{}", "status": "completed"}  # fmt: skip
        usage = {"input_tokens": 50, "output_tokens": 9, "total_tokens": 59,
                 "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
                 "output_tokens_details": {"reasoning_tokens": 0}}  # fmt: skip
        return Reply(said, encoded({
            "id": f"resp_t{number}", "object": "response", "created_at": 1.0, "output": [item],
            "model": request["model"], "status": "completed", "usage": usage, "error": None,
            "incomplete_details": None, "instructions": None, "metadata": {}, "tools": [],
            "parallel_tool_calls": True, "tool_choice": "auto", "temperature": 1.0, "top_p": 1.0,
        }))  # fmt: skip


@pytest.fixture(scope="session")
def caller_server() -> Iterator[ToolCaller]:
    running = ToolCaller()
    yield running
    running.close()


@pytest.fixture
def model(caller_server: ToolCaller) -> ToolCaller:
    """A model that wants to call ``delete_files``."""
    caller_server.reset()
    caller_server.tool = "delete_files"
    return caller_server


@pytest.fixture(autouse=True)
def _loop_of_its_own(request: pytest.FixtureRequest) -> Iterator[None]:
    """A loop for frameworks that run one without a running one; they would leave theirs open."""
    if inspect.iscoroutinefunction(request.function):
        yield
        return
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    yield
    asyncio.set_event_loop(None)
    loop.close()
