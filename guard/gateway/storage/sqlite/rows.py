"""Rows of the embedded store as the domain's types, and the machine's clock."""

from __future__ import annotations

import functools
import json
import time
from typing import Any

from guard.gateway.domain import records
from guard.gateway.domain.ledger import Balance, Reservation


def budget_from_row(row: tuple[Any, ...]) -> records.Budget:
    """Build a budget from its row."""
    return records.Budget(
        budget_id=row[0], organisation_id=row[1], scope_kind=row[2], scope_id=row[3],
        window=row[4], limit_nanousd=row[5], mode=row[6], epsilon_nanousd=row[7],
        thresholds=json.loads(row[8]), version=row[9], created_at_ms=row[10],
        updated_at_ms=row[11],
    )  # fmt: skip


def balance_from_row(row: tuple[Any, ...]) -> Balance:
    """Build a balance from its row."""
    return Balance(
        balance_id=row[0], budget_id=row[1], scope_id=row[2], epoch_ms=row[3], ends_ms=row[4],
        opening=row[5], committed=row[6], reserved=row[7], overshoot=row[8], bound=row[9],
        level=row[10], exhausted=bool(row[11]),
    )  # fmt: skip


def reservation_from_row(row: tuple[Any, ...]) -> Reservation:
    """Build a reservation from its row."""
    return Reservation(
        reservation_id=row[0], organisation_id=row[1], key_id=row[2], call_id=row[3],
        balance_ids=tuple(json.loads(row[4])), amount=row[5], held=row[6], created_at_ms=row[7],
        expires_at_ms=row[8], spent=row[9], state=row[10], basis=row[11], workflow_id=row[12],
        run_id=row[13], chain_id=row[14], agent=row[15], model=row[16], function=row[17],
    )  # fmt: skip


@functools.lru_cache(maxsize=4096)
def ids_text(balance_ids: tuple[int, ...]) -> str:
    """Return balance numbers as the JSON that their column holds."""
    return json.dumps(balance_ids)


def wall_clock_ms() -> int:
    """Return the time of the machine that holds the store, in Unix milliseconds."""
    return time.time_ns() // 1_000_000
