"""The spam classifier: one dot product over hashed n-grams and structural features."""

from __future__ import annotations

import math
import os
from collections import defaultdict
from collections.abc import Mapping, Sequence
from importlib import resources
from typing import Any

import attrs
import numpy as np
from numpy.typing import NDArray

from spamdetect.engine.container import Container, read, unpack
from spamdetect.engine.features import Hashes, table_size, text_buckets
from spamdetect.engine.profiles import Profile, read_profiles
from spamdetect.engine.results import ModelError
from spamdetect.engine.structure import STRUCTURE_SIZE

FILE_NAME = "spam.model"
KIND = "spam"
FORMAT = 2


@attrs.frozen
class SpamModel:
    """The weights of the classifier.

    Attributes:
        bits: see `spamdetect.engine.features.text_buckets`.
        weights: one weight for each bucket, int8.
        scale: what one unit of ``weights`` is worth.
        structure: one weight for each structural feature.
        bias: the constant term of the score.
        slope: calibration, ``p = sigmoid(slope * score + offset)``.
        offset: see ``slope``.
        power: a text of ``n`` different buckets divides their sum by ``n ** power``.
        threshold: spam from this probability on.
        version: of the model.
        profiles: named thresholds, see `spamdetect.thresholds`.
    """

    bits: int
    weights: NDArray[np.int8]
    scale: float
    structure: NDArray[np.float32]
    bias: float
    slope: float
    offset: float
    power: float
    threshold: float
    version: str
    profiles: Mapping[str, Profile] = attrs.field(
        default=attrs.Factory(
            lambda self: read_profiles(None, self.threshold, self.version), takes_self=True
        )
    )

    def score(self, codes: Hashes, structure: list[int]) -> float:
        """The raw score of one text, in log-odds before calibration.

        Args:
            codes: normalised code points that begin and end with a space.
            structure: the structural features that are on.
        """
        buckets = unique_buckets(text_buckets(codes, self.bits))
        total = float(self.weights[buckets].sum(dtype=np.int64))
        return self.combine(total, buckets.size, structure)

    def combine(self, total: float, size: int, structure: list[int]) -> float:
        """The raw score from the sum of the int8 weights of ``size`` different buckets."""
        return self._combined(total, size, float(self.structure[structure].sum()))

    def combine_many(
        self, totals: Sequence[float], sizes: Sequence[int], structures: Sequence[list[int]]
    ) -> list[float]:
        """`combine` for each text."""
        sums = [0.0] * len(structures)
        # Rows of one length are added up in the order in which each would be.
        rows: dict[int, list[int]] = defaultdict(list)
        for number, structure in enumerate(structures):
            rows[len(structure)].append(number)
        for numbers in rows.values():
            weights = self.structure[np.array([structures[number] for number in numbers])]
            for number, sum_ in zip(numbers, weights.sum(axis=1).tolist(), strict=True):
                sums[number] = sum_
        return list(map(self._combined, totals, sizes, sums))

    def _combined(self, total: float, size: int, structural: float) -> float:
        grams = total * self.scale / float(max(1, size) ** self.power)
        return grams + structural + self.bias

    def probability(self, score: float) -> float:
        """The calibrated probability of spam for a score."""
        return 1.0 / (1.0 + math.exp(-max(-60.0, min(60.0, self.slope * score + self.offset))))


def unique_buckets(buckets: Hashes) -> Hashes:
    """The different buckets among these, ascending."""
    buckets.sort()
    keep = np.empty(buckets.size, bool)
    keep[:1] = True
    np.not_equal(buckets[1:], buckets[:-1], out=keep[1:])
    return buckets[keep]


def dump(model: SpamModel) -> tuple[str, dict[str, Any], dict[str, NDArray[Any]]]:
    """The arguments of `spamdetect.engine.container.pack` for a model."""
    meta = attrs.asdict(model, filter=attrs.filters.exclude("weights", "structure"))
    return KIND, meta | {"format": FORMAT}, {"weights": model.weights, "structure": model.structure}


def load(path: str | os.PathLike[str] | None = None) -> SpamModel:
    """Read a model file, the shipped one by default.

    Raises:
        ModelError: missing, damaged or of another format.
    """
    if path is None:
        data = resources.files("spamdetect.engine").joinpath(FILE_NAME).read_bytes()
        return from_container(unpack(data, kind=KIND, origin=FILE_NAME), FILE_NAME)
    return from_container(read(path, kind=KIND), os.fspath(path))


def from_container(container: Container, origin: str) -> SpamModel:
    """The model in a container.

    Raises:
        ModelError: of another format, or inconsistent.
    """
    meta = dict(container.meta)
    if meta.pop("format", None) != FORMAT:
        raise ModelError(f"{origin} has another model format: train it again with this version")
    profiles = meta.pop("profiles", None)
    advice = f"{origin} does not fit this version: train it again with this version"
    try:
        model = SpamModel(
            weights=container.arrays["weights"],
            structure=container.arrays["structure"],
            profiles=read_profiles(profiles, meta["threshold"], meta["version"]),
            **meta,
        )
        sound = (
            model.weights.size == table_size(model.bits)
            and model.weights.dtype == np.int8
            and model.structure.size == STRUCTURE_SIZE
            and all(
                math.isfinite(value)
                for value in (model.scale, model.bias, model.slope, model.offset, model.power)
            )
            and 0.0 <= model.threshold <= 1.0
        )
    except (KeyError, TypeError, ValueError):
        raise ModelError(advice) from None
    if not sound:
        raise ModelError(advice)
    return model
