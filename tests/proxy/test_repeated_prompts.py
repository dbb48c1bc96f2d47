"""The same prompt again, through the proxy of an unmodified program."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx

from guard.gateway.embedded import Gateway
from tests.guard.instrumentation.standin.server import StandIn
from tests.support.run_proxy import run_proxy
from tests.support.waiting import until


def chat(text: str) -> dict[str, Any]:
    said = [{"role": "user", "content": text}]
    return {"model": "gpt-4o", "max_tokens": 50, "messages": said}


def test_the_same_prompt_is_refused_to_a_program(
    gateway: Gateway, vendor: StandIn, tmp_path: Path
) -> None:
    cap = {"times": 3, "models": ["gpt-4o"], "on_repeat": "refuse"}
    gateway.admin.set_policy("loops", scope_kind="workflow", scope_id="circles", repeat_caps=[cap])
    try:
        with run_proxy(gateway, tmp_path, {"openai": vendor.url}, workflow="circles") as proxy:
            url = f"{proxy.url}/openai/v1/chat/completions"
            assert httpx.post(url, json=chat("another")).status_code == 200

            def refused() -> httpx.Response | None:
                """Ask the same once more; the rules arrive a moment after the proxy has started."""
                reply = httpx.post(url, json=chat("a canary"))
                return reply if reply.status_code == 400 else None

            reply = until(refused)
            assert reply.headers["x-guard-code"] == "GD-X001"
            assert "asked 3 times with the same prompt" in reply.text
            asked = [body for body in vendor.bodies if b"a canary" in body]
            assert len(asked) >= 3
        assert "a canary" not in str(gateway.admin.events(workflow_id="circles"))
    finally:
        gateway.admin.delete_policy("loops")
