"""The table of admin operations, from which the router and the OpenAPI document are built."""

from __future__ import annotations

from guard.core import wire
from guard.gateway.api.admin import bodies
from guard.gateway.api.admin.handlers import AdminHandlers
from guard.gateway.api.admin.operations import Operation
from guard.gateway.domain import records
from guard.gateway.domain.operators import Operator


def operations(h: AdminHandlers) -> list[Operation]:
    """Return the table of admin operations."""
    op, r, b = Operation, records, bodies
    return [
        op("GET", "/organisations", h.organisations, "List organisations", list[r.Organisation],
           wide=True),
        op("POST", "/organisations", h.create_organisation, "Create an organisation",
           r.Organisation, body=b.NewOrganisation, status=201, wide=True, conflicts=True),
        op("GET", "/organisations/settings", h.organisation, "Show an organisation's settings",
           r.Organisation),
        op("PUT", "/organisations/settings", h.settings, "Replace an organisation's settings",
           r.Organisation, body=r.OrganisationSettings),
        op("PATCH", "/organisations/settings", h.change_settings,
           "Change some of an organisation's settings", r.Organisation, body=b.SettingChanges),
        op("GET", "/keys", h.keys, "List keys", list[r.Key]),
        op("POST", "/keys", h.create_key, "Create a key, shown once", b.CreatedKey,
           body=b.NewKeyBody, status=201, conflicts=True),
        op("POST", "/keys/{key_id}/rotate", h.rotate_key, "Make a key's successor", b.CreatedKey,
           body=b.RotateBody, status=201, conflicts=True),
        op("DELETE", "/keys/{key_id}", h.revoke_key, "Revoke a key at once", r.Key),
        op("GET", "/budgets", h.budgets, "List budgets", list[r.BudgetRule]),
        op("PUT", "/budgets", h.put_budget, "Set a budget for a scope and window", r.BudgetRule,
           body=b.BudgetBody),
        op("DELETE", "/budgets/{budget_id}", h.delete_budget, "Remove a budget", None, status=204),
        op("GET", "/policies", h.policies, "List active policies", list[r.Policy]),
        op("PUT", "/policies/{name}", h.put_policy, "Set a policy", r.Policy, body=b.PolicyBody),
        op("DELETE", "/policies/{name}", h.delete_policy, "Deactivate a policy", None,
           status=204),
        op("GET", "/policies/{name}/versions", h.policy_versions, "List a policy's versions",
           list[r.Policy]),
        op("POST", "/policies/preview", h.preview, "Try a policy against recent calls", b.Preview,
           body=b.PreviewBody),
        op("POST", "/apply", h.apply, "Activate a set of budgets, policies and prices",
           b.Plan, body=b.ApplyBody, conflicts=True),
        op("GET", "/prices", h.prices, "List the operator's prices", list[r.Price]),
        op("PUT", "/prices", h.put_price, "Set a price", r.Price, body=b.PriceBody),
        op("DELETE", "/prices/{price_id}", h.delete_price, "Remove a price", None, status=204),
        op("POST", "/reconcile", h.reconcile, "Book what a vendor has billed",
           list[r.Adjustment], body=b.ReconcileBody),
        op("GET", "/workflows", h.workflows, "List workflows", list[r.Workflow], query=b.Page),
        op("GET", "/workflows/{workflow_id:path}", h.workflow, "Show a workflow", r.Workflow),
        op("PUT", "/workflows/{workflow_id:path}", h.announce_workflow,
           "Make a workflow known before its first call", r.Workflow),
        op("GET", "/runs", h.runs, "List runs", list[r.Run], query=b.RunsQuery),
        op("POST", "/control", h.control, "Kill, pause, resume or revive", wire.ControlMessage,
           body=b.ControlBody),
        op("GET", "/control/known", h.known, "Tell whether a directive's target is known", r.Known,
           query=b.KnownQuery),
        op("GET", "/control/named", h.named, "Count what a directive's target names", r.Named,
           query=b.NamedQuery),
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
        op("GET", "/audit/head", h.audit_head, "Show the audit log's newest entry", b.AuditHead,
           wide=True),
        op("GET", "/audit/verify", h.verify_audit, "Check the audit log's chain", b.AuditReport,
           query=b.AuditCheck, wide=True),
        op("GET", "/webhooks", h.webhooks, "List webhooks", list[r.Webhook]),
        op("PUT", "/webhooks", h.put_webhook, "Set a webhook; its secret is shown once",
           b.CreatedWebhook, body=b.WebhookBody, conflicts=True),
        op("DELETE", "/webhooks/{webhook_id}", h.delete_webhook, "Remove a webhook", None,
           status=204),
        op("GET", "/webhooks/deliveries", h.deliveries, "List webhook deliveries",
           list[r.Delivery], query=b.LimitQuery),
        op("PUT", "/operators/{name}", h.put_operator, "Set the password of a dashboard operator",
           Operator, body=b.PasswordBody, wide=True, conflicts=True),
        op("POST", "/operators/{name}/sign-in-link", h.sign_in_link,
           "Make a link for an operator's new device", b.SignInLink, wide=True),
    ]  # fmt: skip
