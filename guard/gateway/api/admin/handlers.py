"""Settings, keys, control, usage, audit and webhooks: what rows of the table of operations do."""

from __future__ import annotations

import asyncio
import base64
import secrets
from typing import Final

from guard.core import wire
from guard.gateway.api.admin import bodies
from guard.gateway.api.admin.from_body import record_from
from guard.gateway.api.admin.operations import AdminCall
from guard.gateway.api.http import fail
from guard.gateway.domain import records
from guard.gateway.domain.errors import ConflictError
from guard.gateway.ledger import approvals, control, directory, reconciliation, webhooks
from guard.gateway.services.egress import check_url
from guard.gateway.services.keys import NewKey, make_key
from guard.gateway.storage.port import NEWEST
from guard.gateway.unit.state import within

PART_ROWS: Final = 100
"""Rows of a bill that one unit of work books."""


# -- settings and keys -----------------------------------------------------------------------------


async def organisation(call: AdminCall) -> records.Organisation:
    found = await call.storage.organisations()
    return next(each for each in found if each.organisation_id == call.own)


async def replace_settings(
    call: AdminCall, body: records.OrganisationSettings
) -> records.Organisation:
    return await call.write(directory.update_organisation, call.own, body)


async def change_settings(call: AdminCall, body: bodies.SettingChanges) -> records.Organisation:
    return await call.write(directory.change_settings, call.own, body)


async def keys(call: AdminCall) -> list[records.Key]:
    found = await call.storage.keys(call.own)
    if call.actor.organisation_id is None:
        found += await call.storage.proxies()
    return found


async def create_key(call: AdminCall, body: bodies.NewKeyBody) -> bodies.CreatedKey:
    if body.every_organisation:
        if body.role != "proxy":
            raise ValueError("every_organisation is for keys of role proxy")
        if call.actor.organisation_id is not None:
            raise ConflictError("this admin key is for one organisation")
    owner_id = body.owner_id and await call.storage.current_key_id(body.owner_id)
    made = make_key(
        call.services.ids,
        call.services.clock_ms(),
        role=body.role,
        organisation_id=None if body.every_organisation else call.own,
        name=body.name,
        workflow_id=body.workflow_id if body.role == "sdk" else None,
        expires_at_ms=body.expires_at_ms,
        signed=body.signed,
        hmac_secret=body.hmac_secret,
        owner_id=owner_id,
        attributes=body,
    )
    key = await call.write(directory.create_key, made.key, made.key_hash, made.hmac_secret)
    return _shown_once(made, key)


async def rotate_key(call: AdminCall, body: bodies.RotateBody, key_id: str) -> bodies.CreatedKey:
    key_id = await call.storage.current_key_id(key_id)
    old = next((k for k in await keys(call) if k.key_id == key_id), None)
    made = make_key(
        call.services.ids,
        call.services.clock_ms(),
        role="sdk" if old is None else old.role,
        organisation_id=call.own,
        name="",
        signed=old is not None and old.signed,
    )
    key = await call.write(
        directory.rotate_key, call.own, key_id,
        made.key.prefix, made.key_hash, made.hmac_secret, body.overlap_ms,
    )  # fmt: skip
    return _shown_once(made, key)


def _shown_once(made: NewKey, key: records.Key) -> bodies.CreatedKey:
    return bodies.CreatedKey(key=key, api_key=made.api_key, hmac_secret=made.hmac_secret)


# -- control ---------------------------------------------------------------------------------------


async def announce_workflow(call: AdminCall, workflow_id: str) -> records.Workflow:
    await call.write(directory.announce_workflow, call.own, workflow_id)
    return await call.storage.workflow(call.own, workflow_id)


async def issue_directive(call: AdminCall, body: bodies.ControlBody) -> wire.ControlMessage:
    draft = wire.ControlMessage(
        seq=0,
        type=body.action,
        workflow_id=body.workflow_id or "*",
        run_id=body.run_id,
        reason=body.reason,
        resume_after_ms=body.resume_after_ms if body.action == "pause" else None,
    )
    return await call.write(control.issue_directive, call.own, draft)


async def answer_approval(
    call: AdminCall, body: bodies.ApprovalBody, approval_id: str
) -> records.Approval:
    return await call.write(
        approvals.answer, call.own, approval_id, approved=body.approved, reason=body.reason
    )


# -- usage and audit -------------------------------------------------------------------------------


async def reconcile(call: AdminCall, body: bodies.ReconcileBody) -> list[records.Adjustment]:
    if len({row.width_ms for row in body.rows}) > 1:
        raise ConflictError("hours and days in one request")
    if any(row.start_ms % row.width_ms for row in body.rows):
        raise ConflictError("a row begins within an hour (or day) of UTC")
    prices = (await call.services.catalogue.view(call.own)).prices
    billed = [
        records.Billed(
            start_ms=row.start_ms,
            width_ms=row.width_ms,
            model=row.model,
            cost_nanousd=prices.cost_of_many(row, body.provider)
            if row.cost_nanousd is None
            else row.cost_nanousd,
        )
        for row in body.rows
    ]
    # 1. Judged as a whole, beside the writer. Whatever is wrong with the bill is found here.
    charged = await call.storage.charged_hours(
        call.own, *reconciliation.span_of(billed), body.provider
    )
    rows = await asyncio.to_thread(reconciliation.judged, billed, charged)
    if body.dry_run:
        now_ms = call.services.clock_ms()
        return [reconciliation.adjustment_of(row, now_ms) for row in rows]
    # 2. Booked in parts, between which others have their turn. If one fails, those before it
    # are booked; the same bill sent again books the rest.
    parts = [rows[at : at + PART_ROWS] for at in range(0, len(rows), PART_ROWS)]
    made = []
    for number, part in enumerate(parts, 1):
        made += await call.storage.write(
            within(call.own, weight=len(part)), reconciliation.book, call.actor, call.own,
            part, body.provider, body.source, number, len(parts),
        )  # fmt: skip
    return made


async def ledger(
    call: AdminCall, *, all_windows: bool, after: int, limit: int
) -> list[records.BalanceView]:
    return await call.storage.balances(
        call.own, current_only=not all_windows, after=after, limit=limit
    )


async def verify_ledger(call: AdminCall) -> records.LedgerReport:
    return await call.storage.verify_ledger()


async def audit(
    call: AdminCall, *, after: int, limit: int, newest: bool
) -> list[records.AuditEntry]:
    is_wide = call.actor.organisation_id is None
    if newest:
        found = await call.storage.newest_audit(call.own, NEWEST, limit, with_gateway=is_wide)
        return found[::-1]
    return await call.storage.audit(call.own, after, limit, with_gateway=is_wide)


async def audit_head(call: AdminCall) -> bodies.AuditHead:
    seq, digest = await call.storage.audit_head()
    return bodies.AuditHead(seq=seq, hash=digest)


async def verify_audit(call: AdminCall, expect: str | None = None) -> bodies.AuditReport:
    noted = None
    if expect is not None:
        seq, digest = expect.split(":")
        noted = int(seq), digest
    entries, bad = await call.storage.verify_audit(noted)
    return bodies.AuditReport(entries=entries, first_bad_seq=bad, ok=bad is None)


# -- webhooks --------------------------------------------------------------------------------------


async def put_webhook(call: AdminCall, body: bodies.WebhookBody) -> bodies.CreatedWebhook:
    try:
        check_url(body.url, private=call.services.settings.private_webhooks)
    except ValueError as exc:  # well-formed, and yet not an address for this gateway
        raise fail(403, "GD-X001", "Address refused", str(exc)) from None
    secret = "whsec_" + base64.b64encode(secrets.token_bytes(32)).decode()
    webhook = record_from(body, records.Webhook, webhook_id="", organisation_id=call.own)
    stored = await call.write(webhooks.put, webhook, secret)
    return bodies.CreatedWebhook(webhook=stored, secret=secret)
