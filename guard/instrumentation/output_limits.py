"""Limits on the output that guard puts into requests, under the name that the vendor takes."""

from __future__ import annotations

from collections.abc import Callable

import attrs

from guard.core.usage.response_format import ResponseFormat

_KNOWN_MAX = 1024
_Target = tuple[str, str | None]
"""A host and a model."""


@attrs.frozen
class LimitedBody:
    """The body of a request into which a limit was put, or whose own limit was lowered.

    Attributes:
        body: with the limit.
        is_taken: called when the vendor has taken the other name: later requests have it at once.
    """

    body: bytes
    _renamed: Callable[[], bytes | None]
    is_taken: Callable[[], None]

    def renamed(self, answer: bytes) -> bytes | None:
        """Return the body with the limit under its other name.

        None where an answer with status 400 was about something else; the request's own limit
        keeps its name.

        Args:
            answer: what the vendor said; empty when nobody has read that.
        """
        from guard.core.bounds import rejects_limit

        if answer and not rejects_limit(self.body, answer):
            return None
        other = self._renamed()
        return None if other == self.body else other


class OutputLimits:
    """Puts limits into requests, and remembers under which name a vendor takes them."""

    def __init__(self) -> None:
        # Who refuses the usual name; a dict for its order.
        self._others: dict[_Target, None] = {}

    def put(
        self,
        response_format: ResponseFormat,
        host: str,
        path: str,
        model: str | None,
        body: bytes,
        tokens: int,
    ) -> LimitedBody | None:
        """Return a request's body with a limit on each answer; None where none can be put in.

        Args:
            response_format: of the endpoint that the URL belongs to.
            host, path: of the URL.
            model: the model that was asked for.
            body: of the request.
            tokens: the limit.
        """
        from guard.core.bounds import with_output_limit  # loaded when the request was bounded

        target, other = (host, model), (host, model) in self._others
        put = with_output_limit(response_format, path, body, tokens, other_name=other)
        if put is None:
            return None

        def renamed() -> bytes | None:
            return with_output_limit(response_format, path, body, tokens, other_name=not other)

        return LimitedBody(put, renamed, lambda: self._remember(target, not other))

    def _remember(self, target: _Target, other: bool) -> None:
        self._others.pop(target, None)
        if other:
            if len(self._others) >= _KNOWN_MAX:
                self._others.pop(next(iter(self._others)), None)
            self._others[target] = None
