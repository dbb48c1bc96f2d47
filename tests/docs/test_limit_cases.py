"""The page of the limit's cases is what was measured, and all of them held."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks import hard_stop, limit_cases
from tests.support.generators import generator


@pytest.fixture(scope="module")
def pages() -> Any:
    return generator("limit_cases")


def test_the_page_is_the_measurements(pages: Any) -> None:
    text = pages.PAGE.read_text()
    expected = pages.page(text, pages.newest(), pages.newest("hard-stop"))
    assert text == expected, "run docs/generate_limit_cases.py"


def test_every_kind_of_limit_held_and_stopped_nobody_early(pages: Any) -> None:
    found = pages.newest("hard-stop")["results"]
    least = {"dollars": 8, "tokens": 8, "calls": 10, "share": 6, "raised": 12}
    assert found.keys() > set(hard_stop.PROGRAMS)
    for program in hard_stop.PROGRAMS:
        row = found[program]
        assert row.keys() == hard_stop.KINDS.keys() == least.keys()
        for kind, cell in row.items():
            assert cell["used"] <= cell["most"], (program, kind)
            # A stream without a limit is given what is left, and uses it.
            if program == "streams without a limit" and kind != "calls":
                assert cell["used"] >= 0.7 * cell["most"], (program, kind)
            elif program != "a forbidden model":
                assert cell["ran"] >= least[kind], (program, kind)


def test_every_case_held_in_every_round(pages: Any) -> None:
    wanted = {case.name for case in limit_cases.cases()}
    assert len(wanted) >= 150
    for found in pages.newest()["rounds"]:
        assert found.keys() == wanted
        for name, row in found.items():
            assert row["problems"] == [], name
            assert row["billed"] <= row["charged"], name
            assert row["billed"] <= row["limit"], name


def test_a_case_that_does_not_hold_is_shown_by_its_worst_round(pages: Any) -> None:
    good = {"billed": 1, "charged": 1, "limit": 2, "share": 0.5, "problems": []}
    bad = good | {"billed": 3, "problems": ["over", "undercharged"]}
    rounds = [{"a case": good}, {"a case": bad}]
    results = {"date": "2026-01-01", "machine": "m", "rounds": rounds}
    page = pages.cases(results)
    assert "| a case | 1 | 0 | 50% to 50% |" in page
    assert "| a case | 0.000000 | 0.000000 | 0.000000 | 50% | over; undercharged |" in page
    assert "1 of 2 held, in 2 rounds in a row" in " ".join(page.split())
