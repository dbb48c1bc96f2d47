"""What operators can do: the table of admin operations and their handlers."""

from __future__ import annotations

import base64
import secrets
from collections.abc import Callable
from typing import Any

from guard.core import wire
from guard.core.ids import IdFactory
from guard.gateway.domain import records
from guard.gateway.routes import admin_bodies as bodies
from guard.gateway.routes.operations import Call, Operation
from guard.gateway.services.keys import NewKey, make_key
from guard.gateway.storage.base import ConflictError, Storage


class AdminHandlers:
    """Handlers over the storage port; each returns the reply's value."""

    def __init__(self, storage: Storage, clock_ms: Callable[[], int]) -> None:
        self._storage = storage
        self._clock_ms = clock_ms
        self._ids = IdFactory()

    # -- organisations and keys ----------------------------------------------------------------

    async def organisations(self, call: Call) -> list[records.Organisation]:
        found = await self._storage.organisations()
        own = call.caller.bound_to
        return [o for o in found if own is None or o.organisation_id == own]

    async def create_organisation(self, call: Call) -> records.Organisation:
        if call.caller.bound_to is not None:
            raise ConflictError("this admin key is for one organisation")
        return await self._storage.create_organisation(call.caller.actor, call.body.name)

    async def settings(self, call: Call) -> records.Organisation:
        return await self._storage.update_organisation(
            call.caller.actor, call.caller.organisation(), call.body
        )

    async def keys(self, call: Call) -> list[records.Key]:
        return await self._storage.keys(call.caller.organisation())

    async def create_key(self, call: Call) -> bodies.CreatedKey:
        wanted: bodies.NewKeyBody = call.body
        made = make_key(
            self._ids,
            self._clock_ms(),
            role=wanted.role,
            organisation_id=call.caller.organisation(),
            name=wanted.name,
            workflow_id=wanted.workflow_id if wanted.role == "sdk" else None,
            expires_at_ms=wanted.expires_at_ms,
            signed=wanted.signed,
            hmac_secret=wanted.hmac_secret,
        )
        key = await self._storage.create_key(
            call.caller.actor, made.key, made.key_hash, made.hmac_secret
        )
        return _shown_once(made, key)

    async def rotate_key(self, call: Call) -> bodies.CreatedKey:
        key_id = call.path["key_id"]
        own = call.caller.organisation()
        old = next((k for k in await self._storage.keys(own) if k.key_id == key_id), None)
        made = make_key(
            self._ids,
            self._clock_ms(),
            role="sdk" if old is None else old.role,
            organisation_id=own,
            name="",
            signed=old is not None and old.signed,
        )
        key = await self._storage.rotate_key(
            call.caller.actor,
            own,
            key_id,
            made.key,
            made.key_hash,
            made.hmac_secret,
            call.body.overlap_ms,
        )
        return _shown_once(made, key)

    async def revoke_key(self, call: Call) -> records.Key:
        return await self._storage.revoke_key(
            call.caller.actor, call.caller.organisation(), call.path["key_id"]
        )

    # -- budgets, policies, prices -------------------------------------------------------------

    async def budgets(self, call: Call) -> list[records.Budget]:
        return await self._storage.budgets(call.caller.organisation())

    async def put_budget(self, call: Call) -> records.Budget:
        wanted: bodies.BudgetBody = call.body
        budget = records.Budget(
            budget_id="",
            organisation_id=call.caller.organisation(),
            scope_kind=wanted.scope_kind,
            scope_id=wanted.scope_id,
            window=wanted.window,
            limit_nanousd=wanted.limit(),
            mode=wanted.mode,
            epsilon_nanousd=wanted.epsilon_nanousd,
            thresholds=wanted.thresholds,
        )
        return await self._storage.put_budget(call.caller.actor, budget)

    async def delete_budget(self, call: Call) -> None:
        await self._storage.delete_budget(
            call.caller.actor, call.caller.organisation(), call.path["budget_id"]
        )

    async def policies(self, call: Call) -> list[records.Policy]:
        return await self._storage.policies(call.caller.organisation())

    async def put_policy(self, call: Call) -> records.Policy:
        policy = as_policy(call.caller.organisation(), call.path["name"], call.body)
        return await self._storage.put_policy(call.caller.actor, policy)

    async def delete_policy(self, call: Call) -> None:
        await self._storage.delete_policy(
            call.caller.actor, call.caller.organisation(), call.path["name"]
        )

    async def policy_versions(self, call: Call) -> list[records.Policy]:
        return await self._storage.policy_versions(call.caller.organisation(), call.path["name"])

    async def prices(self, call: Call) -> list[records.Price]:
        return await self._storage.prices(call.caller.organisation())

    async def put_price(self, call: Call) -> records.Price:
        wanted: bodies.PriceBody = call.body
        price = records.Price(
            price_id="",
            organisation_id=call.caller.organisation(),
            provider=wanted.provider,
            model=wanted.model,
            rates=wanted.rates,
        )
        return await self._storage.put_price(call.caller.actor, price)

    async def delete_price(self, call: Call) -> None:
        await self._storage.delete_price(
            call.caller.actor, call.caller.organisation(), call.path["price_id"]
        )

    # -- control -------------------------------------------------------------------------------

    async def workflows(self, call: Call) -> list[records.Workflow]:
        query: bodies.Page = call.query
        return await self._storage.workflows(call.caller.organisation(), query.after, query.limit)

    async def workflow(self, call: Call) -> records.Workflow:
        return await self._storage.workflow(call.caller.organisation(), call.path["workflow_id"])

    async def runs(self, call: Call) -> list[records.Run]:
        query: bodies.RunsQuery = call.query
        return await self._storage.runs(
            call.caller.organisation(), query.workflow_id, query.after, query.limit
        )

    async def control(self, call: Call) -> wire.ControlMessage:
        wanted: bodies.ControlBody = call.body
        draft = wire.ControlMessage(
            seq=0,
            type=wanted.action,
            workflow_id=wanted.workflow_id or "*",
            run_id=wanted.run_id,
            reason=wanted.reason,
            resume_after_ms=wanted.resume_after_ms if wanted.action == "pause" else None,
        )
        return await self._storage.order(call.caller.actor, call.caller.organisation(), draft)

    async def approvals(self, call: Call) -> list[records.Approval]:
        query: bodies.ApprovalsQuery = call.query
        return await self._storage.approvals(call.caller.organisation(), query.status, query.limit)

    async def answer_approval(self, call: Call) -> records.Approval:
        wanted: bodies.ApprovalBody = call.body
        return await self._storage.answer_approval(
            call.caller.actor,
            call.caller.organisation(),
            call.path["approval_id"],
            approved=wanted.approved,
            reason=wanted.reason,
        )

    # -- figures -------------------------------------------------------------------------------

    async def usage(self, call: Call) -> list[records.UsageRow]:
        query: bodies.UsageQuery = call.query
        return await self._storage.usage(
            call.caller.organisation(), query.group_by, query.since_ms, query.until_ms, query.limit
        )

    async def events(self, call: Call) -> list[records.StoredEvent]:
        query: bodies.EventsQuery = call.query
        return await self._storage.events(
            call.caller.organisation(), query.after, query.limit, query.workflow_id, query.type
        )

    async def ledger(self, call: Call) -> list[records.BalanceView]:
        return await self._storage.balances(
            call.caller.organisation(), current_only=not call.query.all
        )

    async def verify_ledger(self, _: Call) -> records.LedgerReport:
        return await self._storage.verify_ledger()

    async def audit(self, call: Call) -> list[records.AuditEntry]:
        query: bodies.NumberedPage = call.query
        return await self._storage.audit(call.caller.organisation(), query.after, query.limit)

    async def verify_audit(self, _: Call) -> bodies.AuditReport:
        entries, bad = await self._storage.verify_audit()
        return bodies.AuditReport(entries=entries, first_bad_seq=bad, ok=bad is None)

    # -- webhooks ------------------------------------------------------------------------------

    async def webhooks(self, call: Call) -> list[records.Webhook]:
        return await self._storage.webhooks(call.caller.organisation())

    async def put_webhook(self, call: Call) -> bodies.CreatedWebhook:
        wanted: bodies.WebhookBody = call.body
        secret = "whsec_" + base64.b64encode(secrets.token_bytes(32)).decode()
        webhook = records.Webhook(
            webhook_id="",
            organisation_id=call.caller.organisation(),
            url=wanted.url,
            types=wanted.types,
            enabled=wanted.enabled,
        )
        stored = await self._storage.put_webhook(call.caller.actor, webhook, secret)
        return bodies.CreatedWebhook(webhook=stored, secret=secret)

    async def delete_webhook(self, call: Call) -> None:
        await self._storage.delete_webhook(
            call.caller.actor, call.caller.organisation(), call.path["webhook_id"]
        )

    async def deliveries(self, call: Call) -> list[records.Delivery]:
        return await self._storage.deliveries(call.caller.organisation(), call.query.limit)


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


def operations(h: AdminHandlers) -> list[Operation]:
    """Return the table of admin operations."""
    r, b = records, bodies

    def op(
        method: str, path: str, handler: Any, summary: str, reply: Any, **more: Any
    ) -> Operation:
        tag = path.split("/")[1]
        return Operation(method, path, handler, summary, reply, tag=tag, **more)

    return [
        op("GET", "/organisations", h.organisations, "List organisations", list[r.Organisation],
           wide=True),
        op("POST", "/organisations", h.create_organisation, "Create an organisation",
           r.Organisation, body=b.NewOrganisation, status=201, wide=True, conflicts=True),
        op("PUT", "/organisations/settings", h.settings, "Change an organisation's settings",
           r.Organisation, body=r.OrganisationSettings),
        op("GET", "/keys", h.keys, "List keys", list[r.Key]),
        op("POST", "/keys", h.create_key, "Create a key, shown once", b.CreatedKey,
           body=b.NewKeyBody, status=201),
        op("POST", "/keys/{key_id}/rotate", h.rotate_key, "Make a key's successor", b.CreatedKey,
           body=b.RotateBody, status=201, conflicts=True),
        op("DELETE", "/keys/{key_id}", h.revoke_key, "Revoke a key at once", r.Key),
        op("GET", "/budgets", h.budgets, "List budgets", list[r.Budget]),
        op("PUT", "/budgets", h.put_budget, "Set a budget for a scope and window", r.Budget,
           body=b.BudgetBody),
        op("DELETE", "/budgets/{budget_id}", h.delete_budget, "Remove a budget", None, status=204),
        op("GET", "/policies", h.policies, "List policies in force", list[r.Policy]),
        op("PUT", "/policies/{name}", h.put_policy, "Set a policy", r.Policy, body=b.PolicyBody),
        op("DELETE", "/policies/{name}", h.delete_policy, "Take a policy out of force", None,
           status=204),
        op("GET", "/policies/{name}/versions", h.policy_versions, "List a policy's versions",
           list[r.Policy]),
        op("GET", "/prices", h.prices, "List the operator's prices", list[r.Price]),
        op("PUT", "/prices", h.put_price, "Set a price", r.Price, body=b.PriceBody),
        op("DELETE", "/prices/{price_id}", h.delete_price, "Remove a price", None, status=204),
        op("GET", "/workflows", h.workflows, "List workflows", list[r.Workflow], query=b.Page),
        op("GET", "/workflows/{workflow_id:path}", h.workflow, "Show a workflow", r.Workflow),
        op("GET", "/runs", h.runs, "List runs", list[r.Run], query=b.RunsQuery),
        op("POST", "/control", h.control, "Kill, pause, resume or revive", wire.ControlMessage,
           body=b.ControlBody),
        op("GET", "/approvals", h.approvals, "List approvals", list[r.Approval],
           query=b.ApprovalsQuery),
        op("POST", "/approvals/{approval_id}", h.answer_approval, "Answer an approval",
           r.Approval, body=b.ApprovalBody, conflicts=True),
        op("GET", "/usage", h.usage, "Sum usage by group", list[r.UsageRow], query=b.UsageQuery),
        op("GET", "/events", h.events, "List events", list[r.StoredEvent], query=b.EventsQuery),
        op("GET", "/ledger", h.ledger, "List balances", list[r.BalanceView], query=b.LedgerQuery),
        op("GET", "/ledger/verify", h.verify_ledger, "Check balances against entries",
           r.LedgerReport, wide=True),
        op("GET", "/audit", h.audit, "List audit entries", list[r.AuditEntry],
           query=b.NumberedPage),
        op("GET", "/audit/verify", h.verify_audit, "Check the audit log's chain", b.AuditReport,
           wide=True),
        op("GET", "/webhooks", h.webhooks, "List webhooks", list[r.Webhook]),
        op("PUT", "/webhooks", h.put_webhook, "Set a webhook; its secret is shown once",
           b.CreatedWebhook, body=b.WebhookBody),
        op("DELETE", "/webhooks/{webhook_id}", h.delete_webhook, "Remove a webhook", None,
           status=204),
        op("GET", "/webhooks/deliveries", h.deliveries, "List webhook deliveries",
           list[r.Delivery], query=b.LimitQuery),
    ]  # fmt: skip
