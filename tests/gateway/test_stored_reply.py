"""Replies stored for repeats come back byte for byte."""

from __future__ import annotations

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from guard.core import wire
from guard.gateway.domain.stored_reply import packed, unpacked

amounts = st.integers(0, wire.NANOUSD_MAX)
names = st.text(max_size=20)
rates = st.builds(
    wire.ModelRates,
    *[amounts] * 8,
    largest_output_tokens=st.none() | st.integers(1, 2**40),
    context_tokens=st.none() | st.integers(1, 2**40),
)
budgets = st.builds(
    wire.Budget.of,
    limit=amounts,
    spent=amounts,
    reserved=amounts,
    resets_at_ms=st.none() | amounts,
    scope=st.none() | names,
)
leases = st.builds(
    wire.LeaseGrant,
    names,
    amounts,
    st.integers(0, 2**40),
    policy_version=names,
    calls=st.none() | st.integers(0, 10**6),
    rates=st.none() | rates,
)
replies = st.builds(
    wire.GateReply,
    decision=st.sampled_from(["allow", "pending"]),
    call_id=names,
    reservation_id=st.none() | names,
    reserved_nanousd=amounts,
    expires_at_ms=st.none() | amounts,
    budget=st.none() | budgets,
    warnings=st.lists(names, max_size=3),
    lease=st.none() | leases,
    rates=st.none() | rates,
    approval_id=st.none() | names,
    events=st.none() | st.builds(wire.EventsOutcome, accepted=amounts),
    renew_ms=st.sampled_from([0, 30_000]),
    winding_down=st.booleans(),
)


@given(replies)
def test_a_reply_comes_back_byte_for_byte(reply: wire.GateReply) -> None:
    json = wire.encode(reply)
    stored = packed(reply)
    assert unpacked(json if stored is None else stored) == json


def test_every_field_of_a_reply_is_either_stored_or_kept_as_json() -> None:
    """A new field has to be added to the stored form, or replies with it stored as JSON."""
    assert {field.name for field in msgspec.structs.fields(wire.GateReply)} == {
        "decision", "call_id", "reservation_id", "reserved_nanousd", "expires_at_ms", "budget",
        "warnings", "lease", "rates", "approval_id", "events", "place", "retry_after_ms", "idle_ms",
        "max_output_tokens", "renew_ms", "winding_down", "asks",
    }  # fmt: skip


def test_it_is_a_third_of_its_json() -> None:
    reply = wire.GateReply(
        decision="allow",
        call_id="0194a5c8-0000-7000-8000-000000000001",
        reservation_id="0194a5c8-0000-7000-8000-000000000002",
        reserved_nanousd=10_000_000,
        expires_at_ms=1_800_000_000_000,
        budget=wire.Budget.of(
            limit=10**12, spent=10**11, reserved=10**10, scope="workflow w (day)"
        ),
        rates=wire.ModelRates(*[2_500_000_000] * 8, largest_output_tokens=4096),
    )
    stored = packed(reply)
    assert stored is not None
    assert len(stored) < 0.4 * len(wire.encode(reply))
