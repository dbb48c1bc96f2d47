"""The key and the secret never reach a log, whatever its level."""

from __future__ import annotations

import logging
from typing import Any

import pytest

import guard
from tests.support.waiting import WAIT_S, until

SECRET = "canary-secret-0123456789"


def test_logs_at_debug_level_hold_neither_key_nor_secret(
    tenant: Any, start: Any, caplog: pytest.LogCaptureFixture
) -> None:
    made = tenant.admin.create_key_full("signed", signed=True, hmac_secret=SECRET)
    key = made["api_key"]
    with caplog.at_level(logging.DEBUG):
        runtime = start(api_key=key, hmac_secret=SECRET)
        until(lambda: guard.status().control_channel == "websocket")

        @guard.protect
        def call() -> None:
            guard.track_llm(1, 1, model="m")

        call()
        runtime.flush()
        guard.shutdown(WAIT_S)
    assert "guard" in caplog.text
    assert key not in caplog.text
    assert SECRET not in caplog.text
