"""Arithmetic that has the same result, bit for bit, on every machine.

`numpy.exp`, `numpy.log` and `numpy.power` choose an implementation by the processor, and products
of matrices add in an order that depends on the processor and the number of threads. What decides
a model file uses these functions instead: elementwise sums, products, quotients and roots, which
IEEE 754 defines, and sums in a fixed order or without any rounding.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]
Singles = NDArray[np.float32]
Flags = NDArray[np.bool_]

_LN2: Final = 0.6931471805599453
_LN2_HIGH: Final = 0.693147180369123816490  # its last 21 bits are zero: exact when multiplied
_LN2_LOW: Final = 1.90821492927058770002e-10
_ROOT_HALF: Final = 0.7071067811865476
_INVERSE_FACTORIALS: Final = tuple(
    1.0 / factorial
    for factorial in (6227020800, 479001600, 39916800, 3628800, 362880, 40320, 5040, 720, 120, 24,
                      6, 2, 1, 1)
)  # fmt: skip
_INVERSE_ODD: Final = tuple(1.0 / odd for odd in range(25, 0, -2))
_BITS: Final = 24  # of a float32
_DOUBLE_BITS: Final = 53
_ROWS: Final = 4096


def exp(values: ArrayLike) -> Floats:
    """The exponential of values of at most 700 in size."""
    given = np.asarray(values, np.float64)
    twos = np.rint(given / _LN2)
    rest = given - twos * _LN2_HIGH - twos * _LN2_LOW
    return np.asarray(np.ldexp(_horner(rest, _INVERSE_FACTORIALS), twos.astype(np.int32)))


def log(values: ArrayLike) -> Floats:
    """The natural logarithm of positive values."""
    part, twos = np.frexp(np.asarray(values, np.float64))
    small = part < _ROOT_HALF
    part = np.where(small, 2.0 * part, part)
    twos = twos - small
    ratio = (part - 1.0) / (part + 1.0)
    series = _horner(ratio * ratio, _INVERSE_ODD) * ratio * 2.0
    return np.asarray(twos * _LN2_HIGH + (series + twos * _LN2_LOW))


def power(values: ArrayLike, exponent: float) -> Floats:
    """Values of at least 0 to a power other than 0; 0 stays 0."""
    given = np.asarray(values, np.float64)
    if exponent in {1.0, -0.5}:
        return given if exponent == 1.0 else 1.0 / np.sqrt(given)
    positive = given > 0.0
    return np.where(positive, exp(exponent * log(np.where(positive, given, 1.0))), 0.0)


def logistic(odds: ArrayLike, limit: float = 60.0) -> Floats:
    """The probability for log-odds, which are clipped to ``limit``."""
    return 1.0 / (1.0 + exp(-np.clip(np.asarray(odds, np.float64), -limit, limit)))


def _horner(values: Floats, coefficients: tuple[float, ...]) -> Floats:
    found = np.full(values.shape, coefficients[0])
    for coefficient in coefficients[1:]:
        found *= values
        found += coefficient
    return found


def column_sums(rows: NDArray[Any], weights: Floats) -> Floats:
    """The weighted sum of each column of a matrix."""
    total = np.zeros(rows.shape[1])
    for part in _slices(len(rows)):
        total += (rows[part] * weights[part, None]).sum(axis=0)
    return total


def solved(matrix: Floats, right: Floats) -> Floats:
    """The solution of a small system of linear equations with a positive definite matrix."""
    rows = np.column_stack([matrix, right])
    size = len(rows)
    for pivot in range(size):
        rows[pivot] /= rows[pivot, pivot]
        factors = rows[:, pivot].copy()
        factors[pivot] = 0.0
        rows -= factors[:, None] * rows[pivot]
    return rows[:, -1]


def of_flags(flags: Singles, values: Singles) -> Singles:
    """The product of a matrix of zeros and ones with another matrix.

    The values are rounded so coarsely beforehand that no sum of them is rounded: then any order
    of adding gives the same. They keep 24 bits, less those that counting the summands takes.
    """
    summands = int(flags.sum(axis=1).max(initial=0.0))
    return np.asarray(flags @ coarse(values, _BITS - summands.bit_length()))


def coarse(values: NDArray[Any], bits: int) -> NDArray[Any]:
    """Values rounded to multiples of the largest one's power of two divided by ``2 ** bits``."""
    _, twos = np.frexp(np.abs(values).max(initial=0.0))
    unit = values.dtype.type(2.0 ** (int(twos) - bits))
    return np.asarray(np.rint(values / unit) * unit) if unit else values


def flag_rows(flags: Flags, values: Floats) -> Floats:
    """For each row of flags, the sum of the values of those that are set; exact as `of_flags`."""
    summands = int(flags.sum(axis=1).max(initial=0))
    rounded = coarse(values, _DOUBLE_BITS - summands.bit_length())
    parts = [flags[part].astype(float) @ rounded for part in _slices(len(flags))]
    return np.concatenate(parts) if parts else np.zeros(0)


def flag_sums(flags: Flags, values: Floats) -> Floats:
    """For each flag, the sum of the rows of values where it is set; exact as `of_flags`."""
    rounded = coarse(values, _DOUBLE_BITS - len(flags).bit_length())
    total = np.zeros((flags.shape[1], values.shape[1]))
    for part in _slices(len(flags)):
        total += flags[part].astype(float).T @ rounded[part]
    return total


def flag_pairs(flags: Flags, weights: Floats) -> Floats:
    """For each pair of flags, the sum of the weights where both are set; exact as `of_flags`."""
    rounded = coarse(weights, _DOUBLE_BITS - len(flags).bit_length())
    total = np.zeros((flags.shape[1], flags.shape[1]))
    for part in _slices(len(flags)):
        own = flags[part].astype(float)
        total += own.T @ (own * rounded[part, None])
    return total


def _slices(rows: int) -> list[slice]:
    return [slice(start, start + _ROWS) for start in range(0, rows, _ROWS)]
