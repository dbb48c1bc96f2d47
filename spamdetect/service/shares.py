"""What a process takes of a key's limits: the arithmetic, for a store to do in one transaction."""

from __future__ import annotations

import attrs


@attrs.frozen
class Wanted:
    """What a process asks for.

    Attributes:
        day: The UTC day.
        texts: All of these, or none.
        more: Up to so many beside, for texts of the next second.
        unused: What it gives back of an earlier share of this day.
        rate_per_minute: 0 means no limit.
        quota_per_day: 0 means no limit.
        burst_s: How many seconds' worth may come at once.
    """

    day: str
    texts: int
    more: int
    unused: int
    rate_per_minute: int
    quota_per_day: int
    burst_s: float


@attrs.frozen
class Share:
    """What a process gets.

    Attributes:
        texts: How many texts it may take; 0 when what it asked for does not fit.
        wait_s: Seconds until the rate allows one again, where that is why.
        left: What is left of the quota, where that is why.
    """

    texts: int
    wait_s: float = 0.0
    left: int = 0


def next_cell(
    cell_s: float, now_s: float, rate_per_minute: int, burst_s: float, texts: int = 1
) -> tuple[float, float]:
    """Count texts against a rate (generic cell rate algorithm).

    Several together are accepted when one would be, however many they are, and the next ones wait
    until the rate has made up for them.

    Args:
        cell_s: The key's number after its last request; 0 before the first.
        now_s: Time in seconds.
        rate_per_minute: The rate, above 0.
        burst_s: How many seconds' worth of requests may come at once.
        texts: How many come together.

    Returns:
        The new number and 0, or the old number and the seconds until a request is accepted again.
    """
    interval_s = 60.0 / rate_per_minute
    tolerance_s = max(burst_s, interval_s) - interval_s
    start_s = max(cell_s, now_s)
    if start_s - now_s > tolerance_s:
        return cell_s, start_s - now_s - tolerance_s
    return start_s + interval_s * texts, 0.0


def take(cell_s: float, used: int, now_s: float, wanted: Wanted) -> tuple[float, int, Share]:
    """Take a share.

    Args:
        cell_s: The key's number, see `next_cell`.
        used: What is used of the day's quota.
        now_s: Time in seconds, on the store's clock.
        wanted: What is asked for.

    Returns:
        The new number, what is used now, and the share.
    """
    rate, quota = wanted.rate_per_minute, wanted.quota_per_day
    used, more = used - wanted.unused, wanted.more
    if rate:
        cell_s -= wanted.unused * 60.0 / rate
    if quota:
        if used + wanted.texts > quota:
            return cell_s, used, Share(0, left=quota - used)
        # Near the end no process keeps what another could use.
        more = min(more, (quota - used - wanted.texts) // 10)
    if rate:
        cell_s, wait_s = next_cell(cell_s, now_s, rate, wanted.burst_s, wanted.texts)
        if wait_s:
            return cell_s, used, Share(0, wait_s=wait_s)
        interval_s = 60.0 / rate
        room_s = max(wanted.burst_s, interval_s) - interval_s - (cell_s - now_s)
        more = min(more, max(0, int(room_s / interval_s)))
        cell_s += interval_s * more
    return cell_s, used + wanted.texts + more, Share(wanted.texts + more)
