"""Posted forms turned into the admin API's bodies, with the same checks. Pure."""

from __future__ import annotations

from decimal import Decimal, InvalidOperation
from typing import Any, TypeVar

from guard.core import wire
from guard.core.wire import NAMED
from guard.core.written_numbers import read_dollars
from guard.gateway.api.admin import bodies
from guard.gateway.dashboard.security import Form
from guard.gateway.domain.records import BudgetUnit
from guard.gateway.domain.setting_table import SETTINGS

T = TypeVar("T")


def checked(fields: dict[str, Any], kind: type[T]) -> T:
    """Return fields as a body.

    Raises:
        ValueError: a field is missing or wrong; the text names it.
    """
    return wire.convert(fields, kind, strict=False)


def nanousd(text: str, what: str) -> int:
    """Return dollars as nano-dollars, exactly.

    Raises:
        ValueError: not an amount.
    """
    try:
        return read_dollars(text, or_nothing=True)
    except ValueError:
        raise ValueError(f"{what} must be an amount in dollars") from None


def whole(text: str, what: str) -> int:
    """Return a whole number.

    Raises:
        ValueError: not a whole number.
    """
    if not (text.isascii() and text.isdigit() and len(text) <= 15):
        raise ValueError(f"{what} must be a whole number")
    return int(text)


def control(form: Form) -> bodies.ControlBody:
    """Read a kill, pause, resume or revive."""
    fields: dict[str, Any] = {
        "action": form.text("action"),
        "workflow_id": form.text("workflow") or None,
        "run_id": form.text("run") or None,
        "reason": form.text("reason"),
    }
    if fields["workflow_id"] is None and fields["run_id"] is None:
        raise ValueError("the form does not say which workflow it is about")
    if form.text("minutes"):
        minutes = whole(form.text("minutes"), "the number of minutes")
        fields["resume_after_ms"] = minutes * 60_000
    return checked(fields, bodies.ControlBody)


def budget(form: Form) -> bodies.BudgetBody:
    """Read a budget."""
    kind = form.text("scope_kind", "organisation")
    shares = form.text("thresholds").replace("%", " ").replace(",", " ").split()
    try:
        thresholds = [float(Decimal(share) / 100) for share in shares]
    except InvalidOperation:
        raise ValueError("thresholds are percentages, such as 80, 100") from None
    return checked(
        {
            "scope_kind": kind,
            "scope_id": "" if kind == "organisation" else form.text("scope_id"),
            "window": form.text("length") or form.text("window", "day"),
            "zone": form.text("zone"),
            "mode": form.text("mode", "hard"),
            "thresholds": thresholds,
            **_limit(form),
            "on_exhausted": form.text("on_exhausted", "refuse"),
            "ask_ms": whole(form.text("ask_s") or "300", "the time for an answer") * 1000,
            "wind_down_percent": whole(form.text("wind_down") or "0", "the share"),
            "anyway": form.has("anyway"),
        },
        bodies.BudgetBody,
    )


def _limit(form: Form) -> dict[str, Any]:
    """Read a budget's limit in its unit, and what belongs to that."""
    unit, text = form.text("unit", "usd"), form.text("limit")
    if unit == "usd":
        epsilon = nanousd(form.text("epsilon") or "0", "the tolerance")
        return {"limit_nanousd": nanousd(text, "the limit"), "epsilon_nanousd": epsilon}
    limit = whole(text.replace(",", ""), "the limit")
    if unit == "tokens":
        return {"limit_tokens": limit}
    return {"limit_calls": limit, "counts": form.text("counts").replace(",", " ").split()}


def budget_raise(form: Form, unit: BudgetUnit) -> bodies.RaiseBody:
    """Read by how much a budget is raised, in its unit."""
    text, what = form.text("by"), "the amount"
    if unit == "usd":
        amount = {"by_nanousd": nanousd(text, what)}
    else:
        amount = {f"by_{unit}": whole(text.replace(",", ""), what)}
    return checked({**amount, "key": form.text("key")}, bodies.RaiseBody)


def raise_refusal(form: Form) -> bodies.RefusalBody:
    """Read which calls wait no longer for a raise."""
    fields = {"call_id": form.text("call") or None, "reason": form.text("reason")}
    return checked(fields, bodies.RefusalBody)


def policy(form: Form) -> bodies.PolicyBody:
    """Read a policy."""
    caps = []
    rows = zip(
        form.rows("cap_calls"), form.rows("cap_seconds"), form.rows("cap_by"),
        form.rows("cap_tools"), form.rows("cap_on_limit"), strict=True,
    )  # fmt: skip
    for calls, seconds, by, tools, on_limit in rows:
        if calls:
            caps.append(
                {
                    "calls": whole(calls, "the number of calls of a rate cap"),
                    "per_ms": whole(seconds or "60", "the seconds of a rate cap") * 1000,
                    "by": by,
                    "tools": tools.replace(",", " ").split(),
                    "on_limit": on_limit,
                }
            )
    repeats = []
    same = zip(
        form.rows("repeat_times"), form.rows("repeat_tools"), form.rows("repeat_models"),
        form.rows("repeat_action"), strict=True,
    )  # fmt: skip
    for times, tools, models, action in same:
        if times:
            repeats.append(
                {
                    "times": whole(times, "the number of the same calls"),
                    "tools": tools.replace(",", " ").split(),
                    "models": models.replace(",", " ").split(),
                    "on_repeat": action,
                }
            )
    timeout_s = whole(form.text("approval_timeout_s", "300"), "the time for an answer")
    kind = form.text("scope_kind", "organisation")
    return checked(
        {
            "scope_kind": kind,
            "scope_id": "*" if kind == "organisation" else form.text("scope_id") or "*",
            "enabled": form.has("enabled"),
            "anyway": form.has("anyway"),
            "document": {
                "tools_block": form.lines("tools_block"),
                "tools_allow": form.lines("tools_allow") or None,
                "models_block": form.lines("models_block"),
                "models_allow": form.lines("models_allow") or None,
                "models_priced": form.has("models_priced"),
                "sensitive_tools": form.lines("sensitive_tools"),
                "sensitive_action": form.text("sensitive_action", "allow"),
                "approval_tools": form.lines("approval_tools"),
                "approval_timeout_ms": timeout_s * 1000,
                "rate_caps": caps,
                "repeat_caps": repeats,
                "on_accelerating_spend": form.text("on_accelerating_spend") or None,
            },
        },
        bodies.PolicyBody,
    )


def settings(form: Form) -> dict[str, bool | int | str]:
    """Read the settings that were changed in the form; another operator may change the others."""
    found: dict[str, bool | int | str] = {}
    for name, each in SETTINGS.items():
        text = str(form.has(name)).lower() if each.kind == "flag" else form.text(name)
        if text.strip() != form.text(f"was_{name}"):
            found[name] = each.read_written(text)
    return found


def price(form: Form) -> bodies.PriceBody:
    """Read a price in dollars per million tokens; empty fields follow from input and output."""
    rates = {}
    for name in ("input", "output", "cache_read", "cache_write", "reasoning", "audio"):
        text = form.text(name)
        if text or name in ("input", "output"):
            rates[f"{name}_per_mtok"] = nanousd(text, f"the price of {name.replace('_', ' ')}")
    fields = {"model": form.text("model"), "provider": form.text("provider") or "*", "rates": rates}
    return checked(fields, bodies.PriceBody)


def named(form: Form) -> str:
    """Read the name of a policy."""
    return checked({"name": form.text("name")}, bodies.NewOrganisation).name


def new_key(form: Form) -> bodies.NewKeyBody:
    """Read the role and scope of a new key."""
    role = form.text("role", "sdk")
    return checked(
        {
            "name": form.text("name"),
            "role": role,
            "workflow_id": (form.text("workflow") or None) if role == "sdk" else None,
            "signed": form.has("signed"),
            **{name: form.text(name) for name in ("team", "person", "purpose")},
            "may_name": [name for name in NAMED if form.has(f"may_{name}")],
            "shows_cost": form.has("shows_cost"),
        },
        bodies.NewKeyBody,
    )


def operator(form: Form) -> bodies.OperatorBody:
    """Read the role and the password of an operator; an empty password is none."""
    fields = {"role": form.text("role"), "password": form.secret("password") or None}
    return checked(fields, bodies.OperatorBody)


def rotation(form: Form) -> bodies.RotateBody:
    """Read how long the old key stays valid."""
    hours = whole(form.text("overlap_hours", "0"), "the number of hours")
    return checked({"overlap_ms": hours * 3_600_000}, bodies.RotateBody)


def answer(form: Form) -> bodies.ApprovalBody:
    """Read an answer to an approval."""
    wanted = form.text("answer")
    if wanted not in ("approve", "refuse"):
        raise ValueError("the answer is neither approve nor refuse")
    return checked(
        {"approved": wanted == "approve", "reason": form.text("reason")}, bodies.ApprovalBody
    )
