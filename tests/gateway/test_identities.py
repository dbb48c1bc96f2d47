"""What refers to a key refers to its account, whatever becomes of its secrets: random histories.

After each step the gateway is compared with a small model: what has been spent is a list of charges
of each account, and all else follows from it.
"""

from __future__ import annotations

import hashlib
import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import attrs
import httpx
import pytest

from guard.core import globs
from guard.gateway.admin import AdminClient, AdminError
from guard.gateway.domain import windows
from guard.gateway.domain.key_hierarchy import lineage
from guard.gateway.embedded import Gateway, run_gateway
from tests.support import postgres

CENT = 10**7
HOUR_MS = 3_600_000
HISTORIES = {"sqlite": range(3), "postgres": range(3, 6)}
"""Seeds: other histories on each engine."""

STEPS = 45
PERSONS = ("", "alice@example.com", "bob")
TEAMS = ("", "search", "search & ads")
WORKFLOWS = ("w1", "w2")
WINDOWS = ("total", "day")
LIMITS = [cents * CENT + CENT // 2 for cents in (10, 40, 100)]
"""No sum of whole cents is one of them, so that it is never in question who has room."""

TAKEN = (202, 422)
"""Events were charged; with 422 a budget is over its limit."""

GLOB = "?" * 36
"""Matches the ids of keys that belong to no other."""


class Charge(NamedTuple):
    """A charge, and whether its answer was lost, so that it is in doubt."""

    at_ms: int
    cost: int
    is_doubt: bool


@attrs.define
class Account:
    """What the model knows of a key: its id, its attributes, secrets with their ends, charges."""

    key_id: str
    name: str
    team: str
    person: str
    secrets: dict[str, float]
    ended: bool = False
    charges: list[Charge] = attrs.Factory(list)


@attrs.define
class Tenant:
    """An organisation, its accounts by id, and its rules."""

    organisation_id: str
    admin: AdminClient
    accounts: dict[str, Account] = attrs.Factory(dict)
    budgets: dict[tuple[str, str], tuple[str, int]] = attrs.Factory(dict)
    blocks: dict[str, str] = attrs.Factory(dict)
    killed: set[str] = attrs.Factory(set)
    audit: list[tuple[str, str]] = attrs.Factory(list)
    seen_audit: int = 0
    balances: dict[tuple[str, str, int], int] = attrs.Factory(dict)

    def in_use(self) -> list[Account]:
        return [each for each in self.accounts.values() if not each.ended]

    def applying(self, key_id: str) -> list[tuple[tuple[str, str], str]]:
        """Return the budgets over an account, each with the id that its balance is of."""
        found = []
        for window in WINDOWS:
            scopes = [scope_id for scope_id, of in self.budgets if of == window]
            exact = [each for each in lineage(key_id) if each in scopes]
            found += [((each, window), each) for each in exact]
            if not exact and GLOB in scopes:
                target = next(e for e in lineage(key_id) if globs.matches(GLOB, e))
                found.append(((GLOB, window), target))
            elif not exact and "*" in scopes:
                found.append((("*", window), key_id))
        return found

    def spent(self, rule: tuple[str, str], target: str, now_ms: int) -> int:
        """Return what was spent before that the balance of an id counts."""
        return sum(each.cost for each in self.charges(rule, target, now_ms, below=rule[0] != "*"))

    def doubt(self, rule: tuple[str, str], target: str, now_ms: int) -> int:
        """Return what of it was charged in doubt."""
        charges = self.charges(rule, target, now_ms, below=rule[0] == target)
        return sum(each.cost for each in charges if each.is_doubt)

    def charges(
        self, rule: tuple[str, str], target: str, now_ms: int, *, below: bool
    ) -> list[Charge]:
        start_ms, _ = windows.period_of(rule[1], now_ms)  # type: ignore[arg-type]
        return [
            charge
            for account in self.accounts.values()
            if account.key_id == target or (below and target in lineage(account.key_id))
            for charge in account.charges
            if charge.at_ms >= start_ms
        ]


class History:
    """One sequence of steps on one gateway."""

    def __init__(self, seed: int, database: str) -> None:
        self.chance = random.Random(seed)
        self.database = database
        self.now_ms = 1_800_000_000_000
        self.names = 0
        self.log: list[str] = []
        self.tenants: list[Tenant] = []
        self.removed: list[str] = []
        self.start()
        root = self.root()
        self.proxy = root.create_key("proxy", role="proxy", every_organisation=True,
                                     organisation=self.gateway.organisation_id)  # fmt: skip
        root.close()
        self.tenants = [self.new_tenant(name) for name in ("acme", "stranger")]

    # -- the gateway ---------------------------------------------------------------------------

    def start(self) -> None:
        self.running = run_gateway(
            self.database, clock_ms=lambda: self.now_ms, sweep_interval_ms=600_000
        )
        self.gateway: Gateway = self.running.__enter__()
        self.http = httpx.Client(
            base_url=self.gateway.base_url, headers={"X-Guard-Protocol": "3"}, trust_env=False
        )
        for tenant in self.tenants:
            tenant.admin = self.admin_of(tenant.organisation_id)

    def stop(self) -> None:
        for tenant in self.tenants:
            tenant.admin.close()
        self.http.close()
        self.running.__exit__(None, None, None)

    def root(self) -> AdminClient:
        return AdminClient(self.gateway.base_url, self.gateway.admin_key)

    def admin_of(self, organisation_id: str) -> AdminClient:
        return AdminClient(
            self.gateway.base_url, self.gateway.admin_key, organisation=organisation_id
        )

    def new_tenant(self, name: str) -> Tenant:
        root = self.root()
        own = root.create_organisation(name)["organisation_id"]
        root.close()
        tenant = Tenant(own, self.admin_of(own))
        tenant.seen_audit = tenant.admin.audit(limit=1)[-1]["seq"]
        return tenant

    def name(self) -> str:
        self.names += 1
        return f"key {self.names}"

    # -- requests ------------------------------------------------------------------------------

    def headers(self, secret: str) -> dict[str, str]:
        """Name a secret directly, or as a proxy does."""
        if self.chance.random() < 0.2:
            secret = f"{self.proxy}:{hashlib.sha256(secret.encode()).hexdigest()}"
        return {"X-API-Key": secret}

    def post(self, path: str, secret: str, body: dict[str, Any], **more: str) -> httpx.Response:
        return self.http.post(path, json=body, headers={**self.headers(secret), **more})

    def ask(self, secret: str, tool: str = "search", **more: Any) -> httpx.Response:
        headers = more.pop("headers", {})
        body = {"call_id": f"call {self.name()}", "kind": "tool", "function": tool,
                "tool_name": tool, **more}  # fmt: skip
        return self.post("/gate", secret, body, **headers)

    def events(self, secret: str, *events: dict[str, Any]) -> httpx.Response:
        body = {"batch_id": self.name(), "sent_at_ms": self.now_ms, "events": list(events)}
        return self.post("/api/v1/events", secret, body)

    def finish(self, secret: str, reply: httpx.Response) -> None:
        """Close an allowed call, so that nothing stays held."""
        event = {"event_id": self.name(), "type": "span", "at_ms": self.now_ms,
                 "reservation_id": reply.json()["reservation_id"],
                 "data": {"name": "search", "final": True}}  # fmt: skip
        assert self.events(secret, event).status_code == 202

    def is_valid(self, account: Account, secret: str) -> bool:
        return not account.ended and account.secrets[secret] > self.now_ms

    def valid(self, account: Account) -> list[str]:
        return [each for each in account.secrets if self.is_valid(account, each)]

    def is_over(self, tenant: Tenant, rule: tuple[str, str], target: str) -> bool:
        start_ms, _ = windows.period_of(rule[1], self.now_ms)  # type: ignore[arg-type]
        budget_id, limit = tenant.budgets[rule]
        before = tenant.balances.get((budget_id, target, start_ms))
        return (tenant.spent(rule, target, self.now_ms) if before is None else before) > limit

    def pick(self, among: list[Account] | None = None) -> tuple[Tenant, Account]:
        tenant = self.chance.choice(self.tenants)
        accounts = tenant.in_use()
        if not accounts:
            return tenant, self.make(tenant)
        return tenant, self.chance.choice(accounts)

    # -- steps ---------------------------------------------------------------------------------

    def make(self, tenant: Tenant | None = None) -> Account:
        tenant = tenant or self.chance.choice(self.tenants)
        above = self.chance.choice([None, None, *tenant.in_use()])
        name, team = self.name(), self.chance.choice(TEAMS)
        owner = {} if above is None else {"owner_id": above.key_id}
        person = self.chance.choice(PERSONS)
        made = tenant.admin.create_key_full(name, team=team, person=person, **owner)
        key_id = made["key"]["key_id"]
        team = team or (above.team if above else "")
        person = person or (above.person if above else "")
        account = Account(key_id, name, team, person, {made["api_key"]: float("inf")})
        tenant.accounts[key_id] = account
        tenant.audit.append(("key.create", key_id))
        return account

    def rename(self) -> None:
        """What was set by the old name holds; the old name may be another key's next."""
        tenant, account = self.pick()
        changes = {"name": self.name(), "person": self.chance.choice(PERSONS)}
        tenant.admin.change_key(account.key_id, **changes)
        other = self.chance.choice(tenant.in_use())
        if (account.name, account.person) != (changes["name"], changes["person"]):
            tenant.audit.append(("key.update", account.key_id))
        old, account.name, account.person = account.name, changes["name"], changes["person"]
        if other is not account:
            tenant.admin.change_key(other.key_id, name=old)
            other.name = old
            tenant.audit.append(("key.update", other.key_id))

    def rotate(self, tenant: Tenant | None = None, account: Account | None = None) -> None:
        if tenant is None or account is None:
            tenant, account = self.pick()
        overlap_ms = self.chance.choice([0, HOUR_MS, 30 * HOUR_MS])
        made = tenant.admin.rotate_key(account.key_id, overlap_ms)
        assert made["key"]["key_id"] == account.key_id
        ends_ms = self.now_ms + overlap_ms
        account.secrets = {each: min(ends, ends_ms) for each, ends in account.secrets.items()}
        account.secrets[made["api_key"]] = float("inf")
        tenant.audit.append(("key.rotate", account.key_id))

    def revoke(self) -> None:
        tenant, account = self.pick()
        tenant.admin.revoke_key(account.key_id)
        for each in sorted(tenant.accounts):
            if account.key_id in lineage(each) and not tenant.accounts[each].ended:
                tenant.accounts[each].ended = True
                tenant.audit.append(("key.revoke", each))
        with pytest.raises(AdminError) as failed:
            tenant.admin.rotate_key(account.key_id)
        assert failed.value.status == 409

    def revoke_secret(self) -> None:
        """One secret ends; a key without any lasts, and is given another."""
        tenant, account = self.pick()
        secret = self.chance.choice(list(account.secrets))
        for _ in range(2):
            revoked = tenant.admin.revoke_secret(account.key_id, secret[:12])
            assert (revoked["key_id"], revoked["revoked_at_ms"]) == (account.key_id, None)
        if self.is_valid(account, secret):
            tenant.audit.append(("key.revoke_secret", account.key_id))
            account.secrets[secret] = self.now_ms
        for other in self.others(account):
            with pytest.raises(AdminError, match="no such secret"):
                tenant.admin.revoke_secret(account.key_id, next(iter(other.secrets))[:12])
        if float("inf") not in account.secrets.values():
            self.compare_keys(tenant)
            self.rotate(tenant, account)

    def restart(self) -> None:
        self.stop()
        self.start()

    def wait(self) -> None:
        self.now_ms += self.chance.choice([HOUR_MS, 24 * HOUR_MS])

    def budget(self) -> None:
        tenant, account = self.pick()
        window, limit = self.chance.choice(WINDOWS), self.chance.choice(LIMITS)
        named = [
            account.key_id,
            account.name,
            max(account.secrets, key=account.secrets.__getitem__),
        ]
        scope_id = self.chance.choice([*named, *named, "*", GLOB])
        made = tenant.admin.set_budget(
            limit_nanousd=limit, scope_kind="key", scope_id=scope_id, window=window
        )
        key = (account.key_id if scope_id in named else scope_id), window
        assert made["scope_id"] == key[0]
        if tenant.budgets.get(key) != (made["budget_id"], limit):
            tenant.audit.append(("budget.put", made["budget_id"]))
        tenant.budgets[key] = made["budget_id"], limit

    def unbudget(self) -> None:
        tenant = self.chance.choice(self.tenants)
        if tenant.budgets:
            key = self.chance.choice(list(tenant.budgets))
            budget_id, _ = tenant.budgets.pop(key)
            tenant.admin.delete_budget(budget_id)
            tenant.audit.append(("budget.delete", budget_id))

    def block(self) -> None:
        tenant, account = self.pick()
        name = f"block {self.name()}"
        if account.key_id in tenant.blocks:
            name = tenant.blocks.pop(account.key_id)
            tenant.admin.delete_policy(name)
            tenant.audit.append(("policy.delete", name))
            return
        tenant.blocks[account.key_id] = name
        scope_id = self.chance.choice([account.key_id, account.name])
        tenant.admin.set_policy(name, scope_kind="key", scope_id=scope_id, tools_block=["erase"])
        tenant.audit.append(("policy.put", name))

    def kill(self) -> None:
        tenant, workflow_id = self.chance.choice(self.tenants), self.chance.choice(WORKFLOWS)
        action = "revive" if workflow_id in tenant.killed else "kill"
        tenant.killed ^= {workflow_id}
        tenant.admin.directive(action, workflow_id)
        tenant.audit.append((f"workflow.{action}", workflow_id))

    def charge(self) -> None:
        tenant, account = self.pick()
        secret = self.chance.choice(list(account.secrets))
        cost = self.chance.randint(1, 20) * CENT
        data: dict[str, Any] = {"model": "gpt-4o", "cost_nanousd": cost}
        is_doubt = self.chance.random() < 0.3
        if is_doubt:
            data |= {"estimated": True, "estimate": "bound"}
        event = {"event_id": self.name(), "type": "llm", "at_ms": self.now_ms, "data": data,
                 "workflow_id": self.chance.choice([None, *WORKFLOWS])}  # fmt: skip
        # The same event again, with another secret: a program that was not answered.
        for each in {secret, *self.valid(account)}:
            taken = self.events(each, event).status_code in TAKEN
            assert taken == self.is_valid(account, each)
        if self.valid(account):
            account.charges.append(Charge(self.now_ms, cost, is_doubt))
            for rule, target in tenant.applying(account.key_id):
                start_ms, _ = windows.period_of(rule[1], self.now_ms)  # type: ignore[arg-type]
                own = tenant.budgets[rule][0], target, start_ms
                if own in tenant.balances:
                    tenant.balances[own] += cost
            balances = {(row["budget_id"], row["scope_id"]) for row in tenant.admin.ledger()}
            for rule, target in tenant.applying(account.key_id):
                assert (tenant.budgets[rule][0], target) in balances, "it opens the balance"

    def call(self) -> None:
        tenant, account = self.pick()
        over = any(self.is_over(tenant, *each) for each in tenant.applying(account.key_id))
        for secret in account.secrets:
            tool = self.chance.choice(["search", "erase"])
            workflow_id = self.chance.choice([None, *WORKFLOWS])
            asked = self.ask(secret, tool, workflow_id=workflow_id)
            if not self.is_valid(account, secret):
                expected = 401
            elif workflow_id in tenant.killed or (
                tool == "erase" and account.key_id in tenant.blocks
            ):
                expected = 403
            else:
                expected = 402 if over else 200
            assert asked.status_code == expected, (expected, asked.text)
            if expected == 200:
                self.finish(secret, asked)

    def lease(self) -> None:
        """A lease goes on with the next secret, and with no other account's."""
        _, account = self.pick()
        secrets = self.valid(account)
        asked = self.ask(secrets[0], lease={"demand_nanousd": 2 * 10**6})
        lease = asked.json().get("lease")
        if lease is None:
            if asked.status_code == 200:
                self.finish(secrets[0], asked)
            return
        if self.chance.random() < 0.3:
            self.restart()
        body = {"lease_id": lease["lease_id"]}
        for other in self.others(account):
            for secret in self.valid(other):
                assert self.post("/gate/lease", secret, body).status_code == 404
                span = {"event_id": self.name(), "type": "span", "at_ms": 1,
                        "data": {"name": "search", "final": True},
                        "reservation_id": body["lease_id"]}  # fmt: skip
                self.events(secret, span)
        held = 0
        for secret in secrets:
            renewed = self.post("/gate/lease", secret, body)
            assert renewed.json()["state"] == "open", renewed.text
            held = renewed.json()["held_nanousd"]
            assert held >= lease["granted_nanousd"]
        closing = {**body, "unused_nanousd": held, "close": True}
        assert self.post("/gate/lease", secrets[-1], closing).status_code == 200

    def repeat(self) -> None:
        """A question that is asked again has its answer with every secret of its account alone."""
        _, account = self.pick()
        once = {"Idempotency-Key": self.name()}
        call_id = self.name()
        asked = {s: self.ask(s, call_id=call_id, headers=once) for s in self.valid(account)}
        assert len({each.text for each in asked.values()}) == 1
        first = next(iter(asked.values()))
        for other in self.others(account):
            for secret in self.valid(other)[:1]:
                again = self.ask(secret, call_id=call_id, headers=once)
                if again.status_code == 200:
                    assert again.json().get("reservation_id") != first.json().get("reservation_id")
                    self.finish(secret, again)
        if first.status_code == 200:
            self.finish(next(iter(asked)), first)

    def approve(self) -> None:
        """An approval is for the account that has asked, and used with any of its secrets."""
        tenant, account = self.pick()
        tenant.admin.set_policy("approval", approval_tools=["pay"])
        call_id, secrets = self.name(), self.valid(account)
        asked = self.ask(secrets[0], "pay", call_id=call_id)
        if asked.status_code == 202:
            approval_id = asked.json()["approval_id"]
            tenant.admin.answer_approval(approval_id, approved=True)
            for other in self.others(account):
                for secret in self.valid(other)[:1]:
                    again = self.ask(secret, "pay", call_id=call_id)
                    assert again.status_code in (202, 200, 402, 403)
                    assert again.json().get("approval_id") != approval_id
                    if again.status_code == 200:
                        assert other.key_id not in tenant.accounts
                        self.finish(secret, again)
            used = self.ask(secrets[-1], "pay", call_id=call_id)
            assert used.status_code == 200, used.text
            self.finish(secrets[-1], used)
        tenant.admin.delete_policy("approval")
        tenant.seen_audit, tenant.audit = tenant.admin.audit(limit=1)[-1]["seq"], []

    def remove_organisation(self) -> None:
        """What is removed is nobody's: not the next organisation's of its name, nor the whole."""
        gone = self.new_tenant("passing")
        self.tenants.append(gone)
        account = self.make(gone)
        admin_key = gone.admin.create_key("admin", role="admin")
        secret = next(iter(account.secrets))
        gone.admin.set_budget(limit_nanousd=LIMITS[0], scope_kind="key", scope_id=account.key_id)
        data = {"model": "gpt-4o", "cost_nanousd": 30 * CENT}
        event = {"event_id": self.name(), "type": "llm", "at_ms": 1, "data": data}
        assert self.events(secret, event).status_code in TAKEN
        self.tenants.remove(gone)
        gone.admin.close()
        root = self.root()
        root.remove_organisation("passing")
        assert self.ask(secret).status_code == 401
        # It is an admin key of nothing now, and of all organisations least of all.
        ended = AdminClient(self.gateway.base_url, admin_key)
        with pytest.raises(AdminError) as failed:
            ended.keys()
        assert failed.value.status == 401
        ended.close()
        anew = self.new_tenant("passing")
        roles = [key["role"] for key in list(anew.admin.keys())]
        assert roles == ["proxy"]
        assert anew.admin.ledger() == anew.admin.usage("key") == []
        assert anew.admin.budgets() == []
        with pytest.raises(AdminError):
            anew.admin.rotate_key(account.key_id)
        anew.admin.close()
        root.remove_organisation("passing")
        root.close()

    def others(self, account: Account) -> list[Account]:
        """Return accounts that are neither this one nor above or below it."""
        found = [
            each
            for tenant in self.tenants
            for each in tenant.in_use()
            if each.key_id not in lineage(account.key_id)
            and account.key_id not in lineage(each.key_id)
        ]
        return self.chance.sample(found, min(2, len(found)))

    # -- comparison ----------------------------------------------------------------------------

    def compare(self) -> None:
        for tenant in self.tenants:
            self.compare_keys(tenant)
            self.compare_money(tenant)
            entries = tenant.admin.audit(after=tenant.seen_audit)
            own = [e for e in entries if e["organisation_id"] == tenant.organisation_id]
            assert sorted((e["action"], e["target"]) for e in own) == sorted(tenant.audit)
            tenant.audit = []
            tenant.seen_audit = entries[-1]["seq"] if entries else tenant.seen_audit
            self.compare_views(tenant)

    def compare_keys(self, tenant: Tenant) -> None:
        found = {
            key["key_id"]: (
                key["name"],
                key["team"],
                key["person"],
                key["revoked_at_ms"] is not None,
                sorted(each["prefix"] for each in key["secrets"]),
            )
            for key in list(tenant.admin.keys())
            if key["role"] == "sdk"
        }
        assert found == {
            each.key_id: (
                each.name,
                each.team,
                each.person,
                each.ended,
                sorted(secret[:12] for secret in self.valid(each)),
            )
            for each in tenant.accounts.values()
        }
        rules = {(b["scope_id"], b["window"]): (b["budget_id"], b["limit"])
                 for b in tenant.admin.budgets()}  # fmt: skip
        assert rules == tenant.budgets
        policies = {each["scope_id"]: each["name"] for each in tenant.admin.policies()}
        assert policies == tenant.blocks
        assert not [each for each in tenant.admin.unmatched() if each[0] == "key"]

    def compare_money(self, tenant: Tenant) -> None:
        by_id = {budget_id: rule for rule, (budget_id, _) in tenant.budgets.items()}
        for row in tenant.admin.ledger():
            rule = by_id[row["budget_id"]]
            own = row["budget_id"], row["scope_id"], row["epoch_ms"]
            # A budget begins with what was spent before. One that another replaces for a while does
            # not count what is spent then.
            if own not in tenant.balances:
                tenant.balances[own] = tenant.spent(rule, row["scope_id"], self.now_ms)
            expected = tenant.balances[own]
            assert (row["committed"], row["reserved"]) == (expected, 0), row
            doubt = tenant.doubt(rule, row["scope_id"], self.now_ms)
            if expected == tenant.spent(rule, row["scope_id"], self.now_ms):
                assert row["uncertain"] == doubt, row
            assert row["limit"] == tenant.budgets[rule][1]
        used = {row["group"]: row["cost_nanousd"] for row in tenant.admin.usage("key")}
        spent = {each.key_id: sum(charge.cost for charge in each.charges)
                 for each in tenant.accounts.values()}  # fmt: skip
        assert {k: v for k, v in used.items() if v} == {k: v for k, v in spent.items() if v}
        assert set(used) <= set(spent)
        day_ms, _ = windows.period_of("day", self.now_ms)
        for since_ms in (0, day_ms, day_ms + 1):
            for by in ("team", "person"):
                sums: Counter[str | None] = Counter()
                for account in tenant.accounts.values():
                    own = (each.cost for each in account.charges if each.at_ms >= since_ms)
                    sums[getattr(account, by) or None] += sum(own)
                rows = tenant.admin.usage(by, since_ms=since_ms, until_ms=self.now_ms + 1)
                found = {row["group"]: row["cost_nanousd"] for row in rows if row["cost_nanousd"]}
                assert found == {name: cost for name, cost in sums.items() if cost}, since_ms

    def compare_views(self, tenant: Tenant) -> None:
        """What a program is told names no account but its own and those above it."""
        for account in self.chance.sample(tenant.in_use(), min(1, len(tenant.in_use()))):
            shown = set()
            for secret in self.valid(account):
                headers = {"X-API-Key": secret}
                told = self.http.get("/api/v1/control?after=0&wait_ms=0", headers=headers)
                messages = told.json()["messages"]
                spend = self.http.get("/api/v1/spend?workflow=w1", headers=headers)
                budgets = spend.json().get("budgets", [])
                for text in (str(messages), str(budgets)):
                    text = text.replace(account.key_id, "") if account.key_id else text
                    for above in lineage(account.key_id):
                        text = text.replace(above, "")
                    for other in (e for t in self.tenants for e in t.accounts):
                        assert other not in text, (account.key_id, other)
                shown.add(str([{**each, "seq": 0} for each in messages]) + str(budgets))
            assert len(shown) == 1, "it is the same with each secret"

    def run(self, steps: int, count_cases: Callable[[int], None]) -> None:
        choices = {
            self.make: 3, self.rename: 2, self.rotate: 4, self.revoke: 1, self.restart: 0.6,
            self.wait: 1.5, self.budget: 4, self.unbudget: 1, self.block: 1, self.kill: 1,
            self.charge: 6, self.call: 4, self.lease: 2, self.repeat: 2, self.approve: 1,
            self.remove_organisation: 0.5, self.revoke_secret: 2,
        }  # fmt: skip
        for _ in range(steps):
            (step,) = self.chance.choices([*choices], [*choices.values()])
            self.log.append(step.__name__)
            try:
                step()
                self.compare()
            except AssertionError as exc:
                exc.add_note(f"steps: {self.log}")
                raise
            count_cases(1)


@pytest.mark.generator("histories of identities")
@pytest.mark.parametrize("engine", ["sqlite", "postgres"])
def test_what_refers_to_a_key_refers_to_its_account(
    engine: str, tmp_path: Path, count_cases: Callable[[int], None]
) -> None:
    taken: Counter[str] = Counter()
    for seed in HISTORIES[engine]:
        folder = tmp_path / str(seed)
        folder.mkdir()
        database = str(folder / "g.sqlite3") if engine == "sqlite" else postgres.url_of(folder)
        history = History(seed, database)
        try:
            history.run(STEPS, count_cases)
            assert history.gateway.admin.verify_ledger()["problems"] == []
        except BaseException as exc:
            exc.add_note(f"seed {seed}")
            raise
        finally:
            history.stop()
        taken.update(history.log)
    assert len(taken) == 17, "a kind of step was never taken"
