"""Checks each LLM request before it is sent, and records its usage once."""

from __future__ import annotations

import contextlib
import functools
import logging
import math
import threading
import time
import weakref
from collections import OrderedDict
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from types import ModuleType
from typing import Any, Final

from msgspec import structs

from guard.breaker.exceptions import GuardBlockedException
from guard.core.events import LATER_EVENT, BegunWork, InstrumentedCall, usage_of
from guard.core.input_ratios import InputRatios
from guard.core.request_bound import RequestBound
from guard.core.usage import Endpoint, Usage, find_endpoint
from guard.core.usage.counters import can_cost
from guard.core.usage.ends import Ending
from guard.core.usage.jobs import Jobs, job_id
from guard.core.usage.realtime import find_socket
from guard.core.usage.response_format import replaced
from guard.core.usage.vendors import find_named, names_llm, names_unpriced
from guard.core.wire import RESPONSE_ID_BYTES_MAX, RESPONSE_ID_LENGTH_MAX, truncated
from guard.instrumentation import patching
from guard.instrumentation.account import Account
from guard.instrumentation.background_jobs import BackgroundJobs, Work
from guard.instrumentation.frame_session import FrameSession
from guard.instrumentation.include_usage import StreamUsage
from guard.instrumentation.local_hosts import LocalHosts
from guard.instrumentation.observed_call import ObservedCall, call_being_sent
from guard.instrumentation.observed_tiers import ObservedTiers
from guard.instrumentation.output_limits import OutputLimits
from guard.instrumentation.request_gate import RequestGate
from guard.instrumentation.request_spans import RequestSpan
from guard.instrumentation.unread_answers import UnreadAnswers
from guard.instrumentation.unseen import BY_PATH, UNSEEN_EVENT, UnseenRequests
from guard.instrumentation.vendors_word import VendorsWord
from guard.loop import held_forks
from guard.scope.scope import Scope, account_in, current_scope

logger = logging.getLogger("guard.instrumentation")

vendors_host: Final = ContextVar[str | None]("guard_vendors_host", default=None)
"""The vendor's own host while the proxy sends its requests elsewhere: to a mirror, say."""

_MANY: Final = 1_000_000
"""Tokens that cost at least one nano-dollar at any model that has a price."""
_UNSEEN_HOSTS_MAX: Final = 100
_METHOD_HEADERS: Final = frozenset(("x-http-method-override", "x-http-method", "x-method-override"))
_UNPRICED: Final = "its price is not known here"
_UNKNOWN: Final = "what its path costs is not known here"
_RESPONSES_KEPT: Final = 4096
"""How many response ids are remembered, to recognise a response that is polled again."""
_POLL_S: Final = 0.005
_UNREAD_MAX: Final = 128
"""Maximum answers kept for later reading: somewhat more than a batch of events."""


def _is_overridden(headers: Mapping[str, Any]) -> bool:
    """Tell whether a request's headers name another method, which Google's servers then take."""
    return any(str(name).lower() in _METHOD_HEADERS for name in headers)


class Instrumentation:
    """Observes the process's HTTP clients; installs and removes the hooks. Any thread.

    The way of a request: :meth:`begin` checks and covers it, the transport sends it, :meth:`ended`
    records it, :meth:`reported` takes its usage when the answer is read.

    Args:
        own: the account of the process's own key. Requests in the scope of a caller belong to
            the caller's.
        inject_stream_usage: whether streams are asked for their usage.
        unread: where answers wait to be read.
        price_local: whether models at local addresses are priced like all others.
        trusted: what costs nothing besides although it is not known, such as ``tool:NAME``.
        max_output_tokens: is put into gated requests that have no limit, where the vendor takes
            one; None leaves requests alone.
    """

    def __init__(
        self,
        own: Account,
        *,
        inject_stream_usage: bool = False,
        max_output_tokens: int | None = None,
        unread: UnreadAnswers | None = None,
        price_local: bool = False,
        trusted: frozenset[str] = frozenset(),
    ) -> None:
        self._own = own
        # What is learnt from answers, for the requests to come. Kept in a forked child.
        self.stream_usage = StreamUsage(inject_stream_usage)
        self._max_output_tokens = max_output_tokens
        self.ratios = InputRatios()
        self.limits = OutputLimits()
        self.tiers = ObservedTiers()
        self._local = LocalHosts(price_local)
        self.trusted = trusted
        # A module that is slow to load, since it knows every vendor's request format. Loaded by a
        # timer of the background loop, or by the first request if that is earlier.
        self._bounds: ModuleType | None = None
        # Answers that ended at a limit that was put in; counted while `reading` is held.
        self.cut_short = 0
        # Errors in the observation itself, for tests and diagnosis: approximate, since threads
        # count without a lock.
        self.failures = 0
        # Answers that wait to be parsed, and work that waits to be polled. Both hold money.
        self._unread = unread or UnreadAnswers()
        self.later = self._unread.later = BackgroundJobs(self._ended_later)
        self._word = self._unread.word = VendorsWord(self.later, self.untrusted)
        # Calls that are not over. Any thread adds and removes; each is one atomic operation. The
        # removal decides who ends a call: in a forked child, which has a set of its own, none of
        # the parent's calls is in it.
        self._open: set[ObservedCall] = set()
        # Held while an answer is parsed and settled, which changes its event and `cut_short`.
        # Re-entrant: a signal handler may read the hosts while its thread reads an answer.
        self.reading = threading.RLock()
        # WebSockets, each dropped with its connection.
        # Not a `WeakSet`, which cannot be copied while another thread adds to it.
        self._sessions: weakref.WeakKeyDictionary[FrameSession, None] = weakref.WeakKeyDictionary()
        # Hosts whose answers held no usage; a dict for its order.
        self._unseen: dict[str, None] = {}
        # Hosts that were reported to the gateway as unmetered; each is reported once.
        self._reported: dict[str, None] = {}
        self.unseen = UnseenRequests()
        # Raises for a request that cannot be metered; None lets it go out. `guard run` and the
        # proxy set it.
        self.refuse_unseen: Callable[[str, Scope], None] | None = None
        # The newest responses by caller with vendor and by id, the oldest first.
        self._responses: OrderedDict[tuple[str, str], tuple[str, int | None]] = OrderedDict()

    def account(self, scope: Scope) -> Account:
        """Return the account that requests of a scope belong to."""
        return account_in(scope, self._own)

    def prepare(self) -> None:
        """Load the modules that :meth:`install` needs; called while ``init`` awaits the gateway."""
        patching.prepare()

    def load_bounds(self) -> ModuleType:
        """Load the module that bounds requests; on the background loop, or by the first request."""
        with held_forks():  # a child would keep the half of it that is loaded
            from guard.core import bounds
        self._bounds = bounds
        return bounds

    def install(self) -> None:
        """Instrument the supported transports, now or when they are imported. Idempotent."""
        patching.install(self)

    def rehook(self) -> None:
        """Put back the hooks that other code has taken out; cheap if there are none."""
        patching.rehook()
        for package in self.unhooked_tools():
            self.unseen.note_framework(package)

    def restored_hooks(self) -> tuple[str, ...]:
        """Return the methods of clients that other code had replaced, hooked again since."""
        return patching.restored()

    def unhooked_clients(self) -> tuple[str, ...]:
        """Return the clients that could not be hooked."""
        return patching.unhooked()

    def unhooked_tools(self) -> tuple[str, ...]:
        """Return the agent frameworks whose calls of tools could not be hooked."""
        return patching.unhooked_tools()

    def uninstall(self) -> None:
        """Remove the hooks. Idempotent."""
        patching.uninstall(self)
        self._unread.read()

    def close(self) -> None:
        """Remove the hooks, and record what calls that are still open have used so far.

        In this order: no call begins after :meth:`uninstall`, an abandoned call adds an unread
        answer, and an answer that is read may add later work.
        """
        self.rehook()  # a last time, so that the status names what was taken out
        self.uninstall()
        for call in list(self._open):
            call.abandon()
        for ref in self._sessions.keyrefs():
            session = ref()
            if session is not None:
                session.ended()
        self._unread.read()
        self.later.expire(math.inf)

    def wait_for_answers(self, timeout_s: float) -> None:
        """Wait for the calls of other threads; those of this one cannot end meanwhile.

        Called by SIGTERM's handler. So it polls, and takes no lock that the interrupted code may
        hold.
        """
        own, ends_s = threading.get_ident(), time.monotonic() + timeout_s
        while time.monotonic() < ends_s:
            if all(call.thread == own for call in list(self._open)):
                return
            time.sleep(_POLL_S)

    def after_fork(self) -> None:
        """Start afresh in a forked child: the parent records its own calls.

        The child has one thread. Locks are replaced, since another thread of the parent's may have
        held them at the fork.
        """
        self.unseen.after_fork()
        self._unread.after_fork()
        self.later.after_fork()
        self._word.after_fork()
        self._open = set()
        self.cut_short = 0
        self._sessions = weakref.WeakKeyDictionary()
        self.reading = threading.RLock()

    def unseen_hosts(self) -> tuple[str, ...]:
        """Return the LLM hosts whose answers held no usage."""
        self._unread.read()
        return tuple(self._unseen)

    def begin(
        self,
        method: str,
        host: str,
        path: str,
        body: Callable[[], bytes],
        replace: Callable[[bytes], bool] | None = None,
        headers: Callable[[], Mapping[str, Any]] = dict[str, Any],
    ) -> ObservedCall | None:
        """Check a request and start observing it; None when it is not an LLM call.

        The caller must ask the gateway about a call that is ``uncovered``.

        Args:
            method: the HTTP method, in upper case.
            host, path: those of the URL.
            body: returns the request's body; called only when needed.
            replace: gives the request another body; returns whether that was possible.
            headers: returns the request's headers; called only when needed.

        Raises:
            WorkflowKilledInterrupt: the workflow is killed.
            Refusal: it is paused or its budget is exhausted.
        """
        # First what costs least: most requests of a program are not for an LLM.
        endpoint = find_named(method, host, path, vendors_host.get())
        if endpoint is None and method != "POST" and _is_overridden(headers()):
            endpoint = find_named("POST", host, path, vendors_host.get())
        if endpoint is None:
            return None
        # A client over another hooked one (httpx over aiohttp) sends one request, not two.
        outer = call_being_sent()
        if outer is not None and outer.is_sent_by(path, body):
            return None
        if endpoint.is_unknown:
            self.unknown_path(host, path)
        elif endpoint.is_unlisted and (endpoint.certain or names_unpriced(path, body())):
            self.unseen.note(host, path, _UNPRICED)
            self._report_unseen(host, _UNPRICED)
        return self._begun(endpoint, current_scope.get(), host, path, body, replace, headers)

    def begin_frame(
        self,
        endpoint: Endpoint,
        scope: Scope,
        host: str,
        path: str,
        body: Callable[[], bytes],
        replace: Callable[[bytes], bool] | None = None,
        *,
        is_gated: bool = True,
    ) -> ObservedCall:
        """Check an answer that a WebSocket's frame asks for, and start observing it.

        Args:
            endpoint: that of the WebSocket.
            scope: the scope in which the frame is sent.
            host, path: those of the WebSocket's URL.
            body: returns what is asked, as the body of an HTTP request would say it.
            replace: lets the frame say something else; returns whether that was possible.
            is_gated: False for an answer that runs already, and for which nothing can be held.

        Raises:
            WorkflowKilledInterrupt: the workflow is killed.
            Refusal: it is paused or its budget is exhausted.
        """
        if not is_gated:
            call = ObservedCall(self, endpoint, scope, host, path, body)
            self._open.add(call)
            return call
        return self._begun(endpoint, scope, host, path, body, replace, dict)

    def _begun(
        self,
        endpoint: Endpoint,
        scope: Scope,
        host: str,
        path: str,
        body: Callable[[], bytes],
        replace: Callable[[bytes], bool] | None,
        headers: Callable[[], Mapping[str, Any]],
    ) -> ObservedCall:
        account = account_in(scope, self._own)
        # Before the check, so that a refusal has a span too.
        span = RequestSpan.begin(endpoint, host, path, scope) if endpoint.asks else None
        call: ObservedCall | None = None
        try:
            observed = endpoint.asks and bool(account.check_request(scope))
            call = ObservedCall(self, endpoint, scope, host, path, body, span)
            call.headers = headers
            self._admit(account, call, path, body, replace, headers, observed=observed)
            if span is not None and observed:
                span.decision = "observed"
            # From here on every end of the call is recorded, or returns its money.
            self._open.add(call)
            return call
        except BaseException as exc:
            # Also what is raised after its money was set aside, such as Ctrl-C: nothing was sent.
            if call is not None:
                self._open.discard(call)
                if call.hold is not None:
                    call.hold.give_back()
            if span is not None:
                span.refused(exc)
            raise

    def _admit(
        self,
        account: Account,
        call: ObservedCall,
        path: str,
        body: Callable[[], bytes],
        replace: Callable[[bytes], bool] | None,
        headers: Callable[[], Mapping[str, Any]],
        *,
        observed: bool,
    ) -> None:
        """Cover a request that may go out, and name the unchecked tools whose results it sends.

        Raises:
            Refusal: refused.
        """
        # Here and not only on the background loop: between two of its looks, a client that was
        # just patched over could send any number of requests unseen.
        if call.started_s >= patching.next_look_s:
            patching.rehook()
        if call.endpoint.asks:
            gate, tools = account.request_gate, account.tools
            if gate is not None and not observed:
                self._cover(account, gate, call, path, body, replace, headers)
            if tools is not None and tools.applies(call.scope):
                tools.results(body())

    def _cover(
        self,
        account: Account,
        gate: RequestGate,
        call: ObservedCall,
        path: str,
        body: Callable[[], bytes],
        replace: Callable[[bytes], bool] | None,
        headers: Callable[[], Mapping[str, Any]],
    ) -> None:
        """Set money aside for a request, or leave it ``uncovered`` for the gateway to decide.

        Raises:
            Refusal: refused.
        """
        # 1. The output limit to put in: the innermost option, else the setting.
        endpoint, content, tokens = call.endpoint, body(), self._max_output_tokens
        options = call.scope.options
        if options is not None and options.max_output_tokens is not None:
            tokens = options.max_output_tokens
        # 2. What the request can cost at most. Answers may have shown that its tier is dearer, or
        #    its host one's own.
        bounds = self._bounds or self.load_bounds()
        trusted = self.trusted if endpoint.is_vendors else None
        earlier = functools.partial(self._conversation, call)
        known: dict[str, Any] = {"trusted": trusted, "earlier": earlier, "headers": headers}
        if trusted is not None and (facts := account.facts) is not None:
            known |= {"trusted": trusted | facts.trusted, "bodies": facts.bodies}
        bound = bounds.bound_of(endpoint.format, path, content, self.ratios, **known)
        is_known = endpoint.certain or (bound.model is not None and not endpoint.is_unlisted)
        if not is_known and not names_llm(path, content):
            return  # a path such as /v1/messages of something else
        bound = self.tiers.bounded(call.host, bound)
        if endpoint.streams:
            bound = structs.replace(bound, streams=True)
        if endpoint.is_local and self._local.are_free(call.host):
            bound = structs.replace(bound, local=True)
        # 3. Put the limit in, where the request has none; then it can cost less.
        if bound.unknown or bound.unjudged or bound.trusted:
            self._note_unknown(bound)
        can_limit = not bound.unknown and bound.output_tokens is None
        if tokens is not None and replace is not None and can_limit:
            put = self.limits.put(endpoint.format, call.host, path, bound.model, content, tokens)
            if put is not None and replace(put.body):
                call.limited_body = put
                limit = bounds.bound_of(endpoint.format, path, put.body, self.ratios, **known)
                bound = structs.replace(limit, local=bound.local, terms=bound.terms)
        # 4. Cover it from a lease. If the lease has too little left, read the answers that wait:
        #    until then each holds its bound, which is mostly far more than it cost.
        bound = gate.counted(call.scope, bound, path, content)
        call.cover(gate, bound, replace)
        if call.uncovered and self._unread.calls:
            self._unread.read()
            call.cover(gate, bound, replace)

    def _note_unknown(self, bound: RequestBound) -> None:
        """Name what a request holds that is not known here."""
        for name in bound.unknown:
            self.unseen.note_unknown(name, is_dear=True)
        for name in bound.unjudged:
            self.unseen.note_unknown(name, is_dear=False)
        for name in bound.trusted:
            self.unseen.note_trusted(name)

    def begin_session(self, host: str, path: str, query: str) -> FrameSession | None:
        """Check a WebSocket and start observing it; None when it does not lead to an LLM.

        Raises:
            WorkflowKilledInterrupt: the workflow is killed.
            Refusal: it is paused or its budget is exhausted.
        """
        found = find_socket(host, path, query)
        if found is None:
            other = find_endpoint("POST", host, path)
            if other is not None and other.is_vendors and (other.is_unknown or other.asks):
                self.unknown_path(host, path)
            return None
        self.check_session()
        session = FrameSession(self, found, host, path)
        self._sessions[session] = None
        return session

    def is_trusted_frame(self, name: str, scope: Scope) -> bool:
        """Name a type of frames that is not known here; return whether it costs nothing.

        Args:
            name: such as ``frame:NAME``.
            scope: the scope in which it is sent.
        """
        if self._is_trusted(name, scope):
            return True
        self.unseen.note_unknown(name, is_dear=True)
        return False

    def _is_trusted(self, name: str, scope: Scope) -> bool:
        """Return whether whoever sets the limit says that it costs nothing, and note that."""
        facts = self.account(scope).facts
        if name not in self.trusted and (facts is None or name not in facts.trusted):
            return False
        self.unseen.note_trusted(name)
        return True

    def has_transcripts(self, host: str, path: str, scope: Scope) -> None:
        """Name a session whose user's words are written down: nothing is held for that."""
        if self.account(scope).request_gate is not None:
            self.unseen.note_session(host, path)

    def check_session(self) -> None:
        """Raise if the current scope's next LLM request must not go out."""
        scope = current_scope.get()
        self.account(scope).check_request(scope)

    def session_used(self, call: InstrumentedCall, scope: Scope) -> None:
        """Record what a response of a session used; never raises."""
        try:
            if call.usage is not None:
                call.usage = _as_taken(call.usage)
            self.account(scope).record("llm", call, scope)
        except Exception as exc:  # noqa: BLE001  # counted and logged: it never hurts the user
            self.failed(exc)

    def unmetered(self, host: str, path: str, why: str, by: str = "") -> None:
        """Report an LLM request that can be neither held nor metered; see ``Observer``.

        Raises:
            Refusal: such requests are refused here.
        """
        self.unseen.note(host, path, why, by)
        self._report_unseen(host, why)
        if self.refuse_unseen is not None:
            self.refuse_unseen(
                f"a request to {host}{path} cannot be held: {why}", current_scope.get()
            )

    def unknown_path(self, host: str, path: str) -> None:
        """Report a request to a path of a vendor's of which it is not known what it costs.

        Raises:
            GuardBlockedException: such requests are refused here. The program can go on: it may
                only tell about itself there.
        """
        if self._is_trusted(f"path:{host}{path}", current_scope.get()):
            return
        if self.refuse_unseen is None:
            self.unseen.note(host, path, _UNKNOWN)
            self._report_unseen(host, _UNKNOWN)
            return
        self.unseen.note_refused(host, path)
        raise GuardBlockedException(
            workflow_id=current_scope.get().workflow_id,
            reason=f"what {host}{path} costs is not known here; trust it with "
            f"--trust path:{host}{path}",
            action=BY_PATH,
        )

    def _report_unseen(self, host: str, why: str) -> None:
        """Report a host that is not metered to the gateway, once; it can alert its operators."""
        if host in self._reported or len(self._reported) >= _UNSEEN_HOSTS_MAX:
            return
        self._reported[host] = None
        try:
            scope = current_scope.get()
            self.account(scope).record(UNSEEN_EVENT, {"host": host, "why": why}, scope)
        except Exception as exc:  # noqa: BLE001  # counted and logged: it never hurts the user
            self.failed(exc)

    def usage_unseen(self, host: str, *, is_held: bool = False) -> None:
        """Report a host whose session ended, or whose answer came, without any usage.

        Args:
            host: the host of the request.
            is_held: whether money was set aside for it, which is charged now.
        """
        if host not in self._unseen and len(self._unseen) < _UNSEEN_HOSTS_MAX:
            self._unseen[host] = None
            charged = "it is charged what was set aside for it" if is_held else "it is not charged"
            logger.warning("an LLM answer of %s held no usage that can be read: %s", host, charged)

    def read_answers(self) -> None:
        """Read the answers that were recorded unread: what they have cost is known then."""
        self._unread.read()

    def ended(self, call: ObservedCall, ending: Ending) -> None:
        """Record a call that has ended, unless another thread does; never raises.

        Its response is parsed on the background loop, when its event is made: no caller waits.
        Three kinds are parsed here, on the caller's thread: a large one; all of them when too many
        wait; and one of another model than was asked for, whose price may differ from the one that
        the next request would be held by.
        """
        try:
            self._open.remove(call)
        except KeyError:
            # Another thread was faster, or it is the parent's call, in a forked child that drops
            # its copy of the stream.
            return
        call.ending, call.ended_s = ending, time.monotonic()
        # An error in here must not reach the user's request, but its money must not stay held.
        try:
            latency_ms = (call.ended_s - call.started_s) * 1000
            endpoint = call.endpoint
            payload = InstrumentedCall(
                endpoint.format.provider,
                latency_ms,
                call,
                polled=endpoint.polls,
                reservation_id=call.reservation_id,
                entry=None if call.hold is None else call.hold.entry,
                local=endpoint.is_local and self._is_own(call),
                digest=None if call.bound is None else call.bound.digest or None,
            )
            # 1. A small answer is recorded unread. Its event goes into the buffer first: an answer
            #    in `unread` may be read, and its money be free, at any moment. An answer of
            #    several models (`condense`) becomes several events, so it is read at once.
            if endpoint.asks and call.is_small and endpoint.condense is None:
                account_in(call.scope, self._own).record("llm", payload, call.scope)
                unread = self._unread.calls
                unread.append(payload)
                if len(unread) >= _UNREAD_MAX or call.names_another:
                    self._unread.read()
            # 2. Read at once, and there is something to report.
            elif usage_of(payload) is not None:
                account_in(call.scope, self._own).record("llm", payload, call.scope)
            # 3. Nothing to report: its place in the journal would be charged if the process died.
            elif payload.entry is not None:
                payload.entry.clear()
        except Exception as exc:  # noqa: BLE001  # counted and logged: it never hurts the user
            self.failed(exc)
            if call.hold is not None:
                call.hold.keep()  # the vendor has answered: in doubt all of it is spent

    def _is_own(self, call: ObservedCall) -> bool:
        """Return whether a local address has answered with a model that costs nothing.

        A request that was held at a price stays priced, whatever model name the answer has.
        """
        is_priced = call.hold is not None and bool(call.hold.cost_at_most(_MANY, _MANY))
        return self._local.answered(call.host, call.header) and not is_priced

    def forget(self, call: ObservedCall) -> bool:
        """Forget a call that ends without anything to record; False if it is another process's."""
        try:
            self._open.remove(call)
        except KeyError:
            return False
        return True

    def record_attempt(self, lost: ObservedCall) -> None:
        """Register the copy of a call that stands for an earlier try; the copy ends at once."""
        self._open.add(lost)

    def reported(self, call: ObservedCall, usage: Usage | None, *, again: bool) -> Usage | None:
        """Return the usage to record; None if there is none or it was recorded before.

        Called with ``reading`` held.
        """
        # 1. The answer holds none. Only a complete one of an LLM for certain is worth a warning.
        if usage is None:
            if call.endpoint.certain and call.is_complete:
                self.usage_unseen(call.host, is_held=call.reservation_id is not None)
            return None
        # 2. Its work is not finished. The gateway is told who has begun it, for other processes.
        if usage.later:
            if not call.endpoint.polls:
                self._tell_maker(call, usage.response_id)
            return None
        # 3. It repeats a response: a poll of work that this process has begun, or of one that was
        #    recorded before, or an answer from a cache.
        usage = _as_taken(usage)
        if usage.response_id is not None:
            # Vendors reuse ids, so two requests are two calls; only polls and caches repeat a
            # response.
            key = _key_of(call.endpoint.format.provider, usage.response_id, call.scope)
            if call.endpoint.polls and self._is_settled(key, usage):
                known = again = True
            else:
                known = self._remember(key)
            if not usage.estimated and not usage.strangers and key in self._responses:
                self._responses[key] = call.host, _tokens(usage)
            if known and again:
                return None
        # 4. It is new. What other models have contributed becomes events of their own.
        for other in usage.others:
            more = InstrumentedCall(
                call.endpoint.format.provider,
                0.0,
                usage=other,
                streamed=True,
                reservation_id=call.reservation_id,
            )
            self.session_used(more, call.scope)
        return usage

    def _tell_maker(self, call: ObservedCall, work_id: str | None) -> None:
        """Tell the gateway who has begun work that goes on, and as which event it is charged."""
        hold, entry = call.hold, None
        if work_id is not None:
            entry = None if hold is None else hold.entry
        elif type(call.endpoint.format) is Jobs and isinstance(call.content, bytes):
            work_id = job_id(call.content)  # what is charged now is not what a poll will say
        if work_id is not None:
            held = None if hold is None else hold.reservation_id
            work = BegunWork(call.endpoint.format.provider, work_id, held, entry)
            account_in(call.scope, self._own).record(LATER_EVENT, work, call.scope)

    def _is_settled(self, key: tuple[str, str], usage: Usage) -> bool:
        """Settle the work that a poll has named; False if the poll's usage is to be recorded."""
        self._unread.read()  # the answer that began the work may still wait there
        if not usage.estimated:
            return self.later.end(key, usage)
        if usage.estimate is not None:  # it has ended without a usage: charged its bound
            self.later.end(key, None)
        # An estimate is no reason to charge again: the request itself is charged, or still held.
        return True

    def hold_until_polled(
        self, call: ObservedCall, event: InstrumentedCall, at_most: Usage, *, goes_on: bool
    ) -> None:
        """Keep the hold of a request until a poll or its vendor says what its response cost."""
        question = call.question(at_most.response_id)
        at_most, hold = _as_taken(replaced(at_most, later=False)), call.hold
        assert hold is not None
        assert at_most.response_id is not None
        # The work takes the event's usage and its place in the journal along. The call's own record
        # becomes empty: it is not sent, and does not clear the place, so that the work is charged
        # if this process dies before the poll.
        whole = structs.replace(event, answer=None, usage=None)
        event.entry = event.usage = None
        work = Work(whole, call.scope, hold, at_most, call.started_s)
        key = _key_of(event.provider, at_most.response_id, call.scope)
        self.later.add(key, work)
        if question is not None:
            self._word.note(key, question, call.ended_s, goes_on=goes_on)

    def _ended_later(self, event: InstrumentedCall, scope: Scope) -> None:
        # Remembered, so that a second poll of the same response is not recorded.
        if event.usage is not None and event.usage.response_id is not None:
            self._remember(_key_of(event.provider, event.usage.response_id, scope))
        self.session_used(event, scope)

    def ratio_rose(self, model: str | None) -> None:
        """Hold more for open requests whose model turned out to make more tokens of a prompt."""
        for call in list(self._open):  # a copy: other threads begin and end calls meanwhile
            bound, hold = call.bound, call.hold
            if bound is None or hold is None or bound.model != model or not bound.text_tokens:
                continue
            tokens = self.ratios.tokens(model, bound.text_tokens)
            if tokens > (bound.input_tokens or tokens):
                hold.raise_input(tokens)

    def untrusted(self, names: tuple[str, ...]) -> tuple[str, ...]:
        """Return what of an answer's numbers lets it cost its bound, and report all of them."""
        found = tuple(name for name in names if name not in self.trusted)
        for name in found:
            self.unseen.note_unknown(name, is_dear=can_cost(name))
        return tuple(filter(can_cost, found))

    def was_cut_short(self) -> None:
        """Count an answer that ended at a limit that guard has put in."""
        self.cut_short += 1

    def failed(self, exc: Exception) -> None:
        """Count an error in the observation."""
        self.failures += 1
        logger.debug("a response could not be observed", exc_info=exc)

    def _conversation(self, call: ObservedCall, response_id: str) -> int | None:
        """Return the tokens of the conversation that ends with a response; None if not known.

        It is known where its answer was seen here, from the same host for the same caller.
        """
        key = _key_of(call.endpoint.format.provider, response_id, call.scope)
        if self._responses.get(key, ("", None))[1] is None:
            self._unread.read()  # its answer may still wait there
        host, tokens = self._responses.get(key, ("", None))
        return tokens if host == call.host else None

    def _remember(self, response: tuple[str, str]) -> bool:
        """Remember a response; return whether it was known already."""
        if response in self._responses:
            return True
        self._responses[response] = "", None
        if len(self._responses) > _RESPONSES_KEPT:
            with contextlib.suppress(KeyError):  # another thread was faster
                self._responses.popitem(last=False)
        return False


def _tokens(usage: Usage) -> int:
    """Return how many tokens the next answer of a conversation reads again."""
    prompt = usage.input_tokens + usage.cache_read_tokens + usage.cache_write_tokens
    return prompt + usage.output_tokens + usage.reasoning_tokens + usage.audio_tokens


def _key_of(provider: str, response_id: str, scope: Scope) -> tuple[str, str]:
    """Return the key of a response; each caller has responses of its own."""
    caller = scope.caller
    return provider if caller is None else f"{caller.identity} {provider}", response_id


def _as_taken(usage: Usage) -> Usage:
    """Return usage whose texts fit the protocol: the gateway would refuse the event otherwise."""
    model, tier = usage.model and truncated(usage.model), usage.service_tier
    tier = tier and truncated(tier)
    response_id = usage.response_id
    response_id = response_id and truncated(
        response_id, RESPONSE_ID_LENGTH_MAX, RESPONSE_ID_BYTES_MAX
    )
    if (model, tier, response_id) == (usage.model, usage.service_tier, usage.response_id):
        return usage
    return replaced(usage, model=model, service_tier=tier, response_id=response_id)
