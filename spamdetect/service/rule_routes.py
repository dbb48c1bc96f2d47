"""The steps of the requests that see to a key's own rules: ``lists`` and ``feedback``."""

from __future__ import annotations

import hashlib
import time
from typing import Final, cast, get_args

import msgspec

from spamdetect.models import ErrorCode
from spamdetect.service.analysis import Item
from spamdetect.service.body import too_long
from spamdetect.service.keys import KeyRecord, StoreError
from spamdetect.service.respond import RefusalError, envelope, retry_after
from spamdetect.service.rules import (
    MAX_ENTRIES,
    EntryKind,
    Feedback,
    Found,
    ListName,
    make_entry,
)
from spamdetect.service.state import Fields, HotState
from spamdetect.service.steps import Steps
from spamdetect.service.traces import hashed
from spamdetect.service.wire import ENTRY, FEEDBACK, decode

_LISTS: Final = get_args(ListName)
_KINDS: Final = get_args(EntryKind)


class RuleRoutes:
    """Shows and changes the rules of the key that asks, and of no other."""

    def __init__(self, state: HotState) -> None:
        self._state = state

    def add_entry(self, content: bytes, key: KeyRecord) -> Steps[tuple[bytes, Fields]]:
        """Put an entry on one of the key's lists."""
        asked = decode(content, ENTRY)
        for field, value, known in (("list", asked.list, _LISTS), ("kind", asked.kind, _KINDS)):
            if value not in known:
                raise _wrong(f"{field} must be {' or '.join(known)}", field)
        try:
            entry = make_entry(
                cast("ListName", asked.list),
                cast("EntryKind", asked.kind),
                asked.value,
                asked.text_kind or None,
            )
        except ValueError as error:
            raise _wrong(str(error), "value") from None
        stored = yield from self._state.book.add_entry(key, entry)
        if not stored:
            message = f"the lists of a key may have at most {MAX_ENTRIES} entries; remove some"
            raise _wrong(message, "list")
        data = {"entry": msgspec.to_builtins(entry), "error_code": ""}
        return envelope("The entry is on the list.", data), ()

    def show_entries(self, key: KeyRecord) -> Steps[tuple[bytes, Fields]]:
        """The key's lists."""
        entries, _ = yield from self._state.book.of(key)
        data = {"entries": msgspec.to_builtins(entries), "error_code": ""}
        return envelope(f"{len(entries)} entries.", data), ()

    def remove(self, endpoint: str, key: KeyRecord, rule_id: str) -> Steps[tuple[bytes, Fields]]:
        """Take an entry off its list, or take feedback back."""
        kind = "list" if endpoint == "lists" else "feedback"
        removed = yield from self._state.book.remove(key, kind, rule_id)
        if not removed:
            raise RefusalError(
                404, ErrorCode.NOT_FOUND, "This key has nothing with this id; perhaps it is gone."
            )
        return envelope("Removed; it counts no more.", {"error_code": ""}), ()

    def show_feedback(self, key: KeyRecord) -> Steps[tuple[bytes, Fields]]:
        """The feedback that counts for the key, without the texts, which are not kept."""
        _, feedback = yield from self._state.book.of(key)
        shown = [
            {
                "feedback_id": each.feedback_id,
                "is_spam": each.is_spam,
                "received_s": each.received_s,
            }
            for each in feedback
        ]
        message = f"Feedback on {len(shown)} texts counts for this key."
        return envelope(message, {"feedback": shown, "error_code": ""}), ()

    def take_feedback(self, content: bytes, key: KeyRecord) -> Steps[tuple[bytes, Fields]]:
        """Let what a text really is count for this key at once, and keep it for retraining."""
        report = decode(content, FEEDBACK)
        settings = self._state.settings
        if len(report.text) > settings.max_text_chars:
            raise too_long(settings.max_text_chars)
        found: Found = yield self._state.workers.submit(Item(report.text, traces=True))
        feedback_id = report.feedback_id or _id_of(found)
        if found.sketch:
            feedback = Feedback(
                feedback_id, report.is_spam, time.time(), found.sketch, hashed(found.identifiers)
            )
            yield from self._state.book.add_feedback(key, feedback)
        if settings.store_feedback:
            # Scoped to the key: one caller's id can neither hide nor reveal another's.
            stored_id = f"{key.key_id}:{feedback_id}"
            if not report.feedback_id:
                stored_id += f":{report.is_spam:d}"
            try:
                yield self._state.store.add_feedback(
                    stored_id, key.key_id, report.text, report.is_spam
                )
            except StoreError:
                raise RefusalError(
                    503,
                    ErrorCode.UNAVAILABLE,
                    "The report could not be stored; try again in a moment.",
                    headers=retry_after(1),
                ) from None
        if not found.sketch:
            message = "There is nothing in this text that other texts could be compared with."
            return envelope(message, {"error_code": ErrorCode.TEXT_EMPTY.value}), ()
        message = "Thank you; it counts for this key from now on."
        return envelope(message, {"feedback_id": feedback_id, "error_code": ""}), ()


def _id_of(found: Found) -> str:
    # Of the normalised text: saying the same of it again changes nothing, the opposite replaces it.
    text = found.analysis.processed_text
    return hashlib.blake2b(text.encode("utf-8", "replace"), digest_size=8).hexdigest()


def _wrong(message: str, field: str) -> RefusalError:
    return RefusalError(422, ErrorCode.INVALID_REQUEST, f"{message}.", field=field)
