"""What both servers take from inside uvicorn is there, and taken in one file of each package."""

from __future__ import annotations

import ast
import inspect
import textwrap
from pathlib import Path
from typing import Any, Final

import pytest
import uvicorn
from uvicorn.config import Config
from uvicorn.protocols.http import httptools_impl
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import Server, ServerState

ROOT: Final = Path(__file__).parents[2]
GATEWAY: Final = "guard/gateway/uvicorn_http.py"
SPAM: Final = "spamdetect/service/protocol.py"

USED: Final[dict[type, str]] = {
    HttpToolsProtocol: (
        "connection_made connection_lost data_received on_message_begin on_header"
        " on_headers_complete on_body on_message_complete handle_websocket_upgrade"
        " send_400_response shutdown on_response_complete _should_upgrade"
        " _unset_keepalive_if_required _start_asgi_task"
        " url client cycle scope headers connections loop parser transport flow pipeline"
        " server_state expect_100_continue timeout_keep_alive timeout_keep_alive_task"
    ),
    RequestResponseCycle: (
        "response_started response_complete disconnected keep_alive default_headers message_event"
        " more_body on_response scope"
    ),
    FlowControl: "read_paused resume_reading",
    Server: "startup capture_signals serve servers server_state lifespan should_exit force_exit",
    ServerState: "connections tasks default_headers total_requests",
    Config: "ssl http_protocol_class backlog timeout_graceful_shutdown",
}


def members(kind: type) -> set[str]:
    """Return the names of a class and those that its own methods assign to ``self``."""
    found = set(dir(kind))
    for each in kind.__mro__[:-1]:
        try:
            tree = ast.parse(textwrap.dedent(inspect.getsource(each)))
        except (OSError, TypeError):
            continue
        found |= {
            node.attr
            for node in ast.walk(tree)
            if isinstance(node, ast.Attribute)
            and isinstance(node.ctx, ast.Store)
            and isinstance(node.value, ast.Name)
            and node.value.id == "self"
        }
    return found


def advice(what: str) -> str:
    return (
        f"uvicorn {uvicorn.__version__} {what}. {GATEWAY} and {SPAM} rely on it: see what has "
        "replaced it, change them and this test, and then the bound in pyproject.toml"
    )


@pytest.mark.parametrize("kind", USED, ids=lambda kind: kind.__name__)
def test_the_names_inside_uvicorn_are_there(kind: type) -> None:
    missing = sorted(set(USED[kind].split()) - members(kind))
    assert not missing, advice(f"has no {', '.join(missing)} in {kind.__name__}")


def test_a_status_line_is_the_whole_line() -> None:
    found: Any = getattr(httptools_impl, "STATUS_LINE", {}).get(200)
    assert found == b"HTTP/1.1 200 OK\r\n", advice("writes status lines otherwise")


def test_uvicorn_makes_a_protocol_for_each_connection_as_we_do() -> None:
    wanted = ["self", "config", "server_state", "app_state", "_loop"]
    found = list(inspect.signature(HttpToolsProtocol).parameters)
    assert ["self", *found] == wanted, advice(f"makes protocols from {', '.join(found)}")


@pytest.mark.parametrize(("package", "only"), [("guard", GATEWAY), ("spamdetect", SPAM)])
def test_one_file_imports_what_is_inside_uvicorn(package: str, only: str) -> None:
    importing = {
        str(path.relative_to(ROOT))
        for path in (ROOT / package).rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("uvicorn.")
    }
    assert importing == {only}
