"""Spans and metrics in a program's own OpenTelemetry: its SDK, a gateway, a stand-in vendor."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import attrs
import pytest

from guard.gateway.embedded import Gateway, run_gateway
from guard.telemetry import conventions
from tests.guard.instrumentation.standin.server import StandIn
from tests.guard.telemetry.traced_program import PROMPT
from tests.support.programs import environment
from tests.support.waiting import WAIT_S, until

PROGRAM: Final = Path(__file__).with_name("traced_program.py")


@attrs.frozen
class Told:
    """What a program's exporters were given."""

    spans: list[dict[str, Any]]
    metrics: list[dict[str, Any]]

    def one(self, name: str) -> dict[str, Any]:
        """Return the only span of this name."""
        (found,) = [each for each in self.spans if each["name"] == name]
        return found

    def parent(self, span: dict[str, Any]) -> str | None:
        """Return the name of a span's parent."""
        names = {each["id"]: each["name"] for each in self.spans}
        return names.get(span["parent"])

    def points(self, name: str) -> list[dict[str, Any]]:
        return [each for each in self.metrics if each["name"] == name]


@pytest.fixture
def gateway() -> Iterator[Gateway]:
    with run_gateway() as running:
        yield running


@pytest.fixture
def vendor() -> Iterator[StandIn]:
    stand_in = StandIn()
    yield stand_in
    stand_in.close()


def run(name: str, gateway: Gateway, vendor: StandIn) -> Told:
    """Run a program of ``traced_program.py``."""
    env = environment(
        {
            "GUARD_API_URL": gateway.base_url,
            "GUARD_API_KEY": gateway.api_key,
            "GUARD_PRICE_LOCAL": "1",
            "GUARD_OTEL": "0" if name == "switched_off" else "1",
        }
    )
    done = subprocess.run(
        [sys.executable, str(PROGRAM), name, vendor.url],
        env=env, capture_output=True, text=True, timeout=WAIT_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert PROMPT not in done.stdout
    return Told(**json.loads(done.stdout))


def test_the_spans_of_a_run_are_one_tree_with_the_programs_own(
    gateway: Gateway, vendor: StandIn
) -> None:
    told = run("tree", gateway, vendor)
    workflow, agent = told.one("invoke_workflow nightly"), told.one("invoke_agent researcher")
    call, inside = told.one("work"), told.one("own inside")
    requests = [each for each in told.spans if each["name"] == "chat gpt-4o"]
    assert [told.parent(each) for each in (workflow, agent, call, inside)] == [
        "own", workflow["name"], agent["name"], call["name"],
    ]  # fmt: skip
    assert [told.parent(each) for each in requests] == ["work", "own inside"]
    assert told.one("a step")["parent"] is None
    assert len({each["trace"] for each in told.spans}) == 2
    assert all(each["status"] == "UNSET" for each in told.spans)


def test_a_request_says_what_it_used_and_what_guard_did(gateway: Gateway, vendor: StandIn) -> None:
    vendor.reset()
    told = run("tree", gateway, vendor)
    request = next(each for each in told.spans if each["name"] == "chat gpt-4o")
    said = request["attributes"]
    usage = vendor.said[0]
    whole = usage.input_tokens + usage.cache_read_tokens + usage.cache_write_tokens
    assert request["kind"] == "CLIENT"
    assert said[conventions.INPUT_TOKENS] == whole
    assert said[conventions.CACHE_READ_TOKENS] == usage.cache_read_tokens > 0
    assert said[conventions.OUTPUT_TOKENS] == usage.output_tokens + usage.reasoning_tokens
    assert said[conventions.OPERATION] == "chat"
    assert said[conventions.PROVIDER] == "openai"
    assert said[conventions.REQUEST_MODEL] == "gpt-4o"
    assert said[conventions.STATUS] == 200
    assert said[conventions.DECISION] == "allowed"
    assert (said[conventions.WORKFLOW], said[conventions.AGENT_NAME], said[conventions.USER]) == (
        "nightly", "researcher", "u1",
    )  # fmt: skip
    assert said[conventions.COST] > 0
    assert said[conventions.SET_ASIDE] > 0
    assert 0 < request["seconds"] < WAIT_S


def test_the_gateway_knows_a_call_by_the_same_ids(gateway: Gateway, vendor: StandIn) -> None:
    told = run("tree", gateway, vendor)
    events: list[dict[str, Any]] = until(lambda: gateway.admin.events(type="llm"))
    call, inside = told.one("work"), told.one("own inside")
    assert {each["trace_id"] for each in events} == {call["trace"]}
    assert {each["span_id"] for each in events} == {call["id"]}
    assert inside["trace"] == call["trace"]
    held = {each["reservation_id"] for each in events}
    spans = [each["attributes"] for each in told.spans if each["name"] == "chat gpt-4o"]
    assert {each[conventions.RESERVATION] for each in spans} == held


def test_metrics(gateway: Gateway, vendor: StandIn) -> None:
    told = run("tree", gateway, vendor)
    tokens = {
        each["attributes"][conventions.TOKEN_TYPE]: each
        for each in told.points(conventions.TOKEN_USAGE)
    }
    spans = [each["attributes"] for each in told.spans if each["name"] == "chat gpt-4o"]
    for kind, name in (("input", conventions.INPUT_TOKENS), ("output", conventions.OUTPUT_TOKENS)):
        assert tokens[kind]["sum"] == sum(each[name] for each in spans)
        assert tokens[kind]["bounds"][:4] == [1, 4, 16, 64]
    (cost,) = told.points(conventions.COST_COUNTER)
    assert cost["value"] == pytest.approx(sum(each[conventions.COST] for each in spans))
    decisions = {
        each["attributes"][conventions.OPERATION]: each["value"]
        for each in told.points(conventions.DECISIONS)
    }
    assert decisions == {"call": 1, "chat": 2}
    (duration,) = told.points(conventions.DURATION)
    assert duration["unit"] == "s"
    # Labels are few: no run, no user, no id.
    assert conventions.RUN not in duration["attributes"]
    assert conventions.USER not in duration["attributes"]


def test_what_cannot_be_metered_is_counted(gateway: Gateway, vendor: StandIn) -> None:
    points = run("unmetered", gateway, vendor).points(conventions.UNMETERED)
    found = {each["attributes"].get(conventions.CLIENT): each["value"] for each in points}
    assert found == {None: 1, "pycurl": 1}
    assert {each["attributes"][conventions.SERVER] for each in points} == {"127.0.0.1"}


def test_asynchronous_calls_and_generators(gateway: Gateway, vendor: StandIn) -> None:
    told = run("asynchronous", gateway, vendor)
    calls = [each for each in told.spans if each["name"] in ("answer", "words")]
    assert [told.parent(each) for each in calls] == ["own"] * 3
    requests = [each for each in told.spans if each["name"] == "chat gpt-4o"]
    assert sorted(map(str, map(told.parent, requests))) == ["answer", "answer", "words"]
    streamed = [each["attributes"][conventions.REQUEST_STREAM] for each in requests]
    assert sorted(streamed) == [False, False, True]
    assert len({each["trace"] for each in told.spans}) == 1


def test_a_refusal_and_an_error_say_their_kind_and_no_message(
    gateway: Gateway, vendor: StandIn
) -> None:
    gateway.admin.set_budget(scope_kind="workflow", scope_id="poor", limit_nanousd=1000)
    told = run("refused", gateway, vendor)
    call, request = told.one("work"), told.one("chat gpt-4o")
    assert (call["status"], call["attributes"]["error.type"]) == ("ERROR", "ValueError")
    assert call["attributes"][conventions.DECISION] == "allowed"
    assert (request["status"], request["attributes"]["error.type"]) == ("ERROR", "GD-B004")
    assert request["attributes"][conventions.DECISION] == "refused"
    assert [each["said"] for each in told.spans] == [None] * len(told.spans)
    assert [each["events"] for each in told.spans] == [0] * len(told.spans)
    refused = [each for each in told.points(conventions.DECISIONS)
               if each["attributes"][conventions.DECISION] == "refused"]  # fmt: skip
    assert [(each["attributes"]["error.type"], each["value"]) for each in refused] == [
        ("GD-B004", 1)
    ]


def test_what_a_vendor_refuses(gateway: Gateway, vendor: StandIn) -> None:
    vendor.status = 429
    told = run("vendor_refuses", gateway, vendor)
    request = told.one("chat gpt-4o")
    assert (request["status"], request["attributes"]["error.type"]) == ("ERROR", "429")
    assert request["attributes"][conventions.DECISION] == "allowed"
    assert conventions.COST not in request["attributes"]


def test_a_tool(gateway: Gateway, vendor: StandIn) -> None:
    said = run("tool", gateway, vendor).one("execute_tool delete_all")["attributes"]
    assert said[conventions.TOOL_NAME] == "delete_all"
    assert said[conventions.OPERATION] == "execute_tool"


def test_a_decorated_generator(gateway: Gateway, vendor: StandIn) -> None:
    told = run("decorated", gateway, vendor)
    assert told.parent(told.one("invoke_workflow steps")) == "own"


@pytest.mark.parametrize("name", ["switched_off", "sampled_out"])
def test_none_where_they_are_not_wanted(name: str, gateway: Gateway, vendor: StandIn) -> None:
    told = run(name, gateway, vendor)
    assert {each["name"] for each in told.spans} <= {"own", "own inside"}
    counted = {each["name"] for each in told.metrics}
    assert (counted == set()) is (name == "switched_off"), "what is counted is not sampled"
    if name == "sampled_out":
        tokens = told.points(conventions.TOKEN_USAGE)
        used = [each.output_tokens + each.reasoning_tokens for each in vendor.said]
        of = {each["attributes"][conventions.TOKEN_TYPE]: each["sum"] for each in tokens}
        assert of["output"] == sum(used) > 0
        decisions = told.points(conventions.DECISIONS)
        assert sorted(each["value"] for each in decisions) == [1, 2]
    assert until(lambda: gateway.admin.events(type="llm"))


def test_the_names_are_those_of_the_conventions() -> None:
    attributes = pytest.importorskip(
        "opentelemetry.semconv._incubating.attributes.gen_ai_attributes"
    )
    metrics = pytest.importorskip("opentelemetry.semconv._incubating.metrics.gen_ai_metrics")
    theirs = {
        v for m in (attributes, metrics) for k, v in vars(m).items() if k.startswith("GEN_AI")
    }
    ours = {v for v in vars(conventions).values() if isinstance(v, str) and v.startswith("gen_ai.")}
    assert len(ours) > 10
    assert ours <= theirs
    operations = {each.value for each in attributes.GenAiOperationNameValues}
    for path in ("/v1/embeddings", "/v1/messages", "/v1/completions", "/x:generateContent"):
        assert conventions.operation_name(path) in operations
    providers = {each.value for each in attributes.GenAiProviderNameValues}
    for provider, host in (
        ("openai", "api.openai.com"), ("openai", "api.groq.com"), ("anthropic", "x"),
        ("google", "generativelanguage.googleapis.com"), ("aws", "bedrock-runtime.x"),
        ("google", "us-aiplatform.googleapis.com"), ("openai", "x.openai.azure.com"),
        ("cohere", "api.cohere.com"), ("openai", "api.mistral.ai"), ("openai", "api.x.ai"),
    ):  # fmt: skip
        assert conventions.provider_name(provider, host) in providers
