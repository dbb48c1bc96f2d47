"""What LiteLLM sends by its core in Rust is named, and refused where nothing goes unseen."""

from __future__ import annotations

import asyncio
import http.server
import json
import threading
from collections.abc import Iterator
from typing import Any

import pytest

import guard
from tests.guard.instrumentation.conftest import Observed
from tests.guard.instrumentation.test_native_clients import refuse

litellm: Any = pytest.importorskip("litellm")
pytest.importorskip("litellm.rust_bridge")

PAGE = {
    "index": 0,
    "markdown": "hi",
    "images": [],
    "dimensions": {"dpi": 1, "height": 1, "width": 1},
}
ANSWER = {"pages": [PAGE], "model": "mistral-ocr-latest", "object": "ocr",
          "usage_info": {"pages_processed": 1, "doc_size_bytes": 3}}  # fmt: skip
DOCUMENT = {"type": "document_url", "document_url": "https://example.com/a.pdf"}


class Reader(http.server.BaseHTTPRequestHandler):
    """Reads documents."""

    served = 0

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        type(self).served += 1
        body = json.dumps(ANSWER).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def reader() -> Iterator[str]:
    Reader.served = 0
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Reader)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/v1"
    server.shutdown()
    thread.join()
    server.server_close()


def ocr(url: str, *, is_async: bool) -> None:
    options = {"model": "mistral/mistral-ocr-latest", "document": DOCUMENT, "api_base": url,
               "api_key": "k"}  # fmt: skip
    if is_async:
        asyncio.run(litellm.aocr(**options))
    else:
        litellm.ocr(**options)


@pytest.mark.parametrize("is_async", [False, True])
def test_a_document_that_it_reads_is_named(reader: str, observed: Observed, is_async: bool) -> None:
    ocr(reader, is_async=is_async)
    assert Reader.served == 1
    (named,) = observed.instrumentation.unseen.counts()
    assert named == ("mistral/ocr by LiteLLM's Rust core", 1)


@pytest.mark.parametrize("is_async", [False, True])
def test_it_is_refused_before_it_is_sent(reader: str, observed: Observed, is_async: bool) -> None:
    observed.instrumentation.refuse_unseen = refuse
    with pytest.raises(guard.GuardBlockedException, match="LiteLLM"):
        ocr(reader, is_async=is_async)
    assert Reader.served == 0
