"""What the models of the ledger and of leases share: a store, its clock and its limits."""

from __future__ import annotations

import asyncio
import itertools
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, ClassVar

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from guard.gateway.domain.commands import Actor
from guard.gateway.domain.records import BudgetRule, BudgetUnit, OrganisationSettings
from guard.gateway.ledger import asks, catalogue, directory
from guard.gateway.storage.port import Storage
from guard.gateway.unit.state import NO_ORGANISATION, within

ACTOR = Actor("model")


class StorageMachine(RuleBasedStateMachine):
    """Runs steps on a store with one organisation.

    Attributes:
        options: of the store.
        of_organisation: its settings.
        now: the store's time, in Unix milliseconds.
        limits: of the budgets, by a name of the model's own.
    """

    options: ClassVar[dict[str, Any]] = {}
    of_organisation: ClassVar[OrganisationSettings] = OrganisationSettings()
    org: str

    def __init__(self, make_storage: Callable[..., Storage], limits: dict[str, int]) -> None:
        super().__init__()
        self.make_storage = make_storage
        self.folder = tempfile.TemporaryDirectory()
        self.runner = asyncio.Runner()
        self.now = 1_800_000_000_000
        self.serial = itertools.count(1)
        self.limits = limits
        self.budget_ids: dict[str, set[str]] = {}
        self.storage = self.new_storage()

    def new_storage(self) -> Storage:
        folder = Path(self.folder.name)
        storage = self.make_storage(folder, clock_ms=lambda: self.now, **self.options)
        self.run(storage.open(lambda _: None))
        return storage

    def run(self, coroutine: Any) -> Any:
        async def main() -> Any:
            return await coroutine

        return self.runner.run(main())

    @initialize()
    def begin(self) -> None:
        self.org = self.run(
            self.storage.write(NO_ORGANISATION, directory.create_organisation, ACTOR, "o")
        ).organisation_id
        self.run(
            self.storage.write(
                within(self.org),
                directory.update_organisation,
                ACTOR,
                self.org,
                self.of_organisation,
            )
        )
        self.set_limits()

    def set_limits(self) -> None:
        """Make a budget of each limit."""
        raise NotImplementedError

    def put_budgets(self, budgets: Iterable[tuple[str, str, str, str]]) -> None:
        """Make budgets of kind, scope, window and the name of the limit."""
        for kind, scope_id, window, name in budgets:
            budget = BudgetRule(
                budget_id="", organisation_id=self.org, scope_kind=kind, scope_id=scope_id,  # type: ignore[arg-type]
                window=window, limit=self.limits[name],  # type: ignore[arg-type]
            )  # fmt: skip
            made = self.run(
                self.storage.write(
                    within(budget.organisation_id), catalogue.put_budget, ACTOR, budget
                )
            )
            self.budget_ids.setdefault(name, set()).add(made.budget_id)

    def unit_of(self, name: str) -> BudgetUnit:
        """Return what the budgets of a limit count."""
        return "usd"

    @rule(data=st.data(), by=st.integers(1, 500), again=st.booleans())
    def raise_limit(self, data: Any, by: int, again: bool) -> None:
        """Raise what the budgets of one limit allow, once for each key."""
        self.raise_one(data, by, again)

    def raise_one(self, data: Any, by: int, again: bool) -> str:
        """Do so, and return the limit's name."""
        name = data.draw(st.sampled_from(sorted(self.budget_ids)))
        self.limits[name] += by
        for budget_id in sorted(self.budget_ids[name]):
            key = f"raise-{next(self.serial)}"
            for _ in range(1 + again):
                raised = self.run(
                    self.storage.write(
                        within(self.org), asks.raise_budget, ACTOR, self.org, budget_id,
                        by=by, raise_key=key, counted_in=self.unit_of(name),
                    )
                )  # fmt: skip
                assert raised.budget.limit == self.limits[name]
        self.set_limits()  # as they are already
        return str(name)

    @rule()
    def restart(self) -> None:
        self.run(self.storage.close())
        self.storage = self.new_storage()

    def balances(self) -> list[Any]:
        found: list[Any] = self.run(self.storage.balances(self.org, current_only=False))
        return found

    @invariant()
    def the_books_agree(self) -> None:
        assert self.run(self.storage.verify_ledger()).problems == []
        if hasattr(self, "org"):
            self.the_model_agrees()

    def the_model_agrees(self) -> None:
        """Compare the balances with what the model thinks of them."""
        raise NotImplementedError

    def teardown(self) -> None:
        self.run(self.storage.close())
        self.runner.close()
        self.folder.cleanup()


def run_model(machine: Callable[[], StorageMachine], examples: int, steps: int) -> None:
    """Run a model.

    Args:
        machine: makes it.
        examples: how many runs.
        steps: of each run.
    """
    run_state_machine_as_test(  # type: ignore[no-untyped-call]
        machine,
        settings=settings(max_examples=examples, stateful_step_count=steps, deadline=None),
    )
