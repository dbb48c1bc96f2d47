"""Callers name their user, workflow, run and tags in any language, as far as their key may."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import attrs
import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from guard.core.wire import NAME_LENGTH_MAX, NAMED, TAGS_MAX
from guard.gateway.embedded import Gateway, run_gateway
from guard.proxy.names import NameRefusedError, named_by, user_in
from tests.guard.instrumentation.standin.server import StandIn
from tests.proxy.test_team import CHAT, Caller, operator_of, serving
from tests.support.recording_vendor import RecordingVendor
from tests.support.waiting import WAIT_S, until

NAMES = {
    "x-guard-user": "alice@example.com", "X-Guard-Workflow": "nightly", "x-guard-run": "run-7",
    "x-guard-tags": "env=prod, job=nightly",
}  # fmt: skip
RESPONSE = {"model": "gpt-4o", "max_output_tokens": 50, "input": "hi", "safety_identifier": "s-1"}
MESSAGES = {**CHAT, "model": "claude-haiku-4-5", "metadata": {"user_id": "m-1"}}


@pytest.fixture(scope="module")
def gateway() -> Iterator[Gateway]:
    with run_gateway() as running:
        yield running


@pytest.fixture(scope="module")
def upstream() -> Iterator[RecordingVendor]:
    with contextlib.closing(RecordingVendor()) as vendor:
        yield vendor


@attrs.frozen
class Door:
    """A proxy and its gateway."""

    url: str
    gateway: Gateway

    def caller(self, *may_name: str, like: Caller | None = None, **fields: Any) -> Caller:
        """Make a key that may name some kinds, in an organisation of its own or another's."""
        admin = Caller.of(self.gateway).admin if like is None else like.admin
        made = admin.create_key_full("named", may_name=list(may_name), **fields)
        return Caller(admin, made["api_key"], made["key"]["key_id"])

    def send(
        self, caller: Caller, headers: Any = (), body: dict[str, Any] = CHAT,
        path: str = "openai/v1/chat/completions",
    ) -> httpx.Response:  # fmt: skip
        """Send a request."""
        sent = [("x-guard-key", caller.key), *(dict(headers).items())]
        return httpx.post(f"{self.url}/{path}", json=body, headers=sent, timeout=2 * WAIT_S)


def settings_of(gateway: Gateway) -> dict[str, str]:
    """Return the settings of a proxy of a gateway."""
    operator = operator_of(gateway, gateway.organisation_id)
    made = operator.create_key_full("proxy", role="proxy", every_organisation=True)
    return {"GUARD_API_URL": gateway.base_url, "GUARD_API_KEY": made["api_key"]}


def upstreams(vendor: RecordingVendor) -> list[str]:
    """Return the options of a proxy that lead to a vendor."""
    names = ("openai", "anthropic")
    return [word for name in names for word in ("--upstream", f"{name}={vendor.url}")]


@pytest.fixture(scope="module")
def door(gateway: Gateway, upstream: RecordingVendor) -> Iterator[Door]:
    with serving(*upstreams(upstream), **settings_of(gateway)) as (url, _):
        yield Door(url, gateway)


def only_event(caller: Caller) -> dict[str, Any]:
    """Return the event of a caller's only request, once it is there."""
    found: list[Any] = []

    def is_there() -> bool:
        found[:] = [each for each in caller.admin.events(type="llm")
                    if each["key_id"] == caller.key_id]  # fmt: skip
        return bool(found)

    until(is_there)
    (event,) = found
    return dict(event)


def test_what_a_key_may_name_is_charged_so_and_goes_no_further(
    door: Door, upstream: RecordingVendor
) -> None:
    caller = door.caller(*NAMED)
    upstream.requests.clear()
    answer = door.send(caller, {**NAMES, "x-claude-code-session-id": "of-the-tool"})
    assert answer.status_code == 200, answer.text
    event = only_event(caller)
    assert (event["user"], event["workflow_id"], event["run_id"]) == (
        "alice@example.com", "nightly", "run-7",
    )  # fmt: skip
    assert event["tags"] == {"env": "prod", "job": "nightly"}
    (request,) = upstream.requests
    assert not [name for name, _ in request.headers if name.startswith("x-guard")]


@pytest.mark.parametrize("name", NAMES)
def test_what_a_key_may_not_name_is_refused(
    door: Door, upstream: RecordingVendor, name: str
) -> None:
    kind = name.lower().removeprefix("x-guard-")
    caller = door.caller(*(each for each in NAMED if each != kind))
    upstream.requests.clear()
    answer = door.send(caller, {name: NAMES[name]})
    assert answer.status_code == 400
    assert f"--may-name {kind}" in answer.json()["error"]["message"]
    assert not upstream.requests
    others = {each: value for each, value in NAMES.items() if each != name}
    assert door.send(caller, others).status_code == 200


@pytest.mark.parametrize(
    "headers",
    [
        [("x-guard-user", "")], [("x-guard-user", "a"), ("x-guard-user", "b")],
        [("x-guard-user", "x" * (NAME_LENGTH_MAX + 1))], [("x-guard-run", "caf\xe9")],
        [("x-guard-workflow", "a\tb")], [("x-guard-tags", "env")], [("x-guard-tags", "=prod")],
        [("x-guard-tags", "env=a,env=b")], [("x-guard-tags", "n" * 65 + "=1")],
        [("x-guard-tags", ",".join(f"t{i}=1" for i in range(TAGS_MAX + 1)))],
        [("x-guard-tags", "env=" + "v" * (NAME_LENGTH_MAX + 1))],
    ],
)  # fmt: skip
def test_names_are_bounded(headers: list[tuple[str, str]]) -> None:
    pairs = [(name.encode(), value.encode("latin-1")) for name, value in headers]
    with pytest.raises(NameRefusedError, match=headers[0][0]):
        named_by(pairs, NAMED)


@given(st.lists(st.tuples(st.sampled_from(NAMED), st.binary(max_size=300)), max_size=4))
def test_whatever_a_header_has_is_refused_or_a_name(headers: list[tuple[str, bytes]]) -> None:
    pairs = [(f"x-guard-{kind}".encode(), value) for kind, value in headers]
    try:
        named = named_by(pairs, NAMED)
    except NameRefusedError:
        return
    for found in (named.user, named.workflow, named.run, *named.tags, *named.tags.values()):
        assert found is None or (len(found) <= NAME_LENGTH_MAX and found.isascii())
        assert found is None or found.isprintable()


@pytest.mark.parametrize(
    ("path", "body", "user"),
    [
        ("openai/v1/chat/completions", {**CHAT, "user": "u-1"}, "u-1"),
        ("openai/v1/responses", RESPONSE, "s-1"),
        ("anthropic/v1/messages", MESSAGES, "m-1"),
    ],
)
def test_the_vendors_own_field_names_the_user_where_that_is_allowed(
    door: Door, path: str, body: dict[str, Any], user: str
) -> None:
    may, may_not = door.caller("user"), door.caller("run")
    assert door.send(may, (), body, path).status_code == 200
    assert only_event(may)["user"] == user
    assert door.send(may_not, (), body, path).status_code == 200
    assert only_event(may_not)["user"] is None
    named = door.caller("user")
    assert door.send(named, {"x-guard-user": "bob"}, body, path).status_code == 200
    assert only_event(named)["user"] == "bob"


@pytest.mark.parametrize(
    "body",
    [b"", b"[]", b'{"user": 7}', b'{"user": ""}', b'{"metadata": []}', b'{"user": "a\\u0000"}',
     b'{"user": "%s"}' % (b"x" * 300), b"[" * 100_000, b"\xff", b'{"metadata": {"user_id": {}}}'],
)  # fmt: skip
def test_another_thing_in_that_field_names_nobody(body: bytes) -> None:
    assert user_in(body) is None


def test_a_key_for_one_workflow_names_no_other(door: Door) -> None:
    caller = door.caller("workflow", workflow_id="nightly")
    assert door.send(caller, {"x-guard-workflow": "nightly"}).status_code == 200
    answer = door.send(caller, {"x-guard-workflow": "daily"})
    assert answer.status_code == 400
    assert "one workflow" in answer.text


def test_what_a_key_may_name_changes_while_it_is_used(door: Door) -> None:
    caller = door.caller()
    assert door.send(caller, {"x-guard-run": "r"}).status_code == 400
    caller.admin.change_key(caller.key_id, may_name=["run"])
    until(lambda: door.send(caller, {"x-guard-run": "r"}).status_code == 200)


def test_a_run_has_its_own_limit_across_proxies_and_resumes(
    gateway: Gateway, upstream: RecordingVendor, door: Door
) -> None:
    caller = door.caller("run")
    other = door.caller("run", like=caller)
    caller.admin.set_budget(scope_kind="run", scope_id="*", limit_nanousd=1_200_000)

    def spend(url: str, who: Caller, **headers: str) -> int:
        names = {name.replace("_", "-"): value for name, value in headers.items()}
        for number in range(30):
            if Door(url, gateway).send(who, names).status_code == 400:
                return number
        return 30

    first = spend(door.url, caller, x_guard_run="a")
    assert 1 <= first < 30
    with serving(*upstreams(upstream), **settings_of(gateway)) as (resumed, _):
        assert spend(resumed, caller, x_guard_run="a") == 0
        assert spend(resumed, caller, x_claude_code_session_id="a") == 0
        assert spend(resumed, caller, x_guard_run="b") == first
        assert spend(resumed, other, x_guard_run="a") == first, "another's run of this name"


def test_a_limit_of_a_run_by_its_name_holds_for_all_who_name_it(door: Door) -> None:
    caller = door.caller("run")
    other = door.caller("run", like=caller)
    caller.admin.set_budget(scope_kind="run", scope_id="shared", limit_nanousd=1)
    for each in (caller, other):
        assert door.send(each, {"x-guard-run": "shared"}).status_code == 400
        assert door.send(each, {"x-guard-run": "own"}).status_code == 200


def test_a_proxy_may_want_a_session(gateway: Gateway, upstream: RecordingVendor) -> None:
    words = (*upstreams(upstream), "--require-session")
    with serving(*words, **settings_of(gateway)) as (url, _):
        door = Door(url, gateway)
        caller = door.caller("run")
        refused = door.send(caller)
        assert refused.status_code == 400
        assert "x-guard-run" in refused.json()["error"]["message"]
        for header in ("x-guard-run", "x-claude-code-session-id", "session_id"):
            assert door.send(caller, {header: "s-1"}).status_code == 200


def shown(headers: httpx.Headers) -> dict[str, str]:
    return {name: value for name, value in headers.items() if name.startswith("x-guard-")}


def test_a_key_that_may_know_is_told_what_it_has_cost(door: Door) -> None:
    caller = door.caller("run", shows_cost=True)
    caller.admin.set_budget(scope_kind="key", scope_id=caller.key_id, limit_nanousd=10**9)
    told = shown(door.send(caller, {"x-guard-run": "r-1"}).headers)
    cost = only_event(caller)["cost_nanousd"]
    assert told.pop("x-guard-run") == "r-1"
    assert {name: round(float(value) * 10**9) for name, value in told.items()} == {
        "x-guard-cost": cost, "x-guard-remaining": 10**9 - cost,
    }  # fmt: skip
    assert not shown(door.send(door.caller(), {"x-guard-cost": "1"}).headers)


def test_a_stream_says_it_at_its_end_if_it_is_asked(gateway: Gateway, vendor: StandIn) -> None:
    body = {**CHAT, "stream": True}
    with serving("--upstream", f"openai={vendor.url}", **settings_of(gateway)) as (url, _):
        door = Door(url, gateway)
        caller = door.caller(shows_cost=True)
        asked = door.send(caller, {"x-guard-cost": "1"}, body)
        last = [line for line in asked.text.splitlines() if line.startswith(":")]
        assert last[
            0
        ] == f": x-guard-cost: {only_event(caller)['cost_nanousd'] / 10**9:.9f}".rstrip("0")
        assert asked.text.index(last[0]) > asked.text.index("[DONE]")
        assert "x-guard" not in door.send(caller, (), body).text
        assert "x-guard" not in door.send(door.caller(), {"x-guard-cost": "1"}, body).text


def test_each_is_told_its_own_cost(door: Door) -> None:
    """Answers of many callers are read together, by whichever task needs one of them."""
    one, other = (door.caller(shows_cost=True) for _ in range(2))

    def ask(number: int) -> tuple[bool, str]:
        if is_other := number % 2 == 1:
            answer = door.send(other, (), MESSAGES, "anthropic/v1/messages")
        else:
            answer = door.send(one)
        return is_other, answer.headers["x-guard-cost"]

    with ThreadPoolExecutor(8) as pool:
        told = set(pool.map(ask, range(40)))
    assert len(told) == 2, told
