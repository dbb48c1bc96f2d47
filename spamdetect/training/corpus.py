"""Labelled texts and their copies, as what the engine reads in them: sparse rows of zeros and ones.

Row ``n`` of the features is text ``n``; the rows of the copies follow.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import attrs
import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from spamdetect.engine import language
from spamdetect.engine.characters import code_points
from spamdetect.engine.classifier import unique_buckets
from spamdetect.engine.concepts import Lexicon
from spamdetect.engine.counts import count
from spamdetect.engine.features import table_size, text_buckets
from spamdetect.engine.language import LanguageModel, certain
from spamdetect.engine.long_texts import parts
from spamdetect.engine.normalise import normalise
from spamdetect.engine.structure import structure
from spamdetect.engine.traits import traits, traits_size
from spamdetect.training import lexicon as lexicons
from spamdetect.training.augment import copies
from spamdetect.training.dataset import SpamRow

BITS: Final = 21
NOTICES: Final = "notices"  # prefix of the names of made sources

Progress = Callable[[str, float], None]
"""Called with the name of the stage and the share of it that is done, in [0, 1]."""
Flags = NDArray[np.bool_]


def silent(stage: str, share: float) -> None:
    """Report nothing."""


@attrs.frozen
class Features:
    """What the engine reads in some texts: the buckets of their n-grams, and their traits."""

    grams: Any
    traits: Any

    def rows(self, chosen: NDArray[np.intp]) -> Features:
        """The features of some rows."""
        return Features(self.grams[chosen], self.traits[chosen])


@attrs.frozen(kw_only=True)
class Labelled:
    """Labelled texts.

    Attributes:
        texts: the texts.
        languages: the language of each: as stated, else as detected, else the commonest of its
            source.
    """

    texts: Sequence[SpamRow]
    languages: NDArray[np.str_]
    labels: Flags = attrs.field(init=False)
    sources: NDArray[np.str_] = attrs.field(init=False)
    made: Flags = attrs.field(init=False)
    """Which texts were made from templates."""

    def __attrs_post_init__(self) -> None:
        sources = np.array([row.source for row in self.texts])
        object.__setattr__(self, "labels", np.array([row.is_spam for row in self.texts]))
        object.__setattr__(self, "sources", sources)
        object.__setattr__(self, "made", np.char.startswith(sources, NOTICES))


@attrs.frozen(kw_only=True)
class Corpus(Labelled):
    """Texts with their features and those of their copies.

    Attributes:
        features: of the texts, then of the copies.
        owner: for each row of the features, the number of the text that it belongs to.
        parts: the features of the parts of long texts.
        part_owner: for each part, the number of its text.
        lexicon: the lexicon of concepts.
    """

    features: Features
    owner: NDArray[np.intp]
    parts: Features
    part_owner: NDArray[np.intp]
    lexicon: Lexicon


def labelled(rows: Sequence[SpamRow], detector: LanguageModel) -> Labelled:
    """Texts with their languages."""
    return Labelled(texts=rows, languages=_languages(rows, detector))


def corpus(rows: Sequence[SpamRow], seed: int, progress: Progress = silent) -> Corpus:
    """Compute the features of texts and of their copies."""
    lexicon, detector = lexicons.shipped(), language.load()
    texts, owner = copies(rows, seed)
    split = [parts(row.text) for row in rows]
    return Corpus(
        texts=rows,
        languages=_languages(rows, detector),
        features=read([*(row.text for row in rows), *texts], lexicon, detector, progress),
        owner=np.array([*range(len(rows)), *owner]),
        parts=read([part for each in split for part in each], lexicon, detector),
        part_owner=np.repeat(np.arange(len(rows)), [len(each) for each in split]),
        lexicon=lexicon,
    )


def read(
    texts: Sequence[str], lexicon: Lexicon, detector: LanguageModel, progress: Progress = silent
) -> Features:
    """The features of texts."""
    grams, on = [], []
    for number, text in enumerate(texts):
        found = normalise(text)
        grams.append(unique_buckets(text_buckets(code_points(found.readable), BITS)))
        named = lexicon.find(found.marked, certain(detector.detect(text)))
        on.append(np.array(traits(structure(found, count(text), len(text)), named)))
        if number % 500 == 0:
            progress("reading texts", number / len(texts))
    progress("reading texts", 1.0)
    return Features(_rows(grams, table_size(BITS)), _rows(on, traits_size(len(lexicon.names))))


def _rows(columns: Sequence[NDArray[Any]], width: int) -> Any:
    starts = np.cumsum([0, *(row.size for row in columns)], dtype=np.int32)
    joined = np.concatenate([np.zeros(0, np.int32), *columns]).astype(np.int32)
    return csr_array((np.ones(joined.size, np.float32), joined, starts), (len(columns), width))


def _languages(rows: Sequence[SpamRow], detector: LanguageModel) -> NDArray[np.str_]:
    """The language of each text; see `Labelled`."""
    found = []
    for row in rows:
        said = detector.detect(row.text[:1000])
        found.append(row.language or (said.language if said.is_reliable else ""))
    codes, sources = np.array(found, "U8"), np.array([row.source for row in rows])
    for source in set(sources.tolist()):
        inside = sources == source
        names, counts = np.unique(codes[inside & (codes != "")], return_counts=True)
        codes[inside & (codes == "")] = names[counts.argmax()] if names.size else "und"
    return codes
