"""Output limits that guard puts into requests, in the form that the vendor accepts."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

from msgspec import Struct
from msgspec.structs import replace

from guard.core.usage.response_format import ResponseFormat

_KNOWN_MAX = 1024
_LOWERED_MAX = 3
"""How often one request's limit is lowered after the vendor has refused it as too large."""

_Target = tuple[str, str | None]
"""A host and a model."""


class _Known(Struct, frozen=True):
    """What a vendor accepts for a model.

    Attributes:
        other_name: whether the limit has the other name (OpenAI renamed it), not the usual one.
        most: the largest limit that it accepts; None where it has refused none.
    """

    other_name: bool = False
    most: int | None = None


class LimitedBody(Struct, frozen=True):
    """The body of a request into which a limit was put, or whose own limit was lowered.

    Attributes:
        body: with the limit.
        tokens: the limit on each answer.
    """

    body: bytes
    tokens: int
    # What is assumed of the vendor; remembered only once it has accepted this body.
    _known: _Known
    # Makes the request's body with a limit, by its tokens and whether it has the other name.
    _limited: Callable[[int, bool], bytes | None]
    _remember: Callable[[_Known], None]
    # Both end the repetition: a request is renamed once, and lowered `_LOWERED_MAX` times.
    _is_renamed: bool = False
    _lowered: int = 0

    def retry(self, answer: bytes) -> LimitedBody | None:
        """Return what to send after a refusal: a smaller limit, or the other name.

        None where the refusal was about something else; the request's own limit keeps its name.

        Args:
            answer: body of the refusal; empty when it was not read.
        """
        from guard.core.bounds import lower_limit, rejects_limit

        # 1. It names the largest limit that the vendor accepts.
        smaller = lower_limit(answer, self.tokens, is_lowered=self._lowered > 0)
        if smaller is not None and self._lowered < _LOWERED_MAX:
            known = _Known(self._known.other_name, smaller)
            body = self._limited(smaller, known.other_name)
            if body is not None and body != self.body:
                lowered = self._lowered + 1
                return replace(self, body=body, tokens=smaller, _known=known, _lowered=lowered)
        # 2. It is about the limit's name, or may be.
        if self._is_renamed or (answer and not rejects_limit(self.body, answer)):
            return None
        known = replace(self._known, other_name=not self._known.other_name)
        body = self._limited(self.tokens, known.other_name)
        if body is None or body == self.body:
            return None
        return replace(self, body=body, _known=known, _is_renamed=True)

    def accepted(self) -> None:
        """Remember that the vendor has accepted it, for later requests of the same model."""
        self._remember(self._known)


class OutputLimits:
    """Puts limits into requests, and remembers which ones a vendor accepts. Any thread."""

    def __init__(self) -> None:
        # Hosts and models that accept other limits than the usual ones, the oldest first. Each
        # operation is atomic: at worst, two threads at once learn the same.
        self._others: OrderedDict[_Target, _Known] = OrderedDict()

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
            response_format: the format of the endpoint that the URL belongs to.
            host, path: those of the URL.
            model: the model that was asked for.
            body: the body of the request.
            tokens: the limit on each answer; lowered where the vendor is known to accept less.
        """
        from guard.core.bounds import with_output_limit  # loaded when the request was bounded

        target = (host, model)
        known = self._others.get(target, _Known())
        if known.most is not None:
            tokens = min(tokens, known.most)

        def limited(tokens: int, other_name: bool) -> bytes | None:
            return with_output_limit(response_format, path, body, tokens, other_name=other_name)

        put = limited(tokens, known.other_name)
        if put is None:
            return None
        return LimitedBody(put, tokens, known, limited, lambda found: self._remember(target, found))

    def _remember(self, target: _Target, known: _Known) -> None:
        self._others.pop(target, None)  # to the end of the order, or out if it is the usual
        if known != _Known():
            if len(self._others) >= _KNOWN_MAX:
                self._others.popitem(last=False)
            self._others[target] = known
