"""The ids of a new span: below the current scope, or below a running OpenTelemetry span."""

from __future__ import annotations

import sys

from guard.core.ids import IdFactory
from guard.scope.scope import Scope


def child_span(outer: Scope, ids: IdFactory) -> dict[str, str | None]:
    """Return the changes to a scope that open a new span in it (W3C Trace Context ids).

    An OpenTelemetry span that was started since ``outer`` was opened becomes the parent;
    OpenTelemetry is asked only when the program has imported it.
    """
    trace_id, parent, foreign = outer.trace_id, outer.span_id, outer.foreign_span_id
    otel = sys.modules.get("opentelemetry.trace")
    if otel is not None:
        context = otel.get_current_span().get_span_context()
        # One that was running before ``outer`` was opened is an ancestor already.
        if context.is_valid and f"{context.span_id:016x}" != foreign:
            trace_id, foreign = f"{context.trace_id:032x}", f"{context.span_id:016x}"
            parent = foreign
    return {
        "trace_id": trace_id or ids.trace_id(),
        "span_id": ids.span_id(),
        "parent_span_id": parent,
        "foreign_span_id": foreign,
    }
