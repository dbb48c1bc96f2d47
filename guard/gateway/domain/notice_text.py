"""Notices in words, for people's channels. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, Literal
from urllib.parse import urlencode

from msgspec import Struct

from guard.core import wire
from guard.core.visible import one_line
from guard.gateway.domain.windows import UTC, moment

Severity = Literal["critical", "error", "warning", "info"]
_BY_WEIGHT: Final[tuple[Severity, ...]] = ("critical", "error", "warning", "info")
NAME_MAX: Final = 200
LISTED_MAX: Final = 10


class Said(Struct, kw_only=True):
    """A notice in words.

    Args:
        title: one line, which may name what a program has named.
        subject: of a mail. A header has no words of programs: a name may be written so that it
            becomes other headers, or a body, in the mail that is made of it.
        lines: names and values.
        severity: in PagerDuty's terms.
        path: of the page about it, on the gateway's own address.
        key: the same for all notices about one thing.
        resolved: whether the thing that an earlier notice was about is over.
    """

    title: str
    subject: str = "Alert"
    lines: list[tuple[str, str]] = []
    severity: Severity = "warning"
    path: str = "/alerts"
    key: str = ""
    resolved: bool = False


def said(kind: str, data: Mapping[str, Any]) -> Said:
    """Return a notice in words; one of an unknown type by its name only."""
    known = _WORDS.get(kind)
    if known is None:
        return Said(title=f"guard: {kind}", severity="info")
    subject, make = known
    words = make(data)
    words.subject = subject
    return words


def _text(value: Any) -> str:
    """Return a name or a text from outside in one line."""
    return "" if value is None else one_line(str(value), NAME_MAX)


def _lines(*pairs: tuple[str, Any]) -> list[tuple[str, str]]:
    return [(name, _text(value)) for name, value in pairs if value not in (None, "", [])]


def _figures(data: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the figures of a notice's budget."""
    budget, unit = data["budget"], data.get("unit", "usd")
    ends_ms = budget.get("resets_at_ms")
    ends = ends_ms and moment(ends_ms, data.get("zone", UTC))
    if unit == "usd":
        spent, held = wire.dollars(budget["spent_nanousd"]), budget["reserved_nanousd"]
        return _lines(
            ("Spent", f"{spent} of {wire.dollars(budget['limit_nanousd'])}"),
            ("Set aside", wire.dollars(held) if held else ""),
            ("Resets", ends),
        )
    return _lines(
        ("Used", f"{budget['used']:,} of {budget['limit']:,} {unit}"),
        ("Resets", ends),
    )


def _scope(data: Mapping[str, Any]) -> str:
    """Return a budget's scope, in which a key has its name."""
    scope = str(data["scope"])
    if name := data.get("key_name"):
        scope = f"key {name}{scope[scope.rfind(' (') :]}"
    return _text(scope)


def _threshold(data: Mapping[str, Any]) -> Said:
    share, scope = data["threshold"], _scope(data)
    return Said(
        title=f"Budget at {share:.0%}: {scope}", lines=_figures(data), path="/budgets",
        key=f"budget:{data['budget_id']}:{scope}", severity="error" if share >= 1 else "warning",
    )  # fmt: skip


def _exhausted(data: Mapping[str, Any]) -> Said:
    scope = _scope(data)
    then = "calls ask for a raise" if data.get("asks") else "calls are refused"
    return Said(
        title=f"Budget exhausted, {then}: {scope}", lines=_figures(data), path="/budgets",
        key=f"budget:{data['budget_id']}:{scope}", severity="error",
    )  # fmt: skip


def _forecast(data: Mapping[str, Any]) -> Said:
    scope, runs_out = _scope(data), data.get("exhausted_at_ms")
    when = f", used up about {moment(runs_out, data.get('zone', UTC))}" if runs_out else ""
    return Said(
        title=f"Budget heads for {data['percent']}%{when}: {scope}", lines=_figures(data),
        path="/budgets", key=f"budget:{data['budget_id']}:{scope}",
    )  # fmt: skip


def _refused(data: Mapping[str, Any]) -> Said:
    minutes = max(1, data["within_ms"] // 60_000)
    codes = ", ".join(f"{code} ({count})" for code, count in data["codes"].items())
    return Said(
        title=f"{data['count']} or more calls refused within {minutes} min",
        lines=_lines(("Codes", codes), ("Newest", data.get("newest"))),
        path="/events?show=refused", key=f"refused:{data['rule']}", severity="error",
    )  # fmt: skip


def _kill(data: Mapping[str, Any]) -> Said:
    target = _text(data["target"])
    what = "everything" if target == "*" else ("run " if data.get("is_run") else "") + target
    return Said(
        title=f"Killed: {what}",
        lines=_lines(("By", data.get("by")), ("Reason", data.get("reason"))),
        path="/workflows", key=f"kill:{target}", severity="error",
    )  # fmt: skip


def _approval(data: Mapping[str, Any]) -> Said:
    name = _text(data.get("tool_name") or data["function"])
    return Said(
        title=f"Approval needed: {name}",
        lines=_lines(
            ("Function", data["function"]), ("Workflow", data.get("workflow_id")),
            ("Agent", data.get("agent")), ("User", data.get("user")), ("Run", data.get("run_id")),
            ("Arguments", data.get("arguments")), ("Answer by", moment(data["deadline_ms"])),
        ),
        path="/approvals", key=f"approval:{data['approval_id']}",
    )  # fmt: skip


def _asks(data: Mapping[str, Any]) -> Said:
    unit = data.get("unit", "usd")
    lacking, needed, spent, limit = (
        wire.amount_in(unit, data[each]) for each in ("lacking", "needed", "spent", "limit")
    )
    is_money = unit == "usd"
    return Said(
        title=f"Waits for a raise of {lacking}: {_scope(data)}",
        lines=_lines(
            ("Call", data["function"]), ("Workflow", data.get("workflow_id")),
            ("Agent", data.get("agent")), ("User", data.get("user")), ("Model", data.get("model")),
            ("May cost" if is_money else "May use", needed),
            ("Spent" if is_money else "Used", f"{spent} of {limit}"),
            ("Answer by", moment(data["deadline_ms"])),
        ),
        path="/budgets", key=f"asks:{data['balance_id']}",
    )  # fmt: skip


def _unseen(data: Mapping[str, Any]) -> Said:
    return Said(
        title=f"LLM requests that guard cannot meter: {_text(data['host'])}",
        lines=_lines(("Why", data.get("why")), ("Workflow", data.get("workflow_id"))),
        path="/events", key=f"unseen:{_text(data['host'])}", severity="error",
    )  # fmt: skip


def _fallback(data: Mapping[str, Any]) -> Said:
    model = _text(data["model"])
    return Said(
        title=f"Charged at fallback prices: {model}",
        lines=_lines(("To do", f"set a price: guard gateway prices set {model}")),
        path="/", key=f"fallback:{model}",
    )  # fmt: skip


_DONE: Final = {
    "pause": "its run is paused",
    "kill": "its run is killed",
    "refuse": "it is refused",
}


def _loop(data: Mapping[str, Any]) -> Said:
    run, workflow = _text(data["run_id"]), data.get("workflow_id")
    lines = _lines(("Workflow", workflow), ("Run", run), ("Policy", data.get("policy")))
    if data["kind"] == "spend":
        minutes = max(1, data["within_ms"] // 60_000)
        title = f"Spends faster and faster: {_text(workflow or run)}"
        lines += _lines(
            (f"In {minutes} min", wire.dollars(data["recent_nanousd"])),
            ("Before", f"{wire.dollars(data['usual_nanousd'])} in as long"),
        )
    else:
        same = "with the same arguments" if data["kind"] == "tool" else "with the same prompt"
        times = "once" if data["count"] == 1 else f"{data['count']} times"
        title = f"{_text(data['subject'])}, {times} {same}"
    done = _DONE.get(data["action"])
    title = f"{title}: {done}" if done else title
    path = f"/workflow?{urlencode({'id': workflow, 'tab': 'spans', 'run': data['run_id']})}"
    return Said(
        title=title, lines=lines, path=path if workflow else "/workflows", key=f"loop:{run}",
        severity="error" if data["action"] in ("pause", "kill") else "warning",
    )  # fmt: skip


def _unhealthy(data: Mapping[str, Any]) -> Said:
    return Said(
        title="The gateway is not healthy: its store fails, and calls are refused",
        lines=_lines(("Since", moment(data["since_ms"]))), path="/", key="unhealthy",
        severity="critical",
    )  # fmt: skip


def _healthy(data: Mapping[str, Any]) -> Said:
    return Said(
        title="The gateway is healthy again",
        lines=_lines(("Since", moment(data["since_ms"]))), path="/", key="unhealthy",
        severity="info", resolved=True,
    )  # fmt: skip


def _test(data: Mapping[str, Any]) -> Said:
    return Said(
        title=f"A test of the channel {_text(data['channel'])}",
        lines=_lines(("Sent by", data.get("sent_by"))), severity="info", key="test",
    )  # fmt: skip


def _answered(data: Mapping[str, Any]) -> Said:
    return Said(title=_text(data["text"]), severity="info", path="/approvals")


def _digest(data: Mapping[str, Any]) -> Said:
    notices = [said(each["type"], each["data"]) for each in data["notices"]]
    worst: Severity = "info"
    for each in reversed(_BY_WEIGHT):
        if any(notice.severity == each for notice in notices):
            worst = each
    lines = [("", notice.title) for notice in notices[:LISTED_MAX]]
    left = data["count"] - len(lines)
    if left > 0:
        lines.append(("", f"and {left} more"))
    return Said(
        title=f"{data['count']} more alerts", lines=lines, path="/alerts", key="digest",
        severity=worst,
    )  # fmt: skip


_WORDS: Final[dict[str, tuple[str, Callable[[Mapping[str, Any]], Said]]]] = {
    "budget.threshold": ("A budget has reached a threshold", _threshold),
    "budget.exhausted": ("A budget is exhausted", _exhausted),
    "budget.forecast": ("A budget will be used up", _forecast),
    "budget.asks": ("A call waits for a raise", _asks),
    "calls.refused": ("Many calls are refused", _refused),
    "workflow.kill": ("Something was killed", _kill),
    "approval.requested": ("A call waits for approval", _approval),
    "traffic.unseen": ("Requests that guard cannot meter", _unseen),
    "price.fallback": ("A model without a known price", _fallback),
    "gateway.unhealthy": ("The gateway is not healthy", _unhealthy),
    "gateway.healthy": ("The gateway is healthy again", _healthy),
    "run.loop": ("A run repeats itself", _loop),
    "question.answered": ("A question was answered", _answered),
    "digest": ("More alerts", _digest),
    "test": ("A test", _test),
}
