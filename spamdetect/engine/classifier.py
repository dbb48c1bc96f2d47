"""The spam classifier: hashed n-grams where training has seen them, meaning where it has not.

Two parts judge a text. A linear classifier sums the weights of its n-grams and its structure; a
small network reads its traits: its structure and the concepts that it names. The share of the
text's n-grams that the first part knows decides how much each part counts.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from importlib import resources
from typing import Any

import attrs
import numpy as np
from numpy.typing import NDArray

from spamdetect.engine import concepts, native
from spamdetect.engine.characters import code_points
from spamdetect.engine.concepts import Lexicon
from spamdetect.engine.container import Container, read, unpack
from spamdetect.engine.features import Hashes, table_size, text_buckets
from spamdetect.engine.meaning import Network
from spamdetect.engine.profiles import Profile, read_profiles
from spamdetect.engine.results import ModelError
from spamdetect.engine.traits import traits, traits_size

Floats = NDArray[np.float64]

FILE_NAME = "spam.model"
KIND = "spam"
FORMAT = 4
STEEPNESS = 4
SILENT = -128  # an n-gram that training has seen and that says nothing


@attrs.frozen
class Blend:
    """How the two parts combine into a probability, given how much of a text is known.

    The log-odds of spam are the sum of ``offset``, ``grams`` times the n-gram score and
    ``meaning`` times the network's score. Each of the three is a pair: its value for a text of
    which nothing is known, and what is added for a text of which everything is known.
    """

    offset: tuple[float, float]
    grams: tuple[float, float]
    meaning: tuple[float, float]

    def slopes(self, known: float) -> tuple[float, float, float]:
        """The offset and the factor of each score when this share of a text is known."""
        (offset, offset_more), (grams, grams_more) = self.offset, self.grams
        meaning, meaning_more = self.meaning
        return (
            offset + offset_more * known,
            grams + grams_more * known,
            meaning + meaning_more * known,
        )

    def probability(self, grams: float, meaning: float, known: float) -> float:
        """The calibrated probability of spam."""
        offset, slope, worth = self.slopes(known)
        odds = offset + slope * grams + worth * meaning
        return 1.0 / (1.0 + math.exp(-max(-60.0, min(60.0, odds))))

    def probabilities(self, grams: Floats, meaning: Floats, known: Floats) -> Floats:
        """`probability` of each text."""
        parts = (self.offset, self.grams, self.meaning)
        offset, slope, worth = (least + more * known for least, more in parts)
        odds = offset + slope * grams + worth * meaning
        return np.asarray(1.0 / (1.0 + np.exp(-np.clip(odds, -60.0, 60.0))))


@attrs.frozen
class SpamModel:
    """What the classifier has learnt.

    Attributes:
        bits: see `spamdetect.engine.features.text_buckets`.
        weights: one int8 weight for each bucket: 0 if training has not seen it, `SILENT` if it has
            and the bucket says nothing.
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
    chance: float = attrs.field(init=False)
    """The share of n-grams that seem known although none is: the share of known buckets."""
    _arrays: Any = attrs.field(init=False, repr=False)

    def __attrs_post_init__(self) -> None:
        share = float(np.count_nonzero(self.weights)) / self.weights.size
        object.__setattr__(self, "chance", min(share, 0.999))
        object.__setattr__(self, "_arrays", native.arrays(self.weights))

    def traits(self, structure: list[int], marked: str) -> list[int]:
        """The traits of a text.

        Args:
            structure: the active structural features.
            marked: the normalised text.
        """
        return traits(structure, self.lexicon.find(marked))

    def probability(self, readable: str, on: list[int]) -> float:
        """The calibrated probability of spam for one text.

        Args:
            readable: the normalised text, which begins and ends with a space.
            on: its active traits.
        """
        return self.combine(*self.gram_sums(readable), on)

    def gram_sums(self, readable: str) -> tuple[int, int, int]:
        """The sum of the weights of a text's different n-grams, how many are known and there."""
        if native.compiled is not None:
            found: tuple[int, int, int] = native.compiled.gram_sums(
                native.tables(), self._arrays, readable
            )
            return found
        held = self.weights[unique_buckets(text_buckets(code_points(readable), self.bits))]
        return weight_sum(held), int(np.count_nonzero(held)), held.size

    def combine(self, total: float, known: int, size: int, on: list[int]) -> float:
        """The probability from the sum of the int8 weights of ``size`` different buckets.

        Args:
            total: that sum.
            known: how many of the buckets training has seen.
            size: how many buckets there are.
            on: the active traits of the text.
        """
        return self._combined(total, known, size, *self.network.judge(on))

    def combine_many(
        self,
        totals: NDArray[np.int64],
        known: NDArray[np.int64],
        sizes: NDArray[np.int64],
        traits: Sequence[list[int]],
    ) -> list[float]:
        """`combine` for each text."""
        meaning, structural = self.network.scores_many(self.network.sums_many(traits))
        grams = totals * self.scale / np.maximum(sizes, 1) ** self.power + structural
        familiar = familiarities(known, sizes, self.chance)
        found: list[float] = self.blend.probabilities(grams, meaning, familiar).tolist()
        return found

    def _combined(
        self, total: float, known: int, size: int, meaning: float, structural: float
    ) -> float:
        grams = total * self.scale / float(max(1, size) ** self.power) + structural
        return self.blend.probability(grams, meaning, familiarity(known, size, self.chance))


def familiarity(known: float, size: float, chance: float) -> float:
    """How familiar training is with a text's n-grams, in [0, 1].

    The fourth power of the known share: nearly all n-grams of a known language are known, but so
    are three quarters of those of another language written in the same letters.

    Args:
        known: how many training has seen; some only seem known, because buckets are shared.
        size: how many there are.
        chance: the share of all buckets that training has seen.
    """
    share = (known / max(1, size) - chance) / (1.0 - chance)
    return min(1.0, max(0.0, share)) ** STEEPNESS


def familiarities(known: NDArray[Any], sizes: NDArray[Any], chance: float) -> Floats:
    """`familiarity` of each text."""
    share = (known / np.maximum(sizes, 1) - chance) / (1.0 - chance)
    return np.asarray(np.clip(share, 0.0, 1.0) ** STEEPNESS)


def weight_sum(held: NDArray[np.int8]) -> int:
    """The sum of some weights."""
    return int(held.sum(dtype=np.int64)) - SILENT * int(np.count_nonzero(held == SILENT))


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
            blend=Blend(**{name: (float(a), float(b)) for name, (a, b) in meta["blend"].items()}),
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
    numbers = (model.scale, model.power, *blend.offset, *blend.grams, *blend.meaning)
    return (
        model.weights.size == table_size(model.bits)
        and model.weights.dtype == network.weights.dtype == np.int8
        and network.weights.shape == (width, hidden + 2)
        and network.scale.shape == network.bias.shape == (hidden + 2,)
        and all(math.isfinite(value) for value in numbers)
        and 0.0 <= model.threshold <= 1.0
    )
