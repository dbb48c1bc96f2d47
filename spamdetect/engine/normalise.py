"""From a text as received to the text that the classifier reads.

The steps, in order; each is linear in the length of the text:

1. lone surrogates, private-use characters and controls become spaces;
2. HTML entities are resolved;
3. zero-width, format and variation characters and the accents U+0300-036F go (before and after
   NFKD; marks of Thai, Indic and other scripts stay), runs of marks are cut at 30;
4. NFKC, lower case, look-alikes that NFKC does not map (small capitals, squared letters);
5. web addresses, mail addresses and mentions become ``<url>``, ``<mail>``, ``<mention>``;
6. letters written apart ("f r e e") are joined;
7. words that mix Latin with Cyrillic or Greek are folded to one script;
8. digits and signs that stand for letters inside a word are undone;
9. digits become ``0``, controls and white space become single spaces, and runs of equal
   characters are cut: to two letters (when there are three or more), to one sign.

What was removed or undone is counted, since disguise is evidence. Nothing here is reversible.
"""

from __future__ import annotations

import html
import re
import unicodedata
from typing import Final

import attrs

from spamdetect.engine.confusables import (
    CYRILLIC_TO_LATIN,
    GREEK_CAPITALS,
    GREEK_TO_LATIN,
    LATIN_ALIKE,
    LATIN_TO_CYRILLIC,
    LEET_TABLE,
    LOOKALIKES,
    ONLY_CYRILLIC,
    ONLY_GREEK,
    ONLY_LATIN,
)
from spamdetect.engine.links import DOT, host_of, may_link, replace_links
from spamdetect.engine.shape import shape
from spamdetect.engine.unusual_characters import (
    ACCENT_RUN,
    INVISIBLE_RUN,
    TO_CLEAN,
    TO_FINISH,
    TOO_MANY_MARKS,
    UNWANTED_CHARACTER,
)

URL, MAIL, MENTION = "\ue000", "\ue001", "\ue002"
NUMBER, HOST = "\ue003", "\ue004"
_PUBLIC: Final = {URL: "<url>", MAIL: "<mail>", MENTION: "<mention>"}
_MARKERS: Final = {"url": URL, "mail": MAIL, "mention": MENTION}

_ENTITY: Final = re.compile(r"&(?:#\d{1,7}|#[xX][0-9a-fA-F]{1,6}|[A-Za-z]{2,31});")
_SPACED: Final = re.compile(r"(?<![^\W_])[^\W\d_]([ ._*|·~-])[^\W\d_](?:\1[^\W\d_]){2,}(?![^\W_])")
# Every match of `_SPACED` contains this, which is faster to search for.
_APART: Final = re.compile(r"([ ._*|·~-])[^\W\d_]\1[^\W\d_]\1")
_LEET_SIGN: Final = re.compile("[0134578@$!|€]")
_LEET_BESIDE: Final = re.compile(r"[0134578@$!|€](?:(?=[^\W\d_])|(?<=[^\W\d_].))")
# Both begin with a sign, which is fast to search for, and match a little too much: `_undo_leet`
# checks further.
_LEET: Final = re.compile(
    r"[0134578@$!|€](?:(?<=[^\W\d_].)[0134578@$!|€]{0,2}(?=[^\W\d_])"
    r"|(?<=[013457])(?<![^\W_].)(?<![@$!|€].)(?=[^\W\d_]{3}))"
)
_LEET_TAIL: Final = re.compile(r"[03457$](?<=[^\W\d_]{3}.)[03457$]?(?!\w)")
_LEADING: Final = frozenset("013457")
# Next to a letter, but not "5pm", "1st", "20km" or the end of a sentence.
_LEET_NEAR: Final = re.compile(
    r"(?<=[^\W\d_])['’]?!?[0134578@$|]{1,3}(?!\w)"
    r"|(?<!\w)(?!(?:1st|3rd|\d+(?:th|[ap]m|[kmg]b?|k[mg]|hrs?|min|x))\b)"
    r"[0134578@$!|]{1,2}(?=[^\W\d_])"
)
_WORDS_PER_LEET: Final = 12
_NUMBER: Final = re.compile(r"\d{2,12}")
_WORD: Final = re.compile(r"[^\W\d_]+")
_CYRILLIC: Final = re.compile("[\u0400-\u052f]")
_GREEK: Final = re.compile("[\u0370-\u03ff]")
_GREEK_OR_CYRILLIC: Final = re.compile("[\u0370-\u052f]")
_GREEK_OR_LATIN: Final = re.compile("[a-z\u0370-\u03ff]")
_LATIN: Final = re.compile("[a-z]")
_ANY_LATIN: Final = re.compile("[A-Za-z]")
_SEPARATORS: Final = str.maketrans("", "", " ._*|·~-")
NUMBERS_READ: Final = 30
HOSTS_READ: Final = 8


@attrs.define
class Normalised:
    """A normalised text and what normalisation found in it.

    Attributes:
        urls: the addresses found, lower case.
        numbers: the first numbers of two digits or more, as written.
        mails: mail addresses found (count).
        mentions: mentions found (count).
        entities: HTML entities resolved (count).
        spaced: words written letter by letter (count).
        repeats: letters dropped from runs of three or more of one letter (count).
        mixed: words that mixed scripts (count).
        leet: digits and signs read as letters (count).
        marked: the text, with one private-use character for each address or mention.
    """

    urls: list[str]
    numbers: list[str]
    mails: int = 0
    mentions: int = 0
    entities: int = 0
    spaced: int = 0
    repeats: int = 0
    mixed: int = 0
    leet: int = 0
    marked: str = ""

    @property
    def text(self) -> str:
        """The text as published: markers spelled out."""
        if not (self.urls or self.mails or self.mentions):
            return self.marked
        text = self.marked
        for marker, name in _PUBLIC.items():
            text = text.replace(marker, name)
        return text

    @property
    def readable(self) -> str:
        """What the classifier reads: the text, then hosts and numbers, each after a marker.

        A space at both ends; just one space for an empty text.
        """
        if not (self.urls or self.numbers):
            return f" {self.marked} " if self.marked else " "
        hosts = [HOST + host_of(url)[:64] for url in self.urls[:HOSTS_READ]]
        numbers = [NUMBER + number for number in self.numbers]
        return " ".join(["", self.marked, *hosts, *numbers, ""])


def normalise(text: str) -> Normalised:
    """Normalise a text for the classifier; the module's docstring lists the steps.

    Args:
        text: any string, lone surrogates and NUL included.
    """
    found = Normalised([], [])
    if "&" in text:
        text, found.entities = _ENTITY.subn(lambda match: html.unescape(match.group()), text)
    text = text.lower() if text.isascii() else plain(text)
    if may_link(text):
        text = _replace_links(text, found)
    if _APART.search(text):
        text, found.spaced = _SPACED.subn(_join, text)
    if not text.isascii():
        text = _fold_scripts(text, found)
    _finish(_undo_leet(text, found), found)
    return found


def _finish(text: str, found: Normalised) -> None:
    """Normalise the digits, white space and repetitions of a text."""
    found.marked, found.repeats = shape(text)
    if "0" in found.marked:
        found.numbers = _NUMBER.findall(text)[:NUMBERS_READ]


def plain(text: str) -> str:
    """Lower case NFKC without controls, invisible characters, accents and look-alikes."""
    if TO_CLEAN.search(text):
        text = UNWANTED_CHARACTER.sub(" ", text)
        text = INVISIBLE_RUN.sub("", text)
        text = ACCENT_RUN.sub("", text)
    text = TOO_MANY_MARKS.sub(r"\1", text)
    text = ACCENT_RUN.sub("", unicodedata.normalize("NFKD", text))
    if "Ν" in text or "Υ" in text or "Η" in text or "Μ" in text:
        text = _WORD.sub(_plain_capitals, text)
    text = unicodedata.normalize("NFKC", text).lower()
    if TO_FINISH.search(text):
        text = INVISIBLE_RUN.sub("", ACCENT_RUN.sub("", text)).translate(LOOKALIKES)
    return text


def _plain_capitals(match: re.Match[str]) -> str:
    word = match.group()
    return word.translate(GREEK_CAPITALS) if _ANY_LATIN.search(word) else word


def _replace_links(text: str, found: Normalised) -> str:
    def replace(name: str, link: str) -> str:
        if name == "url":
            found.urls.append(link)
        elif name == "mail":
            found.mails += 1
        else:
            found.mentions += 1
        return f" {_MARKERS[name]} "

    if "(" in text or "[" in text or "{" in text:
        text = DOT.sub(".", text)
    return replace_links(text, replace)


def _join(match: re.Match[str]) -> str:
    return match.group().translate(_SEPARATORS)


def _undo_leet(text: str, found: Normalised) -> str:
    first = _LEET_SIGN.search(text)
    if first is None or not _LEET_BESIDE.search(text, first.start()):
        return text

    def undo(match: re.Match[str]) -> str:
        signs, start, whole = match.group(), match.start(), match.string
        before = whole[start - 1] if start else " "
        if not before.isalpha():
            # "5ale" is undone; "5pm", "1st" and "150ppm" are not.
            after = whole[start + 1 : start + 4]
            lone = signs in _LEADING and not before.isalnum()
            if not (lone and len(after) == 3 and after.isalpha()):
                return signs
        found.leet += 1
        return signs.translate(LEET_TABLE)

    def undo_tail(match: re.Match[str]) -> str:
        start = match.start()
        if start < 3 or not match.string[start - 3 : start].isalpha():
            return match.group()
        found.leet += 1
        return match.group().translate(LEET_TABLE)

    def undo_any(match: re.Match[str]) -> str:
        found.leet += 1
        return match.group().translate(LEET_TABLE)

    undone = _LEET_TAIL.sub(undo_tail, _LEET.sub(undo, text))
    if found.leet > 1 and found.leet * _WORDS_PER_LEET > undone.count(" "):
        undone = _LEET_NEAR.sub(undo_any, undone)
    return undone


def _fold_scripts(text: str, found: Normalised) -> str:
    counted = _letters(text)
    if counted is None:
        return text
    latin, greek, cyrillic = counted
    # Words without any of these letters stay as they are.
    telling = _GREEK_OR_CYRILLIC if latin > 3 * cyrillic else _GREEK_OR_LATIN
    parts: list[str] = []
    done = 0
    for letter in telling.finditer(text):
        start = letter.start()
        if start < done or not (end := _WORD.match(text, start)):
            continue
        while start > done and _WORD.match(text, start - 1, start):
            start -= 1
        word = text[start : end.end()]
        folded = _fold_word(word, latin, cyrillic, greek)
        found.mixed += folded != word
        parts += (text[done:start], folded)
        done = end.end()
    return "".join((*parts, text[done:])) if parts else text


def _letters(text: str) -> tuple[int, int, int] | None:
    """How many letters can only be Latin, Greek and Cyrillic: a disguise leaves them alone.

    None if the text mixes none of these scripts.
    """
    if not _LATIN.search(text):
        if not (_GREEK.search(text) and _CYRILLIC.search(text)):
            return None
    elif not _GREEK_OR_CYRILLIC.search(text):
        return None
    one_script = ONLY_LATIN, ONLY_GREEK, ONLY_CYRILLIC
    latin, greek, cyrillic = (len(letters.findall(text)) for letters in one_script)
    return latin, greek, cyrillic


def _fold_word(word: str, latin: int, cyrillic: int, greek: int) -> str:
    """Fold a word to one script if it mixes scripts or poses as another script than the text's.

    Args:
        word: letters, lower case.
        latin: how many letters of the text can only be Latin.
        cyrillic: the same for Cyrillic.
        greek: the same for Greek.
    """
    if word.isascii():
        alike = cyrillic > 3 * latin and len(word) > 1 and LATIN_ALIKE.issuperset(word)
        return word.translate(LATIN_TO_CYRILLIC) if alike else word
    if _GREEK.search(word):
        folded = word.translate(GREEK_TO_LATIN)
        if _GREEK.search(folded) or (greek > latin + cyrillic and not _LATIN.search(word)):
            return word
        word = folded
    if not _CYRILLIC.search(word):
        return word
    if _LATIN.search(word):
        here, there = bool(ONLY_LATIN.search(word)), bool(ONLY_CYRILLIC.search(word))
        if here is there:
            here = latin >= cyrillic
    else:
        here = latin > 3 * cyrillic
    if not here:
        # "B" and "b" look like different letters, and no word begins with the one like "b".
        word = "в" + word[1:] if word[0] == "b" else word
        return word.translate(LATIN_TO_CYRILLIC)
    folded = word.translate(CYRILLIC_TO_LATIN)
    return word if _CYRILLIC.search(folded) else folded
