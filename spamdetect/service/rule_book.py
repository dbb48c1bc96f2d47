"""The rules of the keys, from the store, decoded and ready; each key's are read again on change."""

from __future__ import annotations

from collections import OrderedDict
from functools import partial
from typing import Final

import msgspec

from spamdetect.service.auth import unavailable
from spamdetect.service.keys import KeyRecord, StoredRule, StoreError
from spamdetect.service.rules import (
    MAX_ENTRIES,
    MAX_FEEDBACK,
    NO_RULES,
    Entry,
    Feedback,
    KeyRules,
)
from spamdetect.service.steps import Steps
from spamdetect.service.store import KeyStore
from spamdetect.service.together import Together

_LIST: Final = "list"
_FEEDBACK: Final = "feedback"
_MAX_KEYS: Final = 1000
_ENCODER: Final = msgspec.json.Encoder()
_ENTRY_DECODER: Final = msgspec.json.Decoder(Entry)
_FEEDBACK_DECODER: Final = msgspec.json.Decoder(Feedback)


class RuleBook:
    """Reads and changes rules, always those of one key.

    Args:
        store: Where they are.
    """

    def __init__(self, store: KeyStore) -> None:
        self._store = store
        # By key: the version of its rules, and the rules. A key without any takes no place.
        self._ready: OrderedDict[str, tuple[int, KeyRules]] = OrderedDict()
        self._putting: dict[str, Together[StoredRule, bool]] = {}

    def rules_of(self, key: KeyRecord) -> Steps[KeyRules]:
        """The rules of a key as they were when the key was found, or newer.

        Raises:
            RefusalError: 503 ``UNAVAILABLE`` when the store cannot be asked.
        """
        if not key.rules_version:
            return NO_RULES
        known = self._ready.get(key.key_id)
        if known is None or known[0] != key.rules_version:
            entries, feedback = yield from self.of(key)
            known = key.rules_version, KeyRules(entries, feedback)
            self._ready[key.key_id] = known
            if len(self._ready) > _MAX_KEYS:
                self._ready.popitem(last=False)
        self._ready.move_to_end(key.key_id)
        return known[1]

    def of(self, key: KeyRecord) -> Steps[tuple[list[Entry], list[Feedback]]]:
        """The entries and the feedback of a key, oldest first.

        Raises:
            RefusalError: As in :meth:`rules_of`.
        """
        try:
            stored: list[StoredRule] = yield self._store.rules(key.key_id)
        except StoreError:
            raise unavailable() from None
        entries = [_ENTRY_DECODER.decode(each.content) for each in stored if each.kind == _LIST]
        feedback = [
            _FEEDBACK_DECODER.decode(each.content) for each in stored if each.kind == _FEEDBACK
        ]
        return entries, feedback

    def add_entry(self, key: KeyRecord, entry: Entry) -> Steps[bool]:
        """Store an entry; false when the key's lists are full.

        Raises:
            RefusalError: As in :meth:`rules_of`.
        """
        rule = StoredRule(_LIST, entry.entry_id, _ENCODER.encode(entry))
        try:
            stored: bool = yield self._store.put_rules(key.key_id, [rule], MAX_ENTRIES)
        except StoreError:
            raise unavailable() from None
        return stored

    def add_feedback(self, key: KeyRecord, feedback: Feedback) -> Steps[None]:
        """Store feedback; where there is too much of it, the oldest is dropped.

        Raises:
            RefusalError: As in :meth:`rules_of`.
        """
        rule = StoredRule(_FEEDBACK, feedback.feedback_id, _ENCODER.encode(feedback))
        # What comes at once for one key is one change: its row is locked while it is made, and
        # changes that wait for it would hold every connection.
        put = self._putting.setdefault(
            key.key_id, Together(partial(self._put_feedback, key.key_id), MAX_FEEDBACK)
        )
        try:
            yield put(rule)
        except StoreError:
            raise unavailable() from None
        finally:
            if put.is_idle:
                self._putting.pop(key.key_id, None)

    async def _put_feedback(self, key_id: str, rules: list[StoredRule]) -> list[bool]:
        stored = await self._store.put_rules(key_id, rules, MAX_FEEDBACK, drop_oldest=True)
        return [stored] * len(rules)

    def remove(self, key: KeyRecord, kind: str, rule_id: str) -> Steps[bool]:
        """Delete an entry (kind ``list``) or ``feedback``; false when there is none.

        Raises:
            RefusalError: As in :meth:`rules_of`.
        """
        try:
            removed: bool = yield self._store.delete_rule(key.key_id, kind, rule_id)
        except StoreError:
            raise unavailable() from None
        return removed
