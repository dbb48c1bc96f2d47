"""The pages of one event and of one refused call, with all that is stored of it."""

from __future__ import annotations

from typing import Any, Final

from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from guard.gateway.dashboard.site import PageGroup, RequestContext
from guard.gateway.domain.records import StoredEvent

PRICE_SOURCES: Final = {
    "vendor": "reported with the call",
    "operator": "set by an operator",
    "default": "the operator's default price for unknown models",
    "published": "built in: the published price",
    "fallback": "fallback: no price of this model is known",
    "local": "free: on the caller's own machine",
    "reconciled": "booked by what the vendor has billed",
    "settled": "a correction of what was in doubt",
}
"""Sources of a price, in words."""

_TOKENS: Final = (
    ("Input", "input_tokens"), ("Output", "output_tokens"),
    ("Read from cache", "cache_read_tokens"), ("Written to cache", "cache_write_tokens"),
    ("of it for an hour", "cache_write_1h_tokens"), ("Reasoning", "reasoning_tokens"),
    ("Audio", "audio_tokens"),
)  # fmt: skip

_SHOWN: Final = {
    "latency_ms", "duration_ms", "model", "provider", "tool_name", "name", "cost_nanousd",
    "outcome", "error_code", "response_id", "request_id",
}  # fmt: skip

_REFUSERS: Final = (
    ("GD-B", "a budget"), ("GD-CH", "the ceiling of its chain"), ("GD-X", "a policy"),
    ("GD-T", "a policy"), ("GD-R001", "a rate cap"), ("GD-W002", "a kill"),
    ("GD-W003", "a pause"), ("GD-W", "its key"), ("GD-C", "the circuit breaker"),
)  # fmt: skip


class CallPages(PageGroup):
    """Pages of one event, or of one refusal."""

    def routes(self) -> list[BaseRoute]:
        """Return the routes."""
        page = self._site.page
        return [
            Route("/events/event", page(self.event), methods=["GET"]),
            Route("/events/refusal", page(self.refusal), methods=["GET"]),
        ]

    async def event(self, context: RequestContext) -> Response:
        """Show one event: its call, trace, tokens, cost, reservation and refusal."""
        found = await self._storage.event_details(context.org(), context.number("id", 0))
        event = found.event
        return await self._site.render(
            context, "event.html", found=found, event=event, tokens=_tokens(event),
            duration=_duration(event), price_source=_source(event),
            rest=_rest(event.data), refused_by=refused_by,
            names=await self._storage.key_names(context.org()),
        )  # fmt: skip

    async def refusal(self, context: RequestContext) -> Response:
        """Show one refused call: what refused it, and how often it has asked."""
        own = context.org()
        refused = await self._storage.refusal(own, context.number("id", 0))
        same = await self._storage.refusals_of_call(own, refused.call_id)
        return await self._site.render(
            context, "refusal.html", refused=refused, same=same, refused_by=refused_by
        )


def refused_by(code: str, name: str) -> str:
    """Say what has refused a call.

    >>> refused_by("GD-B004", "budget of workflow w (day)"), refused_by("GD-W003", "")
    ('budget of workflow w (day)', 'a pause')
    """
    if name:
        return name
    return next((said for prefix, said in _REFUSERS if code.startswith(prefix)), "the gateway")


def _tokens(event: StoredEvent) -> list[tuple[str, int]]:
    """Return how many tokens of each kind a call has used; of other events nothing."""
    if event.type != "llm":
        return []
    counts = [(name, event.data.get(field)) for name, field in _TOKENS]
    shown = [(name, count) for name, count in counts if isinstance(count, int)]
    return [(name, count) for name, count in shown if count or name in ("Input", "Output")]


def _duration(event: StoredEvent) -> float | None:
    value = event.data.get("latency_ms" if event.type == "llm" else "duration_ms")
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e12:
        return None
    return float(value)


def _source(event: StoredEvent) -> str:
    return PRICE_SOURCES.get(event.price_source or "", event.price_source or "")


def _rest(data: dict[str, Any]) -> dict[str, Any]:
    """Return what else an event has reported."""
    shown = {field for _, field in _TOKENS} | _SHOWN
    return {name: value for name, value in data.items() if name not in shown}
