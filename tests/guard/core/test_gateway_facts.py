"""What a request is bounded at with an operator's facts beside those of the release."""

from __future__ import annotations

from typing import Any

from guard.core import wire
from guard.core.bounds import InputRatios, bound_of
from guard.core.control import ControlState
from guard.core.gateway_facts import GatewayFacts
from guard.core.usage.vendors import find_endpoint
from guard.core.vendors.bodies import BODIES, FORMATS
from guard.gateway.domain.facts import JUDGED, OwnFact, distinct, message_of


def bound(host: str, path: str, body: bytes, facts: list[OwnFact]) -> Any:
    endpoint = find_endpoint("POST", host, path)
    assert endpoint is not None
    known = GatewayFacts(message_of(distinct(facts)))
    return bound_of(endpoint.format, path, body, InputRatios(), known.trusted, known.bodies)


def chat_bound(body: str, *facts: OwnFact) -> Any:
    text = f'{{"model": "gpt-4o", "max_tokens": 9, "messages": [], {body}}}'
    return bound("api.openai.com", "/v1/chat/completions", text.encode(), list(facts))


def at(place: str, name: str, judged: Any) -> OwnFact:
    return OwnFact(name=name, at=place, judged=judged, format="chat")


def test_a_fact_counts_instead_of_the_releases() -> None:
    opened = '"web_search_options": {"a": 1}'
    assert chat_bound(opened).input_tokens is None
    freed = chat_bound(opened, at("", "web_search_options", "neutral"))
    assert freed.input_tokens is not None
    assert freed.trusted == ("member:web_search_options",), "the run names what it has used"
    assert chat_bound('"user": "me"').input_tokens is not None
    assert chat_bound('"user": "me"', at("", "user", "opens")).input_tokens is None
    assert chat_bound('"user": "me"', at("", "user", "repeats")).output_tokens is None
    tool = '"tools": [{"type": "function"}]'
    assert chat_bound(tool).input_tokens is not None
    assert chat_bound(tool, at("tools", "function", "vendor")).input_tokens is None
    orbit = '"tools": [{"type": "orbit"}]'
    assert chat_bound(orbit).unknown == ("tool:orbit",)
    lent = chat_bound(orbit, at("tools", "orbit", "client"))
    assert (lent.unknown, lent.trusted) == ((), ("tool:orbit",))


def test_a_fact_inside_of_an_unknown_member_does_not_free_the_member() -> None:
    body = '"max_rounds": {"search": 3}'
    assert chat_bound(body).unknown == ("member:max_rounds",)
    inner = at("max_rounds", "search", "neutral")
    assert chat_bound(body, inner).unknown == ("member:max_rounds",)
    both = chat_bound(body, inner, at("", "max_rounds", "neutral"))
    assert (both.unknown, both.trusted) == ((), ("member:max_rounds", "member:max_rounds.search"))
    assert chat_bound(body, at("nowhere.at.all", "search", "neutral")).unknown


def test_facts_of_one_organisation_leave_those_of_the_release_alone() -> None:
    before = repr(BODIES)
    facts = [
        OwnFact(name=f"{judged}-{name}", judged=judged, format=kind, at=place)  # type: ignore[arg-type]
        for kind in FORMATS
        for judged in JUDGED
        for place in ("", "tools", "messages.**", "input.**", "contents.**", "no.such")
        for name in ("x", "stop")
    ]
    known = GatewayFacts(message_of(facts))
    assert repr(known.bodies) != before
    assert repr(BODIES) == before


def test_the_dearest_of_several_judgements_of_a_name_counts() -> None:
    cheap, dear = at("", "user", "neutral"), at("", "user", "opens")
    assert distinct([cheap, dear]) == distinct([dear, cheap]) == [dear]


def test_an_old_gateway_and_what_a_newer_one_judges_change_nothing() -> None:
    hello = wire.ControlMessage(seq=1, type="hello")
    assert ControlState().apply(hello).facts is None
    newer = wire.OwnFacts("v", "2030-01-01", [
        wire.FactGroup("chat", "", "quantum", ["user"]), wire.FactGroup("telex", "", "neutral", []),
    ])  # fmt: skip
    state = ControlState().apply(wire.ControlMessage(seq=1, type="hello", facts=newer))
    assert state.facts is not None
    assert state.known.endswith("facts=v")
    assert repr(state.facts.bodies["chat"]) == repr(BODIES["chat"])
