"""The table of admin operations: one row for each.

From a row follow its route, its part of the OpenAPI document, and who may do it: over the API, and
in the dashboard, whose forms call the rows.
"""

from __future__ import annotations

from typing import Any, Final

from guard.gateway.api.admin import alert_handlers as alerts
from guard.gateway.api.admin import bodies, fact_bodies, handlers, people, rules
from guard.gateway.api.admin.operations import Operation, read, write
from guard.gateway.domain.alerts import RULE_NAME
from guard.gateway.ledger import alerting, catalogue, directory, doubt, logins, webhooks
from guard.gateway.storage.port import Storage

# fmt: off

# -- organisations, settings, keys -----------------------------------------------------------------

list_organisations = Operation(
    "GET", "/organisations", "viewer", "List organisations", people.organisations,
    gateway_wide=True)
create_organisation = Operation(
    "POST", "/organisations", "owner", "Create an organisation", people.create_organisation,
    status=201, gateway_wide=True, conflicts=True)
remove_organisation = Operation(
    "DELETE", "/organisations/{organisation_id}", "owner",
    "Remove an organisation, with its keys and operators", people.remove_organisation,
    gateway_wide=True, conflicts=True)
show_organisation = Operation(
    "GET", "/organisations/settings", "viewer", "Show an organisation's settings",
    handlers.organisation)
replace_settings = Operation(
    "PUT", "/organisations/settings", "operator", "Replace an organisation's settings",
    handlers.replace_settings)
change_settings = Operation(
    "PATCH", "/organisations/settings", "operator", "Change some of an organisation's settings",
    handlers.change_settings)
list_keys = Operation("GET", "/keys", "viewer", "List keys", handlers.keys)
create_key = Operation(
    "POST", "/keys", "owner", "Create a key, shown once", handlers.create_key,
    status=201, conflicts=True)
rotate_key = Operation(
    "POST", "/keys/{key_id}/rotate", "owner", "Give a key a new secret", handlers.rotate_key,
    status=201, conflicts=True)
update_key = write(
    "PATCH", "/keys/{key_id}", "owner", "Change the name, the end or the attributes of a key",
    directory.update_key)
revoke_key = write(
    "DELETE", "/keys/{key_id}", "owner", "Revoke a key at once", directory.revoke_key)
revoke_secret = write(
    "DELETE", "/keys/{key_id}/secrets/{prefix:path}", "owner",
    "Revoke one secret of a key at once; the key and its others stay", directory.revoke_secret)

# -- budgets, policies, prices ---------------------------------------------------------------------

list_budgets = Operation("GET", "/budgets", "viewer", "List budgets", rules.list_budgets)
put_budget = Operation(
    "PUT", "/budgets", "operator", "Set a budget for a scope and window", rules.put_budget,
    conflicts=True)
delete_budget = write(
    "DELETE", "/budgets/{budget_id}", "operator", "Remove a budget", catalogue.delete_budget)
raise_budget = Operation(
    "POST", "/budgets/{budget_id}/raise", "operator", "Raise a budget's limit once",
    rules.raise_budget, conflicts=True)
refuse_raise = Operation(
    "POST", "/budgets/{budget_id}/refuse", "operator", "Refuse calls that wait for a raise",
    rules.refuse_raise, conflicts=True)
list_raises = read(
    "/budgets/raises", "List raises of budgets, newest first", Storage.budget_raises,
    bodies.RaisesQuery)
list_asks = read(
    "/budgets/asks", "List calls that wait for a budget to be raised", Storage.budget_asks,
    bodies.LimitQuery)
list_policies = read("/policies", "List active policies", Storage.policies)
put_policy = Operation(
    "PUT", "/policies/{name}", "operator", "Set a policy", rules.put_policy, conflicts=True)
delete_policy = write(
    "DELETE", "/policies/{name}", "operator", "Deactivate a policy", catalogue.delete_policy)
list_policy_versions = read(
    "/policies/{name}/versions", "List a policy's versions", Storage.policy_versions)
preview_policy = Operation(
    "POST", "/policies/preview", "viewer", "Try a policy against recent calls", rules.preview)
list_unmatched = Operation(
    "GET", "/unmatched", "viewer",
    "List what budgets, policies and prices are for that matches nothing yet", rules.unmatched)
apply = Operation(
    "POST", "/apply", "operator", "Activate a set of budgets, policies and prices", rules.apply,
    conflicts=True)
list_prices = read("/prices", "List the operator's prices", Storage.prices)
put_price = Operation("PUT", "/prices", "operator", "Set a price", rules.put_price)
delete_price = write(
    "DELETE", "/prices/{price_id}", "operator", "Remove a price", catalogue.delete_price)
list_facts = read("/facts", "List what operators have judged of requests", Storage.facts)
change_facts = Operation(
    "PUT", "/facts", "operator", "Judge names of members, tools and blocks of requests",
    fact_bodies.change)
reconcile = Operation(
    "POST", "/reconcile", "operator", "Book what a vendor has billed", handlers.reconcile)
list_doubts = read(
    "/doubts", "List charges of which it is not known what the vendor bills, newest first",
    Storage.doubts, bodies.LimitQuery)
settle_doubt = write(
    "POST", "/doubts/{event_id:path}", "operator", "Say what a charge in doubt has cost",
    doubt.settle)

# -- control ---------------------------------------------------------------------------------------

list_workflows = read("/workflows", "List workflows", Storage.workflows, bodies.Page)
show_workflow = read("/workflows/{workflow_id:path}", "Show a workflow", Storage.workflow)
announce_workflow = Operation(
    "PUT", "/workflows/{workflow_id:path}", "operator",
    "Make a workflow known before its first call", handlers.announce_workflow)
list_runs = read("/runs", "List runs", Storage.runs, bodies.RunsQuery)
issue_directive = Operation(
    "POST", "/control", "operator", "Kill, pause, resume or revive", handlers.issue_directive)
is_known = read(
    "/control/known", "Tell whether a directive's target is known", Storage.target_exists,
    bodies.KnownQuery)
count_named = read(
    "/control/named", "Count what a directive's target names", Storage.count_targets,
    bodies.NamedQuery)
list_approvals = read("/approvals", "List approvals", Storage.approvals, bodies.ApprovalsQuery)
answer_approval = Operation(
    "POST", "/approvals/{approval_id}", "operator", "Answer an approval",
    handlers.answer_approval, conflicts=True)

# -- usage and audit -------------------------------------------------------------------------------

sum_usage = read("/usage", "Sum usage by group", Storage.usage, bodies.UsageQuery)
list_usage = read(
    "/usage/rows", "List what each scope of a kind has used", Storage.usage_rows,
    bodies.UsageRowsQuery)
list_events = read("/events", "List events", Storage.events, bodies.EventsQuery)
list_balances = Operation(
    "GET", "/ledger", "viewer", "List balances", handlers.ledger, query=bodies.LedgerQuery)
verify_ledger = Operation(
    "GET", "/ledger/verify", "viewer", "Check balances against entries", handlers.verify_ledger,
    gateway_wide=True)
list_audit = Operation(
    "GET", "/audit", "viewer", "List audit entries, of the whole gateway to its keys alone",
    handlers.audit, query=bodies.AuditQuery)
show_audit_head = Operation(
    "GET", "/audit/head", "viewer", "Show the audit log's newest entry", handlers.audit_head,
    gateway_wide=True)
verify_audit = Operation(
    "GET", "/audit/verify", "viewer", "Check the audit log's chain", handlers.verify_audit,
    query=bodies.AuditCheck, gateway_wide=True)

# -- webhooks and alerts ---------------------------------------------------------------------------

list_webhooks = read("/webhooks", "List webhooks", Storage.webhooks)
put_webhook = Operation(
    "PUT", "/webhooks", "operator", "Set a webhook; its secret is shown once",
    handlers.put_webhook, conflicts=True)
delete_webhook = write(
    "DELETE", "/webhooks/{webhook_id}", "operator", "Remove a webhook", webhooks.delete)
list_deliveries = read(
    "/webhooks/deliveries", "List webhook deliveries", Storage.deliveries, bodies.LimitQuery)
list_rules = read("/alerts/rules", "List rules of alerts", Storage.alert_rules)
put_rule = Operation(
    "PUT", "/alerts/rules/{name}", "operator", "Set a rule of alerts", alerts.put_rule,
    conflicts=True, named=RULE_NAME)
delete_rule = write(
    "DELETE", "/alerts/rules/{name}", "operator", "Remove a rule of alerts", alerting.delete_rule)
list_channels = read(
    "/alerts/channels", "List channels, without their secrets", Storage.channels)
put_channel = Operation(
    "PUT", "/alerts/channels/{name}", "operator", "Set a channel of alerts", alerts.put_channel,
    conflicts=True, named=RULE_NAME)
delete_channel = write(
    "DELETE", "/alerts/channels/{name}", "operator", "Remove a channel", alerting.delete_channel,
    conflicts=True)
test_channel = Operation(
    "POST", "/alerts/channels/{name}/test", "operator", "Send a test message",
    alerts.test_channel, status=201)

# -- operators and sessions ------------------------------------------------------------------------

list_operators = Operation(
    "GET", "/operators", "viewer", "List operators of the dashboard", people.operators,
    gateway_wide=True)
put_operator = Operation(
    "PUT", "/operators/{name}", "owner",
    "Add a dashboard operator, or set the password or the role of one", people.put_operator,
    gateway_wide=True, conflicts=True)
remove_operator = Operation(
    "DELETE", "/operators/{name}", "owner", "Remove an operator and end their sessions",
    people.remove_operator, gateway_wide=True)
sign_in_link = Operation(
    "POST", "/operators/{name}/sign-in-link", "owner", "Make a link for an operator's new device",
    people.sign_in_link, gateway_wide=True)
end_sessions = Operation(
    "DELETE", "/operators/{name}/sessions", "owner", "End every session of an operator",
    people.end_sessions, gateway_wide=True)
list_sessions = Operation(
    "GET", "/sessions", "viewer", "List sessions of the dashboard", people.sessions,
    gateway_wide=True)
end_session = Operation(
    "DELETE", "/sessions/{session_id}", "owner", "End a session", people.end_session,
    gateway_wide=True)
list_groups = Operation(
    "GET", "/sign-on/groups", "viewer", "List what members of the provider's groups get",
    people.sign_on_groups, gateway_wide=True)
put_group = Operation(
    "PUT", "/sign-on/groups/{group:path}", "owner", "Set what members of a group get",
    people.put_group, gateway_wide=True, conflicts=True)
delete_group = Operation(
    "DELETE", "/sign-on/groups/{group:path}", "owner", "Remove a group from the table",
    people.delete_group, gateway_wide=True, conflicts=True)
forget_account = write(
    "DELETE", "/sign-on/accounts/{key_id}", "owner",
    "Let a person sign in again whose account was revoked", logins.forget_account, conflicts=True)

# fmt: on

OPERATIONS: Final[tuple[Operation[..., Any], ...]] = tuple(
    row for row in globals().copy().values() if isinstance(row, Operation)
)
"""Every row."""
