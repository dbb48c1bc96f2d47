"""What a key has said about its own texts: its lists and its feedback, and what they decide.

Pure: rules and what was found about a text come in, the verdict goes out. An entry of a list
decides alone; an allow entry goes before a block entry. A link or a contact that is allowed does
not decide, since anybody may link to it: it lowers the score. Without an entry, the feedback on the
text most like this one shifts the score, by at most ``MAX_SHIFT`` in log-odds.
"""

from __future__ import annotations

import contextlib
import hashlib
import heapq
import math
import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from typing import Annotated, Final, Literal

import attrs
import msgspec

from spamdetect.engine import Analysis, Reason
from spamdetect.links import found_in, is_link
from spamdetect.service.phrases import PhraseIndex
from spamdetect.service.traces import hashed, phrase_words, plain, similarity
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
# What allowed links weigh: enough for an ordinary text to pass, too little for a scam.
ALLOWED_SHIFT: Final = 3.0
_SAID: Final = {
    "sender": "the sender",
    "link": "a link to",
    "contact": "the contact",
    "phrase": "the phrase",
}
_ADDRESS: Final = re.compile(r"[^\s@<>,;]*@[^\s@<>,;]+\.[^\s@<>,;.]+")
_LOWEST: Final = 1e-6

ListName = Literal["allow", "block"]
EntryKind = Literal["sender", "link", "contact", "phrase"]


class Entry(msgspec.Struct, frozen=True, rename={"list_name": "list"}):
    """One entry of a key's lists.

    Attributes:
        entry_id: The same for the same entry.
        list_name: ``allow`` or ``block``.
        kind: What it is compared with: ``sender``, ``link``, ``contact`` or ``phrase``.
        value: A name, an address or ``@domain``; a host, perhaps with a path; a telephone number,
            mail address or ``@name``; words.
        text_kind: The only kind of text that it is for; None is every kind.
    """

    entry_id: str
    list_name: ListName
    kind: EntryKind
    value: Annotated[
        str,
        msgspec.Meta(
            description="A name, an address or @domain; a domain; a phrase.",
            # Of what is asked for; what is stored is another spelling of it.
            extra_json_schema={"minLength": 1, "maxLength": MAX_VALUE_CHARS},
        ),
    ]
    text_kind: Annotated[
        str | None,
        msgspec.Meta(
            description="The only kind of text that the entry is for.",
            extra_json_schema={"maxLength": 64},
        ),
    ] = None

    def __repr__(self) -> str:
        return f"Entry({self.entry_id!r})"


class Feedback(msgspec.Struct, frozen=True):
    """What a key has said of one text; the text itself is not in it.

    Attributes:
        feedback_id: The caller's own, or one made from the text.
        is_spam: What the text is.
        received_s: Unix time.
        sketch: Hashes of the text, see :mod:`spamdetect.service.traces`.
        identifiers: Hashes of the links, names and numbers in it.
    """

    feedback_id: str
    is_spam: bool
    received_s: float
    sketch: tuple[int, ...]
    identifiers: tuple[int, ...] = ()


@attrs.frozen
class Found:
    """What the engine found about a text, where that is not the answer yet.

    Attributes:
        analysis: The engine's own verdict.
        reasons: What moved it, if asked for.
        words: The words of the normalised text.
        sketch: Its hashes.
        identifiers: The links, names and numbers in it, see :mod:`spamdetect.links`.
        digits: All its digits.
    """

    analysis: Analysis
    reasons: tuple[Reason, ...] = ()
    words: tuple[str, ...] = ()
    sketch: tuple[int, ...] = ()
    identifiers: tuple[str, ...] = ()
    digits: str = ""


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


def digits_of(text: str) -> str:
    """The digits of a text, which a normalised one no longer has."""
    return "".join(filter(str.isdecimal, unicodedata.normalize("NFKC", text)))


def _compared(kind: EntryKind, value: str) -> str:
    """The form of a value that texts are compared with.

    Raises:
        ValueError: What the value says cannot be compared.
    """
    if kind == "sender":
        sender = plain(value)
        if _says_address(sender) and not _ADDRESS.fullmatch(sender):
            raise ValueError("a sender is a name, an address such as a@b.example, or @b.example")
        return sender
    if kind == "link":
        return _compared_link(plain(value))
    if kind == "contact":
        found = found_in(value)
        if len(found) == 1 and found[0].startswith("t.me/") and found[0].count("/") == 1:
            found = (f"@{found[0][5:]}",)
        # "call +1 800 555 1234 now" would say more than is compared.
        more = r"[^\d+()./\s-]" if found and found[0].startswith("+") else r"\s"
        if len(found) != 1 or is_link(found[0]) or re.search(more, value):
            raise ValueError(
                "a contact is a telephone number, a mail address, @name or t.me/name, and no more"
            )
        return found[0]
    words = phrase_words(value)
    if not words or not any(word.isalnum() for word in words):
        raise ValueError("a phrase must hold a letter or a digit")
    if any(word.startswith("<") for word in words):
        raise ValueError("a phrase holds no link, address or mention; list those by their kind")
    joined = " ".join(words)
    return f"{joined} {digits_of(value)}" if _has_digits(joined) else joined


def _compared_link(value: str) -> str:
    found = found_in(value if "//" in value else f"http://{value}")
    link = found[0] if len(found) == 1 and is_link(found[0]) else ""
    host, _, path = link.partition("/")
    if "." not in host:
        raise ValueError("the value of a link is a host, such as example.com, or a host and a path")
    said = value.partition("//")[2] or value
    # What would be left out: a query, a port, a user, words in a script without spaces.
    if any(sign in said for sign in "?#@: ") or path != said.partition("/")[2].strip("/"):
        raise ValueError("a link is compared by its host and its path alone: list only those")
    return link


def _says_address(sender: str) -> bool:
    """Whether a sender is meant by the address: one of a messenger, "@name", is a name."""
    return "@" in sender and not re.fullmatch(r"@\w+", sender)


def _has_digits(phrase: str) -> bool:
    # As which a normalised text shows every digit.
    return "0" in phrase


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
                continue
            # What was listed before it could be told to be wrong matches nothing.
            with contextlib.suppress(ValueError):
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
        entries, allowed = self._matching(found, context)
        if entries:
            score = 1.0 if entries[0].list_name == "block" else 0.0
            reasons = tuple(map(_entry_reason, entries))
        else:
            close = self._closest(found)
            reasons = tuple(map(_entry_reason, allowed))
            reasons += () if close is None else (_feedback_reason(*close),)
            if not reasons:
                return found
            shift = -ALLOWED_SHIFT if allowed else 0.0
            shift += 0.0 if close is None else reasons[-1].weight
            score = _shifted(found.analysis.prediction.spam_score, shift)
        verdict = attrs.evolve(
            found.analysis.prediction,
            is_spam=score >= threshold if not entries else score == 1.0,
            spam_score=score,
            ham_score=round(1.0 - score, 6),
        )
        analysis = attrs.evolve(found.analysis, prediction=verdict)
        return attrs.evolve(found, analysis=analysis, reasons=(*reasons, *found.reasons))

    def _matching(self, found: Found, context: Context) -> tuple[list[Entry], list[Entry]]:
        """The entries that decide; and those that allow every link and contact of the text."""
        matching: dict[str, Entry] = {}

        def fitting(entries: Iterable[Entry], *lists: str) -> list[Entry]:
            return [
                entry
                for entry in entries
                if entry.list_name in lists and entry.text_kind in {None, context.kind}
            ]

        def take(entries: Iterable[Entry], *lists: str) -> None:
            matching.update((entry.entry_id, entry) for entry in fitting(entries, *lists))

        # A name may be anybody's: one that looks like an address lets nobody through.
        author, address = plain(context.author or ""), _address(context)
        for name in {address, "@" + address.rpartition("@")[2]} if address else ():
            take(self._by_name.get(("sender", name), ()), "allow", "block")
        named = self._by_name.get(("sender", author), ())
        take(named, "block") if _says_address(author) else take(named, "allow", "block")
        allowing: dict[str, Entry] = {}
        is_allowed = True
        for each in found.identifiers:
            entries = self._entries_for(each)
            take(entries, "block")
            fit = fitting(entries, "allow")
            allowing.update((entry.entry_id, entry) for entry in fit)
            # People are mentioned everywhere; of what else leads away, all must be allowed.
            is_allowed = is_allowed and bool(fit or each.startswith("@"))
        if self._phrases is not None:
            phrases = self._phrases.find(list(found.words))
            take((each for each in phrases if _has_its_digits(each, found)), "allow", "block")
        ordered = sorted(matching.values(), key=lambda entry: entry.list_name)
        deciding = [entry for entry in ordered if entry.list_name == ordered[0].list_name]
        return deciding, list(allowing.values()) if is_allowed else []

    def _entries_for(self, found: str) -> list[Entry]:
        """The entries for a link, with those for what is above it; or for a contact."""
        if not is_link(found):
            return self._by_name.get(("contact", found), [])
        host, *path = found.split("/")
        labels = host.split(".")
        above = [".".join(labels[at:]) for at in range(len(labels))]
        above += ["/".join((host, *path[: at + 1])) for at in range(len(path))]
        entries = [entry for name in above for entry in self._by_name.get(("link", name), ())]
        if host == "t.me" and path:
            entries += self._by_name.get(("contact", f"@{path[0]}"), ())
        return entries

    def _closest(self, found: Found) -> tuple[Feedback, float] | None:
        """The feedback on the text most like this one, the newest of equals; and how alike."""
        sketch, identifiers = found.sketch, set(hashed(found.identifiers))
        shared = Counter(number for each in sketch for number in self._by_hash.get(each, ()))
        best: tuple[float, int] = (0.0, -1)
        # Those that share most, the newest of equals: a campaign may be reported hundreds of times.
        likely = heapq.nlargest(_COMPARED, ((count, number) for number, count in shared.items()))
        for _, number in likely:
            feedback = self._feedback[number]
            # What was not spam says nothing for a link, a number or a name that was not in it.
            if feedback.is_spam or identifiers.issubset(feedback.identifiers):
                best = max(best, (similarity(sketch, feedback.sketch), number))
        alike, number = best
        return (self._feedback[number], alike) if alike > _ALIKE else None


NO_RULES: Final = KeyRules()


def _address(context: Context) -> str:
    """The address that a text comes from, without the name before it."""
    return plain((context.address or "").rpartition("<")[2].rstrip("> "))


def _has_its_digits(entry: Entry, found: Found) -> bool:
    """Whether a text has the very digits of a phrase whose shape it has."""
    return not _has_digits(" ".join(phrase_words(entry.value))) or (
        digits_of(entry.value) in found.digits
    )


def _shifted(score: float, shift: float) -> float:
    bounded = min(max(score, _LOWEST), 1 - _LOWEST)
    return round(1 / (1 + math.exp(-math.log(bounded / (1 - bounded)) - shift)), 6)


def _entry_reason(entry: Entry) -> Reason:
    weight = ENTRY_WEIGHT if entry.list_name == "block" else -ENTRY_WEIGHT
    decides = "which decides"
    if entry.list_name == "allow" and entry.kind in {"link", "contact"}:
        weight, decides = -ALLOWED_SHIFT, "which counts for it"
    what = _SAID[entry.kind]
    explained = f'your {entry.list_name} list has {what} "{entry.value}", {decides}'
    return Reason(f"list:{entry.list_name}:{entry.kind}:{entry.entry_id}", weight, explained)


def _feedback_reason(feedback: Feedback, alike: float) -> Reason:
    sign = 1 if feedback.is_spam else -1
    weight = round(sign * MAX_SHIFT * (alike - _ALIKE) / (1 - _ALIKE), 3)
    said = "spam" if feedback.is_spam else "not spam"
    explained = f"you reported a text like this one ({alike:.0%} alike) as {said}"
    return Reason(f"feedback:{feedback.feedback_id}", weight, explained)
