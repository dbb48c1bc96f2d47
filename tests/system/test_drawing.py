"""What the test command draws from large matrices, and what it leaves to ``tests_rest``."""

from __future__ import annotations

import itertools
import subprocess
import sys

import pytest

from tests.support.drawing import AREAS, Case, draw, in_part, untouched
from tests.support.programs import ROOT, environment

SEEDS = range(50)
WAYS = {"client": 5, "moment": 9, "fault": 3, "streamed": 2}


def matrix(axes: dict[str, int]) -> list[Case]:
    places = itertools.product(*map(range, axes.values()))
    rows = [dict(zip(axes, row, strict=True)) for row in places]
    return [Case("-".join(f"{axis}{at}" for axis, at in row.items()), row) for row in rows]


def test_every_value_of_a_short_axis_is_drawn() -> None:
    cases = matrix(WAYS)
    for seed in SEEDS:
        drawn = [cases[index] for index in draw(cases, 16, seed)]
        assert len(drawn) == 16
        for axis, number in WAYS.items():
            assert {case.places[axis] for case in drawn} == set(range(number)), seed


def test_every_word_that_many_ids_share_is_drawn() -> None:
    """Where one axis holds the classes in its names alone."""
    kinds = [f"{number} {kind}" for kind in ("chat", "stream", "batch") for number in range(40)]
    cases = [Case(name, {"name": number}) for number, name in enumerate(kinds)]
    for seed in SEEDS:
        drawn = {cases[index].name.split()[1] for index in draw(cases, 16, seed)}
        assert drawn == {"chat", "stream", "batch"}, seed


def test_what_is_drawn_is_spread_over_the_matrix() -> None:
    cases = [Case(str(number), {"seed": number}) for number in range(100)]
    for seed in SEEDS:
        assert {index // 10 for index in draw(cases, 20, seed)} == set(range(10)), seed


def test_other_seeds_draw_others_and_the_same_draws_the_same() -> None:
    cases = matrix(WAYS)
    drawn = [frozenset(draw(cases, 16, seed)) for seed in SEEDS]
    assert drawn == [draw(cases, 16, str(seed)) for seed in SEEDS]
    assert len(set(drawn)) == len(SEEDS)
    assert len(frozenset().union(*drawn)) > len(cases) * 0.9, "each case has its turn"


def test_a_small_matrix_is_drawn_whole() -> None:
    assert draw(matrix({"way": 4, "engine": 2}), 16, 1) == set(range(8))


def collected_of(file: str, *chosen: str, **env: str) -> set[str]:
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "--collect-only", "-q", file, *chosen],
        env=environment({"CI": "", **env}), cwd=ROOT, capture_output=True, text=True,
        timeout=300, check=False,
    )  # fmt: skip
    return {line for line in done.stdout.splitlines() if line.startswith(file)}


def test_both_sessions_together_run_each_case() -> None:
    file = "tests/guard/running/test_words.py"

    def collected(drawn: str, *chosen: str) -> set[str]:
        return collected_of(file, *chosen, GUARD_TEST_DRAW=drawn)

    everything = collected("")
    tests, rest = collected("7", "-m", "not undrawn"), collected("7", "-m", "undrawn")
    assert 0 < len(tests) < len(rest) + len(tests) == len(everything)
    assert tests | rest == everything
    assert collected("", "-m", "undrawn") >= rest, "without a seed, the rest is the whole matrix"


def test_each_case_runs_on_one_engine_and_on_all_in_ci() -> None:
    file = "tests/gateway/test_answers.py"
    chosen = "-m", "not undrawn"
    one = collected_of(file, *chosen, GUARD_TEST_DRAW="7")
    other = collected_of(file, *chosen, GUARD_TEST_DRAW="8")
    both = collected_of(file, *chosen, GUARD_TEST_DRAW="7", CI="true")
    assert {each.replace("sqlite", "postgres") for each in one} == {
        each.replace("sqlite", "postgres") for each in both
    }
    assert len(both) == len(one) * 2
    assert one != other
    assert {"sqlite", "postgres"} <= set("".join(one).replace("[", "]").split("]"))


def test_a_part_is_one_in_so_many() -> None:
    drawn = [number for number in range(6000) if in_part(f"7 {number}", 6)]
    assert 800 < len(drawn) < 1200
    assert all(in_part(number, 1) for number in range(100))


@pytest.mark.parametrize(
    ("changed", "left_out"),
    [
        ("guard/running/look.py", {"tests/spamdetect/", "tests/dashboard/"}),
        ("guard/gateway/ledger/gate.py", {"tests/spamdetect/"}),
        ("spamdetect/engine/words.py", {"tests/dashboard/"}),
        ("tests/dashboard/test_charts.py", {"tests/spamdetect/"}),
        ("tests/support/waiting.py", set()),
        ("requirements.lock", set()),
    ],
)
def test_an_area_runs_when_its_code_has_changed(changed: str, left_out: set[str]) -> None:
    assert set(untouched(["README.md", changed])) == left_out


def test_what_areas_are_made_of_exists() -> None:
    for tests, code in AREAS.items():
        assert (ROOT / tests).is_dir()
        assert all(list(ROOT.glob(f"{each.rstrip('/')}*")) for each in code)
