"""Handlers of the admin operations."""

from __future__ import annotations

import asyncio
import base64
import secrets
from collections.abc import Awaitable, Callable
from typing import Concatenate, Final, ParamSpec, TypeVar

import attrs

from guard.core import wire
from guard.core.ids import IdFactory
from guard.gateway.api.admin import bodies
from guard.gateway.api.admin.alert_handlers import AlertHandlers
from guard.gateway.api.admin.operations import AdminCall
from guard.gateway.api.http import fail
from guard.gateway.domain import acceleration, records, repeats
from guard.gateway.domain.commands import Actor
from guard.gateway.domain.errors import ConflictError
from guard.gateway.domain.preview import EXAMPLES_MAX, Difference, RecentCalls, compare, replaced
from guard.gateway.domain.rulesets import RuleSet, first_named_twice
from guard.gateway.ledger import (
    approvals,
    asks,
    catalogue,
    control,
    directory,
    reconciliation,
    webhooks,
)
from guard.gateway.ledger.state import within
from guard.gateway.ledger.unit_of_work import UnitOfWork
from guard.gateway.services.catalogue import CatalogueCache
from guard.gateway.services.egress import check_url
from guard.gateway.services.keys import NewKey, make_key
from guard.gateway.services.subjects import RuleSubject, Scoped, Subjects, subject_of
from guard.gateway.storage.port import NEWEST, Storage

P = ParamSpec("P")
T = TypeVar("T")

_OWNERS_ONLY: Final = {directory.create_key, directory.rotate_key, directory.revoke_key}
"""Use cases that decide on access: for owners only."""

PART_ROWS: Final = 100
"""Rows of a bill that one unit of work books."""

ASKS_MAX: Final = 1000
"""How many calls that wait for a raise are read."""


@attrs.frozen(eq=False)
class AdminHandlers:
    """Handlers over the storage port; each returns the reply's value."""

    _storage: Storage
    _recent: RecentCalls
    _catalogue: CatalogueCache
    _clock_ms: Callable[[], int]
    alerts: AlertHandlers
    _private_webhooks: bool = attrs.field(kw_only=True, alias="private_webhooks")
    _ids: IdFactory = attrs.field(factory=IdFactory, init=False)
    _subjects: Subjects = attrs.field(
        init=False, default=attrs.Factory(lambda self: Subjects(self._storage), takes_self=True)
    )

    def _write(
        self,
        call: AdminCall,
        use_case: Callable[Concatenate[UnitOfWork, Actor, P], T],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> Awaitable[T]:
        """Run a use case on the caller's organisation, as the caller.

        Raises:
            RoleError: the caller's role does not allow it.
        """
        call.require("owner" if use_case in _OWNERS_ONLY else "operator")
        own = within(call.own)
        return self._storage.write(own, use_case, call.actor, *args, **kwargs)

    # -- settings and keys ---------------------------------------------------------------------

    async def organisation(self, call: AdminCall) -> records.Organisation:
        found = await self._storage.organisations()
        return next(each for each in found if each.organisation_id == call.own)

    async def settings(self, call: AdminCall) -> records.Organisation:
        return await self._write(call, directory.update_organisation, call.own, call.body)

    async def change_settings(self, call: AdminCall) -> records.Organisation:
        return await self._write(call, directory.change_settings, call.own, call.body)

    async def keys(self, call: AdminCall) -> list[records.Key]:
        found = await self._storage.keys(call.own)
        if call.actor.organisation_id is None:
            found += await self._storage.proxies()
        return found

    async def create_key(self, call: AdminCall) -> bodies.CreatedKey:
        wanted: bodies.NewKeyBody = call.body
        if wanted.every_organisation:
            if wanted.role != "proxy":
                raise ValueError("every_organisation is for keys of role proxy")
            if call.actor.organisation_id is not None:
                raise ConflictError("this admin key is for one organisation")
        owner_id = wanted.owner_id and await self._storage.current_key_id(wanted.owner_id)
        made = make_key(
            self._ids,
            self._clock_ms(),
            role=wanted.role,
            organisation_id=None if wanted.every_organisation else call.own,
            name=wanted.name,
            workflow_id=wanted.workflow_id if wanted.role == "sdk" else None,
            expires_at_ms=wanted.expires_at_ms,
            signed=wanted.signed,
            hmac_secret=wanted.hmac_secret,
            owner_id=owner_id,
            team=wanted.team,
        )
        key = await self._write(
            call, directory.create_key, made.key, made.key_hash, made.hmac_secret
        )
        return _shown_once(made, key)

    async def rotate_key(self, call: AdminCall) -> bodies.CreatedKey:
        call.require("owner")
        key_id = await self._storage.current_key_id(call.path["key_id"])
        old = next((k for k in await self.keys(call) if k.key_id == key_id), None)
        made = make_key(
            self._ids,
            self._clock_ms(),
            role="sdk" if old is None else old.role,
            organisation_id=call.own,
            name="",
            signed=old is not None and old.signed,
        )
        key = await self._write(
            call, directory.rotate_key, call.own, key_id,
            made.key.prefix, made.key_hash, made.hmac_secret, call.body.overlap_ms,
        )  # fmt: skip
        return _shown_once(made, key)

    async def revoke_key(self, call: AdminCall) -> records.Key:
        return await self._write(call, directory.revoke_key, call.own, call.path["key_id"])

    # -- budgets, policies, prices -------------------------------------------------------------

    async def budgets(self, call: AdminCall) -> list[records.BudgetRule]:
        return await self._storage.budgets(call.own)

    async def unmatched(self, call: AdminCall) -> list[RuleSubject]:
        return await self._subjects.unmatched(call.own)

    async def budget_of(self, call: AdminCall) -> records.BudgetRule:
        """Return the budget that a body means.

        Raises:
            ConflictError: it is for something that does not exist.
            ValueError: the limit or the scope is contradictory.
        """
        call.require("operator")
        budget = as_budget(call.own, call.body)
        prices = await self._storage.prices(call.own)
        await self._subjects.resolve(call.own, [(budget, call.body.anyway)], prices)
        return budget

    async def put_budget(self, call: AdminCall) -> records.BudgetRule:
        return await self._write(call, catalogue.put_budget, await self.budget_of(call))

    async def delete_budget(self, call: AdminCall) -> None:
        await self._write(call, catalogue.delete_budget, call.own, call.path["budget_id"])

    async def raise_budget(self, call: AdminCall) -> records.Raised:
        body: bodies.RaiseBody = call.body
        unit, by = body.amount()
        return await self._write(
            call, asks.raise_budget, call.own, call.path["budget_id"],
            by_nanousd=by, raise_key=body.key, counted_in=unit,
        )  # fmt: skip

    async def refuse_raise(self, call: AdminCall) -> list[records.BudgetAsk]:
        body: bodies.RefusalBody = call.body
        call.require("operator")
        budget_id = call.path["budget_id"]
        waiting = [
            ask
            for ask in await self._storage.budget_asks(call.own, ASKS_MAX)
            if ask.budget_id == budget_id and body.call_id in (None, ask.call_id)
        ]
        return await self._write(call, asks.refuse_all, call.own, budget_id, waiting, body.reason)

    async def budget_raises(self, call: AdminCall) -> list[records.BudgetRaise]:
        query: bodies.RaisesQuery = call.query
        return await self._storage.budget_raises(call.own, query.budget_id, query.limit)

    async def budget_asks(self, call: AdminCall) -> list[records.BudgetAsk]:
        return await self._storage.budget_asks(call.own, call.query.limit)

    async def policies(self, call: AdminCall) -> list[records.Policy]:
        return await self._storage.policies(call.own)

    async def put_policy(self, call: AdminCall) -> records.Policy:
        call.require("operator")
        policy = as_policy(call.own, call.path["name"], call.body)
        await self._subjects.resolve(call.own, [(policy, call.body.anyway)])
        return await self._write(call, catalogue.put_policy, policy)

    async def delete_policy(self, call: AdminCall) -> None:
        await self._write(call, catalogue.delete_policy, call.own, call.path["name"])

    async def policy_versions(self, call: AdminCall) -> list[records.Policy]:
        return await self._storage.policy_versions(call.own, call.path["name"])

    async def prices(self, call: AdminCall) -> list[records.Price]:
        return await self._storage.prices(call.own)

    async def reconcile(self, call: AdminCall) -> list[records.Adjustment]:
        call.require("operator")
        wanted: bodies.ReconcileBody = call.body
        if len({row.width_ms for row in wanted.rows}) > 1:
            raise ConflictError("hours and days in one request")
        if any(row.start_ms % row.width_ms for row in wanted.rows):
            raise ConflictError("a row begins within an hour (or day) of UTC")
        prices = (await self._catalogue.view(call.own)).prices
        billed = [
            records.Billed(
                start_ms=row.start_ms,
                width_ms=row.width_ms,
                model=row.model,
                cost_nanousd=prices.cost_of_many(row, wanted.provider)
                if row.cost_nanousd is None
                else row.cost_nanousd,
            )
            for row in wanted.rows
        ]
        # 1. Judged as a whole, beside the writer. Whatever is wrong with the bill is found here.
        charged = await self._storage.charged_hours(
            call.own, *reconciliation.span_of(billed), wanted.provider
        )
        rows = await asyncio.to_thread(reconciliation.judged, billed, charged)
        if wanted.dry_run:
            now_ms = self._clock_ms()
            return [reconciliation.adjustment_of(row, now_ms) for row in rows]
        # 2. Booked in parts, between which others have their turn. If one fails, those before it
        # are booked; the same bill sent again books the rest.
        parts = [rows[at : at + PART_ROWS] for at in range(0, len(rows), PART_ROWS)]
        made = []
        for number, part in enumerate(parts, 1):
            made += await self._storage.write(
                within(call.own, weight=len(part)), reconciliation.book, call.actor, call.own,
                part, wanted.provider, wanted.source, number, len(parts),
            )  # fmt: skip
        return made

    async def put_price(self, call: AdminCall) -> records.Price:
        return await self._write(call, catalogue.put_price, as_price(call.own, call.body))

    async def delete_price(self, call: AdminCall) -> None:
        await self._write(call, catalogue.delete_price, call.own, call.path["price_id"])

    async def preview(self, call: AdminCall) -> bodies.Preview:
        wanted: bodies.PreviewBody = call.body
        own = call.own
        calls = self._recent.newest(own, wanted.calls)
        current = await self._storage.policies(own)
        changed = as_policy(own, wanted.name, wanted.policy)
        # Off the loop, here and below: it judges a thousand calls by a thousand policies, twice.
        found = await asyncio.to_thread(compare, calls, current, replaced(current, changed))
        accelerated = None
        if changed.document.on_accelerating_spend is not None:
            runs = await self._storage.spend_by_minute(own)
            accelerated = await asyncio.to_thread(acceleration.preview, changed, runs)
        return bodies.Preview(
            calls=len(calls),
            changed=len(found),
            newly_refused=sum(d.after.startswith("refuse") for d in found),
            newly_allowed=sum(d.after == "allow" for d in found),
            newly_pending=sum(d.after == "pending" for d in found),
            examples=[_previewed(d) for d in found[-EXAMPLES_MAX:]],
            repeats=(
                repeats.preview(changed, await self._storage.repeat_counts(own))
                if changed.document.repeat_caps
                else None
            ),
            acceleration=accelerated,
        )

    async def apply(self, call: AdminCall) -> bodies.Plan:
        call.require("operator")
        wanted: bodies.ApplyBody = call.body
        own = call.own
        rules = RuleSet(
            [as_budget(own, b) for b in wanted.budgets],
            [as_policy(own, p.name, p) for p in wanted.policies],
            [as_price(own, p) for p in wanted.prices],
            wanted.settings,
        )
        self.alerts.add_to(rules, own, wanted.channels, wanted.alerts)
        prices = [*rules.prices, *await self._storage.prices(own)]
        named: list[Scoped] = [*rules.budgets, *rules.policies]
        anyway = [wanted.anyway or each.anyway for each in wanted.budgets]
        anyway += [wanted.anyway or each.anyway for each in wanted.policies]
        await self._subjects.resolve(own, zip(named, anyway, strict=True), prices)
        twice = first_named_twice(rules)
        if twice is not None:
            raise ConflictError(f"named twice: {twice}")
        changes = await self._storage.write(
            within(own, weight=1 + rules.count()),
            catalogue.apply,
            call.actor,
            own,
            rules,
            dry_run=wanted.dry_run,
            prune=wanted.prune,
        )
        # The plan begins with the wanted rules, in this order.
        subjects = [subject_of(each) for each in (*named, *rules.prices)]
        unmatched = await self._subjects.unknown(own, {*subjects}, {p.model for p in prices})
        for change, subject in zip(changes, subjects, strict=False):
            change.unmatched = subject in unmatched
        changed = sum(change.change != "unchanged" for change in changes)
        return bodies.Plan(dry_run=wanted.dry_run, changed=changed, changes=changes)

    # -- control -------------------------------------------------------------------------------

    async def workflows(self, call: AdminCall) -> list[records.Workflow]:
        query: bodies.Page = call.query
        return await self._storage.workflows(call.own, query.after, query.limit)

    async def workflow(self, call: AdminCall) -> records.Workflow:
        return await self._storage.workflow(call.own, call.path["workflow_id"])

    async def announce_workflow(self, call: AdminCall) -> records.Workflow:
        await self._write(call, directory.announce_workflow, call.own, call.path["workflow_id"])
        return await self._storage.workflow(call.own, call.path["workflow_id"])

    async def named(self, call: AdminCall) -> records.Named:
        query: bodies.NamedQuery = call.query
        return await self._storage.named(call.own, query.workflow_id)

    async def known(self, call: AdminCall) -> records.Known:
        query: bodies.KnownQuery = call.query
        return await self._storage.known(call.own, query.workflow_id, query.run_id)

    async def runs(self, call: AdminCall) -> list[records.Run]:
        query: bodies.RunsQuery = call.query
        return await self._storage.runs(call.own, query.workflow_id, query.after, query.limit)

    async def control(self, call: AdminCall) -> wire.ControlMessage:
        wanted: bodies.ControlBody = call.body
        draft = wire.ControlMessage(
            seq=0,
            type=wanted.action,
            workflow_id=wanted.workflow_id or "*",
            run_id=wanted.run_id,
            reason=wanted.reason,
            resume_after_ms=wanted.resume_after_ms if wanted.action == "pause" else None,
        )
        return await self._write(call, control.issue_directive, call.own, draft)

    async def approvals(self, call: AdminCall) -> list[records.Approval]:
        query: bodies.ApprovalsQuery = call.query
        return await self._storage.approvals(call.own, query.status, query.limit)

    async def answer_approval(self, call: AdminCall) -> records.Approval:
        wanted: bodies.ApprovalBody = call.body
        return await self._write(
            call, approvals.answer, call.own, call.path["approval_id"],
            approved=wanted.approved, reason=wanted.reason,
        )  # fmt: skip

    # -- usage and audit -----------------------------------------------------------------------

    async def usage(self, call: AdminCall) -> list[records.UsageRow]:
        query: bodies.UsageQuery = call.query
        return await self._storage.usage(
            call.own, query.group_by, query.since_ms, query.until_ms, query.limit
        )

    async def events(self, call: AdminCall) -> list[records.StoredEvent]:
        query: bodies.EventsQuery = call.query
        return await self._storage.events(
            call.own, query.after, query.limit, query.workflow_id, query.type, query.flag
        )

    async def ledger(self, call: AdminCall) -> list[records.BalanceView]:
        query: bodies.LedgerQuery = call.query
        return await self._storage.balances(
            call.own, current_only=not query.all, after=query.after, limit=query.limit
        )

    async def verify_ledger(self, _: AdminCall) -> records.LedgerReport:
        return await self._storage.verify_ledger()

    async def audit(self, call: AdminCall) -> list[records.AuditEntry]:
        query: bodies.AuditQuery = call.query
        is_wide = call.actor.organisation_id is None
        if query.newest:
            found = await self._storage.newest_audit(
                call.own, NEWEST, query.limit, with_gateway=is_wide
            )
            return found[::-1]
        return await self._storage.audit(call.own, query.after, query.limit, with_gateway=is_wide)

    async def audit_head(self, _: AdminCall) -> bodies.AuditHead:
        seq, digest = await self._storage.audit_head()
        return bodies.AuditHead(seq=seq, hash=digest)

    async def verify_audit(self, call: AdminCall) -> bodies.AuditReport:
        query: bodies.AuditCheck | None = call.query  # the dashboard's call has none
        noted = None
        if query is not None and query.expect is not None:
            seq, digest = query.expect.split(":")
            noted = int(seq), digest
        entries, bad = await self._storage.verify_audit(noted)
        return bodies.AuditReport(entries=entries, first_bad_seq=bad, ok=bad is None)

    # -- webhooks ------------------------------------------------------------------------------

    async def webhooks(self, call: AdminCall) -> list[records.Webhook]:
        return await self._storage.webhooks(call.own)

    async def put_webhook(self, call: AdminCall) -> bodies.CreatedWebhook:
        wanted: bodies.WebhookBody = call.body
        try:
            check_url(wanted.url, private=self._private_webhooks)
        except ValueError as exc:  # well-formed, and yet not an address for this gateway
            raise fail(403, "GD-X001", "Address refused", str(exc)) from None
        secret = "whsec_" + base64.b64encode(secrets.token_bytes(32)).decode()
        webhook = records.Webhook(
            webhook_id="",
            organisation_id=call.own,
            url=wanted.url,
            types=wanted.types,
            enabled=wanted.enabled,
        )
        stored = await self._write(call, webhooks.put, webhook, secret)
        return bodies.CreatedWebhook(webhook=stored, secret=secret)

    async def delete_webhook(self, call: AdminCall) -> None:
        await self._write(call, webhooks.delete, call.own, call.path["webhook_id"])

    async def deliveries(self, call: AdminCall) -> list[records.Delivery]:
        return await self._storage.deliveries(call.own, call.query.limit)


def as_budget(organisation_id: str, body: bodies.BudgetBody) -> records.BudgetRule:
    """Build a budget from its body.

    Raises:
        ValueError: the limit or the scope is contradictory.
    """
    return records.BudgetRule(
        budget_id="",
        organisation_id=organisation_id,
        scope_kind=body.scope_kind,
        scope_id=body.scope_id,
        window=body.window,
        limit_nanousd=body.limit(),
        mode=body.mode,
        epsilon_nanousd=body.epsilon_nanousd,
        thresholds=body.thresholds,
        unit=body.unit,
        counts=sorted(set(body.counts)),
        on_exhausted=body.on_exhausted,
        ask_ms=body.ask_ms,
        wind_down_percent=body.wind_down_percent,
    )


def as_price(organisation_id: str, body: bodies.PriceBody) -> records.Price:
    """Build a price from its body."""
    return records.Price(
        price_id="",
        organisation_id=organisation_id,
        provider=body.provider,
        model=body.model,
        rates=body.rates,
    )


def _previewed(difference: Difference) -> bodies.PreviewedCall:
    call = difference.recent.call
    return bodies.PreviewedCall(
        call_id=call.call_id,
        at_ms=difference.recent.at_ms,
        workflow_id=call.workflow_id,
        function=call.function,
        tool_name=call.tool_name,
        model=call.model,
        before=difference.before,
        after=difference.after,
        reason=difference.reason,
    )


def as_policy(organisation_id: str, name: str, body: bodies.PolicyBody) -> records.Policy:
    """Build a policy from its body."""
    return records.Policy(
        policy_id="",
        organisation_id=organisation_id,
        name=name,
        scope_kind=body.scope_kind,
        scope_id=body.scope_id,
        enabled=body.enabled,
        document=body.document,
    )


def _shown_once(made: NewKey, key: records.Key) -> bodies.CreatedKey:
    return bodies.CreatedKey(key=key, api_key=made.api_key, hmac_secret=made.hmac_secret)
