"""Response headers of httpx are read as httpx reads them."""

from __future__ import annotations

import httpx
import pytest

from guard.instrumentation.httpx import _reader


@pytest.mark.parametrize("name", ["content-type", "content-encoding", "x-cache", "age", "missing"])
def test_it_agrees_with_httpx(name: str) -> None:
    headers = httpx.Headers([
        ("Content-Type", "text/event-stream; charset=utf-8"), ("content-encoding", "gzip"),
        ("Content-Encoding", "br"), ("X-Cache", "HIT"), ("Age", ""),
    ])  # fmt: skip
    assert _reader(headers)(name) == headers.get(name)


def test_no_headers() -> None:
    assert _reader(httpx.Headers())("age") is None
