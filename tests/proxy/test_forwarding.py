"""Requests and answers pass byte by byte: bodies, paths, queries, values and order of headers."""

from __future__ import annotations

from pathlib import Path

import pytest

from guard.gateway.embedded import Gateway
from tests.proxy.generated import Case, case_of
from tests.support.raw_upstream import Headers, RawClient, RawUpstream
from tests.support.run_proxy import run_proxy

_OF_ONE_CONNECTION = {
    b"connection", b"keep-alive", b"te", b"transfer-encoding", b"host", b"x-hop",
}  # fmt: skip
_USAGE = b'"stream_options":{"include_usage":true}'


@pytest.mark.parametrize(
    "seeds", [pytest.param(range(600), id="some"),
              pytest.param(range(600, 10_000), id="many", marks=pytest.mark.long)],
)  # fmt: skip
def test_what_passes_is_identical(
    gateway: Gateway, raw_upstream: RawUpstream, tmp_path: Path, seeds: range
) -> None:
    vendors = ("openai", "anthropic", "gemini", "ollama")
    upstreams = {**dict.fromkeys(vendors, raw_upstream.url), "custom/bedrock": raw_upstream.url}
    with run_proxy(gateway, tmp_path, upstreams) as proxy:
        client = RawClient(proxy.url)
        for seed in seeds:
            _check(client, raw_upstream, case_of(seed), f"case {seed}")
        client.close()
        assert proxy.refusal() is None


def _check(client: RawClient, upstream: RawUpstream, case: Case, name: str) -> None:
    upstream.answers.put(case.answer)
    if case.asks_for_usage and case.answer.status == 400:
        upstream.answers.put(case.answer)  # it may be about the option: sent once more without
    vendor = "custom/bedrock" if case.vendor == "bedrock" else case.vendor
    path = b"/" + vendor.encode() + case.target
    answer = client(case.method, path, case.headers, case.parts, chunked=case.chunked)
    request = upstream.requests.get(timeout=60)
    assert request.method.decode() == case.method, name
    assert request.target == case.target, name
    is_spliced = case.asks_for_usage
    if is_spliced:
        assert _without_splice(request.body) == case.body, name
        if case.answer.status == 400:
            assert upstream.requests.get(timeout=60).body == case.body, name
    else:
        assert request.body == case.body, name
    own = {b"content-length"} if case.chunked or is_spliced or not case.body else set()
    if is_spliced:
        own.add(b"accept-encoding")
    assert _kept(request.headers, own) == _kept(case.headers, own), name
    assert answer.status == case.answer.status, name
    assert b"".join(answer.parts) == b"".join(case.answer.parts), name
    own = set() if _has(case.answer.headers, b"content-length") else {b"content-length"}
    assert _kept(answer.headers, own) == _kept(case.answer.headers, own), name


def _kept(headers: Headers, own: set[bytes]) -> Headers:
    """Return the headers that pass, by lower-case names."""
    lower = [(name.lower(), value) for name, value in headers]
    return [pair for pair in lower if pair[0] not in _OF_ONE_CONNECTION | own]


def _has(headers: Headers, name: bytes) -> bool:
    return any(key.lower() == name for key, _ in headers)


def _without_splice(body: bytes) -> bytes:
    """Take the option that guard has put in out again: it stands in one place alone."""
    at = body.index(_USAGE)
    before, after = body[:at], body[at + len(_USAGE) :]
    return before[:-1] + after if before.endswith(b",") else before + after[1:]
