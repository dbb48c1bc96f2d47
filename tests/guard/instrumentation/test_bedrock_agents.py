"""Agents of Amazon Bedrock: what their traces say of models is charged, with the real client."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import boto3
import pytest
from botocore.config import Config

from tests.guard.instrumentation.conftest import Observed
from tests.guard.instrumentation.standin.reply import Reply, aws_frame, encoded
from tests.guard.instrumentation.standin.server import StandIn

HOST = "bedrock-agent-runtime.us-east-1.amazonaws.com"
NOVA, CLAUDE = "amazon.nova-pro-v1:0", "anthropic.claude-sonnet-4-5-20250929-v1:0"


def agent_client(url: str) -> Any:
    """Return a client of the vendor's own host, through a forward proxy that is the stand-in."""
    return boto3.client(
        "bedrock-agent-runtime",
        endpoint_url=f"http://{HOST}",
        region_name="us-east-1",
        aws_access_key_id="test",
        aws_secret_access_key="test",
        config=Config(retries={"max_attempts": 0}, proxies={"http": url}),
    )


def step(kind: str, number: int, model: str, prompt: str = "p") -> Iterator[bytes]:
    """Yield the two trace events of one model invocation."""
    trace_id = f"t-{number}"
    asked = {"traceId": trace_id, "type": "ORCHESTRATION", "foundationModel": model, "text": prompt}
    said = {
        "traceId": trace_id,
        "metadata": {"usage": {"inputTokens": 100 + number, "outputTokens": 10}},
        "rawResponse": {"content": prompt},
    }
    for part in ({"modelInvocationInput": asked}, {"modelInvocationOutput": said}):
        yield aws_frame("trace", encoded({"agentId": "A", "trace": {kind: part}}))


def collaborator(number: int) -> bytes:
    """Return what a collaborator reports: the sum of invocations that have their own events."""
    usage = {"usage": {"inputTokens": 10**6, "outputTokens": 10**6}}
    output = {"agentCollaboratorName": "c", "metadata": usage}
    observation = {"traceId": f"t-{number}", "agentCollaboratorInvocationOutput": output}
    return aws_frame(
        "trace", encoded({"trace": {"orchestrationTrace": {"observation": observation}}})
    )


def stream(*events: bytes) -> Reply:
    ending = aws_frame("chunk", encoded({"bytes": "aGVsbG8="}))
    content_type = "application/vnd.amazon.eventstream"
    return Reply(None, events=(*events, ending), content_type=content_type)


def invoke(url: str) -> Any:
    asked = {"agentId": "AGENT12345", "agentAliasId": "ALIAS12345", "sessionId": "s-1"}
    client = agent_client(url)
    return client.invoke_agent(**asked, inputText="hello", enableTrace=True)["completion"]


def invoke_inline(url: str) -> Any:
    asked = {"foundationModel": NOVA, "instruction": "x" * 40, "sessionId": "s-1"}
    client = agent_client(url)
    return client.invoke_inline_agent(**asked, inputText="hello", enableTrace=True)["completion"]


def charged(observed: Observed) -> list[tuple[str, int, int]]:
    return sorted((e.model, e.input_tokens, e.output_tokens) for e in observed.events)


@pytest.mark.parametrize("call", [invoke, invoke_inline])
def test_each_model_in_a_trace_is_charged(standin: StandIn, observed: Observed, call: Any) -> None:
    standin.instead = stream(
        *step("preProcessingTrace", 1, CLAUDE),
        *step("orchestrationTrace", 2, NOVA),
        collaborator(2),
        *step("orchestrationTrace", 3, NOVA),
    )
    assert [list(event) for event in call(standin.url)][-1] == ["chunk"]
    assert charged(observed) == [(NOVA, 205, 20), (CLAUDE, 101, 10)]
    assert observed.instrumentation.unseen_hosts() == ()
    assert {event.provider for event in observed.events} == {"aws"}
    assert len(set(observed.scopes)) == 1


def test_a_long_trace_is_read_to_its_end(standin: StandIn, observed: Observed) -> None:
    """Each step repeats its prompt: 40 steps of 200 kB are far more than is kept of a stream."""
    steps = [step("orchestrationTrace", n, NOVA, "p" * 100_000) for n in range(40)]
    standin.instead = stream(*(event for events in steps for event in events))
    list(invoke(standin.url))
    assert charged(observed) == [(NOVA, sum(100 + n for n in range(40)), 400)]
    assert not observed.events[0].estimated


def test_a_stream_that_is_left_is_charged_for_what_was_read(
    standin: StandIn, observed: Observed
) -> None:
    standin.hold = True
    standin.instead = stream(
        *step("orchestrationTrace", 1, NOVA), *step("orchestrationTrace", 2, NOVA)
    )
    with contextlib.closing(invoke(standin.url)) as events:
        for event in events:
            if "modelInvocationOutput" in str(event):
                break
    assert charged(observed) == [(NOVA, 101, 10)]


def test_without_a_trace_the_host_is_named(standin: StandIn, observed: Observed) -> None:
    standin.instead = stream()
    list(invoke(standin.url))
    assert observed.events == []
    assert observed.instrumentation.unseen_hosts() == (HOST,)
