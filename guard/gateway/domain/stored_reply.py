"""Replies of the gate as they are stored for repeats: a third of their JSON.

A reply is written with each decision, and read for one in many thousands. Values are stored without
their names, and what follows from others (cents, the remainder) is left out. Unpacked, it is the
same JSON again, byte for byte.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from guard.core import wire

_encoder: Final = msgspec.msgpack.Encoder()
_decoder: Final = msgspec.msgpack.Decoder()
_JSON: Final = b"{"


def packed(reply: wire.GateReply) -> bytes | None:
    """Return a reply in its stored form; ``None`` for one that is stored as JSON.

    >>> reply = wire.GateReply(decision="allow", call_id="c", reservation_id="r")
    >>> unpacked(packed(reply)) == wire.encode(reply)
    True
    """
    budget, lease, rates = reply.budget, reply.lease, reply.rates
    # The rare replies, with fields that the tuple below does not have. A new field of the protocol
    # has to be added to either, or it is lost in repeats.
    if (
        reply.decision != "allow"
        or reply.events is not None
        or reply.approval_id is not None
        or reply.max_output_tokens is not None
        or reply.renew_ms
        or reply.winding_down
        or (lease is not None and lease.returns_ms)
    ):
        return None
    return _encoder.encode(
        (
            reply.call_id,
            reply.reservation_id,
            reply.reserved_nanousd,
            reply.expires_at_ms,
            None
            if budget is None
            else (
                budget.limit_nanousd,
                budget.spent_nanousd,
                budget.reserved_nanousd,
                budget.resets_at_ms,
                budget.scope,
            ),
            reply.warnings,
            None
            if lease is None
            else (
                lease.lease_id,
                lease.granted_nanousd,
                lease.ttl_ms,
                lease.policy_version,
                lease.calls,
                _values(lease.rates),
                lease.overspent_nanousd,
            ),
            _values(rates),
        )
    )


def unpacked(stored: bytes) -> bytes:
    """Return the JSON of a reply in its stored form; JSON as it is."""
    if not stored or stored[:1] == _JSON:
        return stored
    call_id, reservation_id, reserved, expires_at_ms, budget, warnings, lease, rates = (
        _decoder.decode(stored)
    )
    reply = wire.GateReply(
        decision="allow",
        call_id=call_id,
        reservation_id=reservation_id,
        reserved_nanousd=reserved,
        expires_at_ms=expires_at_ms,
        warnings=warnings,
        rates=_rates(rates),
    )
    if budget is not None:
        limit, spent, held, resets_at_ms, scope = budget
        reply.budget = wire.Budget.of(
            limit=limit, spent=spent, reserved=held, resets_at_ms=resets_at_ms, scope=scope
        )
    if lease is not None:
        # Replies that were stored before `overspent_nanousd` end with the rates.
        lease_id, granted, ttl_ms, version, calls, its_rates, *overspent = lease
        reply.lease = wire.LeaseGrant(
            lease_id, granted, ttl_ms, version, calls, _rates(its_rates), *overspent
        )
    return wire.encode(reply)


def _values(rates: wire.ModelRates | None) -> tuple[Any, ...] | None:
    return None if rates is None else msgspec.structs.astuple(rates)


def _rates(values: list[Any] | None) -> wire.ModelRates | None:
    return None if values is None else wire.ModelRates(*values)
