"""The status: one pure function of facts; misconfigured > offline > degraded > ok (spec part 3)."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

import pytest
from msgspec.structs import replace

from guard import GuardStatus
from guard.state import Facts, State, derive_state

WELL = Facts(silence_ms=0, poll_interval_ms=1000, channel="websocket")


def given(**facts: Any) -> State:
    return derive_state(replace(WELL, **facts))


def test_all_well() -> None:
    assert derive_state(WELL) == "ok"


@pytest.mark.parametrize(
    ("facts", "state"),
    [
        ({"misconfigured": True}, "misconfigured"),
        ({"shut_down": True}, "offline"),
        ({"breaker": "open"}, "offline"),
        ({"channel": "none", "silence_ms": None}, "offline"),
        ({"channel": "none", "silence_ms": 3001}, "offline"),
        ({"channel": "none", "silence_ms": 3000}, "degraded"),
        ({"channel": "none", "silence_ms": 8000, "poll_interval_ms": 5000}, "degraded"),
        ({"channel": "poller"}, "degraded"),
        ({"breaker": "half_open"}, "degraded"),
        ({"spooled": 1}, "degraded"),
        ({"lost_since_contact": True}, "degraded"),
        ({"unseen_hosts": True}, "degraded"),
        ({"gate_unavailable": True}, "degraded"),
    ],
)
def test_each_fact(facts: dict[str, Any], state: State) -> None:
    assert given(**facts) == state


MISCONFIGURED = [{"misconfigured": True}]
OFFLINE: list[dict[str, Any]] = [
    {"shut_down": True}, {"breaker": "open"}, {"channel": "none", "silence_ms": None},
]  # fmt: skip
DEGRADED: list[dict[str, Any]] = [
    {"spooled": 1}, {"lost_since_contact": True}, {"unseen_hosts": True},
    {"gate_unavailable": True},
]  # fmt: skip


def test_the_worst_that_is_true_names_it() -> None:
    ranks: list[tuple[State, list[dict[str, Any]]]] = [
        ("misconfigured", MISCONFIGURED), ("offline", OFFLINE), ("degraded", DEGRADED),
    ]  # fmt: skip
    pairs = itertools.combinations(ranks, 2)
    for (worse, worse_facts), (_, milder_facts) in pairs:
        for one, other in itertools.product(worse_facts, milder_facts):
            assert given(**{**other, **one}) == worse


def test_nothing_known_yet_is_offline() -> None:
    assert derive_state(Facts()) == "offline"


def test_every_combination_has_one_of_the_four_states() -> None:
    """And a fact that gets worse never makes the state better."""
    severity = {"ok": 0, "degraded": 1, "offline": 2, "misconfigured": 3}
    axes: dict[str, tuple[Any, ...]] = {
        "misconfigured": (False, True),
        "shut_down": (False, True),
        "silence_ms": (0, 3001, None),
        "channel": ("websocket", "poller", "none"),
        "breaker": ("closed", "half_open", "open"),
        "spooled": (0, 5),
        "lost_since_contact": (False, True),
        "unseen_hosts": (False, True),
        "gate_unavailable": (False, True),
    }
    for values in itertools.product(*axes.values()):
        facts = dict(zip(axes, values, strict=True))
        now = severity[given(**facts)]
        for name, steps in axes.items():
            at = steps.index(facts[name])
            if at + 1 < len(steps):
                assert severity[given(**facts | {name: steps[at + 1]})] >= now


def test_the_snapshot_is_frozen_and_has_these_fields() -> None:
    assert [field.name for field in dataclasses.fields(GuardStatus)] == [
        "state", "api_url", "protocol", "control_channel", "breaker", "buffered", "spooled",
        "events_sent", "events_lost", "last_contact_ms", "last_error_code", "unseen_hosts",
        "sdk_version", "pid", "decisions", "leases", "leased_nanousd", "leased_calls", "mode",
        "workflow",
        "journal",
        "unseen_requests",
        "cut_short",
        "unpriced_models",
        "waiting_calls",
        "unhooked_clients",
        "restored_hooks",
        "unhooked_tools",
        "unchecked_tools",
    ]  # fmt: skip
    status = GuardStatus(
        "ok", "http://127.0.0.1", 3, "websocket", "closed", 0, 0, 0, 0, None, None, (), "1", 1
    )
    with pytest.raises(dataclasses.FrozenInstanceError):
        status.state = "offline"  # type: ignore[misc]  # that it cannot be set is what is tested
