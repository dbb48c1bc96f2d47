"""What requests cost: the one place where requests are bounded and answers priced, on both sides.

A model's price list is a list of rows: for each service tier, and for prompts above a size. A row
prices the whole of a request, its answer too.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Final, Protocol

import msgspec
from msgspec import Struct

from guard.core import fees
from guard.core.wire import NANOUSD_MAX, TOKENS_MAX, ModelRates, RateRow

STANDARD: Final = ""
"""The service tier of a request that asks for no other one."""

PERMILLE: Final = 1000

US_ONLY_PERMILLE: Final = 1100
"""With ``inference_geo: us`` all tokens of Claude's models since Opus 4.6 cost 1.1 times as much
(https://platform.claude.com/docs/en/about-claude/pricing, 2026-11)."""

OWN_KEY_PERMILLE: Final = 1050
"""With one's own key OpenRouter charges a twentieth beside what the key's vendor bills
(https://openrouter.ai/docs/faq, 2026-11). A request does not say whose key it is sent with."""

_MILLION: Final = 1_000_000

BATCH: Final = "batch"
"""The tier of requests that are answered within a day."""

PRIORITY: Final = "priority"
"""The tier of requests that go before others. Bedrock's latency-optimized requests count as such:
they are 1.25 times as dear (https://aws.amazon.com/bedrock/pricing, 2026-11)."""

_UNLISTED_TIERS: Final = {PRIORITY: 2500, "fast": 6000, "ultrafast": 6000, BATCH: 500}
"""Thousandths of the standard price that a tier costs at most where its own prices are not listed:
``priority`` is 1.7 to 2.5 times as dear as standard for the models that have it, and ``fast`` up to
6 times (https://openai.com/api-priority-processing, https://platform.claude.com/docs, 2026-11). The
other tiers (flex, scale) are never dearer. Batches cost half at OpenAI, Anthropic and Google
(https://platform.claude.com/docs/en/build-with-claude/batch-processing,
https://ai.google.dev/gemini-api/docs/batch-api, 2026-11)."""

_CHEAP_TIERS: Final = frozenset(
    {"default", "standard", "auto", "on_demand", "scale", "standard_only"}
)


_OPEN: Final = ("", "auto")


def names_tier(tier: str) -> bool:
    """Return whether a request names its service tier, and does not leave that to its project.

    >>> names_tier("default"), names_tier("auto"), names_tier("")
    (True, False, False)
    """
    return tier not in _OPEN


def is_dearer(tier: str) -> bool:
    """Return whether a service tier may cost more than the standard one.

    >>> is_dearer("priority"), is_dearer("flex")
    (True, False)
    """
    return _UNLISTED_TIERS.get(tier, PERMILLE) > PERMILLE


class Terms(Struct, frozen=True, gc=False):
    """What a request's body says about the rates that it can meet.

    Attributes:
        tier: the service tier that it asks for.
        cache_writes: what may be written to a prompt cache: 0 nothing, 1 for minutes, 2 for an
            hour.
        text_only: whether neither the prompt nor the answer can hold sound.
        sound: whether one of them does, by what the body says.
        surcharge_permille: for the place where it is processed, in thousandths.
    """

    tier: str = STANDARD
    cache_writes: int = 1
    text_only: bool = False
    surcharge_permille: int = PERMILLE
    sound: bool = False


ANY_TERMS: Final = Terms()


class Buckets(Protocol):
    """The tokens of one answer in disjoint buckets, and what is charged besides."""

    @property
    def input_tokens(self) -> int: ...
    @property
    def output_tokens(self) -> int: ...
    @property
    def cache_read_tokens(self) -> int: ...
    @property
    def cache_write_tokens(self) -> int: ...
    @property
    def cache_write_1h_tokens(self) -> int: ...
    @property
    def reasoning_tokens(self) -> int: ...
    @property
    def audio_tokens(self) -> int: ...
    @property
    def audio_input_tokens(self) -> int: ...
    @property
    def service_tier(self) -> str | None: ...
    @property
    def surcharge_permille(self) -> int: ...
    @property
    def fees(self) -> Mapping[str, int] | None: ...


def rows_of(rates: ModelRates) -> list[RateRow]:
    """Return a price list; of an older gateway's rates, which have none, one row."""
    if rates.rows:
        return rates.rows
    return [
        RateRow(
            STANDARD,
            -1,
            rates.input_per_mtok,
            rates.output_per_mtok,
            rates.cache_read_per_mtok,
            rates.cache_write_per_mtok,
            max(rates.cache_write_per_mtok, rates.worst_input_per_mtok),
            rates.reasoning_per_mtok,
            rates.audio_per_mtok,  # its own, or that of the dearest text
        )
    ]


def dearest_rows(lists: Sequence[list[RateRow]]) -> list[RateRow]:
    """Return one price list that is nowhere below any of several, whose tiers or sizes may differ.

    >>> cheap = [RateRow("", -1, 1, 2, 1, 1, 1, 2, 0)]
    >>> dear = [RateRow("", -1, 1, 3, 1, 1, 1, 2, 0), RateRow("", 9, 2, 1, 1, 1, 1, 2, 0)]
    >>> [(each.above, each.input, each.output) for each in dearest_rows([cheap, dear])]
    [(-1, 1, 3), (9, 2, 2)]
    """
    places = sorted(
        {(row.tier, row.above) for rows in lists for row in rows},
        key=lambda place: (place[0] != STANDARD, place),
    )
    found: list[RateRow] = []
    for tier, above in places:
        same = [_row_of(rows, listed_tier(rows, tier), above + 1) for rows in lists]
        figures = zip(*(msgspec.structs.astuple(row)[2:] for row in same), strict=True)
        found.append(RateRow(tier, above, *map(max, figures)))
    return found


def dearest_of(several: Sequence[ModelRates]) -> ModelRates:
    """Return the rates of a request that any of several models may answer: nowhere below any's.

    The largest answer is the one that costs most by the dearest price of output.
    """
    if len(several) == 1:
        return several[0]
    outputs = [each.largest_output_tokens for each in several]
    contexts = [each.context_tokens for each in several]
    largest = max(
        zip((each.worst_output_per_mtok for each in several), outputs, strict=True),
        key=lambda each: each[0] * (each[1] or 0),
    )[1]
    prices = (name for name in ModelRates.__struct_fields__ if name.endswith("_per_mtok"))
    figures = {name: max(getattr(each, name) for each in several) for name in prices}
    return msgspec.structs.replace(
        several[0],
        **figures,
        largest_output_tokens=None if None in outputs else largest,
        context_tokens=None if None in contexts else max(map(int, filter(None, contexts))),
        rows=dearest_rows([rows_of(each) for each in several]),
        present_rows=[],
        fallback=any(each.fallback for each in several),
    )


def worst_rates(rates: ModelRates, input_tokens: int | None, terms: Terms) -> tuple[int, int]:
    """Return the dearest rates that a token of the prompt, and of the answer, can meet.

    Nano-dollars per million tokens.

    Args:
        rates: the rates of the model.
        input_tokens: most tokens of the prompt; ``None`` when nothing bounds it. A smaller prompt
            may be priced by any row below.
        terms: the terms of the request.
    """
    rows, asked = rates.rows, terms.tier
    if rates.default_tier and asked in _OPEN:
        asked = rates.default_tier
    if not rows:
        surcharge = _surcharge(asked, STANDARD, terms.surcharge_permille)
        if surcharge == PERMILLE:
            return rates.worst_input_per_mtok, rates.worst_output_per_mtok
        return (
            -(-rates.worst_input_per_mtok * surcharge // PERMILLE),
            -(-rates.worst_output_per_mtok * surcharge // PERMILLE),
        )
    tier = listed_tier(rows, asked) if asked else STANDARD
    in_rate = out_rate = 0
    for row in rows:
        # A vendor may fall back to the standard tier.
        if (row.tier and row.tier != tier) or (
            input_tokens is not None and input_tokens <= row.above
        ):
            continue
        row_in, row_out = _dearest(row, terms.cache_writes, terms.text_only, terms.sound)
        if row_in > in_rate:
            in_rate = row_in
        if row_out > out_rate:
            out_rate = row_out
    if asked or terms.surcharge_permille != PERMILLE:
        surcharge = _surcharge(asked, tier, terms.surcharge_permille)
        in_rate = -(-in_rate * surcharge // PERMILLE)
        out_rate = -(-out_rate * surcharge // PERMILLE)
    return in_rate, out_rate


@functools.lru_cache(1024)
def _dearest(row: RateRow, writes: int, text_only: bool, sound: bool) -> tuple[int, int]:
    """Return the dearest rates of a row; computed once, as every request asks for them."""
    heard, audio = (0, 0) if text_only or (lacks_sound(row) and not sound) else _of_sound(row)
    written = 0 if not writes else row.cache_write
    written_1h = row.cache_write_1h if writes > 1 else 0
    in_rate = max(0, row.input, row.cache_read, written, written_1h, heard)
    return in_rate, max(0, row.output, row.reasoning, audio)


_SOUND: Final = (40_000_000_000, 80_000_000_000)
"""The dearest price that is published for sound, in a prompt and in an answer: GPT-4o Audio's
(https://developers.openai.com/api/docs/models/gpt-4o-audio-preview, 2026-11). Where a price list
knows text alone, sound is held and charged at it."""


def lacks_sound(row: RateRow) -> bool:
    """Return whether a row prices text and not sound; where text is free, sound is."""
    return not row.audio and bool(row.input or row.output)


def _of_sound(row: RateRow) -> tuple[int, int]:
    """Return the rates of sound in a prompt, and in an answer."""
    if lacks_sound(row):
        return max(_SOUND[0], row.input), max(_SOUND[1], row.output)
    return row.audio_input or row.audio, row.audio


def prompt_tokens(rates: ModelRates, input_tokens: int | None, text_tokens: int) -> int | None:
    """Return the most tokens of a prompt, by what answers to others have shown of its model.

    Args:
        rates: the rates of the model.
        input_tokens: most tokens of the prompt, as its process knows; ``None``: nothing bounds it.
        text_tokens: most tokens of its text, before anything was learned; 0 where it has more.
    """
    if input_tokens is None or not text_tokens or not rates.text_permille:
        return input_tokens
    tokens = -(-text_tokens * rates.text_permille // PERMILLE) + rates.text_overhead
    return max(input_tokens, min(tokens, TOKENS_MAX))


def most_input(rates: ModelRates, input_tokens: int | None, answers: int = 1) -> int | None:
    """Return the most tokens of a prompt: no vendor takes more than the model's context.

    An older gateway may send a context that its own rates exceed: that of an older version.

    Args:
        rates: the rates of the model.
        input_tokens: most tokens of the prompt, or of all prompts of a batch; ``None`` when nothing
            bounds it.
        answers: how many answers there are. A batch, or an array of embeddings, has a prompt for
            each, and the context bounds one of them.
    """
    context = rates.context_tokens
    if context is None or (input_tokens is not None and input_tokens <= context):
        return input_tokens
    if context < (rates.largest_output_tokens or 0) or any(
        row.above >= context for row in rates.rows
    ):
        return input_tokens
    most = min(context * answers, TOKENS_MAX)
    return most if input_tokens is None else min(input_tokens, most)


def listed_tier(rows: list[RateRow], tier: str | None) -> str:
    """Return the tier whose rows price a request: its own where that is listed, else standard."""
    if not tier or tier in _CHEAP_TIERS:
        return STANDARD
    return tier if any(row.tier == tier for row in rows) else STANDARD


def _surcharge(tier: str | None, listed: str, place_permille: int) -> int:
    """Return what comes on top of a row's prices, in thousandths: the place, a tier not listed."""
    if tier and tier != listed:
        return place_permille * _UNLISTED_TIERS.get(tier, PERMILLE) // PERMILLE
    return place_permille


def _row_of(rows: list[RateRow], tier: str, prompt_tokens: int) -> RateRow:
    """Return the row that prices a prompt of some size in a tier."""
    found = rows[0]
    if len(rows) == 1:
        return found
    for row in rows:
        if (
            row.tier == tier
            and prompt_tokens > row.above
            and (found.tier != tier or row.above >= found.above)
        ):
            found = row
    return found


def usage_cost(rows: list[RateRow], usage: Buckets) -> int:
    """Return what an answer cost by a price list, in nano-dollars, rounded up."""
    prompt, cached, written = usage.input_tokens, usage.cache_read_tokens, usage.cache_write_tokens
    tier = listed_tier(rows, usage.service_tier)
    found = _row_of(rows, tier, prompt + cached + written)
    total = (
        prompt * found.input
        + usage.output_tokens * found.output
        + cached * found.cache_read
        + usage.reasoning_tokens * found.reasoning
    )
    if written:
        long_writes = min(usage.cache_write_1h_tokens, written)
        total += (written - long_writes) * found.cache_write + long_writes * found.cache_write_1h
    if usage.audio_tokens:
        heard = min(usage.audio_input_tokens, usage.audio_tokens)
        heard_rate, spoken_rate = _of_sound(found)
        total += heard * heard_rate + (usage.audio_tokens - heard) * spoken_rate
    surcharge = _surcharge(usage.service_tier, tier, usage.surcharge_permille)
    cost = -(-total * surcharge // (_MILLION * PERMILLE))
    if usage.fees:
        cost += fees.cost(usage.fees)
    return min(NANOUSD_MAX, cost)
