"""A field of a budget can be set wherever budgets are set."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

from guard.gateway.api.admin.bodies import BudgetBody
from guard.gateway.api.admin.rules import as_budget
from guard.gateway.cli.budgets import budgets_set
from guard.gateway.dashboard import dashboard, forms
from guard.gateway.dashboard.security import Form
from guard.gateway.domain.records import BudgetTerms

PAGE = Path(dashboard.__file__).parent / "templates"
OPTIONS = {"soft": "mode", "ask_seconds": "ask_ms"}
"""Options of the command that have another name than their field."""

ELSEWHERE = {"thresholds", "epsilon_nanousd"}
"""Fields that the command leaves to files and to the page."""

SHOWN = {
    "scope_kind": "user", "scope_id": "ann", "window": "week", "limit": "3", "mode": "soft",
    "on_exhausted": "ask", "ask_s": "7", "thresholds": "50", "anyway": "1", "zone": "Asia/Tokyo",
}  # fmt: skip


def test_a_budget_has_what_its_body_has() -> None:
    changed = set()
    for body in (
        BudgetBody(limit_nanousd=5, epsilon_nanousd=1, wind_down_percent=3, mode="soft",
                   thresholds=[0.5], on_exhausted="ask", ask_ms=7, window="day",
                   zone="Asia/Tokyo"),
        BudgetBody(limit_calls=5, counts=["pay"]),
    ):  # fmt: skip
        made = as_budget("o", body)
        for name in BudgetTerms.__struct_fields__:
            assert getattr(made, name) == getattr(body, name)
            if getattr(made, name) != getattr(BudgetTerms(), name):
                changed.add(name)
    assert changed == {*BudgetTerms.__struct_fields__}


def test_the_command_has_an_option_for_each_field() -> None:
    options = {OPTIONS.get(str(each.name), each.name) for each in budgets_set.params}
    assert {*BudgetBody.__struct_fields__} - options == ELSEWHERE


def test_the_form_has_an_input_for_each_field() -> None:
    units = {"usd": {"epsilon": "1", "wind_down": "5"}, "tokens": {}, "calls": {"counts": "pay"}}
    changed = set()
    for unit, more in units.items():
        fields = {**SHOWN, "unit": unit, **more}
        body = forms.budget(Form({name: [value] for name, value in fields.items()}))
        default = BudgetBody()
        names = BudgetBody.__struct_fields__
        changed |= {name for name in names if getattr(body, name) != getattr(default, name)}
    assert {*BudgetBody.__struct_fields__} - changed == {"limit_cents"}


def test_the_page_has_what_the_form_reads() -> None:
    source = inspect.getsource(forms.budget) + inspect.getsource(forms._limit)
    read = set(re.findall(r'form\.(?:text|has)\("(\w+)"', source))
    page = "".join((PAGE / name).read_text() for name in ("budget_edit.html", "parts.html"))
    assert read <= set(re.findall(r'name="(\w+)"', page))
    assert len(read) >= len(SHOWN)
