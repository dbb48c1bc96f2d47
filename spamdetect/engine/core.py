"""The engine: all results about a text, computed from the text alone."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from spamdetect.engine import classifier, language
from spamdetect.engine.counts import Counts, count
from spamdetect.engine.explain import explain as explain_text
from spamdetect.engine.language import certain
from spamdetect.engine.long_texts import parts, with_parts
from spamdetect.engine.normalise import Normalised, normalise
from spamdetect.engine.profiles import Profile, resolve
from spamdetect.engine.results import (
    LANGUAGE_UNKNOWN,
    TEXT_EMPTY,
    TEXT_TRUNCATED,
    Analysis,
    Language,
    Preprocessed,
    Reason,
    Verdict,
)
from spamdetect.engine.structure import structure
from spamdetect.engine.words import count_words
from spamdetect.thresholds import Threshold

MAX_READ = 100_000
_HEAD = 75_000
_FEW = 3
_SHORT = 300  # longer texts gain nothing from being read step by step
_GROUP = 32  # nor do more texts at a time
_EMPTY = Verdict(is_spam=False, ham_score=1.0, spam_score=0.0)


class _Reading(NamedTuple):
    """One text, read once.

    Attributes:
        text: what is read of it.
        length: of the text as received.
    """

    text: str
    length: int
    normalised: Normalised
    counts: Counts
    language: Language


class Engine:
    """Classifies texts: pure functions of the text and the model, safe to share between threads.

    Example:
        >>> engine = Engine.load()
        >>> engine.predict("See you at the station at five?").prediction.is_spam
        False
    """

    __slots__ = ("_detector", "_model", "threshold")

    def __init__(
        self,
        model: classifier.SpamModel,
        detector: language.LanguageModel,
        *,
        threshold: Threshold | None = None,
    ) -> None:
        self._model = model
        self._detector = detector
        self.threshold = model.threshold if threshold is None else self.threshold_of(threshold)

    @classmethod
    def load(
        cls, path: str | os.PathLike[str] | None = None, *, threshold: Threshold | None = None
    ) -> Engine:
        """Load the shipped model, or one of your own.

        Args:
            path: a spam model file, or a folder with ``spam.model`` and, if there is one,
                ``language.model``; the shipped files by default.
            threshold: the probability from which a text is spam, or one of `profiles`; the model's
                own by default.

        Raises:
            ModelError: a file is missing, damaged or of another format.
            ValueError: the threshold is neither in [0, 1] nor a profile.
        """
        if path is None:
            return cls(classifier.load(), language.load(), threshold=threshold)
        place = Path(path)
        if not place.is_dir():
            return cls(classifier.load(place), language.load(), threshold=threshold)
        own = place / language.FILE_NAME
        detector = language.load(own if own.exists() else None)
        return cls(classifier.load(place / classifier.FILE_NAME), detector, threshold=threshold)

    @property
    def model_version(self) -> str:
        """The version of the spam model."""
        return self._model.version

    @property
    def profiles(self) -> Mapping[str, Profile]:
        """The named thresholds ``strict``, ``balanced`` and ``quiet``, with their figures."""
        return self._model.profiles

    def threshold_of(self, threshold: Threshold) -> float:
        """The number that a threshold stands for.

        Raises:
            ValueError: it is neither in [0, 1] nor a profile.
        """
        return resolve(threshold, self._model.profiles)

    def preprocess(self, text: str) -> Preprocessed:
        """The cleaned text, its statistics and its language."""
        reading = self._read(text)
        return Preprocessed(
            text, reading.normalised.text, len(text), count_words(text), reading.language
        )

    def predict(self, text: str) -> Analysis:
        """Analyse one text: everything `preprocess` gives, and the verdict."""
        reading = self._read(text)
        odds = None
        if reading.normalised.marked:
            each = [self._odds(part) for part in self._parts(reading)]
            odds = with_parts(self._odds(reading), each)
        return self._analysis(
            text,
            reading.normalised,
            reading.language,
            odds,
            len(text) > MAX_READ,
        )

    def predict_many(self, texts: Sequence[str]) -> list[Analysis]:
        """`predict` for each text, in order; short texts are read many at a time.

        Raises:
            TypeError: ``texts`` is a single text.
        """
        if isinstance(texts, str | bytes):
            raise TypeError("predict_many takes a sequence of texts, not one: pass [text]")
        if len(texts) < _FEW:
            return [self.predict(text) for text in texts]
        found: dict[int, Analysis] = {}
        short: list[int] = []
        for number, text in enumerate(texts):
            if len(text) > _SHORT:
                found[number] = self.predict(text)
            else:
                short.append(number)
        for start in range(0, len(short), _GROUP):
            part = short[start : start + _GROUP]
            found.update(zip(part, self._in_steps([texts[i] for i in part]), strict=True))
        return [found[number] for number in range(len(texts))]

    def _in_steps(self, texts: list[str]) -> list[Analysis]:
        """`predict` for each short text, each step for all texts before the next one.

        A step finds its code and its tables in the processor's caches for every text but the
        first; reading one text to the end before the next takes a third longer.
        """
        model = self._model
        normalised = [normalise(text) for text in texts]
        languages = [self._detector.detect(text) for text in texts]
        counts = [count(text) for text in texts]
        structures = [
            structure(found, counted, len(text))
            for text, found, counted in zip(texts, normalised, counts, strict=True)
        ]
        on = [
            model.traits(each, found.marked, certain(spoken))
            for each, found, spoken in zip(structures, normalised, languages, strict=True)
        ]
        sums = [model.gram_sums(text) for text in [found.readable for found in normalised]]
        odds = [
            model.combine(*grams, traits) if found.marked else None
            for found, grams, traits in zip(normalised, sums, on, strict=True)
        ]
        return list(map(self._analysis, texts, normalised, languages, odds))

    def explain(self, text: str, *, top: int = 10) -> list[Reason]:
        """The features that moved the verdict most, strongest first.

        Args:
            text: the text.
            top: the maximum number of features.
        """
        reading = self._read(text)
        if not reading.normalised.marked:
            return []
        read = [(reading.normalised, self._traits(reading))]
        if parts := self._parts(reading):
            worst = max(parts, key=self._odds)
            read.append((worst.normalised, self._traits(worst)))
        return explain_text(self._model, read, top=top)

    def _odds(self, reading: _Reading) -> float:
        return self._model.odds(reading.normalised.readable, self._traits(reading))

    def _traits(self, reading: _Reading) -> list[int]:
        found = reading.normalised
        on = structure(found, reading.counts, reading.length)
        return self._model.traits(on, found.marked, certain(reading.language))

    def _parts(self, reading: _Reading) -> list[_Reading]:
        """The parts of a long text that have something to read."""
        read = map(self._read, parts(reading.text))
        return [part for part in read if part.normalised.marked]

    def _read(self, text: str) -> _Reading:
        read = text
        if len(text) > MAX_READ:
            read = text[:_HEAD] + " " + text[_HEAD - MAX_READ :]
        return _Reading(read, len(text), normalise(read), count(text), self._detector.detect(text))

    def _analysis(
        self,
        text: str,
        normalised: Normalised,
        detected: Language,
        odds: float | None,
        truncated: bool = False,
    ) -> Analysis:
        words = count_words(text)
        if odds is None:
            verdict, error_code = _EMPTY, TEXT_EMPTY
        else:
            spam_score = round(classifier.probability(odds), 6)
            verdict = Verdict(spam_score >= self.threshold, round(1.0 - spam_score, 6), spam_score)
            error_code = ""
            if truncated:
                error_code = TEXT_TRUNCATED
            elif detected.language == "und":
                error_code = LANGUAGE_UNKNOWN
        return Analysis(text, normalised.text, len(text), words, detected, verdict, error_code)
