"""Content encodings: upstream is asked for what guard can decode, and the rest is withheld."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import brotli
import httpx
import pytest
import zstandard

from guard.gateway.embedded import Gateway
from tests.guard.instrumentation.standin.server import StandIn
from tests.support import tool_answers
from tests.support.raw_upstream import RawAnswer, RawClient, RawUpstream
from tests.support.run_proxy import run_proxy

CHAT = {"model": "gpt-4o", "max_tokens": 50, "messages": [{"role": "user", "content": "hi"}]}
BODY = json.dumps(CHAT).encode()
PACK = {"br": brotli.compress, "zstd": zstandard.compress}


def test_the_extra_of_the_proxy_decodes_what_clients_ask_for() -> None:
    text = (Path(__file__).parents[2] / "pyproject.toml").read_text()
    needed = tomllib.loads(text)["project"]["optional-dependencies"]["gateway"]
    assert {"brotli", "zstandard"} <= {each.partition(">")[0] for each in needed}


@pytest.mark.parametrize(
    ("asked", "sent"),
    [
        ("gzip, deflate, br, zstd", "gzip, deflate, br, zstd"),
        ("gzip,br;q=0.5 , identity", "gzip,br;q=0.5 , identity"),
        ("gzip, compress, dcb, br;q=1.0, *;q=0.1", "gzip, br;q=1.0"),
        ("dcz", "identity"),
        ("*", "identity"),
        ("", ""),
    ],
)
def test_upstream_is_asked_for_what_can_be_decoded(
    gateway: Gateway, raw_upstream: RawUpstream, tmp_path: Path, asked: str, sent: str
) -> None:
    with run_proxy(gateway, tmp_path, {"openai": raw_upstream.url}) as proxy:
        raw_upstream.answers.put(RawAnswer(200, [(b"content-length", b"2")], [b"{}"]))
        headers = [
            (b"Host", b"x"),
            (b"Accept-Encoding", asked.encode()),
            (b"Content-Length", str(len(BODY)).encode()),
        ]
        client = RawClient(proxy.url)
        client("POST", b"/openai/v1/chat/completions", headers, [BODY], chunked=False)
        client.close()
        got = dict(raw_upstream.requests.get(timeout=60).headers)
        found = {name.lower(): value for name, value in got.items()}
        assert found[b"accept-encoding"] == sent.encode()


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("encoding", PACK)
def test_what_is_encoded_is_read(
    gateway: Gateway, raw_upstream: RawUpstream, tmp_path: Path, encoding: str, stream: bool
) -> None:
    """Its usage is charged, and a blocked tool in it is withheld."""
    gateway.admin.set_policy("tools", tools_block=["delete_*"])
    reply = tool_answers.answer("chat", ["delete_all"], stream=stream)
    packed = PACK[encoding](reply.body or b"".join(reply.events))
    headers = [
        (b"content-type", reply.content_type.encode()),
        (b"content-encoding", encoding.encode()),
    ]
    with run_proxy(gateway, tmp_path, {"openai": raw_upstream.url}) as proxy:
        raw_upstream.answers.put(RawAnswer(200, headers, [packed]))
        answer = httpx.post(
            f"{proxy.url}/openai/v1/chat/completions", json=CHAT | {"stream": stream}
        )
        assert answer.status_code == 400
        assert "the tool delete_all is blocked" in answer.text
        raw_upstream.requests.get(timeout=60)
        assert proxy.end() == 0
        row = next(r for r in gateway.admin.usage("key") if r["group"] == proxy.key_id)
        assert (row["input_tokens"], row["output_tokens"]) == (50, 9)


@pytest.mark.parametrize("stream", [False, True])
def test_what_cannot_be_decoded_is_withheld_where_a_tool_may_be_refused(
    gateway: Gateway, vendor: StandIn, tmp_path: Path, stream: bool
) -> None:
    vendor.instead = tool_answers.answer("chat", ["look"], stream=stream)
    vendor.encoding = "compress"
    body = CHAT | {"stream": stream}
    with run_proxy(gateway, tmp_path, {"openai": vendor.url}) as proxy:
        url = f"{proxy.url}/openai/v1/chat/completions"
        with httpx.stream("POST", url, json=body) as answer:  # no rule: it passes as it is
            whole = b"".join(answer.iter_raw())
        assert (answer.status_code, answer.headers["content-encoding"]) == (200, "compress")
        assert whole == (vendor.instead.body or b"".join(vendor.instead.events))
    gateway.admin.set_policy("tools", tools_block=["delete_*"])
    with run_proxy(gateway, tmp_path, {"openai": vendor.url}) as proxy:
        answer = httpx.post(f"{proxy.url}/openai/v1/chat/completions", json=body)
        assert answer.status_code == 400
        assert answer.headers["x-guard-code"] == "GD-T001"
        assert "cannot be decoded" in answer.json()["error"]["message"]
