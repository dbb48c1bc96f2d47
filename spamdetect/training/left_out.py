"""Which texts are left out together, so that a fit meets strangers.

A source judged by a fit that knows its language looks better than it will be elsewhere. So each
source is left out with its translations and with all texts, sent or made, in its languages.
Sources that share their languages are left out together, and so are the languages that the data
has in notices alone, which takes fewer fits.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import attrs
import numpy as np

from spamdetect.training.corpus import Flags, Labelled
from spamdetect.training.dataset import FOLDS, DataError
from spamdetect.training.letters import LETTER

MIN_CLASS: Final = 20  # a part with fewer texts of a class says nothing about that class
MAIN: Final = 0.1  # a source's languages are those of at least this share of its texts


@attrs.frozen
class Part:
    """Texts that are left out together.

    Attributes:
        groups: the texts that are judged: a fold, or each source and the made notices by name.
        fitted: the texts that are not left out.
        is_fold: whether it is a fold.
    """

    groups: dict[str, Flags]
    fitted: Flags
    is_fold: bool = False

    @property
    def judged(self) -> Flags:
        """All texts that are judged."""
        found: Flags = np.any(list(self.groups.values()), axis=0)
        return found


def related(source: str, sources: Iterable[str]) -> set[str]:
    """The sources that share texts with this one: itself, its translations, its originals."""
    return {other for other in sources if other.startswith(source) or source.startswith(other)}


def folds(data: Labelled, most: int = FOLDS) -> list[Part]:
    """The folds, without letters: these are composed of notices of any fold.

    Raises:
        DataError: there are not two folds, which calibration needs.
    """
    fold = np.array([row.fold for row in data.texts])
    present = sorted(set(fold.tolist()))
    if len(present) < 2:
        raise DataError("the texts lie in one fold; at least two are needed for calibration")
    judged = ~_letters(data)
    return [Part({str(one): (fold == one) & judged}, fold != one, True) for one in present[:most]]


def strangers(data: Labelled) -> list[Part]:
    """The sources, each without its kin and its languages, and the notices by language.

    Where nothing would be left to fit to, as in data of one language, a source is left out with
    its kin alone.
    """
    judged = ~_letters(data)
    sent = sorted(set(data.sources[~data.made].tolist()))
    spoken = {source: main_languages(data, source) for source in sent}
    alike: dict[bytes, Part] = {}
    for source in sent:
        kin = related(source, sent)
        named = kin | {other for other in sent if spoken[other] <= spoken[source]}
        left = np.isin(data.sources, sorted(named))
        left |= np.isin(data.languages, sorted(spoken[source]))
        if not tells(data.labels[~left]):
            left = np.isin(data.sources, sorted(kin))
        part = alike.setdefault(left.tobytes(), Part({}, ~left))
        part.groups[source] = data.sources == source
    found = list(alike.values())
    heard: set[str] = set()
    for part in found:
        of = frozenset[str]().union(*(spoken[source] for source in part.groups)) - heard
        part.groups[_notices_in(of)] = data.made & judged & np.isin(data.languages, sorted(of))
        heard |= of
    rest = set(data.languages[data.made].tolist()) - heard
    inside = np.isin(data.languages, sorted(rest))
    found.append(Part({_notices_in(rest): inside & data.made & judged}, ~inside))
    return [told for part in found if (told := _telling(data, part)) is not None]


def _notices_in(languages: Iterable[str]) -> str:
    """The name of a group of notices."""
    return "notices " + " ".join(sorted(languages))


def main_languages(data: Labelled, source: str) -> frozenset[str]:
    """The languages of a source."""
    names, counts = np.unique(data.languages[data.sources == source], return_counts=True)
    return frozenset(names[counts >= MAIN * counts.sum()].tolist())


def tells(labels: Flags) -> bool:
    """Whether there are enough texts of both classes to say something about each."""
    return min(int(labels.sum()), int((~labels).sum())) >= MIN_CLASS


def _telling(data: Labelled, part: Part) -> Part | None:
    groups = {name: mask for name, mask in part.groups.items() if tells(data.labels[mask])}
    rest = data.labels[part.fitted]
    return attrs.evolve(part, groups=groups) if groups and tells(rest) else None


def _letters(data: Labelled) -> Flags:
    return np.array([row.kind == LETTER for row in data.texts])
