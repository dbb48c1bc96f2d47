"""Budgets, policies and prices of a unit of work over SQL."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, TypeVar

from guard.core import globs, wire
from guard.gateway.domain import records
from guard.gateway.domain.facts import OwnFact
from guard.gateway.unit.control_tables import UnitPart
from guard.gateway.unit.record import Table
from guard.gateway.unit.rows import BUDGETS

T = TypeVar("T")
BUDGETS_FEW: Final = 256
"""Up to so many budgets of an organisation are read and cached together."""

_SEVERAL: Final = "(instr(scope_id, '*') > 0 OR instr(scope_id, char(63)) > 0)"
"""The condition of the index of budgets with a pattern."""

_SAVE_BUDGET: Final = BUDGETS.upsert(
    keep=("organisation_id", "unit", "scope_kind", "scope_id", "window", "counts", "created_at_ms")
)
_POLICIES: Final = Table("policies")
_PRICES: Final = Table("prices")
_SAVE_OWN_FACTS: Final = Table("own_facts").upsert()
_ADD_POLICY: Final = _POLICIES.insert()
_SAVE_PRICE: Final = _PRICES.upsert()
_DELETE_PRICE: Final = _PRICES.delete(("organisation_id", "price_id"))
_SELECT: Final = BUDGETS.select()


class CatalogueTables(UnitPart):
    """Budgets, policies and prices."""

    # -- budgets -------------------------------------------------------------------------------

    def budget(self, budget_id: str) -> records.BudgetRule | None:
        """Return a budget."""
        row = self._unit.row(f"{_SELECT} WHERE budget_id = ?", budget_id)
        return None if row is None else BUDGETS.read(row)

    def find_budget(self, wanted: records.BudgetRule) -> records.BudgetRule | None:
        """Return the budget of the same organisation, scope and window that counts the same."""
        found = self._unit.rows(
            f'{_SELECT} WHERE organisation_id = ? AND scope_kind = ? AND scope_id = ?'
            ' AND "window" = ? AND unit = ?',
            wanted.organisation_id, wanted.scope_kind, wanted.scope_id, wanted.window, wanted.unit,
        )  # fmt: skip
        same = (each for each in map(BUDGETS.read, found) if each.counts == wanted.counts)
        return next(same, None)

    def budgets(self, organisation_id: str) -> list[records.BudgetRule]:
        """Return the budgets of an organisation."""
        rows = self._unit.rows(f"{_SELECT} WHERE organisation_id = ?", organisation_id)
        return [*map(BUDGETS.read, rows)]

    def few_budgets(self, organisation_id: str) -> list[records.BudgetRule] | None:
        """Return the budgets of an organisation; ``None`` if there are many."""
        many = self._unit.row(
            "SELECT 1 FROM budgets WHERE organisation_id = ? LIMIT 1 OFFSET ?",
            organisation_id, BUDGETS_FEW,
        )  # fmt: skip
        return None if many else self.budgets(organisation_id)

    def budgets_for_several(self, organisation_id: str) -> list[records.BudgetRule]:
        """Return the budgets of the whole organisation, and those for several scopes each."""
        rows = self._unit.rows(
            f"{_SELECT} WHERE organisation_id = ? AND {_SEVERAL} UNION ALL {_SELECT}"
            " WHERE organisation_id = ? AND scope_kind = 'organisation' AND scope_id = ''",
            organisation_id, organisation_id,
        )  # fmt: skip
        return [*map(BUDGETS.read, rows)]

    def budgets_for(
        self,
        organisation_id: str,
        scopes: Mapping[str, Sequence[str]],
        units: Sequence[records.BudgetUnit] = ("usd",),
    ) -> list[records.BudgetRule]:
        """Return the budgets of some units that name one of these scopes, given by kind."""
        parts, arguments = [], []
        for kind, names in scopes.items():
            places = ", ".join("?" * len(names))
            if names:
                parts.append(
                    f"{_SELECT} WHERE organisation_id = ? AND scope_kind = ?"
                    f" AND scope_id IN ({places})"
                )
                arguments += [organisation_id, kind, *names]
        rows = self._unit.rows(" UNION ALL ".join(parts), *arguments) if parts else []
        return [
            each
            for each in map(BUDGETS.read, rows)
            if each.unit in units and not globs.is_pattern(each.scope_id)
        ]

    def has_budgets_of_tags(self, organisation_id: str) -> bool:
        """Return whether an organisation has budgets of tags or runs, in any unit."""
        some = (
            "SELECT 1 FROM budgets WHERE organisation_id = ? AND scope_kind IN ('tag', 'run')"
            " LIMIT 1"
        )
        return self._unit.row(some, organisation_id) is not None

    def has_metered_budgets(self, organisation_id: str) -> bool:
        """Return whether an organisation has budgets of tokens or calls."""
        some = "SELECT 1 FROM budgets WHERE organisation_id = ? AND unit <> 'usd' LIMIT 1"
        return self._unit.row(some, organisation_id) is not None

    def save_budget(self, budget: records.BudgetRule) -> None:
        """Write a budget."""
        self._unit.write(_SAVE_BUDGET, BUDGETS.row(budget))
        self._forget_budgets(budget.organisation_id)

    def delete_budget(self, budget: records.BudgetRule) -> None:
        """Remove a budget."""
        self._unit.write(BUDGETS.delete(), (budget.budget_id,))
        self._forget_budgets(budget.organisation_id)

    def _forget_budgets(self, organisation_id: str) -> None:
        """Drop an organisation's cached budgets, now and if this change is undone.

        On undo too: they may have been read again between the two.
        """
        org = self._unit.orgs[organisation_id]

        def forget() -> None:
            org.budgets = None
            org.accounts.clear()

        forget()
        self._unit.on_undo(forget)

    # -- policies and prices -------------------------------------------------------------------

    def policy(self, organisation_id: str, name: str) -> records.Policy | None:
        """Return a policy's current version."""
        row = self._unit.row(
            "SELECT record FROM policies WHERE organisation_id = ? AND name = ? AND current = 1",
            organisation_id, name,
        )  # fmt: skip
        return None if row is None else wire.decode(row[0], records.Policy)

    def policies(self, organisation_id: str) -> list[records.Policy]:
        """Return the current policies."""
        rows = self._unit.rows(
            "SELECT record FROM policies WHERE organisation_id = ? AND current = 1",
            organisation_id,
        )
        return _decoded(rows, records.Policy)

    def add_policy_version(self, policy: records.Policy) -> None:
        """Insert a version and make it the current one."""
        self.retire_policy(policy)
        self._unit.write(
            _ADD_POLICY,
            (policy.policy_id, policy.version, policy.organisation_id, policy.name, 1,
             wire.encode(policy).decode()),
        )  # fmt: skip

    def retire_policy(self, policy: records.Policy) -> None:
        """Leave a policy without a current version."""
        self._unit.write("UPDATE policies SET current = 0 WHERE policy_id = ?", (policy.policy_id,))

    def price(self, organisation_id: str, provider: str, model: str) -> records.Price | None:
        """Return the price of a provider's model."""
        row = self._unit.row(
            "SELECT record FROM prices WHERE organisation_id = ? AND provider = ? AND model = ?",
            organisation_id, provider, model,
        )  # fmt: skip
        return None if row is None else wire.decode(row[0], records.Price)

    def prices(self, organisation_id: str) -> list[records.Price]:
        """Return an organisation's prices."""
        rows = self._unit.rows(
            "SELECT record FROM prices WHERE organisation_id = ?", organisation_id
        )
        return _decoded(rows, records.Price)

    def save_price(self, price: records.Price) -> None:
        """Write a price."""
        self._unit.write(
            _SAVE_PRICE,
            (price.price_id, price.organisation_id, price.provider, price.model,
             wire.encode(price).decode()),
        )  # fmt: skip

    def delete_price(self, organisation_id: str, price_id: str) -> bool:
        """Remove a price; ``False`` when there is none."""
        return self._unit.write(_DELETE_PRICE, (organisation_id, price_id)).rowcount > 0

    def facts(self, organisation_id: str) -> list[OwnFact]:
        """Return what the operators of an organisation have judged."""
        row = self._unit.row(
            "SELECT record FROM own_facts WHERE organisation_id = ?", organisation_id
        )
        return [] if row is None else wire.decode(row[0], list[OwnFact])

    def save_facts(self, organisation_id: str, facts: Sequence[OwnFact]) -> None:
        """Write all that they have judged."""
        self._unit.write(_SAVE_OWN_FACTS, (organisation_id, wire.encode(facts).decode()))


def _decoded(rows: list[tuple[str]], kind: type[T]) -> list[T]:
    return [wire.decode(text, kind) for (text,) in rows]
