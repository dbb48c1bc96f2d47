"""What a workflow has spent."""

from __future__ import annotations

from msgspec import Struct

from guard.core.wire.budget import Budget, CountedBudget
from guard.core.wire.fields import Name


class ModelsReply(Struct):
    """Reply to ``GET /api/v1/models``: the models of a vendor that the key may use."""

    models: list[str]


class SpentBudget(Budget, omit_defaults=True):
    """A budget, the part that was charged in doubt, and what is kept for winding down."""

    uncertain_nanousd: int = 0
    kept_nanousd: int = 0
    winding_down: bool = False


class SpendReply(Struct, omit_defaults=True):
    """Reply to ``GET /api/v1/spend``.

    Args:
        workflow_id: the workflow.
        is_known: whether the workflow has ever been seen.
        spent_nanousd: what it has cost in all.
        run_id: the run, if one was asked for.
        run_spent_nanousd: what the run has cost; None unless one was asked for.
        budgets: every budget of money over it, in the current periods.
        uncertain_nanousd: the part that was charged in doubt: at most so much was not billed.
        run_uncertain_nanousd: the same of the run.
        counted: every budget of tokens and of calls over it, in the current periods.
    """

    workflow_id: Name
    is_known: bool = False
    spent_nanousd: int = 0
    run_id: Name | None = None
    run_spent_nanousd: int | None = None
    budgets: list[SpentBudget] = []
    uncertain_nanousd: int = 0
    run_uncertain_nanousd: int = 0
    counted: list[CountedBudget] = []
