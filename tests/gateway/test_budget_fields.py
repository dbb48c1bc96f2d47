"""A field of a budget can be set wherever budgets are set."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from msgspec import Struct
from msgspec.structs import fields

from guard.gateway.api import openapi
from guard.gateway.api.admin.bodies import BudgetBody
from guard.gateway.api.admin.rules import as_budget
from guard.gateway.cli.budgets import budgets_set
from guard.gateway.dashboard import dashboard, forms
from guard.gateway.dashboard.security import Form
from guard.gateway.domain.records import BudgetTerms
from guard.gateway.unit.record import _schema
from tests.gateway.conftest import Tenant

PAGE = Path(dashboard.__file__).parent / "templates"
OPTIONS = {"soft": "mode", "ask_seconds": "ask_ms"}
"""Options of the command that have another name than their field."""

ELSEWHERE = {"thresholds", "epsilon_nanousd"}
"""Fields that the command leaves to files and to the page."""

ALWAYS_MONEY = {"epsilon_nanousd"}
"""Fields that only a budget of money can have above 0."""

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


# -- amounts are money only where their name says so ---------------------------------------------


def structs(kind: type[Struct] = Struct) -> Iterator[type[Struct]]:
    for each in kind.__subclasses__():
        yield each
        yield from structs(each)


def test_a_record_with_a_unit_calls_no_amount_money() -> None:
    """What may be null is null for a count, which the walk below sees."""
    counted = [each for each in structs() if "unit" in each.__struct_fields__]
    assert {"BudgetRule", "BudgetRaise", "BudgetAsk", "BalanceView"} <= {
        each.__name__ for each in counted
    }
    for struct in counted:
        money = {
            each.name
            for each in fields(struct)
            if each.name.endswith("nanousd")
            and type(None) not in getattr(each.type, "__args__", ())
        }
        assert money <= ALWAYS_MONEY, struct

    for name, (columns, _) in _schema().items():
        if any(each.endswith("unit") for each in columns) or name == "balances":
            assert {each for each in columns if each.endswith("nanousd")} <= ALWAYS_MONEY, name

    for name, schema in openapi.document()["components"]["schemas"].items():
        properties = schema.get("properties", {})
        if "unit" in properties:
            money = {
                each
                for each, known in properties.items()
                if each.endswith("nanousd") and {"type": "null"} not in known.get("anyOf", ())
            }
            assert money <= ALWAYS_MONEY, name


def mappings(value: Any) -> Iterator[dict[str, Any]]:
    if isinstance(value, dict):
        yield value
    for each in value.values() if isinstance(value, dict) else value:
        if isinstance(each, dict | list):
            yield from mappings(each)


def test_no_reply_calls_a_count_money(tenant: Tenant) -> None:
    admin = tenant.admin
    for unit, limit in (
        ("usd", "limit_nanousd"),
        ("tokens", "limit_tokens"),
        ("calls", "limit_calls"),
    ):
        budget = admin.set_budget(**{limit: 50_000_000}, window="day")
        admin.raise_budget(budget["budget_id"], 7, unit, unit=unit)
    tenant.allowed(max_input_tokens=10, max_output_tokens=10)
    seen = set()
    for path in ("/budgets", "/budgets/raises", "/ledger", "/audit"):
        for found in mappings(admin.request("GET", path)):
            unit = found.get("unit")
            money = {name: n for name, n in found.items() if name.endswith("_nanousd") and n}
            if unit in ("tokens", "calls"):
                assert not money, (path, found)
            elif unit == "usd":  # under the names of release 0.7
                assert money.items() <= {f"{name}_nanousd": n for name, n in found.items()}.items()
                assert ("limit_nanousd" in money) == (path in ("/budgets", "/ledger"))
            seen.add((path, unit))
    for path in ("/budgets", "/budgets/raises", "/ledger", "/audit"):
        assert {(path, each) for each in ("usd", "tokens", "calls")} <= seen
