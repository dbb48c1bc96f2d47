"""Leases: reservations granted in advance."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from guard.core.wire.fields import RENEWED_MAX, DurationMs, Name, NanoUsd


class LeaseAsk(Struct, omit_defaults=True):
    """The part of a gate request about a lease: the caller can hold one for this lane.

    Args:
        lease_id: the caller's lease of this lane, if it has one; it is topped up.
        unused_nanousd: what is left in that lease. It is given back before the decision, so that
            the grant is all that the lease holds for calls still to come.
        demand_nanousd: what the calls that wait for this answer, and those of the next seconds at
            the present rate, are expected to take in all; at least this call's own amount.
        demand_calls: how many calls that is.
        calls_left: unused calls of the lease's share of rate caps, given back likewise.
        ahead: no call waits: the lease is topped up by the demand, or by less, or not at all. It is
            judged like a call, but counts as none.
    """

    lease_id: Name | None = None
    unused_nanousd: NanoUsd = 0
    demand_nanousd: NanoUsd = 0
    demand_calls: Annotated[int, Meta(ge=0, le=1_000_000)] = 1
    calls_left: Annotated[int, Meta(ge=0, le=1_000_000)] = 0
    ahead: bool = False


class RateRow(Struct, frozen=True, array_like=True, cache_hash=True):
    """One row of a model's price list: nano-dollars per million tokens, by bucket.

    Args:
        tier: the service tier; empty for the standard one.
        above: it prices requests whose prompt has more tokens than that; -1 for any.
        input, output, cache_read, cache_write, cache_write_1h, reasoning, audio: by bucket; no
            ``audio`` (0) costs as much as the dearest text.
        audio_input: audio in the prompt; 0: as much as ``audio``.
    """

    tier: str
    above: int
    input: int
    output: int
    cache_read: int
    cache_write: int
    cache_write_1h: int
    reasoning: int
    audio: int
    audio_input: int = 0


class ModelRates(
    Struct, omit_defaults=True, rename={"largest_output_tokens": "assumed_output_tokens"}
):
    """What a model costs, in nano-dollars per million tokens, as the gateway prices it.

    Args:
        input_per_mtok, output_per_mtok, cache_read_per_mtok, cache_write_per_mtok,
            reasoning_per_mtok, audio_per_mtok: by bucket; no price falls with the size of the
            prompt here, so a long prompt may be priced too high, never too low.
        worst_input_per_mtok, worst_output_per_mtok: the dearest bucket that a token of the
            prompt, or of the answer, can fall into.
        largest_output_tokens: the most that one answer without a limit can have; None when that
            is not known, so that a limit has to be put in. Called ``assumed_output_tokens`` in
            messages, as by older peers.
        context_tokens: the model's context window, if known.
        rows: the price list that all these figures are the dearest of; older gateways send none.
        present_rows: the price list of this hour, by which answers are charged, where prices change
            with the hour or on a date; ``rows`` are then the dearest of the day.
        text_permille, text_overhead: how many times the bound of a prompt's text, in thousandths,
            the answers to such prompts have shown, and how many tokens besides; 0: none was above.
        default_tier: the service tier of requests that name none; empty for the standard one.
        fallback: whether the model's price is not known, so that these are the gateway's own.
        answered_by: the model that answers such requests, where that is another: these are then the
            rates of the dearer one, and ``present_rows`` those of the one that answers.
    """

    input_per_mtok: int
    output_per_mtok: int
    cache_read_per_mtok: int
    cache_write_per_mtok: int
    reasoning_per_mtok: int
    audio_per_mtok: int
    worst_input_per_mtok: int
    worst_output_per_mtok: int
    largest_output_tokens: int | None = None
    context_tokens: int | None = None
    rows: list[RateRow] = []
    present_rows: list[RateRow] = []
    text_permille: int = 0
    text_overhead: int = 0
    default_tier: Name = ""
    fallback: bool = False
    answered_by: Name = ""


class LeaseGrant(Struct, omit_defaults=True):
    """A reservation granted in advance, which the holder spends by itself.

    It belongs to one lane: key, workflow, agent, chain, user and model. It covers calls with the
    same kind, function, tool name, tools and model as the one that was asked for, and those that
    were allowed earlier with the same lease under the same ``policy_version``.

    Args:
        lease_id: the id of the reservation; events that the lease pays for name it.
        granted_nanousd: added by this answer, this call's own amount included.
        ttl_ms: how long it lasts from this answer on, unless it is renewed.
        policy_version: changes with policies, prices and settings; others void what is covered.
        calls: how many calls the share of rate caps allows, this one included; None: no cap.
        rates: the rates of the lane's model; None where the lane has none or its price is unknown.
        overspent_nanousd: what the lease's calls have cost beyond what it held, since it began. It
            was charged to the budgets themselves, so the holder owes it no more.
        returns_ms: others wait for money of these budgets: for so long the lease covers nothing,
            and what a call does not use is given back at once.
    """

    lease_id: Name
    granted_nanousd: NanoUsd
    ttl_ms: int
    policy_version: Name = ""
    calls: int | None = None
    rates: ModelRates | None = None
    overspent_nanousd: NanoUsd = 0
    returns_ms: DurationMs = 0


class LeaseUpdate(Struct, omit_defaults=True):
    """Body of ``POST /gate/lease``: renews a lease and gives back what is not used.

    Args:
        lease_id: the lease; or a reservation that is renewed, which takes only ``also``; or the
            approval that the caller waits for, which takes no other field.
        unused_nanousd: is given back.
        calls_left: unused calls of its share of rate caps, given back.
        close: nothing more will be taken from it; what remains pays for events on their way and
            is released shortly afterwards.
        under_way_nanousd: with ``close``, what LLM requests can cost that were sent and whose
            events are not delivered. So much is charged in doubt when the lease ends; of one that
            has expired, no more than that stays charged.
        also: more reservations to renew.
    """

    lease_id: Name
    unused_nanousd: NanoUsd = 0
    calls_left: Annotated[int, Meta(ge=0, le=1_000_000)] = 0
    close: bool = False
    under_way_nanousd: NanoUsd = 0
    also: Annotated[list[Name], Meta(max_length=RENEWED_MAX)] = []


class LeaseState(Struct, omit_defaults=True):
    """Reply to a lease update. ``over`` names those of several reservations that are not open."""

    lease_id: Name
    state: str
    held_nanousd: int
    ttl_ms: int
    over: list[str] = []
