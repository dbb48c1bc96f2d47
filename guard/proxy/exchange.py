"""One request and its answer, forwarded unchanged under guard.

The client that sends upstream is one of guard's hooked clients. So the request is checked, held and
metered there; here are only the reading, the forwarding and the answer to a refusal.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Final, cast

import httpx

from guard.asking.gate import questions_stay
from guard.asking.request_hold import on_cost
from guard.breaker.exceptions import GuardError, WorkflowKilledInterrupt
from guard.breaker.refusals import Refusal, unwrap
from guard.breaker.rejection import CallerRejectedError
from guard.contexts.caller import Caller
from guard.core.usage import Endpoint, find_endpoint
from guard.core.usage.vendors import is_free
from guard.core.wire.fields import decimal_dollars
from guard.gateway.api.http import Scope, Send, send_whole
from guard.instrumentation import patching
from guard.instrumentation.instrumentation import vendors_host
from guard.instrumentation.tool_watch import on_asking
from guard.proxy.account_names import EventScrubber, is_error, scrubbed
from guard.proxy.accounts import UpstreamAccount
from guard.proxy.admission import RequestAdmission
from guard.proxy.callers import NoKeyError
from guard.proxy.counts import Counted
from guard.proxy.custody import (
    Custody,
    NotPassedError,
    TwoKeysError,
    check_body,
    guard_key,
    sent_back_under_custody,
    with_safety_identifier,
    without_own_key,
)
from guard.proxy.headers import Pairs, sent_back, sent_upstream, value_of
from guard.proxy.incoming import Incoming, ProgramGoneError, TooLargeError
from guard.proxy.model_list import lists_models, model_list
from guard.proxy.names import (
    REMAINING,
    RUN,
    SHOWN,
    NameRefusedError,
    NoSessionError,
    RequestNames,
    asks_for_cost,
    user_in,
)
from guard.proxy.refusals import (
    REFUSED,
    UNDECIDED,
    UNKNOWN,
    ErrorAnswer,
    dialect_of,
    has_comments,
    keep_alive,
    told_of,
    unknown_caller,
    unreachable,
)
from guard.proxy.sent_url import SentURL
from guard.proxy.upstreams import Destination
from guard.scope.scope import current_scope
from guard.spending import spend_async
from guard.transport.connections import Connections, ConnectionsClosedError

logger = logging.getLogger("guard.proxy")

_STREAMS: Final = (
    "text/event-stream", "application/vnd.amazon.eventstream", "application/x-ndjson",
)  # fmt: skip
_ENDS: Final = (b"\n\n", b"\r\n\r\n")

KEEP_ALIVE_S: Final = 10.0
"""Seconds between the pings of a stream that waits for a person; clients wait for a minute."""

_STREAMED_ARRAY: Final = ":streamGenerateContent"
"""End of the path where Gemini streams one JSON array, unless it is asked for events."""

_WHOLE_MAX: Final = 64 << 20
"""Bytes of an answer that are held back until it was checked whole. Of a larger one the rest is
forwarded as it arrives: memory is bounded."""

_ERRORS: Final = 300
"""Also redirects, which are not followed: what they say is of the account."""

_ERROR_BYTES_MAX: Final = 1 << 20

_STOPS: Final = (Refusal, GuardError, WorkflowKilledInterrupt)


class _BrokenStreamError(Exception):
    """The answer cannot be completed. The server cuts the connection, and the program notices."""


class Exchange:
    """One request and its answer. Runs in a task of its own.

    Args:
        connections: to what is upstream.
        admission: decides whose money it spends.
        destination: where it is sent.
        endpoint: that of the model that works for it; None where none does, as far as is known.
        scope: ASGI's.
        incoming: the request.
        send: ASGI's.
        counted: counts its outcome.
        seen: called before a request to a model.
        custody: what passes where the proxy holds the vendor's key; None where programs send it.
    """

    def __init__(
        self,
        connections: Connections,
        admission: RequestAdmission,
        destination: Destination,
        endpoint: Endpoint | None,
        scope: Scope,
        incoming: Incoming,
        send: Send,
        counted: Counted,
        seen: Callable[[], None],
        custody: Custody | None = None,
    ) -> None:
        self._custody = custody
        # Whose key is sent, once that is known.
        self._account: UpstreamAccount | None = None
        # What the request names, once it is admitted.
        self._named = RequestNames()
        # What it has cost, in nano-dollars, once its answer was read; None while that is not known.
        self._cost: int | None = None
        self._connections = connections
        self._admission = admission
        self._destination = destination
        self._endpoint = endpoint
        self._scope = scope
        self._method: str = scope["method"]
        self._headers: Pairs = scope["headers"]
        self._incoming = incoming
        self._send = send
        self._counted = counted
        self._seen = seen
        self._dialect = dialect_of(destination.vendor, endpoint)
        # The content-length of the request before guard's hooks have changed it.
        self._length: str | None = None
        # What was sent to the program. Written by this task, and by the keep-alive's while this one
        # waits for a decision; both run on the server's loop.
        # Whether the status was sent; and whether an error may still follow as an event, because
        # the answer is a stream of events that names no length.
        self._started = False
        self._can_append = False
        # Whether the last bytes that were sent end an event: only there a keep-alive fits.
        self._at_boundary = True

    async def run(self) -> None:
        """Forward it, or send the program the reason for not doing so."""
        questions_stay.set(True)  # of this task, which ends with the exchange
        earlier = self._earlier_refusal()
        if earlier is not None:  # it has ended the run: nothing more is sent upstream
            await self._tell(told_of(unwrap(earlier)))
            return
        # 1. Answered by upstream, whatever its status.
        try:
            headers, key = self._headers, self._destination.key
            if self._custody is not None:
                headers, key = without_own_key(headers), guard_key(headers, self._destination)
            asks = self._endpoint is not None and self._endpoint.asks
            async with self._admission.enter(headers, key, asks=asks) as self._named:
                if self._named.shows_cost:
                    on_cost.set(self._note_cost)  # of this task, like the above
                if self._custody is None or not await self._listed(self._custody):
                    await self._forward()
            self._counted.answered()
        # 2. No caller to charge.
        except NoKeyError:
            await self._tell(unknown_caller(named=False))
        except CallerRejectedError:
            await self._tell(unknown_caller(named=True))
        except TwoKeysError:
            sentence = "guard: the request names two different guard keys; send one"
            await self._tell(ErrorAnswer(UNKNOWN, "GD-A003", sentence))
        except NoSessionError:
            sentence = (
                "guard: this proxy needs the session of each request: a tool that names none sends "
                "it as x-guard-run"
            )
            await self._tell(ErrorAnswer(REFUSED, "GD-P002", sentence))
        # 3. Refused by guard: before the request was sent, or in the middle of its answer.
        except _STOPS as exc:
            await self._tell(told_of(unwrap(exc)))
        # 4. The request is not one that can be forwarded.
        except TooLargeError:
            await self._tell(ErrorAnswer(413, "GD-P003", "guard: the request is larger than 64 MB"))
        except ProgramGoneError:  # there is no connection to answer on
            self._counted.left()
        except (httpx.InvalidURL, NotPassedError, NameRefusedError) as exc:
            await self._tell(ErrorAnswer(REFUSED, "GD-P002", f"guard: {exc}"))
        # 5. Upstream is out of reach, or was lost. Nothing is added to an answer that has begun:
        #    the program should see the same loss.
        except httpx.TransportError as exc:
            logger.info("%s: %s", self._destination.origin, type(exc).__name__)
            if self._started:
                raise _BrokenStreamError from None
            await self._tell(unreachable(self._destination.host))
        # 6. The proxy ends.
        except ConnectionsClosedError:
            raise _BrokenStreamError from None

    def _earlier_refusal(self) -> BaseException | None:
        entry = current_scope.get().entry
        return None if entry is None else entry.refused

    async def _listed(self, custody: Custody) -> bool:
        """Answer a request for all models with those that the key may use, if it is one."""
        if not lists_models(self._method, self._destination):
            return False
        who = cast("Caller", current_scope.get().caller)
        account = custody.accounts.find(self._destination.vendor, self._destination.origin, who)
        if account is None or not account.shared:
            return False
        await self._incoming.whole(value_of(self._headers, b"content-length"))
        provider = account.facts.name
        models = await who.link.ask_async(
            lambda session: session.client.models(provider), who.settings.timeout_s
        )
        body = model_list(self._destination.vendor, models)
        length = (b"content-length", b"%d" % len(body))
        await self._start(200, [(b"content-type", b"application/json"), length])
        await self._body(body, more=False)
        return True

    async def _forward(self) -> None:
        request = await self._request()
        vendors_host.set(self._destination.known_as)  # of this task, which ends with the exchange
        async with self._connections.lend() as client:
            response = await client.send(request, stream=True)
            try:
                await self._answer(request, response)
            finally:
                # Also when the program has left, which cancels this task: the vendor may stop then.
                await response.aclose()

    # -- the request ---------------------------------------------------------------------------

    async def _request(self) -> httpx.Request:
        """Read the request, as far as it is needed before it is sent."""
        if self._custody is None:
            self._check_path()
            headers = sent_upstream(self._headers)
        else:
            headers = self._under_custody(self._custody)
        content: bytes | AsyncIterator[bytes]
        # 1. For a model: whole, because its body bounds what it costs.
        if self._endpoint is not None and self._endpoint.asks:
            self._seen()
            content = await self._incoming.whole(value_of(headers, b"content-length"))
            if self._account is not None:
                await check_body(self._account, headers, content)
            if self._named.reads_user and (user := user_in(content)) is not None:
                current_scope.set(current_scope.get().evolve(user=user))
            if self._account is not None:
                content = with_safety_identifier(self._account, content, self._person())
        # 2. Anything else with a body: in parts, so that an upload of any size passes.
        elif self._has_body() and (self._account is None or not self._account.shared):
            content = self._incoming.parts()
        # 3. Without a body: read to its end all the same, after which `Incoming.gone` can watch.
        else:
            content = await self._incoming.whole(value_of(headers, b"content-length"))
            if self._account is not None:
                await check_body(self._account, headers, content)
        request = httpx.Request(
            self._method,
            self._destination.url,
            headers=headers,
            content=content or None,
        )
        request.url = SentURL(self._destination.url, self._destination.target)
        self._length = request.headers.get("content-length")
        return request

    def _person(self) -> str:
        """Return whose request it is: the user that it names, or who has the key, or the key."""
        scope = current_scope.get()
        who = cast("Caller", scope.caller)
        return scope.user or who.person or who.identity

    def _under_custody(self, custody: Custody) -> Pairs:
        """Replace the destination by what passes; return the headers with the account's key."""
        caller = current_scope.get().caller
        assert caller is not None  # whoever is admitted by a key is a caller
        passage = custody.passage(
            self._method, self._destination, self._headers, cast("Caller", caller)
        )
        self._account, self._destination = passage.account, passage.destination
        if not passage.account.shared:  # else only paths pass that are known to be of models
            self._check_path()
        return passage.headers

    def _has_body(self) -> bool:
        length = value_of(self._headers, b"content-length")
        return (length is not None and length != b"0") or (
            value_of(self._headers, b"transfer-encoding") is not None
        )

    def _check_path(self) -> None:
        """Report a path of which it is not known what it costs; raise where it must not be sent."""
        observer, to, here = patching.active(), self._destination, self._endpoint
        if observer is None or (here is not None and here.asks and not here.is_unknown):
            return
        # 1. By the vendor's name: a mirror of it has its paths. Where nothing is refused, the hook
        #    reports those that go to the vendor itself.
        known = find_endpoint(self._method, to.known_as, to.path)
        if known is not None and known.is_unknown:
            if to.host != to.known_as or observer.refuse_unseen is not None:
                observer.unknown_path(to.host, to.path)
        # 2. By the path alone, at a host that nothing is known of.
        elif (
            known is None
            and here is None
            and self._method == "POST"
            and not to.is_telemetry
            and not is_free(to.host, to.path)
        ):
            observer.unknown_path(to.host, to.path)

    # -- the answer ----------------------------------------------------------------------------

    async def _answer(self, request: httpx.Request, response: httpx.Response) -> None:
        # 0. An error that may name the account, or quote its key.
        if self._account is not None and response.status_code >= _ERRORS:
            await self._error(self._account, response)
            return
        # 1. The vendor has refused what guard has put in: the hook has read and decoded the answer.
        if response.is_stream_consumed:
            headers = self._sent_back(response, length=False, coding=False)
            await self._start(response.status_code, headers)
            await self._body(response.content, more=False)
            return
        kind = response.headers.get("content-type", "").partition(";")[0].strip().lower()
        # If guard has asked for the usage, the hook removes it from the stream. Then the length of
        # the answer, if it names one, is wrong. The request's length shows whether guard has asked.
        is_changed = request.headers.get("content-length") != self._length
        is_stream = kind in _STREAMS or self._destination.path.endswith(_STREAMED_ARRAY)
        self._can_append = kind in _STREAMS
        headers = self._sent_back(response, length=not (is_stream and is_changed), coding=True)
        chunks = aiter(response.aiter_raw())
        # 2. A whole answer of a model: its status is not sent before its tools were checked.
        if self._endpoint is not None and self._endpoint.asks and not is_stream:
            await self._whole(response.status_code, headers, chunks)
            return
        # 3. A stream, or an answer of something else. No refusal can be appended to what is
        #    encoded: there the status waits for the first chunk, which may not be readable.
        is_encoded = value_of(headers, b"content-encoding") is not None
        first = await anext(chunks, b"") if is_encoded else b""
        await self._start(response.status_code, headers)
        scrubber = None
        if self._account is not None and kind == _STREAMS[0] and not is_encoded:
            scrubber = EventScrubber(self._account.credential.value())
        with self._kept_alive():
            if first:
                await self._body(first, more=True)
            async for chunk in chunks:
                passed = chunk if scrubber is None else scrubber.feed(chunk)
                if passed:
                    await self._body(passed, more=True)
            if scrubber is not None and (rest := scrubber.rest()):
                await self._body(rest, more=True)
        if self._can_append and asks_for_cost(self._headers) and has_comments(self._dialect):
            for name, value in await self._about_cost():
                await self._body(b": %s: %s\n\n" % (name, value), more=True)
        await self._body(b"", more=False)

    def _note_cost(self, nanousd: int) -> None:
        self._cost = nanousd

    async def _about_cost(self) -> Pairs:
        """Return what the request has cost, what is left, and its run, as far as that is told."""
        if not self._named.shows_cost:
            return []
        if (observer := patching.active()) is not None:
            observer.read_answers()
        remaining: int | None = None
        with contextlib.suppress(GuardError):  # such as a gateway that is away: nothing is said
            limits = (await spend_async()).limits
            remaining = min((each.left_nanousd for each in limits), default=None)
        found = {SHOWN: self._cost, REMAINING: remaining}
        shown = [(name, decimal_dollars(n).encode()) for name, n in found.items() if n is not None]
        return [*shown, (RUN, (current_scope.get().run_id or "").encode("ascii", "replace"))]

    async def _error(self, account: UpstreamAccount, response: httpx.Response) -> None:
        """Send an error of the vendor's without what it says of the account."""
        found = b""
        async for chunk in response.aiter_bytes():  # also of one that the hook has read
            found += chunk
            if is_cut := len(found) > _ERROR_BYTES_MAX:
                break
        else:
            is_cut = False
        key = account.credential.value()
        body = scrubbed(found, key)
        if is_cut:  # perhaps in the middle of the key
            body = body[: -len(key)]
        if response.status_code in (401, 403, 407):
            logger.warning(
                "%s answers %d to the key of the account %s (%s)", self._destination.origin,
                response.status_code, account.name, account.credential.hint,
            )  # fmt: skip
            status = REFUSED if response.status_code == 403 else UNDECIDED
            sentence = (
                "guard: the vendor does not accept the account of this proxy for this request; "
                "tell who runs it"
            )
            await self._tell(ErrorAnswer(status, "GD-B001", sentence))
            return
        headers = self._sent_back(response, length=False, coding=False)
        await self._start(response.status_code, headers)
        await self._body(body, more=False)

    def _sent_back(self, response: httpx.Response, *, length: bool, coding: bool) -> Pairs:
        headers = sent_back(response.headers.raw, length=length, coding=coding)
        return headers if self._account is None else sent_back_under_custody(headers)

    @contextlib.contextmanager
    def _kept_alive(self) -> Iterator[None]:
        """Send pings while the answer waits for a decision about a tool."""
        pulse = keep_alive(self._dialect) if self._can_append else None
        if pulse is None:
            yield
            return
        beats: asyncio.Task[None] | None = None

        def asking(is_asked: bool) -> None:
            nonlocal beats
            if is_asked:
                beats = asyncio.create_task(self._beat(pulse))
            elif beats is not None:
                beats.cancel()

        on_asking.set(asking)  # of this task, which ends with the exchange
        try:
            yield
        finally:
            asking(False)

    async def _beat(self, pulse: bytes) -> None:
        """Send it again and again. Meanwhile the exchange's own task waits, and sends nothing."""
        while True:
            await asyncio.sleep(KEEP_ALIVE_S)
            if self._at_boundary:
                await self._body(pulse, more=True)

    async def _whole(self, status: int, headers: Pairs, chunks: AsyncIterator[bytes]) -> None:
        """Send an answer once all of it has arrived: until then a refusal can take its place."""
        parts, size = [], 0
        async for chunk in chunks:
            parts.append(chunk)
            size += len(chunk)
            if size > _WHOLE_MAX:
                break
        if size <= _WHOLE_MAX and status < _ERRORS:
            headers = [*headers, *await self._about_cost()]
        body = b"".join(parts)
        if self._account is not None and is_error(body):  # with 200, as some gateways answer
            body = scrubbed(body, self._account.credential.value())
            headers = [pair for pair in headers if pair[0] != b"content-length"]
        await self._start(status, headers)
        await self._body(body, more=size > _WHOLE_MAX)
        if size > _WHOLE_MAX:
            async for chunk in chunks:
                await self._body(chunk, more=True)
            await self._body(b"", more=False)

    async def _tell(self, told: ErrorAnswer) -> None:
        """Send the program the reason why there is no answer, or no more of it."""
        self._counted.refused(told.code)
        # 1. Nothing was sent: the refusal is the answer.
        if not self._started:
            headers, body = told.whole(self._dialect)
            self._counted.sent(len(body))
            # It may come before all of the request. In one write the server says that the
            # connection ends, so that the program does not use it again.
            await send_whole(self._scope, self._send, told.status, headers, body)
        # 2. A stream of events has begun: the refusal is its last event.
        elif self._can_append:
            await self._body(told.event(self._dialect), more=False)
        # 3. Anything else has begun: a whole answer could pass for complete, so it is cut.
        else:
            raise _BrokenStreamError

    async def _start(self, status: int, headers: Pairs) -> None:
        self._started = True
        # What is appended would exceed the length, or be no part of what is encoded.
        if any(name in (b"content-length", b"content-encoding") for name, _ in headers):
            self._can_append = False
        await self._send({"type": "http.response.start", "status": status, "headers": headers})

    async def _body(self, body: bytes, *, more: bool) -> None:
        self._at_boundary = body.endswith(_ENDS)
        self._counted.sent(len(body))
        await self._send({"type": "http.response.body", "body": body, "more_body": more})
