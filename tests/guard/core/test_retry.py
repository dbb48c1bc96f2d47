"""Retries: bounded full jitter, a quota for the whole process, ``Retry-After`` (RFC 9110)."""

from __future__ import annotations

import datetime as dt
import math
import random
from email.utils import format_datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from guard.core.retry import (
    RETRY_AFTER_MAX_S,
    Backoff,
    LastTries,
    RetryQuota,
    retry_after_s,
)

lucks = st.floats(0, 1, exclude_max=True)
durations_s = st.floats(0.001, 100)


@given(durations_s, durations_s, st.integers(0, 10_000), lucks)
def test_a_delay_is_never_above_its_bounds(
    base_s: float, cap_s: float, attempt: int, luck: float
) -> None:
    delay = Backoff(base_s, cap_s).delay_s(attempt, luck)
    assert 0 <= delay <= cap_s
    if attempt < 60:
        assert delay <= base_s * 2**attempt


@given(durations_s, st.integers(0, 30))
def test_the_bound_doubles_until_the_cap(base_s: float, attempt: int) -> None:
    backoff = Backoff(base_s, math.inf)
    assert backoff.delay_s(attempt + 1, 0.5) == pytest.approx(2 * backoff.delay_s(attempt, 0.5))


def test_jitter_is_full() -> None:
    """Delays fill the range from zero to the bound, so that clients do not retry in step."""
    chance = random.Random(7)
    delays = [Backoff(1.0, 1.0).delay_s(0, chance.random()) for _ in range(10_000)]
    assert sum(delays) / len(delays) == pytest.approx(0.5, abs=0.02)
    assert min(delays) < 0.01
    assert max(delays) > 0.99


@given(durations_s, st.integers(0, 2**32))
def test_the_last_tries_go_on_until_just_before_the_deadline(time_s: float, seed: int) -> None:
    chance, tries, left_s = random.Random(seed), LastTries(), time_s
    for attempt in range(2_000):
        pause_s = tries.pause_s(attempt, chance.random(), silence_s=0.0, left_s=left_s)
        if pause_s is None:
            break
        left_s -= pause_s
        assert left_s > 0
    assert left_s < tries.least_s


@given(st.integers(0, 10_000), lucks, durations_s, durations_s)
def test_the_last_tries_keep_a_silence_and_give_up_when_it_outlasts_them(
    attempt: int, luck: float, silence_s: float, left_s: float
) -> None:
    pause_s = LastTries().pause_s(attempt, luck, silence_s=silence_s, left_s=left_s)
    if silence_s >= left_s:
        assert pause_s is None
    elif pause_s is not None:
        assert silence_s <= pause_s < left_s


@given(st.integers(1, 5), st.integers(0, 2_000))
def test_a_dead_gateway_sees_at_most_a_fifth_more_after_the_bucket(
    greed: int, requests: int
) -> None:
    quota = RetryQuota()
    retries = 0
    for _ in range(requests):
        quota.first_try()
        for _ in range(greed):
            retries += quota.take()
    assert retries <= 0.2 * requests + quota.capacity + 1e-6


def test_once_the_bucket_is_empty_the_load_is_one_point_two() -> None:
    quota = RetryQuota()
    while quota.take():
        pass
    sent = 0
    for _ in range(10_000):
        quota.first_try()
        sent += 1
        while quota.take():
            sent += 1
    assert sent <= 12_000
    assert sent == pytest.approx(12_000, rel=0.01)


def test_calm_times_do_not_save_up_more_than_the_capacity() -> None:
    quota = RetryQuota()
    for _ in range(100_000):
        quota.first_try()
    assert sum(quota.take() for _ in range(1000)) == quota.capacity


NOW_S = dt.datetime(2026, 11, 20, 12, 0, 0, tzinfo=dt.UTC).timestamp()


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        (None, None),
        ("", None),
        (" ", None),
        ("0", 0.0),
        ("7", 7.0),
        (" 7 ", 7.0),
        ("1.5", 1.5),
        ("007", 7.0),
        ("299", 299.0),
        ("86400", RETRY_AFTER_MAX_S),
        ("9" * 500, RETRY_AFTER_MAX_S),
        ("Fri, 20 Nov 2026 12:00:30 GMT", 30.0),
        ("Friday, 20-Nov-26 12:00:30 GMT", 30.0),
        ("Fri Nov 20 12:00:30 2026", 30.0),
        ("Fri, 20 Nov 2026 13:00:30 +0100", 30.0),
        ("Fri, 20 Nov 2026 11:00:00 GMT", 0.0),
        ("Sat, 01 Jan 2050 00:00:00 GMT", RETRY_AFTER_MAX_S),
        ("Mon, 01 Jan 0001 00:00:00 GMT", 0.0),
        ("nan", None),
        ("NaN", None),
        ("inf", None),
        ("-inf", None),
        ("-5", None),
        ("+5", None),
        ("1e3", None),
        ("1_000", None),
        ("0x10", None),
        ("٣", None),
        ("7s", None),
        ("7, 8", None),
        ("soon", None),
        ("Fri, 99 Nov 2026 12:00:30 GMT", None),
        ("Mon, 01 Jan 2024 00:00:00 +9999999999999", None),
        ("\x00", None),
    ],
)
def test_retry_after(header: str | None, expected: float | None) -> None:
    assert retry_after_s(header, now_s=NOW_S) == expected


@given(
    st.text(max_size=60) | st.from_regex(r"\w{3}, \d+ \w{3} \d+ \d+:\d+:\d+ \S*", fullmatch=True)
)
def test_no_header_breaks_the_client(header: str) -> None:
    seconds = retry_after_s(header, now_s=NOW_S)
    assert seconds is None or 0 <= seconds <= RETRY_AFTER_MAX_S


@given(st.integers(0, 10**9))
def test_dates_and_seconds_agree(ahead_s: int) -> None:
    moment = dt.datetime.fromtimestamp(NOW_S + ahead_s, dt.UTC)
    assert retry_after_s(format_datetime(moment, usegmt=True), now_s=NOW_S) == retry_after_s(
        str(ahead_s), now_s=NOW_S
    )
