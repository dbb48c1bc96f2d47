"""Watches for alerts that no single request shows: forecasts, many refusals, a failed store."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

import msgspec

from guard.core import wire
from guard.core.ids import IdFactory
from guard.gateway.domain.alerts import AlertRule, Fact
from guard.gateway.domain.errors import StoreError
from guard.gateway.domain.records import BalanceView, DueDelivery
from guard.gateway.ledger import alerting
from guard.gateway.services.spend_watch import SpendWatch
from guard.gateway.storage.port import Storage
from guard.gateway.unit.state import within

logger = logging.getLogger(__name__)

LOOK_S: Final = 15.0
"""How often it looks."""

FAILED_S: Final = 10.0
"""How long the store has to fail before an alert is sent; a restart of it takes less."""

_REFUSALS_AGAIN_MS: Final = 3_600_000
_KNOWN_MAX: Final = 10_000


class AlertWatch:
    """Looks at every organisation that has alert rules, and at the gateway itself.

    One task runs it (:meth:`run`), and all its state belongs to that task. Every replica has one:
    the store keeps a fact from being sent twice, except for the failure of the store itself.

    Args:
        storage: what is looked at, and where notices are queued.
        is_healthy: whether the store accepts writes.
        send: sends messages that cannot be queued, as the store has failed.
        clock_ms: the gateway's clock.
        passed_s: time that only passes, in seconds.
    """

    def __init__(
        self,
        storage: Storage,
        is_healthy: Callable[[], bool],
        send: Callable[[list[DueDelivery]], Awaitable[None]],
        clock_ms: Callable[[], int],
        passed_s: Callable[[], float],
    ) -> None:
        self._storage = storage
        self._is_healthy = is_healthy
        self._send = send
        self._clock_ms = clock_ms
        self._passed_s = passed_s
        self._spend_watch = SpendWatch(storage, passed_s)
        self._ids = IdFactory()
        # The messages to send if the store fails. Read with every look while it works: when it has
        # failed, neither rules nor channels can be read.
        self._failure_recipients: list[DueDelivery] = []
        # Since when the store fails, by ``passed_s`` and ``clock_ms``; ``None`` while it works.
        self._failed_since: tuple[float, int] | None = None
        # Whether this failure was reported, so that its end is reported as well.
        self._has_told = False
        # By organisation and fact: when it was last given to the store, shifted so that it is due
        # again after its ``again_ms`` or a minute, whichever is less. Only saves writes.
        self._offered: dict[tuple[str, str], int] = {}

    async def run(self) -> None:
        """Look until cancelled."""
        while True:
            await asyncio.sleep(min(LOOK_S, FAILED_S) if self._failed_since else LOOK_S)
            try:
                await self.look()
            except StoreError as exc:
                logger.warning("alerts wait: %s", exc)
            except Exception:  # one failed look does not end the watch
                logger.exception("alerts were not looked at")

    async def look(self) -> None:
        """Look once."""
        if not self._is_healthy():
            await self._failed()
            return
        recovered = self._failed_since if self._has_told else None
        rules: dict[str, list[AlertRule]] = {}
        for own, rule in await self._storage.all_alert_rules():
            if rule.enabled:
                rules.setdefault(own, []).append(rule)
        # Before facts are looked for, which takes longer: the store may fail at any moment.
        if any(rule.on == "unhealthy" for of_own in rules.values() for rule in of_own):
            self._failure_recipients = await self._storage.failure_recipients()
        else:
            self._failure_recipients = []
        for own, of_own in rules.items():
            facts = [fact for rule in of_own for fact in await self._facts(own, rule)]
            if recovered is not None:
                facts.append(_recovered(recovered[1]))
            await self._tell(own, facts)
        # Not before all are told: a look that the store breaks off is made again.
        self._failed_since, self._has_told = None, False
        wants_loops = (own for own, of_own in rules.items() if any(r.on == "loop" for r in of_own))
        await self._spend_watch.look(wants_loops)

    async def _tell(self, own: str, facts: list[Fact]) -> None:
        now_ms = self._clock_ms()
        new = [
            fact
            for fact in facts
            if now_ms >= self._offered.get((own, fact.key), -fact.again_ms) + fact.again_ms
        ]
        if not new:
            return
        if len(self._offered) >= _KNOWN_MAX:
            self._offered.clear()
        await self._storage.write(within(own), alerting.tell_all, own, new)
        # Not for all of ``again_ms``: the store may have refused it, since another replica had sent
        # it before or no channel wanted it yet, and decides again in a while.
        for fact in new:
            self._offered[own, fact.key] = now_ms - fact.again_ms + min(fact.again_ms, 60_000)

    async def _facts(self, own: str, rule: AlertRule) -> list[Fact]:
        if rule.on == "forecast":
            return await self._forecasts(own, rule)
        if rule.on == "refusals":
            return await self._refusals(own, rule)
        if rule.on == "fallback_price":
            models = await self._storage.fallback_models(own)
            return [
                Fact(type="price.fallback", key=f"fallback:{model}", data={"model": model})
                for model in models
            ]
        if rule.on == "unseen":
            return [
                Fact(
                    type="traffic.unseen", key=f"unseen:{host}",
                    data={"host": host, "why": why, "workflow_id": workflow_id},
                )
                for host, why, workflow_id in await self._storage.uncounted_traffic(own)
            ]  # fmt: skip
        return []

    async def _forecasts(self, own: str, rule: AlertRule) -> list[Fact]:
        now_ms = self._clock_ms()
        found = await self._storage.forecast_exhausted(own, rule.at_percent or 100)
        names = await self._storage.key_names(own) if found else {}
        return [
            Fact(
                type="budget.forecast", key=f"forecast:{rule.name}:{balance.balance_id}",
                data=forecast(balance, now_ms, names), rule=rule.name,
            )
            for balance in found
        ]  # fmt: skip

    async def _refusals(self, own: str, rule: AlertRule) -> list[Fact]:
        found = await self._storage.newest_refusals(own, rule.count)
        if len(found) < rule.count or found[-1][0] < self._clock_ms() - rule.within_ms:
            return []
        codes: dict[str, int] = {}
        for _, code, _ in found:
            codes[code] = codes.get(code, 0) + 1
        data: dict[str, Any] = {
            "rule": rule.name, "count": rule.count, "within_ms": rule.within_ms, "codes": codes,
            "newest": found[0][2],
        }  # fmt: skip
        again_ms = max(rule.within_ms, _REFUSALS_AGAIN_MS)
        key = f"refusals:{rule.name}"
        return [Fact(type="calls.refused", key=key, data=data, again_ms=again_ms, rule=rule.name)]

    async def _failed(self) -> None:
        """Note that the store fails; report it once when it has failed for ``FAILED_S``."""
        if self._failed_since is None:
            self._failed_since = self._passed_s(), self._clock_ms()
        if self._has_told or self._passed_s() - self._failed_since[0] < FAILED_S:
            return
        # Before it is sent: one that cannot be delivered is not sent again with every look.
        self._has_told = True
        since_ms, now_ms = self._failed_since[1], self._clock_ms()
        messages = []
        for each in self._failure_recipients:
            body = {"type": each.type, "timestamp_ms": now_ms, "data": {"since_ms": since_ms},
                    "organisation_id": each.organisation_id}  # fmt: skip
            messages.append(
                msgspec.structs.replace(
                    each, delivery_id=self._ids.uuid7(now_ms), created_at_ms=now_ms,
                    body=wire.encode(body).decode(),
                )
            )  # fmt: skip
        await self._send(messages)


def forecast(balance: BalanceView, now_ms: int, names: Mapping[str, str]) -> dict[str, Any]:
    """Return a notice's data about a budget that heads for its limit.

    ``percent`` is the share of the limit that it reaches at the end of its window at the present
    pace, and ``exhausted_at_ms`` the time at which it reaches its limit, if that is earlier.
    ``names`` are those of keys, by their ids.
    """
    assert balance.ends_ms is not None
    passed_ms, whole_ms = now_ms - balance.epoch_ms, balance.ends_ms - balance.epoch_ms
    spent, limit = balance.committed, balance.limit
    percent = 100 * spent * whole_ms // (limit * max(1, passed_ms))
    at_ms = balance.epoch_ms + passed_ms * limit // spent
    is_named = balance.scope_kind == "key" and balance.scope_id in names
    return {
        **spent_view(balance),
        **({"key_name": names[balance.scope_id]} if is_named else {}),
        "percent": percent,
        "exhausted_at_ms": at_ms if at_ms < balance.ends_ms else None,
    }


def spent_view(balance: BalanceView) -> dict[str, Any]:
    """Return a balance's data, in the form of all notices about budgets."""
    scope = f"{balance.scope_kind} {balance.scope_id}".strip() + f" ({balance.window})"
    limit, spent, held = (
        balance.limit, balance.committed, balance.reserved,
    )  # fmt: skip
    view: wire.Budget | wire.CountedBudget
    if balance.unit == "usd":
        view = wire.Budget.of(
            limit=limit, spent=spent, reserved=held, resets_at_ms=balance.ends_ms, scope=scope
        )
    else:
        view = wire.CountedBudget(
            unit=balance.unit, limit=limit, used=spent, set_aside=held,
            left=limit - spent - held, counts=balance.counts, resets_at_ms=balance.ends_ms,
            scope=scope,
        )  # fmt: skip
    return {
        "budget_id": balance.budget_id,
        "scope": scope,
        "unit": balance.unit,
        "zone": balance.zone,
        "budget": msgspec.to_builtins(view),
    }


def _recovered(since_ms: int) -> Fact:
    return Fact(type="gateway.healthy", key=f"healthy:{since_ms}", data={"since_ms": since_ms})
