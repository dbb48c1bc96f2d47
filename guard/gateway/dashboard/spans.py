"""The events of a run as a tree of spans. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec import Struct, field

from guard.gateway.domain.records import StoredEvent

DEPTH_MAX = 30


class Node(Struct):
    """One span (with its children), or one LLM or tool call within a span."""

    kind: str
    name: str
    start_ms: float
    duration_ms: float | None = None
    outcome: str = ""
    error_code: str | None = None
    cost_nanousd: int = 0
    tokens: int = 0
    model: str | None = None
    agent: str | None = None
    children: list[Node] = field(default_factory=list)

    def total_nanousd(self) -> int:
        """Return the cost of the node and everything below it."""
        return self.cost_nanousd + sum(child.total_nanousd() for child in self.children)


class Line(Struct):
    """A node with its position: ``left`` and ``width`` in percent of the run."""

    node: Node
    depth: int
    left: float
    width: float
    total_nanousd: int


def tree(events: Sequence[StoredEvent]) -> list[Node]:
    """Join events by their span ids; nodes without a parent among them are roots.

    A span's event arrives when the span ends. A span that is still running appears as an open one
    with its first inner event.
    """
    spans: dict[str, Node] = {}
    parents: dict[str, str | None] = {}
    leaves: list[tuple[str | None, Node]] = []
    for event in sorted(events, key=lambda e: (e.at_ms, e.event_seq)):
        node = _node(event)
        if event.type == "span" and event.span_id is not None:
            known = spans.get(event.span_id)
            node.children = known.children if known is not None else []
            spans[event.span_id] = node
            parents[event.span_id] = event.parent_span_id
            continue
        leaves.append((event.span_id, node))
        if event.span_id is not None and event.span_id not in spans:
            spans[event.span_id] = Node("open", "running", node.start_ms, agent=event.agent)
            parents[event.span_id] = event.parent_span_id
    for span_id, leaf in leaves:
        if span_id is not None:
            spans[span_id].children.append(leaf)
    roots = [leaf for span_id, leaf in leaves if span_id is None]
    for span_id, node in spans.items():
        parent = parents[span_id]
        if parent is None or parent not in spans or _loops(span_id, parents):
            roots.append(node)
        else:
            spans[parent].children.append(node)
    return sorted(roots, key=lambda node: node.start_ms)


def _loops(span_id: str, parents: dict[str, str | None]) -> bool:
    seen = {span_id}
    at = parents.get(span_id)
    while at is not None:
        if at in seen:
            return True
        seen.add(at)
        at = parents.get(at)
    return False


def lines(roots: Sequence[Node]) -> list[Line]:
    """Return the tree from the top down, with each node's position in the run."""
    flat: list[tuple[Node, int]] = []
    waiting = [(root, 0) for root in reversed(roots)]
    while waiting:
        node, depth = waiting.pop()
        flat.append((node, depth))
        children = sorted(node.children, key=lambda child: child.start_ms, reverse=True)
        waiting += [(child, min(depth + 1, DEPTH_MAX)) for child in children]
    if not flat:
        return []
    first = min(node.start_ms for node, _ in flat)
    last = max(node.start_ms + (node.duration_ms or 0) for node, _ in flat)
    whole = max(last - first, 1.0)
    found = []
    for node, depth in flat:
        left = 100 * (node.start_ms - first) / whole
        width = max(0.6, 100 * (node.duration_ms or 0) / whole)
        left = min(left, 99.4)
        found.append(
            Line(node, depth, round(left, 2), round(min(width, 100 - left), 2),
                 node.total_nanousd())
        )  # fmt: skip
    return found


def _node(event: StoredEvent) -> Node:
    data: dict[str, Any] = event.data
    duration_ms = _number(data.get("latency_ms" if event.type == "llm" else "duration_ms"))
    name = {"llm": event.model, "tool": data.get("tool_name"), "span": data.get("name")}.get(
        event.type
    )
    return Node(
        kind="call" if event.type == "span" and data.get("kind") == "call" else event.type,
        name=str(name or event.type),
        # Events carry the time of their end.
        start_ms=event.at_ms - (duration_ms or 0),
        duration_ms=duration_ms,
        outcome=str(data.get("outcome") or ""),
        error_code=data.get("error_code") if isinstance(data.get("error_code"), str) else None,
        cost_nanousd=event.cost_nanousd,
        tokens=_tokens(data) if event.type == "llm" else 0,
        model=event.model,
        agent=event.agent,
    )


def _tokens(data: dict[str, Any]) -> int:
    names = ("input_tokens", "output_tokens", "cache_read_tokens", "cache_write_tokens",
             "reasoning_tokens", "audio_tokens")  # fmt: skip
    return sum(value for name in names if isinstance(value := data.get(name), int))


def _number(value: Any) -> float | None:
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1e12:
        return float(value)
    return None
