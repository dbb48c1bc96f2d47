"""A blocking client of the admin API, for programs, the command line, demos and tests."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote, urlsplit

from guard.core.mistaken import OWN_ANSWER, mistaken_key, not_a_gateway, why_unreached
from guard.core.written_numbers import read_dollars
from guard.gateway.plain_errors import plain
from guard.tls import client_context
from guard.transport.own_httpx import httpx

_Json = dict[str, Any]
LIST_MAX = 1000
"""How many rows the gateway lists in one answer."""
_NO_TEXT = "an argument is not text in UTF-8"
_KNOWN_S = 5.0
"""How long a directive waits to hear whether its target is known; then it is given all the same."""


def _quoted(name: str) -> str:
    try:
        return quote(name, safe="")
    except UnicodeError:
        raise AdminError(0, _NO_TEXT) from None


def _given(fields: _Json) -> _Json:
    """Return the fields that have a value; the gateway knows the defaults of the others."""
    return {name: value for name, value in fields.items() if value is not None}


class AdminError(Exception):
    """The gateway refused an admin request, or did not answer.

    Attributes:
        status: HTTP status, 0 when there was no answer.
        problem: the problem document, if there was one.
    """

    def __init__(self, status: int, message: str, problem: _Json | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.problem = problem or {}


def _encoded(body: Any) -> bytes:
    """Encode a body.

    Raises:
        AdminError: it has something that JSON has not.
    """
    try:
        return json.dumps(body, allow_nan=False, ensure_ascii=False).encode()
    except UnicodeError:
        raise AdminError(0, _NO_TEXT) from None
    except (ValueError, TypeError, RecursionError) as exc:
        raise AdminError(0, f"this cannot be sent as JSON: {exc}") from None


class AdminClient:
    """Talks to ``/api/v1/admin`` over HTTP.

    Args:
        base_url: of the gateway.
        admin_key: a key that starts with ``gda_``.
        organisation: id or name; needed when the gateway has several.
        timeout_s: total for each request.
        tls_fingerprint: of the only certificate that is accepted.
    """

    def __init__(
        self,
        base_url: str,
        admin_key: str,
        *,
        organisation: str | None = None,
        timeout_s: float = 30.0,
        tls_fingerprint: str | None = None,
    ) -> None:
        self.base_url = base_url.rstrip("/")
        mistaken = mistaken_key(admin_key, "gda_")
        self._mistaken_key = mistaken and (
            f"{mistaken}: give one with --admin-key or GUARD_ADMIN_KEY; the gateway's first run "
            "printed it"
        )
        self._http = httpx.Client(
            base_url=f"{self.base_url}/api/v1/admin",
            headers={
                # What is no key gets an answer, and not an error of encoding.
                b"Authorization": f"Bearer {admin_key}".encode(errors="replace"),
                b"Content-Type": b"application/json",
            },
            params={} if organisation is None else {"organisation": organisation},
            timeout=timeout_s,
            trust_env=False,
            verify=client_context(tls_fingerprint) if base_url.startswith("https:") else False,
        )

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def request(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        wait_s: float | None = None,
        **query: Any,
    ) -> Any:
        """Send one request and return the decoded reply.

        Args:
            method: HTTP method.
            path: below ``/api/v1/admin``.
            body: is sent as JSON.
            wait_s: how long to wait for the answer, where that is not the client's timeout.
            query: parameters; those that are None are left out.

        Raises:
            AdminError: the answer is no success, or there is none.
        """
        if body is None and method in ("POST", "PUT"):
            body = {}
        try:
            response = self._http.request(
                method,
                path,
                content=None if body is None else _encoded(body),
                params=_given(query),
                timeout=httpx.USE_CLIENT_DEFAULT if wait_s is None else wait_s,
            )
        except (httpx.InvalidURL, UnicodeError):
            raise AdminError(0, _NO_TEXT) from None
        except httpx.HTTPError as exc:
            raise AdminError(0, self._unreached(exc)) from None
        try:
            said = response.json() if response.content else None
        except ValueError:  # also what is no text
            raise AdminError(0, not_a_gateway(self.base_url)) from None
        if response.is_success:
            if OWN_ANSWER in response.headers:
                return said
            raise AdminError(0, not_a_gateway(self.base_url))
        raise AdminError(response.status_code, self._refused(response.status_code, said), said)

    def _unreached(self, exc: httpx.HTTPError) -> str:
        failure = f"{type(exc).__name__}: {exc}"
        found = why_unreached(self.base_url, failure, "--tls-fingerprint or GUARD_TLS_FINGERPRINT")
        if found is not None:
            return found
        where = self._http.base_url.netloc.decode()
        if isinstance(exc, httpx.TimeoutException):
            return f"the gateway at {where} does not answer in time"
        if isinstance(exc, httpx.ConnectError) and "CERT" in str(exc):
            return f"the gateway at {where} shows another certificate: {exc}"
        return (
            f"the gateway at {where} does not answer: start one with `guard gateway serve`, or "
            "give another address with --url or GUARD_API_URL"
        )

    def _refused(self, status: int, said: Any) -> str:
        if not isinstance(said, dict) or not isinstance(said.get("error_code"), str):
            return not_a_gateway(self.base_url)
        if status == 404 and said.get("detail") in (None, "") and urlsplit(self.base_url).path:
            return not_a_gateway(self.base_url)
        detail = said.get("detail") or said.get("title") or "no details"
        if status == 401:
            return self._mistaken_key or f"{detail}: give one with --admin-key or GUARD_ADMIN_KEY"
        return plain(str(detail)) if status == 400 else f"{status}: {detail}"

    # -- organisations and keys ----------------------------------------------------------------

    def create_organisation(self, name: str) -> _Json:
        """Create a tenant."""
        return dict(self.request("POST", "/organisations", {"name": name}))

    def organisations(self) -> list[_Json]:
        """List organisations."""
        return list(self.request("GET", "/organisations"))

    def remove_organisation(self, organisation: str) -> None:
        """Remove a tenant by its id or name, with its keys and operators."""
        self.request("DELETE", f"/organisations/{_quoted(organisation)}")

    def create_key(self, name: str = "sdk", **fields: Any) -> str:
        """Create a key and return it. With ``hmac_secret`` its requests must be signed."""
        return str(self.create_key_full(name, **fields)["api_key"])

    def create_key_full(
        self, name: str = "sdk", *, organisation: str | None = None, **fields: Any
    ) -> _Json:
        """Create a key and return ``{key, api_key, hmac_secret}``."""
        body = _given({"name": name, **fields})
        return dict(self.request("POST", "/keys", body, organisation=organisation))

    def set_password(self, name: str, password: str) -> _Json:
        """Set the password of a dashboard operator, who is added if there is none."""
        return self.put_operator(name, password=password)

    def operators(self) -> list[_Json]:
        """List the operators of the dashboard."""
        return list(self.request("GET", "/operators"))

    def put_operator(
        self, name: str, *, password: str | None = None, role: str | None = None
    ) -> _Json:
        """Add an operator, or change the password or the role of one."""
        body = _given({"password": password, "role": role})
        return dict(self.request("PUT", f"/operators/{_quoted(name)}", body))

    def remove_operator(self, name: str) -> None:
        """Remove an operator and end their sessions."""
        self.request("DELETE", f"/operators/{_quoted(name)}")

    def sessions(self) -> list[_Json]:
        """List the sessions of the dashboard, newest first."""
        return list(self.request("GET", "/sessions"))

    def end_session(self, session_id: str) -> None:
        """End a session."""
        self.request("DELETE", f"/sessions/{_quoted(session_id)}")

    def end_sessions(self, name: str) -> None:
        """End every session of an operator."""
        self.request("DELETE", f"/operators/{_quoted(name)}/sessions")

    def sign_in_link(self, name: str) -> _Json:
        """Make a link for a new device of a dashboard operator: ``{path, expires_at_ms}``."""
        return dict(self.request("POST", f"/operators/{_quoted(name)}/sign-in-link"))

    def sign_on_groups(self) -> list[_Json]:
        """List what members of the provider's groups get, in the order in which they count."""
        return list(self.request("GET", "/sign-on/groups"))

    def put_sign_on_group(self, group: str, **fields: Any) -> list[_Json]:
        """Set what members of a group get: ``team``, ``role``, ``models``, ``place``."""
        return list(self.request("PUT", f"/sign-on/groups/{_quoted(group)}", _given(fields)))

    def delete_sign_on_group(self, group: str) -> None:
        """Remove a group from that table."""
        self.request("DELETE", f"/sign-on/groups/{_quoted(group)}")

    def forget_account(self, key_id: str) -> None:
        """Let the person sign in again whose account this revoked key was."""
        self.request("DELETE", f"/sign-on/accounts/{_quoted(key_id)}")

    def keys(self) -> list[_Json]:
        """List keys."""
        return list(self.request("GET", "/keys"))

    def change_key(self, key_id: str, **changes: Any) -> _Json:
        """Change some of a key's fields: ``name``, ``person``, ``purpose``, ``may_name``, ...."""
        return dict(self.request("PATCH", f"/keys/{key_id}", changes))

    def revoke_key(self, key_id: str) -> _Json:
        """Revoke a key at once."""
        return dict(self.request("DELETE", f"/keys/{key_id}"))

    def revoke_secret(self, key_id: str, prefix: str) -> _Json:
        """Revoke the secret of a key that begins with ``prefix``; the key and its others stay."""
        return dict(self.request("DELETE", f"/keys/{key_id}/secrets/{_quoted(prefix)}"))

    def rotate_key(self, key_id: str, overlap_ms: int = 0) -> _Json:
        """Replace a key's secrets and return ``{key, api_key, hmac_secret}``."""
        return dict(self.request("POST", f"/keys/{key_id}/rotate", {"overlap_ms": overlap_ms}))

    # -- budgets, policies, prices -------------------------------------------------------------

    def set_budget(
        self,
        limit_cents: float | None = None,
        *,
        limit: str | float | None = None,
        **fields: Any,
    ) -> _Json:
        """Set a budget, hard and of the whole organisation unless ``fields`` say otherwise.

        They are ``scope_kind``, ``scope_id``, ``window``, ``zone``, ``mode``, ``thresholds``,
        ``epsilon_nanousd``, and in place of ``limit`` (dollars: ``"$2"`` or 0.50) ``limit_cents``,
        ``limit_nanousd``, ``limit_tokens``, or ``limit_calls`` with the globs ``counts`` of what
        is counted. ``anyway`` sets it also for a key, a tag or a model that does not exist yet.
        """
        if limit is not None:
            fields["limit_nanousd"] = read_dollars(str(limit), or_nothing=True)
        body = _given({"limit_cents": limit_cents, **fields})
        return dict(self.request("PUT", "/budgets", body))

    def budgets(self) -> list[_Json]:
        """List budgets."""
        return list(self.request("GET", "/budgets"))

    def unmatched(self) -> set[tuple[str, str]]:
        """Return what rules are for that matches nothing yet: each a kind and an id."""
        return {
            (each["scope_kind"], each["scope_id"]) for each in self.request("GET", "/unmatched")
        }

    def raise_budget(self, budget_id: str, by: int, key: str = "", *, unit: str = "usd") -> _Json:
        """Raise a budget's limit, once for each ``key``: ``{budget, raised}``.

        ``by`` is in nano-dollars, or in the budget's ``unit``: ``tokens`` or ``calls``.
        """
        body = {f"by_{'nanousd' if unit == 'usd' else unit}": by, "key": key}
        return dict(self.request("POST", f"/budgets/{_quoted(budget_id)}/raise", body))

    def refuse_raise(
        self, budget_id: str, call_id: str | None = None, *, reason: str = ""
    ) -> list[_Json]:
        """Refuse a call that waits for a raise of a budget, or all of them, with a reason.

        Returns:
            What was refused.
        """
        body = _given({"call_id": call_id, "reason": reason})
        return list(self.request("POST", f"/budgets/{_quoted(budget_id)}/refuse", body))

    def budget_raises(self, budget_id: str | None = None, limit: int = 100) -> list[_Json]:
        """List raises of a budget, or of all, newest first."""
        return list(self.request("GET", "/budgets/raises", budget_id=budget_id, limit=limit))

    def budget_asks(self, limit: int = 100) -> list[_Json]:
        """List the calls that wait for a budget to be raised, in the order of asking."""
        return list(self.request("GET", "/budgets/asks", limit=limit))

    def delete_budget(self, budget_id: str) -> None:
        """Remove a budget."""
        self.request("DELETE", f"/budgets/{budget_id}")

    def set_policy(
        self,
        name: str = "default",
        *,
        scope_kind: str = "organisation",
        scope_id: str = "*",
        enabled: bool = True,
        anyway: bool = False,
        **document: Any,
    ) -> _Json:
        """Set a policy; ``document`` holds its rules, such as ``tools_block=["delete_*"]``.

        ``anyway`` sets it also for a key that does not exist yet.
        """
        body = {"scope_kind": scope_kind, "scope_id": scope_id, "enabled": enabled,
                "anyway": anyway, "document": document}  # fmt: skip
        return dict(self.request("PUT", f"/policies/{_quoted(name)}", body))

    def policies(self) -> list[_Json]:
        """List active policies."""
        return list(self.request("GET", "/policies"))

    def delete_policy(self, name: str) -> None:
        """Deactivate a policy."""
        self.request("DELETE", f"/policies/{_quoted(name)}")

    def set_price(self, model: str, *, provider: str = "*", **rates: int | None) -> _Json:
        """Set a price; ``rates`` such as ``input_per_mtok=3_000_000_000`` (nano-dollars)."""
        body = {"model": model, "provider": provider, "rates": _given(rates)}
        return dict(self.request("PUT", "/prices", body))

    def prices(self) -> list[_Json]:
        """List the operator's prices."""
        return list(self.request("GET", "/prices"))

    def facts(self) -> list[_Json]:
        """List what operators have judged: each a ``name`` and what it is ``judged``."""
        return list(self.request("GET", "/facts"))

    def change_facts(self, facts: list[_Json], mode: str = "add") -> _Json:
        """Add facts, or ``replace`` or ``remove`` them: ``{added, changed, removed, total}``."""
        return dict(self.request("PUT", "/facts", {"facts": facts, "mode": mode}))

    def reconcile(
        self, rows: list[_Json], *, source: str, provider: str | None, dry_run: bool
    ) -> list[_Json]:
        """Book a vendor's bill; returns the difference for each model and time."""
        body = {"rows": rows, "source": source, "provider": provider, "dry_run": dry_run}
        return list(self.request("POST", "/reconcile", body))

    def doubts(self, limit: int = 100) -> list[_Json]:
        """List charges of which it is not known what the vendor bills, newest first."""
        return list(self.request("GET", "/doubts", limit=limit))

    def settle_doubt(self, event_id: str, cost_nanousd: int | None = None) -> _Json:
        """Say what a charge in doubt has cost: by default what was charged, 0 for nothing."""
        body = {} if cost_nanousd is None else {"cost_nanousd": cost_nanousd}
        return dict(self.request("POST", f"/doubts/{_quoted(event_id)}", body))

    def delete_price(self, price_id: str) -> None:
        """Remove a price."""
        self.request("DELETE", f"/prices/{price_id}")

    def update_settings(self, **settings: Any) -> _Json:
        """Replace the organisation's settings; those left out return to their defaults."""
        return dict(self.request("PUT", "/organisations/settings", settings))

    def settings(self) -> _Json:
        """Return the organisation's settings by name."""
        return dict(self.request("GET", "/organisations/settings")["settings"])

    def change_settings(self, **settings: bool | int | str) -> _Json:
        """Change some of the organisation's settings; the others stay as they are."""
        return dict(self.request("PATCH", "/organisations/settings", settings))

    # -- alerts --------------------------------------------------------------------------------

    def alert_rules(self) -> list[_Json]:
        """List rules of alerts."""
        return list(self.request("GET", "/alerts/rules"))

    def set_alert(self, name: str, on: str, **fields: Any) -> _Json:
        """Set a rule; ``fields`` are ``channels``, ``at_percent``, ``count``, ``within_ms``."""
        body = _given({"on": on, **fields})
        return dict(self.request("PUT", f"/alerts/rules/{_quoted(name)}", body))

    def delete_alert(self, name: str) -> None:
        """Remove a rule."""
        self.request("DELETE", f"/alerts/rules/{_quoted(name)}")

    def channels(self) -> list[_Json]:
        """List channels, without their secrets."""
        return list(self.request("GET", "/alerts/channels"))

    def set_channel(self, name: str, kind: str, **fields: Any) -> _Json:
        """Set a channel: ``{channel, secret}``; a secret that is left out stays as it was."""
        body = _given({"kind": kind, **fields})
        return dict(self.request("PUT", f"/alerts/channels/{_quoted(name)}", body))

    def delete_channel(self, name: str) -> None:
        """Remove a channel."""
        self.request("DELETE", f"/alerts/channels/{_quoted(name)}")

    def test_channel(self, name: str) -> str:
        """Send a test message and return the delivery's id."""
        return str(self.request("POST", f"/alerts/channels/{_quoted(name)}/test")["delivery_id"])

    def deliveries(self, limit: int = 100) -> list[_Json]:
        """List deliveries, newest first."""
        return list(self.request("GET", "/webhooks/deliveries", limit=limit))

    # -- control -------------------------------------------------------------------------------

    def is_known(self, target: str, run_id: str | None = None) -> bool:
        """Return whether the target of a directive names anything."""
        known = self.request(
            "GET", "/control/known", workflow_id=target, run_id=run_id, wait_s=_KNOWN_S
        )
        return bool(known["known"])

    def named(self, target: str) -> _Json:
        """Count the workflows and the recent runs that the target of a directive names."""
        return dict(self.request("GET", "/control/named", workflow_id=target))

    def directive(
        self, action: str, workflow_id: str | None = None, *, reason: str = "", **more: Any
    ) -> _Json:
        """Kill, pause, resume or revive a workflow (id or glob), or without one everything.

        Args:
            action: ``kill``, ``pause``, ``resume`` (lifts a pause, never a kill) or ``revive``.
            workflow_id: an id or a glob.
            reason: shown to the program, and kept in the audit log.
            more: ``run_id`` for one run only; ``resume_after_ms``, after which a pause ends.
        """
        body = {"action": action, "workflow_id": workflow_id, "reason": reason, **more}
        return dict(self.request("POST", "/control", _given(body)))

    kill = functools.partialmethod(directive, "kill")
    pause = functools.partialmethod(directive, "pause")
    resume = functools.partialmethod(directive, "resume")
    revive = functools.partialmethod(directive, "revive")

    def approvals(self, status: str | None = "pending", limit: int = 100) -> list[_Json]:
        """List approvals, newest first."""
        return list(self.request("GET", "/approvals", status=status, limit=limit))

    def answer_approval(self, approval_id: str, *, approved: bool, reason: str = "") -> _Json:
        """Approve or refuse a waiting call."""
        body = {"approved": approved, "reason": reason}
        return dict(self.request("POST", f"/approvals/{approval_id}", body))

    # -- usage and audit -----------------------------------------------------------------------

    def workflows(self, *, after: str = "", limit: int = 100) -> list[_Json]:
        """List workflows."""
        return list(self.request("GET", "/workflows", after=after, limit=limit))

    def announce_workflow(self, workflow_id: str) -> _Json:
        """Make a workflow known before its first call, and return it."""
        return dict(self.request("PUT", f"/workflows/{_quoted(workflow_id)}"))

    def workflow(self, workflow_id: str) -> _Json:
        """Show one workflow: state, spend, counts."""
        return dict(self.request("GET", f"/workflows/{_quoted(workflow_id)}"))

    def events(
        self,
        *,
        after: int = 0,
        limit: int = 1000,
        workflow_id: str | None = None,
        type: str | None = None,  # noqa: A002 (the field's name on the wire)
        flag: str | None = None,
    ) -> list[_Json]:
        """List recorded events in the order of arrival."""
        named: _Json = {"workflow_id": workflow_id, "type": type, "flag": flag}
        return list(self.request("GET", "/events", after=after, limit=limit, **named))

    def usage(self, group_by: str = "workflow", **query: Any) -> list[_Json]:
        """Sum usage by group."""
        return list(self.request("GET", "/usage", group_by=group_by, **query))

    def usage_rows(
        self, group_by: str, *, by_model: bool = False, since_ms: int | None = None,
        until_ms: int | None = None,
    ) -> Iterator[_Json]:  # fmt: skip
        """Yield what each scope of a kind has used, in the order of their names.

        Args:
            group_by: such as ``team``, ``person``, ``key``, ``user`` or ``tag:project``.
            by_model: whether there is a row for each model that a scope has used.
            since_ms, until_ms: the time, in Unix milliseconds; widened to whole quarter hours.
                Without both it is all time.
        """
        query: _Json = {"group_by": group_by, "by_model": str(by_model).lower(), "limit": 10_000,
                        "since_ms": since_ms, "until_ms": until_ms}  # fmt: skip
        while True:
            found = self.request("GET", "/usage/rows", **query)
            yield from found
            if len(found) < query["limit"] or found[-1]["group"] is None:
                return
            query |= {"after": found[-1]["group"], "after_model": found[-1]["model"] or ""}

    def ledger(self) -> list[_Json]:
        """List all balances of current windows: committed, reserved, remaining."""
        found: list[_Json] = []
        while True:
            after = found[-1]["balance_id"] if found else 0
            page = list(self.request("GET", "/ledger", after=after, limit=LIST_MAX))
            found += page
            if len(page) < LIST_MAX:
                return found

    def verify_ledger(self) -> _Json:
        """Check every balance against its entries."""
        return dict(self.request("GET", "/ledger/verify"))

    def audit(self, *, after: int | None = None, limit: int = 1000) -> list[_Json]:
        """List audit entries in order: those after a number, or the newest ones."""
        query: _Json = {"newest": "true"} if after is None else {"after": after}
        return list(self.request("GET", "/audit", limit=limit, **query))

    def audit_head(self) -> _Json:
        """Return the number and the hash of the newest audit entry."""
        return dict(self.request("GET", "/audit/head"))

    def verify_audit(self, expect: str | None = None) -> _Json:
        """Check the audit log's chain, and that it contains a head noted earlier (``SEQ:HASH``)."""
        return dict(self.request("GET", "/audit/verify", expect=expect))
