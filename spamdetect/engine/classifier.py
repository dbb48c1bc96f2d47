"""The spam classifier: hashed n-grams, and what a text says and how it is built.

Two parts judge a text, and a blend of both decides. A linear classifier sums the weights of its
n-grams and of its traits: its structure and the concepts that it names. A small network reads the
traits alone. N-grams that training has not seen say nothing but count in the divisor, so the less
of a text is known, the less the first part says.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from importlib import resources
from typing import Any, TypeVar

import attrs
import numpy as np
from numpy.typing import NDArray

from spamdetect.engine import concepts, native
from spamdetect.engine.characters import code_points
from spamdetect.engine.concepts import Lexicon
from spamdetect.engine.container import Container, read, unpack
from spamdetect.engine.features import Hashes, in_words, table_size, text_buckets
from spamdetect.engine.network import Network
from spamdetect.engine.profiles import Profile, read_profiles
from spamdetect.engine.results import ModelError
from spamdetect.engine.traits import traits, traits_size

FILE_NAME = "spam.model"
KIND = "spam"
FORMAT = 5


Score = TypeVar("Score", float, NDArray[np.float64])


@attrs.frozen
class Blend:
    """How the two parts combine: the log-odds of spam are linear in their scores.

    Attributes:
        offset: the log-odds where both scores are zero.
        grams: the factor of the linear classifier's score.
        meaning: the factor of the network's score.
    """

    offset: float
    grams: float
    meaning: float

    def odds(self, grams: Score, meaning: Score) -> Score:
        """The calibrated log-odds of spam, of one text or of many."""
        return self.offset + self.grams * grams + self.meaning * meaning


def probability(odds: float) -> float:
    """The probability that log-odds stand for."""
    return 1.0 / (1.0 + math.exp(-max(-60.0, min(60.0, odds))))


@attrs.frozen
class SpamModel:
    """What the classifier has learnt.

    Attributes:
        bits: see `spamdetect.engine.features.text_buckets`.
        weights: one int8 weight for each bucket.
        scale: the value of one unit of ``weights``.
        power: a text of ``n`` different buckets divides their sum by ``n ** power``.
        lexicon: the lexicon of concepts.
        network: the network over the traits; also holds their weights in the linear classifier.
        blend: how the two scores combine.
        threshold: a text is spam from this probability on.
        version: the version of the model.
        profiles: named thresholds, see `spamdetect.thresholds`.
    """

    bits: int
    weights: NDArray[np.int8]
    scale: float
    power: float
    lexicon: Lexicon
    network: Network
    blend: Blend
    threshold: float
    version: str
    profiles: Mapping[str, Profile]
    _seen: NDArray[np.uint64] = attrs.field(init=False, repr=False)
    """One bit for each bucket, for the compiled `gram_sums`; all zero between calls."""

    def __attrs_post_init__(self) -> None:
        object.__setattr__(self, "_seen", np.zeros(self.weights.size // 64 + 1, np.uint64))

    def traits(self, structure: list[int], marked: str, language: str) -> list[int]:
        """The traits of a text.

        Args:
            structure: the active structural features.
            marked: the normalised text.
            language: of the text, empty where it is not known.
        """
        return traits(structure, self.lexicon.find(marked, language))

    def odds(self, readable: str, on: list[int]) -> float:
        """The calibrated log-odds of spam for one text.

        Args:
            readable: the normalised text, which begins and ends with a space.
            on: its active traits.
        """
        return self.combine(*self.gram_sums(readable), on)

    def gram_sums(self, readable: str) -> tuple[int, int]:
        """The sum of the weights of a text's different n-grams, and how many there are."""
        codes = code_points(readable)
        if native.compiled is not None:
            found: tuple[int, int] = native.compiled.gram_sums(
                in_words(), self.weights, self._seen, codes
            )
            return found
        held = self.weights[unique_buckets(text_buckets(codes, self.bits))]
        return int(held.sum(dtype=np.int64)), held.size

    def combine(self, total: float, size: int, on: list[int]) -> float:
        """The log-odds from the sum of the int8 weights of ``size`` different buckets.

        Args:
            total: that sum.
            size: how many buckets there are.
            on: the active traits of the text.
        """
        meaning, structural = self.network.judge(on)
        grams = total * self.scale / float(max(1, size) ** self.power) + structural
        return self.blend.odds(grams, meaning)


def unique_buckets(buckets: Hashes) -> Hashes:
    """The distinct buckets, ascending."""
    buckets.sort()
    keep = np.empty(buckets.size, bool)
    keep[:1] = True
    np.not_equal(buckets[1:], buckets[:-1], out=keep[1:])
    return buckets[keep]


def dump(model: SpamModel) -> tuple[str, dict[str, Any], dict[str, NDArray[Any]]]:
    """The arguments of `spamdetect.engine.container.pack` for a model."""
    meta = {name: getattr(model, name) for name in _PLAIN}
    arrays = {
        "weights": model.weights,
        "lexicon": np.frombuffer(concepts.dump(model.lexicon), np.uint8),
    }
    arrays |= {f"network_{name}": getattr(model.network, name) for name in _NETWORK}
    profiles = {name: attrs.asdict(profile) for name, profile in model.profiles.items()}
    meta |= {"format": FORMAT, "blend": attrs.asdict(model.blend), "profiles": profiles}
    return KIND, meta, arrays


_PLAIN = ("bits", "scale", "power", "threshold", "version")
_NETWORK = ("weights", "scale", "bias", "output")


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
    advice = f"{origin} does not fit this version: train it again with this version"
    arrays = container.arrays
    try:
        model = SpamModel(
            weights=arrays["weights"],
            lexicon=concepts.load(arrays["lexicon"].tobytes()),
            network=Network(**{name: arrays[f"network_{name}"] for name in _NETWORK}),
            blend=Blend(**{name: float(value) for name, value in meta["blend"].items()}),
            profiles=read_profiles(meta["profiles"]),
            **{name: meta[name] for name in _PLAIN},
        )
        sound = set(meta) == {*_PLAIN, "blend", "profiles"} and _is_sound(model)
    except (KeyError, TypeError, ValueError, IndexError):
        raise ModelError(advice) from None
    if not sound:
        raise ModelError(advice)
    return model


def _is_sound(model: SpamModel) -> bool:
    """Whether all parts belong to the same model."""
    network, width = model.network, traits_size(len(model.lexicon.names))
    hidden = network.output.size
    blend = model.blend
    numbers = (model.scale, model.power, blend.offset, blend.grams, blend.meaning)
    return (
        model.weights.size == table_size(model.bits)
        and model.weights.dtype == network.weights.dtype == np.int8
        and network.weights.shape == (width, hidden + 1)
        and network.scale.shape == network.bias.shape == (hidden + 1,)
        and all(math.isfinite(value) for value in numbers)
        and 0.0 <= model.threshold <= 1.0
    )
