"""The texts of ``guard run`` about refusals, for the person who started the run; no I/O.

The catalogue's messages are for end users of an application, who can only ask its operator. The
reader of these texts is the operator: each refusal names the command to type.
"""

from __future__ import annotations

import datetime as dt
import re
import shlex
from collections.abc import Callable, Mapping
from typing import Any, Final

import attrs

from guard.core import globs
from guard.core.catalogue import CATALOGUE
from guard.core.request_bound import what_is_unknown
from guard.core.visible import one_line
from guard.core.wire import amount_in, dollars, reached
from guard.gateway.domain.key_hierarchy import lineage
from guard.running.plan import RunLimits

_LABEL: Final = re.compile(r"(?P<kind>\w+)(?: (?P<id>.+))? \((?P<window>\w+)\)", re.DOTALL)
_BUDGETS: Final = "guard gateway budgets list --local"
_POLICIES: Final = "guard gateway policies list --local"
_NO_SPACE: Final = re.compile(r"disk is full|no space left", re.IGNORECASE)


@attrs.frozen
class OperatorStop:
    """An operator's kill or pause.

    Attributes:
        state: ``killed`` or ``paused``.
        reason: given with it; may be empty.
        target: the workflow or the glob that it names.
    """

    state: str
    reason: str
    target: str

    @property
    def lift(self) -> str:
        """The command that lifts it."""
        action = "revive" if self.state == "killed" else "resume"
        return f"guard {action} {shlex.quote(self.target)} --local"


@attrs.frozen
class RunFacts:
    """The facts about a run that has ended.

    Attributes:
        workflow: its name.
        limits: the limits of the run itself.
        key_id: the id of its key.
        directory: the directory of its local gateway.
        halt: the kill or pause of its workflow that is in force.
        budget_id, rule_id: those of the budget that has refused, and the id or glob that it is set
            for.
    """

    workflow: str
    limits: RunLimits
    key_id: str
    directory: str
    halt: OperatorStop | None = None
    budget_id: str | None = None
    rule_id: str = ""


@attrs.frozen
class Words:
    """The reason why a run was ended, and what to do about it."""

    headline: str
    advice: str


def killed_before(workflow: str, halt: OperatorStop) -> str:
    """Return the error for a run whose workflow was killed before it began."""
    reason = f": {halt.reason}" if halt.reason else ""
    by = "" if halt.target == workflow else f" by {shlex.quote(halt.target)}"
    other = "" if by else ", or choose another --workflow"
    return f"the workflow {workflow} is killed{by}{reason}; lift that with: {halt.lift}{other}"


NOTHING_SEEN: Final = (
    "nothing was seen of the program, so nothing was guarded: it neither loaded guard nor sent a "
    "request to guard's proxy"
)

NOT_METERED: Final = (
    "only clients that guard cannot meter have asked a model, so nothing was guarded: use one that "
    "sends by httpx, requests or aiohttp"
)


def unseen_under_limit() -> Words:
    """Return the texts for a run with a limit in which guard has seen nothing."""
    return Words(
        "not guarded: its limit has stopped nothing",
        "if that is meant (it talks to no LLM, or may spend uncounted), add --allow-unseen",
    )


def cannot_be_routed(why: str) -> str:
    """Return the error for a program that does not start under a limit.

    Args:
        why: the reason why it cannot be led to the proxy.
    """
    return f"the limit could not hold, so it was not started: {why}; --allow-unseen lets it go"


def of_refusal(refusal: Mapping[str, Any], facts: RunFacts) -> Words:
    """Return the texts for a refusal.

    Args:
        refusal: as a process of the run has reported it.
        facts: the facts of the run.
    """
    code = str(refusal.get("error_code", ""))
    found = _BY_CODE.get(code)
    if found is not None:
        return found(refusal, facts)
    title = CATALOGUE[code].title if code in CATALOGUE else "guard could not go on"
    return Words(_lowered(title), f"what that means: guard explain {code or 'GD-X000'}")


def _lowered(title: str) -> str:
    """Return a title as the middle of a sentence; abbreviations stay."""
    return title if title[1:2].isupper() else title[:1].lower() + title[1:]


# -- money ---------------------------------------------------------------------------------------


def _budget(refusal: Mapping[str, Any], facts: RunFacts) -> Words:
    if unknown := refusal.get("unknown"):
        trust = " ".join(f"--trust {shlex.quote(one_line(str(name)))}" for name in unknown)
        said = what_is_unknown(unknown, refusal.get("needed_nanousd"))
        return Words(said, f"trust it with: guard run {trust} -- ...")
    if (counted := refusal.get("counted")) is not None:
        return _counted(counted, facts)
    budget = refusal.get("budget") or {}
    label = _LABEL.fullmatch(str(budget.get("scope", "")))
    if label is None:
        return Words("a budget is reached", f"see them with: {_BUDGETS}")
    limit_nanousd = int(budget.get("limit_nanousd") or 0)
    amount = dollars(limit_nanousd)
    more_nanousd = 2 * max(limit_nanousd, int(budget.get("spent_nanousd") or 0))
    how = reached(budget.get("spent_nanousd"))
    kind, scope_id, window = label["kind"], label["id"] or "", label["window"]
    if kind == "key" and scope_id in lineage(facts.key_id):
        own = f"{_whose(scope_id, facts)} --limit"
        more = dollars(more_nanousd)
        advice = f"for more, start it with a higher one: guard run --limit '{more}' {_again(facts)}"
        return Words(f"{own} of {amount} {how}", advice)
    words = ["guard gateway budgets set --local"]
    if kind != "organisation":
        words.append(f"--scope {kind} --id {shlex.quote(facts.rule_id or scope_id)}")
    words.append(f"--window {window} --limit '{dollars(more_nanousd)}'")
    lifts = ["raise it with: " + " ".join(words)]
    if facts.budget_id is not None:
        lifts.append(f"or remove it: guard gateway budgets delete {facts.budget_id} --local")
    if (resets_ms := budget.get("resets_at_ms")) is not None:
        moment = dt.datetime.fromtimestamp(int(resets_ms) / 1000, dt.UTC)
        lifts.append(f"or wait until {moment:%Y-%m-%d %H:%M} UTC")
    whose = "" if kind == "organisation" else f" of {kind} {scope_id}".rstrip()
    over = {"total": "budget"}.get(window, f"{window} budget")
    headline = f"the local gateway's {over}{whose}, {amount} for all runs, {how}"
    return Words(headline, ", ".join(lifts))


def _whose(key_id: str, facts: RunFacts) -> str:
    if facts.limits.session:
        return f"the session {facts.limits.session}'s"
    return "this run's" if key_id == facts.key_id else "the outer run's"


def _again(facts: RunFacts) -> str:
    session = facts.limits.session
    return f"--session {shlex.quote(session)} -- ..." if session else "-- ..."


def _counted(counted: Mapping[str, Any], facts: RunFacts) -> Words:
    """Return the texts for a limit of tokens or calls."""
    unit, limit = str(counted.get("unit", "")), int(counted.get("limit") or 0)
    of = ", ".join(map(str, counted.get("counts") or ()))
    amount, how = amount_in(unit, limit, of), reached(counted.get("used"))
    label = _LABEL.fullmatch(str(counted.get("scope", "")))
    kind, scope_id = ("", "") if label is None else (label["kind"], label["id"] or "")
    if kind == "key" and scope_id in lineage(facts.key_id):
        option = "--limit-tokens" if unit == "tokens" else "--max-calls"
        value = str(2 * limit) if unit == "tokens" or not of else f"'{of}={2 * limit}'"
        advice = f"for more, start it with a higher one: guard run {option} {value} {_again(facts)}"
        return Words(f"{_whose(scope_id, facts)} {option} of {amount} {how}", advice)
    whose = "" if kind in ("", "organisation") else f" of {kind} {scope_id}".rstrip()
    return Words(
        f"the local gateway's limit{whose}, {amount} for all runs, {how}",
        f"see it with: {_BUDGETS}",
    )


def _chain(_: Mapping[str, Any], __: RunFacts) -> Words:
    return Words("a chain of the program has used up its budget", f"see it with: {_BUDGETS}")


# -- rules ---------------------------------------------------------------------------------------


def _tool(refusal: Mapping[str, Any], facts: RunFacts) -> Words:
    name = str(refusal.get("tool_name") or "")
    headline = f"the tool {name} is blocked" if name else "a tool is blocked"
    glob = globs.Matcher(facts.limits.block_tools).find_in_parts(name)
    if glob is not None:
        part = globs.part_of(glob, name)
        option = f"--block-tool {shlex.quote(glob)}"
        if part is not None:
            option += f", which its part {part} matches"
        return Words(headline, f"by this run's {option}: run it without that to allow the tool")
    return Words(headline, f"by a policy of the local gateway: {_POLICIES}")


def _rule(refusal: Mapping[str, Any], facts: RunFacts) -> Words:
    given = []
    if facts.limits.allow_models:
        given += [f"--allow-model {shlex.quote(glob)}" for glob in facts.limits.allow_models]
    if facts.limits.strict:
        given.append("--strict")
    if facts.limits.seen_only and "--allow-unseen" in str(refusal.get("reason", "")):
        given = ["--limit without --allow-unseen"]
    if given:
        return Words("a rule refuses it", f"the rules of this run: {' '.join(given)}")
    return Words("a rule refuses it", f"the rules of the local gateway: {_POLICIES}")


def _rate(_: Mapping[str, Any], facts: RunFacts) -> Words:
    headline = "too many requests in a short time"
    if facts.limits.rate is not None:
        return Words(headline, "give it a higher --rate, or a longer --wait")
    return Words(headline, f"the rules of the local gateway: {_POLICIES}")


# -- operators -----------------------------------------------------------------------------------


def _stopped(default: str) -> Callable[[Mapping[str, Any], RunFacts], Words]:
    def words(_: Mapping[str, Any], facts: RunFacts) -> Words:
        halt = facts.halt
        if halt is None:
            halt = OperatorStop(default, "", facts.workflow)
        by = "" if halt.target == facts.workflow else f" by {shlex.quote(halt.target)}"
        return Words(f"{facts.workflow} is {halt.state}{by}", f"lift that with: {halt.lift}")

    return words


# -- the gateway ---------------------------------------------------------------------------------


def _gateway(refusal: Mapping[str, Any], facts: RunFacts) -> Words:
    log = shlex.quote(f"{facts.directory}/gateway.log")
    if _NO_SPACE.search(str(refusal.get("reason", ""))):
        headline = "the disk is full, so the local gateway cannot write down what is spent"
        return Words(headline, f"free space there: df -h {shlex.quote(facts.directory)}")
    headline = "the local gateway has not answered, and nothing runs without it"
    return Words(headline, f"start the run again; the gateway's log: tail {log}")


def _setup(_: Mapping[str, Any], __: RunFacts) -> Words:
    return Words("guard cannot start with these settings", "check them with: guard doctor")


_BY_CODE: Final[dict[str, Callable[[Mapping[str, Any], RunFacts], Words]]] = {
    "GD-B004": _budget,
    "GD-CH001": _chain,
    "GD-T001": _tool,
    "GD-X001": _rule,
    "GD-R001": _rate,
    "GD-W002": _stopped("killed"),
    "GD-W003": _stopped("paused"),
    "GD-W004": _stopped("paused"),
    **dict.fromkeys(("GD-B001", "GD-B002", "GD-B005", "GD-I001", "GD-R002"), _gateway),
    **dict.fromkeys(("GD-C000", "GD-C001", "GD-C003", "GD-C005", "GD-A001", "GD-A003"), _setup),
}
