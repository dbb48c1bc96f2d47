"""What a key has said about its own texts: its lists and its feedback, and what they decide.

Pure: rules and what was found about a text come in, the verdict goes out. An entry of a list
decides alone; an allow entry goes before a block entry. Without one, the feedback on the text most
like this one shifts the score, by at most ``MAX_SHIFT`` in log-odds.
"""

from __future__ import annotations

import hashlib
import heapq
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from typing import Final, Literal

import attrs
import msgspec

from spamdetect.engine import Analysis, Reason
from spamdetect.service.phrases import PhraseIndex
from spamdetect.service.traces import domain_of, phrase_words, plain, similarity
from spamdetect.service.wire import Context

MAX_ENTRIES: Final = 1000
MAX_FEEDBACK: Final = 500
MAX_VALUE_CHARS: Final = 200
# Turns any verdict on an equal text, whose log-odds are 14 at most.
MAX_SHIFT: Final = 16.0
# Below this, two texts are not alike; a shift grows from here to the full one of equal texts.
_ALIKE: Final = 0.5
_COMPARED: Final = 8
# What an entry weighs among the reasons: more than any model's log-odds.
ENTRY_WEIGHT: Final = 20.0
_LOWEST: Final = 1e-6

ListName = Literal["allow", "block"]
EntryKind = Literal["sender", "link", "phrase"]


class Entry(msgspec.Struct, frozen=True, rename={"list_name": "list"}):
    """One entry of a key's lists.

    Attributes:
        entry_id: The same for the same entry.
        list_name: ``allow`` or ``block``.
        kind: What it is compared with: ``sender``, ``link`` or ``phrase``.
        value: A name, an address or ``@domain``; a domain; words.
        text_kind: The only kind of text that it is for; None is every kind.
    """

    entry_id: str
    list_name: ListName
    kind: EntryKind
    value: str
    text_kind: str | None = None

    def __repr__(self) -> str:
        return f"Entry({self.entry_id!r})"


class Feedback(msgspec.Struct, frozen=True):
    """What a key has said of one text; the text itself is not in it.

    Attributes:
        feedback_id: The caller's own, or one made from the text.
        is_spam: What the text is.
        received_s: Unix time.
        sketch: Hashes of the text, see :mod:`spamdetect.service.traces`.
    """

    feedback_id: str
    is_spam: bool
    received_s: float
    sketch: tuple[int, ...]


@attrs.frozen
class Found:
    """What the engine found about a text, where that is not the answer yet.

    Attributes:
        analysis: The engine's own verdict.
        reasons: What moved it, if asked for.
        hosts: The hosts that the text links to.
        words: The words of the normalised text.
        sketch: Its hashes.
    """

    analysis: Analysis
    reasons: tuple[Reason, ...] = ()
    hosts: tuple[str, ...] = ()
    words: tuple[str, ...] = ()
    sketch: tuple[int, ...] = ()


def make_entry(list_name: ListName, kind: EntryKind, value: str, text_kind: str | None) -> Entry:
    """An entry with its id.

    Raises:
        ValueError: The value can never match anything; the message says what one looks like.
    """
    value = " ".join(value.split())
    if not value or len(value) > MAX_VALUE_CHARS or not value.isprintable():
        raise ValueError(f"value must be 1 to {MAX_VALUE_CHARS} printable characters")
    compared = _compared(kind, value)
    known = "\x00".join((list_name, kind, compared, text_kind or ""))
    entry_id = hashlib.blake2b(known.encode(), digest_size=8).hexdigest()
    return Entry(entry_id, list_name, kind, value, text_kind)


def _compared(kind: EntryKind, value: str) -> str:
    """The form of a value that texts are compared with."""
    if kind == "sender":
        return plain(value)
    if kind == "link":
        host = domain_of(value)
        if host is None:
            raise ValueError("the value of a link is a domain, such as example.com")
        return host
    words = phrase_words(value)
    if not words or not any(word.isalnum() for word in words):
        raise ValueError("a phrase must hold a letter or a digit")
    if any(word.startswith("<") for word in words):
        raise ValueError("a phrase holds no link, address or mention; list those by their kind")
    return " ".join(words)


class KeyRules:
    """The rules of one key, ready to be applied.

    Args:
        entries: Its lists.
        feedback: Its feedback, oldest first.
    """

    def __init__(self, entries: Iterable[Entry] = (), feedback: Sequence[Feedback] = ()) -> None:
        self._by_name: defaultdict[tuple[str, str], list[Entry]] = defaultdict(list)
        phrases: list[tuple[list[str], Entry]] = []
        for entry in entries:
            if entry.kind == "phrase":
                phrases.append((phrase_words(entry.value), entry))
            else:
                self._by_name[entry.kind, _compared(entry.kind, entry.value)].append(entry)
        self._phrases = PhraseIndex(phrases) if phrases else None
        self._feedback = feedback
        self._by_hash: defaultdict[int, list[int]] = defaultdict(list)
        for number, each in enumerate(feedback):
            for shingle in each.sketch:
                self._by_hash[shingle].append(number)

    def __bool__(self) -> bool:
        return bool(self._by_name or self._phrases or self._feedback)

    def judge(self, found: Found, context: Context, threshold: float) -> Found:
        """Apply the rules to a text.

        Args:
            found: What the engine found.
            context: Where the text comes from.
            threshold: Lowest score that is spam.

        Returns:
            The same with the verdict that holds, and first among the reasons what decided it.
        """
        entries = self._matching(found, context)
        if entries:
            score = 1.0 if entries[0].list_name == "block" else 0.0
            reasons = tuple(map(_entry_reason, entries))
        else:
            close = self._closest(found.sketch)
            if close is None:
                return found
            reason = _feedback_reason(*close)
            score = _shifted(found.analysis.prediction.spam_score, reason.weight)
            reasons = (reason,)
        verdict = attrs.evolve(
            found.analysis.prediction,
            is_spam=score >= threshold if not entries else score == 1.0,
            spam_score=score,
            ham_score=round(1.0 - score, 6),
        )
        analysis = attrs.evolve(found.analysis, prediction=verdict)
        return attrs.evolve(found, analysis=analysis, reasons=(*reasons, *found.reasons))

    def _matching(self, found: Found, context: Context) -> list[Entry]:
        """The entries that match, those that decide first."""
        matching: dict[str, Entry] = {}

        def take(entries: Iterable[Entry], *lists: str) -> bool:
            fitting = [
                entry
                for entry in entries
                if entry.list_name in lists and entry.text_kind in {None, context.kind}
            ]
            matching.update((entry.entry_id, entry) for entry in fitting)
            return bool(fitting)

        for name in _sender_names(context):
            take(self._by_name.get(("sender", name), ()), "allow", "block")
        links = [self._link_entries(host) for host in found.hosts]
        for entries in links:
            take(entries, "block")
        # One link of their own would let anybody's text through: every link must be allowed.
        if links and all(any(_is_allowed(each, context) for each in entries) for entries in links):
            for entries in links:
                take(entries, "allow")
        if self._phrases is not None:
            take(self._phrases.find(list(found.words)), "allow", "block")
        ordered = sorted(matching.values(), key=lambda entry: entry.list_name)
        return [entry for entry in ordered if entry.list_name == ordered[0].list_name]

    def _link_entries(self, host: str) -> list[Entry]:
        """The entries for a host and for the domains above it."""
        labels = host.split(".")
        above = (".".join(labels[at:]) for at in range(len(labels)))
        return [entry for name in above for entry in self._by_name.get(("link", name), ())]

    def _closest(self, sketch: tuple[int, ...]) -> tuple[Feedback, float] | None:
        """The feedback on the text most like this one, the newest of equals; and how alike."""
        shared = Counter(number for each in sketch for number in self._by_hash.get(each, ()))
        best: tuple[float, int] = (0.0, -1)
        # Those that share most, the newest of equals: a campaign may be reported hundreds of times.
        likely = heapq.nlargest(_COMPARED, ((count, number) for number, count in shared.items()))
        for _, number in likely:
            best = max(best, (similarity(sketch, self._feedback[number].sketch), number))
        alike, number = best
        return (self._feedback[number], alike) if alike > _ALIKE else None


NO_RULES: Final = KeyRules()


def _is_allowed(entry: Entry, context: Context) -> bool:
    return entry.list_name == "allow" and entry.text_kind in {None, context.kind}


def _sender_names(context: Context) -> set[str]:
    names = {plain(name) for name in (context.author, context.address) if name}
    if context.address and "@" in context.address:
        names.add("@" + plain(context.address).rpartition("@")[2])
    return names


def _shifted(score: float, shift: float) -> float:
    bounded = min(max(score, _LOWEST), 1 - _LOWEST)
    return round(1 / (1 + math.exp(-math.log(bounded / (1 - bounded)) - shift)), 6)


def _entry_reason(entry: Entry) -> Reason:
    weight = ENTRY_WEIGHT if entry.list_name == "block" else -ENTRY_WEIGHT
    what = {"sender": "the sender", "link": "a link to", "phrase": "the phrase"}[entry.kind]
    explained = f'your {entry.list_name} list has {what} "{entry.value}", which decides'
    return Reason(f"list:{entry.list_name}:{entry.kind}:{entry.entry_id}", weight, explained)


def _feedback_reason(feedback: Feedback, alike: float) -> Reason:
    sign = 1 if feedback.is_spam else -1
    weight = round(sign * MAX_SHIFT * (alike - _ALIKE) / (1 - _ALIKE), 3)
    said = "spam" if feedback.is_spam else "not spam"
    explained = f"you reported a text like this one ({alike:.0%} alike) as {said}"
    return Reason(f"feedback:{feedback.feedback_id}", weight, explained)
