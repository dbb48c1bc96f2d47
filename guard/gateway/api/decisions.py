"""The hot operations, for requests over HTTP and over the control socket."""

from __future__ import annotations

import functools
import hashlib
import time
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

import attrs
from msgspec import Struct

from guard.core import wire
from guard.gateway.api.auth import KeyIdentity
from guard.gateway.api.http import ProblemError, fail, store_failed
from guard.gateway.domain.commands import EncodedAnswer, RequestOrigin
from guard.gateway.domain.errors import StoreError, StoreFullError, UnstorableError
from guard.gateway.domain.message_text import flaw_in, is_plain
from guard.gateway.domain.nesting import nested_deeper
from guard.gateway.services.gatekeeper import Gatekeeper
from guard.gateway.services.metrics import Counts

T = TypeVar("T")
Operation = Callable[[RequestOrigin, bytes], Awaitable[EncodedAnswer]]

_PERSON_BYTES: Final = 16


@attrs.frozen(eq=False)
class DecisionHandlers:
    """Decodes a body and has the gatekeeper decide.

    Args:
        gatekeeper: the use cases.
        counts: of this process.
        events_max: events in one request.
    """

    _gatekeeper: Gatekeeper
    _counts: Counts
    _events_max: int

    async def gate(
        self, request: RequestOrigin, body: bytes, *, leases: bool = False
    ) -> EncodedAnswer:
        """Decide one call.

        Args:
            request: the caller.
            body: of the request.
            leases: whether a lease may be granted: only to a client that a recall can reach.

        Raises:
            ProblemError: the body is not a gate request, or the store failed (GD-R002).
        """
        started = time.perf_counter()
        call = parse(body, wire.GateRequest)
        if len(call.events) > self._events_max:
            raise self._too_many()
        if call.note is not None:
            _check_note(call.note)
        try:
            answer = await self._gatekeeper.gate(request, call, leases=leases)
        # The store works; the request is at fault.
        except UnstorableError as exc:
            raise store_failed(exc) from None
        # Its own code: without a decision the SDK must not make the call.
        except StoreError as exc:
            reason = str(exc) if isinstance(exc, StoreFullError) else "RATE_LIMIT_STORE"
            raise fail(
                503,
                "GD-R002",
                "Reservation store failed",
                "the call cannot be decided now",
                reason=reason,
            ) from None
        self._counts.gates.add(time.perf_counter() - started)
        return self.counted(wire.GATE_PATH, answer)

    async def release(self, request: RequestOrigin, body: bytes) -> EncodedAnswer:
        """Release a reservation.

        Raises:
            ProblemError: the body is not a release.
            StoreError: the store failed.
        """
        answer = await self._gatekeeper.release(request, parse(body, wire.ReleaseRequest))
        return self.counted(wire.RELEASE_PATH, answer)

    async def lease(self, request: RequestOrigin, body: bytes) -> EncodedAnswer:
        """Renew a lease, give back a part of it, or close it.

        Raises:
            ProblemError: the body is not an update of a lease.
            StoreError: the store failed.
        """
        answer = await self._gatekeeper.lease(request, parse(body, wire.LeaseUpdate))
        return self.counted(wire.LEASE_PATH, answer)

    async def ingest(self, request: RequestOrigin, body: bytes) -> EncodedAnswer:
        """Record and charge a batch of events.

        Raises:
            ProblemError: the body is not a batch, or holds too many events.
            StoreError: the store failed.
        """
        batch = parse(body, wire.EventBatch)
        if len(batch.events) > self._events_max:
            raise self._too_many()
        answer = await self._gatekeeper.ingest(request, batch)
        return self.counted(wire.EVENTS_PATH, answer)

    def counted(self, path: str, answer: EncodedAnswer) -> EncodedAnswer:
        """Count an answer of an operation, or an error in its place, and return it."""
        self._counts.answered(path, answer.status)
        return answer

    def _too_many(self) -> ProblemError:
        return fail(413, "GD-P003", "Body too large", f"at most {self._events_max} events")


def request_of(identity: KeyIdentity, path: str, key: str | None, body: bytes) -> RequestOrigin:
    """Return the caller, with the key and fingerprint by which a repeat is recognised.

    Args:
        identity: the caller.
        path: of the operation; the same over HTTP and over the control socket.
        key: the idempotency key, if any.
        body: the JSON body.

    Raises:
        ProblemError: the key is empty, too long, or not text that the protocol takes.
    """
    fingerprint = b""
    if key is not None:
        if not 1 <= len(key) <= wire.NAME_LENGTH_MAX:
            raise fail(400, "GD-P002", "Bad request", "Idempotency-Key: 1 to 256 characters")
        flaw = wire.flaw_in_text(key, wire.NAME_BYTES_MAX)
        if flaw is not None:
            raise bad_text(f"Idempotency-Key: {flaw}")
        hashed = _hash_of(path).copy()
        hashed.update(body)
        fingerprint = hashed.digest()
    return RequestOrigin(
        organisation_id=identity.organisation_id,
        key_id=identity.key_id,
        key_workflow_id=identity.workflow_id,
        idempotency_key=key,
        fingerprint=fingerprint,
    )


@functools.lru_cache(maxsize=16)
def _hash_of(path: str) -> hashlib.blake2b:
    """Return a hash without data for an operation, to copy: copying is faster than making one."""
    return hashlib.blake2b(digest_size=16, person=path.encode()[:_PERSON_BYTES])


def parse(body: bytes, kind: type[T]) -> T:
    """Decode a body.

    Raises:
        ProblemError: 400, naming the field and what was expected. Text in events is not looked at:
            each is judged by itself.
    """
    try:
        message = wire.decode(body, kind)
    except wire.WireError as exc:
        raise fail(400, "GD-P002", "Bad request", str(exc)) from None
    if isinstance(message, Struct) and not is_plain(body):
        flaw = flaw_in(message)
        if flaw is not None:
            raise bad_text(flaw)
    return message


def bad_text(flaw: str) -> ProblemError:
    """Return the refusal of a request with text that the protocol does not take."""
    return fail(400, "GD-P007", "Text not accepted", flaw)


def _check_note(note: wire.ApprovalNote) -> None:
    document = wire.encode(note)
    if len(document) > wire.NOTE_BYTES_MAX:
        raise fail(400, "GD-P002", "Bad request", f"note: at most {wire.NOTE_BYTES_MAX} bytes")
    if nested_deeper(document, wire.NOTE_DEPTH_MAX):
        raise fail(400, "GD-P002", "Bad request", f"note: at most {wire.NOTE_DEPTH_MAX} levels")


def overloaded() -> ProblemError:
    """Return the refusal of a request that exceeds the limit on requests in flight."""
    return fail(429, "GD-R001", "Gateway overloaded", "too much is waiting; try again")
