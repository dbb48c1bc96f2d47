"""Which forms of the lexicon mean something else: ``python -m benchmarks.spam.forms DATA``.

Tries every form on ordinary texts of all languages in the data. A form that is far more usual in
its own language than its concept is elsewhere means something else there too, and is removed
(Croatian "kod" is "code", but above all "at"). An English form that another language uses far more
than English does is kept for English texts alone (Icelandic "bíll" is no bill).

Rewrites the lexicon; run it again after adding forms.
"""

from __future__ import annotations

import sys
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Final

import spamdetect.engine
from spamdetect.engine.concepts import Matcher
from spamdetect.engine.normalise import normalise
from spamdetect.training.dataset import read_language
from spamdetect.training.lexicon import FILE_NAME, normalised_pattern

KINDS: Final = {"sentence", "chat", "paragraph"}
MOST: Final = 2000  # texts of a language
LEAST: Final = 300  # fewer say nothing about a form
USUAL: Final = 0.0005  # shares of texts below this count as this
TIMES: Final = 10.0  # as usual as the concept is in the middle one of the languages
SHARE: Final = 0.004
TIMES_ELSEWHERE: Final = 8.0
SHARE_ELSEWHERE: Final = 0.01
ENGLISH, ENGLISH_ONLY = "en", "en-only"

Form = tuple[str, str, str]
"""The concept, the language and the form."""


def forms_of(lines: Sequence[str]) -> list[Form]:
    """The forms of the lexicon."""
    cells = [line.split("\t") for line in lines if line and not line.startswith("#")]
    return [(name, code, form) for name, code, words in cells for form in words.split("|")]


def shares(
    forms: Sequence[Form], texts: Mapping[str, Sequence[str]]
) -> dict[Form, dict[str, float]]:
    """For each form, the share of the texts of each language that hold it."""
    matcher = Matcher([[normalised_pattern(form)] for _, _, form in forms])
    hits: dict[Form, Counter[str]] = defaultdict(Counter)
    for language, of in texts.items():
        for text in of:
            for number in matcher.find(normalise(text).marked):
                hits[forms[number]][language] += 1
    return {
        form: {language: count / len(texts[language]) for language, count in found.items()}
        for form, found in hits.items()
    }


def misleading(found: Mapping[Form, Mapping[str, float]], languages: Sequence[str]) -> set[Form]:
    """The forms that are far more usual in their language than their concept is elsewhere."""
    by_concept: dict[str, Counter[str]] = defaultdict(Counter)
    for (name, code, _), share in found.items():
        by_concept[name][code] += share.get(code, 0.0)
    usual = {
        name: max(USUAL, median(counted[language] for language in languages))
        for name, counted in by_concept.items()
    }
    return {
        form for form, share in found.items()
        if share.get(form[1], 0.0) > max(SHARE, TIMES * usual[form[0]])
    }  # fmt: skip


def english_alone(found: Mapping[Form, Mapping[str, float]], forms: Sequence[Form]) -> set[Form]:
    """The English forms that another language, whose own they are not, uses far more."""
    own = set(forms)
    return {
        (name, code, form)
        for (name, code, form), share in found.items()
        if code == ENGLISH
        and any(
            rate > max(SHARE_ELSEWHERE, TIMES_ELSEWHERE * max(USUAL, share.get(ENGLISH, 0.0)))
            for language, rate in share.items()
            if (name, language, form) not in own
        )
    }


def main(arguments: Sequence[str]) -> int:
    """Rewrite the lexicon and print what was changed."""
    path = Path(spamdetect.engine.__file__).with_name(FILE_NAME)
    forms = forms_of(path.read_text("utf-8").splitlines())
    texts: dict[str, list[str]] = defaultdict(list)
    for row in read_language([Path(arguments[0]) / "lang"], "train"):
        if row.kind in KINDS and len(texts[row.language]) < MOST:
            texts[row.language].append(row.text)
    texts = {language: of for language, of in texts.items() if len(of) >= LEAST}
    found = shares(forms, texts)
    spoken = {code for _, code, _ in forms}
    removed = misleading(found, [language for language in texts if language in spoken])
    moved = english_alone(found, forms) - removed
    cells: dict[tuple[str, str], list[str]] = defaultdict(list)
    for name, code, form in forms:
        if (name, code, form) not in removed:
            cells[name, ENGLISH_ONLY if (name, code, form) in moved else code].append(form)
    lines = (
        f"{name}\t{code}\t{'|'.join(words)}\n" for (name, code), words in sorted(cells.items())
    )
    path.write_text("".join(lines), encoding="utf-8")
    for title, changed in (("removed", removed), ("kept for English", moved)):
        for name, code, form in sorted(changed):
            sys.stdout.write(f"{title}: {code} {name}: {form}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
