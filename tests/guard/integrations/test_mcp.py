"""MCP client sessions with the real package: client and server in one process, in memory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from mcp import Client
from mcp.server.mcpserver import MCPServer

import guard
from guard.integrations import mcp

pytestmark = [pytest.mark.usefixtures("runtime"), pytest.mark.filterwarnings("ignore")]

ran: list[str] = []


@pytest.fixture(autouse=True)
def _installed() -> Iterator[None]:
    ran.clear()
    mcp.install()
    mcp.install()
    yield
    mcp.uninstall()
    mcp.uninstall()


def server() -> MCPServer:
    made = MCPServer("files")

    @made.tool()
    def delete_files(path: str) -> str:
        """Delete files."""
        ran.append(path)
        return f"deleted {path}"

    return made


@pytest.mark.asyncio
async def test_an_allowed_tool(tenant: Any, runtime: guard.GuardRuntime) -> None:
    async with Client(server()) as client:
        with guard.workflow("files"):
            answer = await client.session.call_tool("delete_files", {"path": "/tmp/x"})
    assert "deleted /tmp/x" in str(answer.content)
    runtime.flush()
    events = tenant.admin.events(workflow_id="files", type="tool")
    assert [event["data"]["tool_name"] for event in events] == ["delete_files"]


@pytest.mark.asyncio
async def test_a_blocked_tool_is_not_even_asked_for(tenant: Any) -> None:
    tenant.admin.set_policy("p", tools_block=["delete_*"])
    async with Client(server()) as client:
        with pytest.raises(guard.GuardToolBlockedError), guard.workflow("files"):
            await client.session.call_tool("delete_files", {"path": "/tmp/x"})
        with pytest.raises(guard.GuardToolBlockedError):
            await client.call_tool("delete_files", {"path": "/tmp/x"})
    assert ran == []


@pytest.mark.asyncio
async def test_uninstalled(tenant: Any) -> None:
    tenant.admin.set_policy("p", tools_block=["delete_*"])
    mcp.uninstall()
    guard.uninstrument()  # the seam of the sessions
    async with Client(server()) as client:
        await client.session.call_tool("delete_files", {"path": "/tmp/x"})
    assert ran == ["/tmp/x"]
