"""Texts as a sparse binary matrix, and the two products that fitting needs."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import attrs
import numpy as np
from numpy.typing import NDArray

from spamdetect.engine.characters import code_points
from spamdetect.engine.classifier import unique_buckets
from spamdetect.engine.concepts import Lexicon
from spamdetect.engine.counts import count
from spamdetect.engine.features import text_buckets
from spamdetect.engine.normalise import normalise
from spamdetect.engine.structure import structure
from spamdetect.engine.traits import traits, traits_size

Progress = Callable[[str, float], None]
"""Called with the name of the stage and the share of it that is done, in [0, 1]."""


def silent(stage: str, share: float) -> None:
    """Report nothing."""


@attrs.frozen
class Matrix:
    """Binary features of many texts, row by row.

    Attributes:
        columns: the active columns, row after row.
        starts: where each row starts in ``columns``, and the end.
        structure: the active traits, row after row.
        structure_starts: the same for ``structure``.
        width: how many traits there are.
    """

    columns: NDArray[np.int32]
    starts: NDArray[np.int64]
    structure: NDArray[np.int32]
    structure_starts: NDArray[np.int64]
    width: int

    @property
    def rows(self) -> int:
        """How many texts."""
        return self.starts.size - 1

    def select(self, rows: NDArray[np.intp]) -> Matrix:
        """The matrix of some rows, in the order given."""
        columns, starts = _select(self.columns, self.starts, rows)
        structural, structure_starts = _select(self.structure, self.structure_starts, rows)
        return Matrix(columns, starts, structural, structure_starts, self.width)


def _select(
    values: NDArray[np.int32], starts: NDArray[np.int64], rows: NDArray[np.intp]
) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
    lengths = np.diff(starts)[rows]
    out = np.zeros(rows.size + 1, np.int64)
    np.cumsum(lengths, out=out[1:])
    offsets = np.repeat(starts[rows] - out[:-1], lengths)
    return values[offsets + np.arange(out[-1])], out


def build(
    texts: Sequence[str], bits: int, progress: Progress = silent, lexicon: Lexicon | None = None
) -> Matrix:
    """The features of texts as the engine computes them.

    Args:
        texts: as received.
        bits: logarithm of the number of n-gram buckets.
        progress: receives the progress.
        lexicon: the lexicon of concepts; none by default.
    """
    lexicon = lexicon or Lexicon({})
    columns, structural = [], []
    for number, text in enumerate(texts):
        found = normalise(text)
        buckets = unique_buckets(text_buckets(code_points(found.readable), bits))
        columns.append(buckets.astype(np.int32))
        on = structure(found, count(text), len(text))
        structural.append(np.array(traits(on, lexicon.find(found.marked)), np.int32))
        if number % 500 == 0:
            progress("reading texts", number / len(texts))
    progress("reading texts", 1.0)
    return Matrix(*_stack(columns), *_stack(structural), traits_size(len(lexicon.names)))


def join(matrices: Sequence[Matrix]) -> Matrix:
    """Stack matrices vertically."""

    def starts(arrays: list[NDArray[np.int64]]) -> NDArray[np.int64]:
        lengths = np.concatenate([np.diff(array) for array in arrays])
        return np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)

    return Matrix(
        np.concatenate([matrix.columns for matrix in matrices]),
        starts([matrix.starts for matrix in matrices]),
        np.concatenate([matrix.structure for matrix in matrices]),
        starts([matrix.structure_starts for matrix in matrices]),
        matrices[0].width,
    )


def _stack(rows: list[NDArray[np.int32]]) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
    starts = np.zeros(len(rows) + 1, np.int64)
    np.cumsum([row.size for row in rows], out=starts[1:])
    return np.concatenate(rows), starts


def dense(matrix: Matrix) -> NDArray[np.float32]:
    """The traits as a dense matrix: 1 where a trait is active."""
    rows = np.zeros((matrix.rows, matrix.width), np.float32)
    rows[np.repeat(np.arange(matrix.rows), np.diff(matrix.structure_starts)), matrix.structure] = 1
    return rows


__all__ = ["Matrix", "Progress", "build", "dense", "join", "silent"]
