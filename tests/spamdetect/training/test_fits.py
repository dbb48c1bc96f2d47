"""Fits for their scores: the same however they are made, and none twice."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import pytest

from spamdetect.training import fits, network, spam_fit
from spamdetect.training.augment import Plan
from spamdetect.training.blending import Signals
from spamdetect.training.dataset import DataError, SpamRow
from spamdetect.training.fits import Fits, Wanted, digests
from spamdetect.training.judge import Judge, fit_judge
from spamdetect.training.linear import Settings
from spamdetect.training.spam_fit import Corpus

SETTINGS = Settings(bits=10, epochs=3)
forks = pytest.mark.skipif(
    "fork" not in multiprocessing.get_all_start_methods(), reason="the system cannot fork"
)


@pytest.fixture(scope="module")
def data() -> Corpus:
    said = {True: "win a free prize now", False: "see you at lunch"}
    rows = [SpamRow(f"{said[n % 2 == 0]} {n}", n % 2 == 0, f"s{n % 3}", n % 5) for n in range(60)]
    plan = Plan(disguised=0, ordinary=0, copied=0, fragmented=0)
    return spam_fit.corpus(rows, 0, SETTINGS, plan)


@pytest.fixture(autouse=True)
def small_network(monkeypatch: pytest.MonkeyPatch) -> None:
    of_network = network.NetworkSettings(hidden=3, epochs=1, fits=2)

    def small(data: Corpus, chosen: Any, settings: Settings) -> Judge:
        return fit_judge(data, chosen, settings, of_network=of_network)

    monkeypatch.setattr(fits, "fit_judge", small)


@pytest.fixture
def wanted(data: Corpus) -> list[Wanted]:
    """One fit without each fold; the last scores features that are not of the data."""
    folds = [Wanted(data.folds != fold, np.flatnonzero(data.folds == fold)) for fold in range(3)]
    return [*folds, Wanted(data.folds != 3, data.matrix.select(np.arange(7)))]


def same(some: list[Signals], others: list[Signals]) -> bool:
    return len(some) == len(others) and all(
        np.array_equal(getattr(one, name), getattr(other, name))
        for one, other in zip(some, others, strict=True)
        for name in ("grams", "meaning", "known", "traits")
    )


def counted(monkeypatch: pytest.MonkeyPatch, before: Callable[[int], None]) -> list[int]:
    """The processes that made fits, in this process; ``before`` is told how many came before."""
    made: list[int] = []
    fit = fits.fit_judge

    def counting(*arguments: Any) -> Judge:
        before(len(made))
        made.append(os.getpid())
        return fit(*arguments)

    monkeypatch.setattr(fits, "fit_judge", counting)
    return made


def test_scores_are_those_of_the_fits(data: Corpus, wanted: list[Wanted]) -> None:
    found = Fits().signals(data, wanted, SETTINGS)
    judges = [fits.fit_judge(data, one.chosen, SETTINGS) for one in wanted]
    rows = [np.flatnonzero(data.folds == fold) for fold in range(3)] + [np.arange(7)]
    direct = [judge.signals(data.matrix.select(of)) for judge, of in zip(judges, rows, strict=True)]
    assert same(found, direct)
    assert not same(found[:1], found[1:2])


@forks
def test_any_number_of_processes_gives_the_same(
    data: Corpus, wanted: list[Wanted], monkeypatch: pytest.MonkeyPatch
) -> None:
    alone = Fits().signals(data, wanted, SETTINGS)
    made = counted(monkeypatch, lambda _: None)
    told: list[float] = []
    shared = Fits(jobs=3).signals(data, wanted, SETTINGS, lambda _, share: told.append(share))
    assert same(alone, shared)
    assert made == []  # all in other processes
    assert told == sorted(told)
    assert (told[0], told[-1]) == (0.0, 1.0)


def test_what_is_kept_is_not_made_again(
    data: Corpus, wanted: list[Wanted], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = counted(monkeypatch, lambda _: None)
    kept = Fits(tmp_path / "fits")
    first = kept.signals(data, wanted[:3], SETTINGS)
    assert len(made) == 3
    told: list[float] = []
    again = kept.signals(data, wanted, SETTINGS, lambda _, share: told.append(share))
    assert len(made) == 4
    assert same(first, again[:3])
    assert told[0] == 0.75
    assert told[-1] == 1.0


def test_an_interrupted_run_goes_on(
    data: Corpus, wanted: list[Wanted], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(before: int) -> None:
        if before == 2:
            raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        made = counted(patched, interrupted)
        with pytest.raises(KeyboardInterrupt):
            Fits(tmp_path).signals(data, wanted, SETTINGS)
        assert len(made) == 2
    made = counted(monkeypatch, lambda _: None)
    found = Fits(tmp_path).signals(data, wanted, SETTINGS)
    assert len(made) == 2
    assert same(found, Fits().signals(data, wanted, SETTINGS))


@forks
def test_interrupted_processes_end(
    data: Corpus, wanted: list[Wanted], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(_: object) -> None:
        raise KeyboardInterrupt

    before = multiprocessing.active_children()
    counted(monkeypatch, lambda _: signal.pause())
    monkeypatch.setattr(fits, "wait", interrupted)
    with pytest.raises(KeyboardInterrupt):
        Fits(tmp_path, jobs=2).signals(data, wanted, SETTINGS)
    assert multiprocessing.active_children() == before
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("damage", [b"", b"PK\x03\x04 not a whole archive", b"\x80\x04N."])
def test_a_damaged_file_is_made_again(
    data: Corpus, wanted: list[Wanted], tmp_path: Path, damage: bytes
) -> None:
    first = Fits(tmp_path).signals(data, wanted[:2], SETTINGS)
    for path in tmp_path.iterdir():
        path.write_bytes(damage)
    assert same(first, Fits(tmp_path).signals(data, wanted[:2], SETTINGS))
    assert all(path.read_bytes() != damage for path in tmp_path.iterdir())


@forks
def test_what_a_process_does_not_make_is_made_here(
    data: Corpus, wanted: list[Wanted], monkeypatch: pytest.MonkeyPatch
) -> None:
    here = os.getpid()

    def die(_: int) -> None:
        if os.getpid() != here:
            os.kill(os.getpid(), signal.SIGKILL)

    alone = Fits().signals(data, wanted, SETTINGS)
    made = counted(monkeypatch, die)
    assert same(alone, Fits(jobs=2).signals(data, wanted, SETTINGS))
    assert made == [here] * 4


@pytest.mark.parametrize("jobs", [1, 2])
def test_an_error_reaches_the_caller(data: Corpus, wanted: list[Wanted], jobs: int) -> None:
    of_one_class = Wanted(data.labels, np.arange(5))
    with pytest.raises(DataError, match="one class"):
        Fits(jobs=jobs).signals(data, [wanted[0], of_one_class], SETTINGS)


def test_the_name_holds_all_that_determines_the_scores(
    data: Corpus, wanted: list[Wanted], monkeypatch: pytest.MonkeyPatch
) -> None:
    def name(data: Corpus, one: Wanted, settings: Settings = SETTINGS) -> str:
        (found,) = digests(data, [one], settings)
        return found

    one = wanted[0]
    chosen = one.chosen.copy()
    chosen[0] = not chosen[0]
    rows = [attrs.evolve(data.rows[0], source="other"), *data.rows[1:]]
    matrix = attrs.evolve(data.matrix, columns=data.matrix.columns[::-1])
    names = [
        name(data, one),
        name(attrs.evolve(data, seed=1), one),
        name(attrs.evolve(data, labels=~data.labels), one),
        name(attrs.evolve(data, rows=rows), one),
        name(attrs.evolve(data, matrix=matrix), one),
        name(attrs.evolve(data, plan=attrs.evolve(data.plan, weight=0.4)), one),
        name(data, one, attrs.evolve(SETTINGS, l2=1.0)),
        name(data, attrs.evolve(one, chosen=chosen)),
        name(data, attrs.evolve(one, asked=np.arange(3))),
        name(data, attrs.evolve(one, asked=data.matrix.select(np.arange(3)))),
    ]
    monkeypatch.setattr(fits, "NETWORK", network.NetworkSettings(hidden=5))
    names.append(name(data, one))
    monkeypatch.setattr(fits, "_CODE", fits._CODE[1:])
    names.append(name(data, one))
    assert len(set(names)) == len(names)
    assert name(data, one) == names[-1]
