"""Arithmetic that is the same on every machine, against numpy and against itself."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from spamdetect.training import portable

# What changes the last bits of numpy's results: the kernels of BLAS, of numpy, of the C library.
_FEATURES = """
import numpy._core._multiarray_umath as core
print(*(name for name in core.__cpu_dispatch__ if core.__cpu_features__[name]))
"""
_TRAIN = "import sys; from spamdetect.training import train; train(sys.argv[1:2], sys.argv[2], 3)"


def _python(arguments: list[str], **environment: str) -> str:
    command = [sys.executable, "-c", *arguments]
    env = os.environ | environment
    return subprocess.run(command, env=env, check=True, capture_output=True, text=True).stdout


@pytest.mark.long
@pytest.mark.timeout(900)
def test_training_gives_the_same_file_on_other_processors(small_spam: Path, tmp_path: Path) -> None:
    """An older processor is simulated by turning off what this one can."""
    others = {
        "this one": {},
        "one thread": {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"},
        "other BLAS": {"OPENBLAS_CORETYPE": "Nehalem"},
        "other numpy": {"NPY_DISABLE_CPU_FEATURES": _python([_FEATURES]).strip()},
        "other C library": {"GLIBC_TUNABLES": "glibc.cpu.hwcaps=-AVX2,-FMA"},
    }
    made = {}
    for name, environment in others.items():
        out = tmp_path / f"{name}.model"
        _python([_TRAIN, str(small_spam), str(out)], **environment)
        made[name] = out.read_bytes()
    assert {name: data == made["this one"] for name, data in made.items()} == dict.fromkeys(
        others, True
    )


def test_functions_are_those_of_numpy() -> None:
    values = np.linspace(-60.0, 60.0, 10_001)
    np.testing.assert_allclose(portable.exp(values), np.exp(values), rtol=5e-16)
    np.testing.assert_allclose(portable.logistic(values), 1 / (1 + np.exp(-values)), rtol=5e-16)
    positive = np.concatenate((np.logspace(-300, 300, 10_001), np.linspace(0.5, 1.5, 1001)))
    np.testing.assert_allclose(portable.log(positive), np.log(positive), rtol=1e-15, atol=1e-18)
    for exponent in (-0.5, 1.0, 0.3, 4.0):
        few = np.array([1e-3, 0.5, 1.0, 7.0, 1e4])
        np.testing.assert_allclose(portable.power(few, exponent), few**exponent, rtol=1e-14)
    assert portable.power(0.0, 0.25) == 0.0


def test_sums_of_flags_do_not_depend_on_their_order() -> None:
    random = np.random.Generator(np.random.PCG64(4))
    flags = (random.random((300, 250)) < 0.2).astype(np.float32)
    values = random.standard_normal((250, 9)).astype(np.float32)
    found = portable.of_flags(flags, values)
    order = random.permutation(250)
    np.testing.assert_array_equal(portable.of_flags(flags[:, order], values[order]), found)
    np.testing.assert_allclose(found, flags @ values, atol=0.01)
    assert not portable.of_flags(flags, np.zeros_like(values)).any()


def test_double_sums_of_flags_do_not_depend_on_their_order() -> None:
    random = np.random.Generator(np.random.PCG64(5))
    flags = random.random((9000, 30)) < 0.2
    values, weights, each = random.random((9000, 3)), random.random(9000), random.random(30)
    order, columns = random.permutation(9000), random.permutation(30)
    sums, pairs = portable.flag_sums(flags, values), portable.flag_pairs(flags, weights)
    rows = portable.flag_rows(flags, each)
    np.testing.assert_array_equal(portable.flag_sums(flags[order], values[order]), sums)
    np.testing.assert_array_equal(portable.flag_pairs(flags[order], weights[order]), pairs)
    np.testing.assert_array_equal(portable.flag_rows(flags[:, columns], each[columns]), rows)
    np.testing.assert_allclose(sums, flags.T @ values, rtol=1e-9)
    np.testing.assert_allclose(pairs, flags.T @ (flags * weights[:, None]), rtol=1e-9)
    np.testing.assert_allclose(rows, flags @ each, rtol=1e-9)
    assert not portable.flag_rows(flags, np.zeros(30)).any()


def test_systems_are_solved() -> None:
    random = np.random.Generator(np.random.PCG64(4))
    half = random.standard_normal((8, 8))
    matrix, right = half @ half.T + np.eye(8), random.standard_normal(8)
    np.testing.assert_allclose(portable.solved(matrix, right), np.linalg.solve(matrix, right))
    rows, weights = random.standard_normal((9000, 3)), random.random(9000)
    np.testing.assert_allclose(portable.column_sums(rows, weights), weights @ rows)
