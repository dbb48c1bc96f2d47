"""Reads the answer of a call that has ended: sets its usage, and ends its hold by that.

Every call with a hold leaves :func:`settle` with the hold ended, or handed over to later work.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol, TypeVar

from guard.core.events import InstrumentedCall
from guard.core.input_ratios import InputRatios
from guard.core.model_names import is_release_of
from guard.core.request_bound import RequestBound
from guard.core.usage import Recording, Usage, read_body, read_recorded
from guard.core.usage.cut_short import is_cut_short
from guard.core.usage.framing import Recorded
from guard.core.usage.reading import is_stream
from guard.core.usage.response_format import replaced
from guard.instrumentation.charging import EndedRequest, usage_to_charge
from guard.instrumentation.observed_tiers import ObservedTiers

_CACHE_HEADERS: Final = ("x-cache", "cf-cache-status", "helicone-cache", "x-portkey-cache-status")


class AnsweredCall(EndedRequest, Protocol):
    """A call whose answer is read; see ``ObservedCall``."""

    limited: bool

    @property
    def content(self) -> bytes | Recording | None:
        """The response, or the recorded part of its stream, once it is over."""

    def header(self, name: str) -> str | None:
        """Return a header of the answer by its lower-case name."""


class Learned(Protocol):
    """Takes what answers show about the requests to come."""

    ratios: InputRatios
    """Tokens for the size of a prompt, by model: the most that answers have shown."""

    tiers: ObservedTiers
    """Remembers dearer service tiers that answers name."""

    def ratio_rose(self, model: str | None) -> None:
        """Hold more for open requests whose model turned out to make more tokens of a prompt."""

    def untrusted(self, names: tuple[str, ...]) -> tuple[str, ...]:
        """Return what of an answer's numbers lets it cost its bound, and report it."""

    def was_cut_short(self) -> None:
        """Count an answer that ended at a limit that guard has put in."""


Call = TypeVar("Call", bound=AnsweredCall)
_Reported = TypeVar("_Reported", bound=AnsweredCall, contravariant=True)


class AnswerReports(Learned, Protocol[_Reported]):
    """Takes what answers show."""

    def reported(self, call: _Reported, usage: Usage | None, *, again: bool) -> Usage | None:
        """Return the usage to record; None if there is none or it was recorded before.

        Args:
            call: the call whose response was read.
            usage: what it says.
            again: whether it may repeat what another response has reported.
        """

    def hold_until_polled(
        self, call: _Reported, event: InstrumentedCall, at_most: Usage, *, goes_on: bool
    ) -> None:
        """Keep the hold of a request until a poll or its vendor says what its response cost.

        Args:
            call: the request.
            event: its event.
            at_most: the most that it can have used.
            goes_on: whether the vendor works on without a reader.
        """


def record_answer(call: Call, event: InstrumentedCall, reports: AnswerReports[Call]) -> None:
    """Set in its event what a call used, and end its hold by that.

    Runs once for a call, with ``reports.reading`` held.

    Args:
        call: a call that has ended.
        event: the event of the call.
        reports: takes what the answer shows.
    """
    usage, event.streamed = _usage(call)
    bound, hold = call.bound, call.hold
    # Set here too, for work that is not finished: `hold_until_polled` copies the event.
    event.requested_model = None if bound is None else bound.model
    if usage is not None and usage.strangers:
        usage = replaced(usage, strangers=_judged(call, usage, reports))
    is_exact = usage is not None and not usage.later and not usage.estimated and not usage.strangers
    if usage is not None and not usage.later:
        if usage.fees is None:
            usage = _with_fees(call, usage)
        if is_exact and bound is not None and 0 < bound.text_tokens < _prompt(usage):
            # The prompt had more tokens than its text was bounded by. The event reports both, so
            # that the gateway learns the ratio for other processes.
            usage = replaced(usage, text_tokens=bound.text_tokens)
    event.polled = event.polled or _is_cached(call.header)
    event.usage = reports.reported(call, usage, again=event.polled)
    # 1. The answer says what it used: that is paid. What is learnt comes first, because it raises
    #    the holds of other requests out of the money that this one returns.
    if is_exact and event.usage is not None:
        if hold is not None:
            if bound is not None:
                _learn(call.host, bound, event.usage, reports)
            hold.settle(event.usage)
    # 2. It says nothing, too little, or that its work is not finished: `charged` decides, and ends
    #    the hold unless the work is polled later.
    elif usage is None or usage.later or event.usage is not None:
        event.usage = usage_to_charge(call, usage, event.streamed, _has_begun(call.content))
        if event.usage is not None and event.usage.later:
            goes_on = usage is not None and usage.later
            reports.hold_until_polled(call, event, event.usage, goes_on=goes_on)
    # 3. It repeats an answer that was recorded before: this request cost nothing.
    elif hold is not None:
        hold.give_back()
    if call.limited and event.usage is not None:
        event.usage = _seen_to_its_end(call, event.usage, reports)
    if event.usage is not None:
        event.requested_model = _requested_model(call, event.usage)


def _judged(call: Call, usage: Usage, reports: AnswerReports[Call]) -> tuple[str, ...]:
    """Return the numbers of an answer that let it cost its bound, and name them.

    Its vendor's own word on the cost includes them; at another host nobody can list them.
    """
    if usage.cost_nanousd is not None or not call.endpoint.is_vendors:
        return ()
    return reports.untrusted(usage.strangers)


def _requested_model(call: AnsweredCall, usage: Usage) -> str | None:
    """Return the model that was asked for if another has answered, or did last; else None."""
    asked = None if call.bound is None else call.bound.model
    if call.bound is not None and usage.model is not None:
        # One of several that were named: it teaches nothing about the first of them.
        for each in call.bound.models:
            if is_release_of(usage.model, each):
                return each
    is_itself = usage.model == asked and (call.hold is None or call.hold.prices(asked))
    return None if is_itself else asked


def _usage(call: AnsweredCall) -> tuple[Usage | None, bool]:
    """Return what a call used, and whether its answer was a stream of messages."""
    content = call.content
    if content is None:
        return None, False
    if isinstance(content, Recording):
        recorded, content_type = content.recorded(), call.header("content-type") or ""
        usage = read_recorded(call.endpoint.format, recorded, content_type, call.request)
        return usage, is_stream(content_type, recorded)
    usage = read_body(call.endpoint.format, content, call.request)
    streamed = content[:1] != b"{" and "event-stream" in (call.header("content-type") or "")
    return usage, streamed


def _with_fees(call: AnsweredCall, usage: Usage) -> Usage:
    """Return a usage with the fees that the request allows; called if the answer names none.

    Fees are what is charged besides tokens, such as for searches.
    """
    bound = call.bound
    if bound is None and call.endpoint.asks:  # not gated
        from guard.core.bounds import fees_of

        asked = call.request
        fees = fees_of(call.endpoint.format, asked.path, asked.request())
    else:
        fees = None if bound is None else bound.fees
    return replaced(usage, fees=fees) if fees else usage


def _learn(host: str, bound: RequestBound, usage: Usage, lessons: Learned) -> None:
    """Remember the prompt's tokens and the service tier, where they are dearer than held."""
    if usage.service_tier is not None:
        lessons.tiers.learn(host, bound, usage)
    if bound.text_tokens:
        tokens = _prompt(usage)
        if tokens > (bound.input_tokens or 0):
            lessons.ratios.learn(bound.model, bound.text_tokens, tokens)
            lessons.ratio_rose(bound.model)


def _prompt(usage: Usage) -> int:
    return usage.input_tokens + usage.cache_read_tokens + usage.cache_write_tokens


def _seen_to_its_end(call: AnsweredCall, usage: Usage, lessons: Learned) -> Usage:
    """Return the usage of a limited answer, marked and counted if the limit has ended it."""
    content, bound = call.content, call.bound
    if content is None:
        return usage
    found = content.recorded() if isinstance(content, Recording) else Recorded(content)
    if not is_cut_short(found, usage, None if bound is None else bound.output_tokens):
        return usage
    lessons.was_cut_short()
    return replaced(usage, cut_short=True)


def _has_begun(content: bytes | Recording | None) -> bool:
    """Return whether any of an answer's body has arrived."""
    if isinstance(content, Recording):
        return content.recorded().size > 0
    return bool(content)


def _is_cached(header: Callable[[str], str | None]) -> bool:
    """Return whether an answer comes from a cache: no model has worked for it."""
    age = header("age")
    # A cache that has just asked the vendor writes an age of zero. Nine digits are enough: `int`
    # of a hostile header must not take long.
    if age is not None and age.isdecimal() and int(age[:9]) > 0:
        return True
    for name in _CACHE_HEADERS:
        found = header(name)
        if found is not None and found.lower().startswith("hit"):
            return True
    return False
