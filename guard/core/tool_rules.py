"""Which tools a policy blocks, which the gateway decides about, and what is counted. Pure.

The gateway sends the tool rules of a key; the SDK matches the tools that an answer asks for with
them, by the same globs as the gateway.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Literal, TypeVar

from msgspec import Struct

from guard.core import globs, wire
from guard.core.model_names import family

Counting = Literal["", "note", "ask"]
"""Whether repeats are counted: by what events say (``note``), or by asking the gateway."""

TOOL: Final = "tool:"
FRAMEWORK: Final = "tools of:"
"""Prefixes of names in the counts of what guard cannot check: tools, and frameworks of tools."""
REFUSED: Final = "refused:"
DEAR: Final = "dear:"
UNJUDGED: Final = "unjudged:"
TRUSTED: Final = "trusted:"
"""Prefix of requests that were not sent: it is not known what their path costs."""
BY: Final = " by "
"""Comes before the native client that has sent a request, at the end of its name."""

SCOPES_KEPT: Final = 256
NAMES_KEPT: Final = 4096
"""How many scopes, and tool names in one, have their rules and verdicts cached."""

K = TypeVar("K")
V = TypeVar("V")


_STRICTER: Final[tuple[Counting, ...]] = ("", "note", "ask")


class ToolVerdict(Struct, frozen=True):
    """What the rules say about one tool.

    Attributes:
        kind: ``block`` it, or ``ask`` the gateway.
        reason: why, for people.
        policy, policy_version: the policy that says so.
    """

    kind: Literal["block", "ask"]
    reason: str
    policy: str
    policy_version: int


def blocked_by(pattern: str, tool: str) -> str:
    """Return the reason why a tool is refused.

    >>> blocked_by("delete_*", "delete_all")
    "the tool is blocked by 'delete_*'"
    >>> blocked_by("delete_*", "mcp__files__delete_all")
    "the tool is blocked by 'delete_*', which its part 'delete_all' matches"
    """
    part = globs.part_of(pattern, tool)
    by_part = "" if part is None else f", which its part {part!r} matches"
    return f"the tool is blocked by {pattern!r}{by_part}"


class _Rule:
    """One rule, its patterns compiled."""

    __slots__ = ("_allow", "_ask", "_block", "_models", "_tools", "rule")

    def __init__(self, rule: wire.ToolRule) -> None:
        self.rule = rule
        self._block = globs.Matcher(rule.block)
        self._allow = None if rule.allow is None else globs.Matcher(rule.allow)
        self._ask = globs.Matcher(rule.ask)
        self._tools = globs.Matcher(rule.repeat_tools)
        self._models = globs.Matcher(rule.repeat_models)

    def applies(self, workflow_id: str | None, agent: str | None) -> bool:
        """Return whether the rule applies to calls of this workflow and agent."""
        if self.rule.scope_kind == "organisation":
            return True
        value = {"workflow": workflow_id, "agent": agent}.get(self.rule.scope_kind)
        return value is not None and globs.matches(self.rule.scope_id, value)

    def refusal(self, tool: str) -> ToolVerdict | None:
        """Return why the rule refuses a tool."""
        pattern = self._block.find_in_parts(tool)
        if pattern is not None:
            return self._verdict("block", blocked_by(pattern, tool))
        if self._allow is not None and self._allow.find(tool) is None:
            return self._verdict("block", "the tool is not on the allow list")
        return None

    def question(self, tool: str) -> ToolVerdict | None:
        """Return why the rule has the gateway asked about a tool."""
        pattern = self._ask.find_in_parts(tool)
        if pattern is None:
            return None
        return self._verdict("ask", f"the gateway decides about {pattern!r}")

    def unreadable(self) -> ToolVerdict | None:
        """Return why the rule refuses an answer whose tools cannot be read."""
        if not self.rule.block and self._allow is None and not self.rule.ask:
            return None
        reason = "the answer cannot be decoded or is too large, so its tools cannot be checked"
        return self._verdict("block", reason)

    def counting(self, tool: str | None, model: str | None) -> Counting:
        """Return whether the rule counts repeats of a tool, or of a model's prompt."""
        found = tool is not None and self._tools.find_in_parts(tool) is not None
        if model is not None and self._models:
            names = (model, family(model))
            found = found or any(self._models.find(name) is not None for name in names)
        return ("ask" if self.rule.repeat_asks else "note") if found else ""

    def _verdict(self, kind: Literal["block", "ask"], reason: str) -> ToolVerdict:
        return ToolVerdict(kind, reason, self.rule.policy, self.rule.policy_version)


class ScopeToolRules:
    """The rules that apply to one workflow and agent; verdicts are cached by name."""

    __slots__ = (
        "_counted_models",
        "_counted_tools",
        "_rules",
        "_verdicts",
        "blocks_sensitive",
        "unreadable",
    )

    def __init__(self, rules: list[_Rule]) -> None:
        self._rules = rules
        self._verdicts: dict[str, ToolVerdict | None] = {}
        self._counted_tools: dict[str, Counting] = {}
        self._counted_models: dict[str, Counting] = {}
        self.blocks_sensitive = any(each.rule.blocks_sensitive for each in rules)
        # The verdict on an answer that cannot be read; None where every tool may run.
        self.unreadable = next((v for each in rules if (v := each.unreadable()) is not None), None)

    def verdict(self, tool: str) -> ToolVerdict | None:
        """Return the strictest verdict on a tool, None when it may run.

        >>> rule = wire.ToolRule("p", 1, block=["rm"], ask=["pay*"])
        >>> rules = CompiledToolRules(wire.ToolRules("v", [rule])).for_scope(None, None)
        >>> rules.verdict("RM").kind, rules.verdict("pay_out").kind, rules.verdict("search")
        ('block', 'ask', None)
        """
        name = wire.truncated(tool)
        return _cached(self._verdicts, name, self._judge, NAMES_KEPT)

    def _judge(self, tool: str) -> ToolVerdict | None:
        # First what refuses, in any policy; only then what asks.
        for each in self._rules:
            if (refusal := each.refusal(tool)) is not None:
                return refusal
        questions = (each.question(tool) for each in self._rules)
        return next((question for question in questions if question is not None), None)

    def counts_tool(self, tool: str) -> Counting:
        """Return how repeats of a tool's calls are counted; "" if they are not."""
        return _cached(self._counted_tools, wire.truncated(tool), self._count_tool, NAMES_KEPT)

    def counts_model(self, model: str) -> Counting:
        """Return how repeats of a model's prompts are counted; "" if they are not."""
        return _cached(self._counted_models, wire.truncated(model), self._count_model, NAMES_KEPT)

    def _count_tool(self, tool: str) -> Counting:
        return max((each.counting(tool, None) for each in self._rules), key=_STRICTER.index)

    def _count_model(self, model: str) -> Counting:
        return max((each.counting(None, model) for each in self._rules), key=_STRICTER.index)


class CompiledToolRules:
    """The tool rules of a key, compiled; never changed.

    Args:
        message: as the gateway sent them.

    Attributes:
        version: that of these rules.
        counts: whether any of them counts repeats.
    """

    __slots__ = ("_rules", "_scopes", "counts", "version")

    def __init__(self, message: wire.ToolRules) -> None:
        self.version = message.version
        self.counts = any(rule.repeat_tools or rule.repeat_models for rule in message.rules)
        self._rules = [_Rule(rule) for rule in message.rules]
        self._scopes: dict[tuple[str | None, str | None], ScopeToolRules | None] = {}

    def for_scope(self, workflow_id: str | None, agent: str | None) -> ScopeToolRules | None:
        """Return the rules that apply to a workflow and agent; None when there are none."""
        return _cached(self._scopes, (workflow_id, agent), self._applying, SCOPES_KEPT)

    def _applying(self, scope: tuple[str | None, str | None]) -> ScopeToolRules | None:
        rules = [each for each in self._rules if each.applies(*scope)]
        return ScopeToolRules(rules) if rules else None


def _cached(known: dict[K, V], key: K, find: Callable[[K], V], size_max: int) -> V:
    """Return ``find(key)``, from the cache if it is there; safe without a lock."""
    # Two threads may both compute a value, or clear; neither makes a verdict wrong.
    try:
        return known[key]
    except KeyError:
        if len(known) >= size_max:
            known.clear()
        found = known[key] = find(key)
        return found
