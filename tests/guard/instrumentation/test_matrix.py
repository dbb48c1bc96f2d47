"""The matrix: every client, endpoint and way to read an answer, exact to the token, once each.

Run with ``GUARD_TEST_WRITE_MATRIX=1`` to write the table into the documentation.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from guard.core.usage import Usage
from guard.core.wire import LlmData
from tests.guard.instrumentation.matrix import (
    anthropic_cases,
    openai_cases,
    other_cases,
    plain_cases,
)
from tests.guard.instrumentation.matrix.registry import (
    CASES,
    UNFINISHED,
    Case,
    UnavailableError,
    installed,
)
from tests.guard.instrumentation.matrix.table import MARKERS, table
from tests.guard.instrumentation.standin.server import StandIn

REGISTERED = (anthropic_cases, openai_cases, other_cases, plain_cases)

DOCUMENT = Path(__file__).parents[3] / "docs" / "instrumentation.md"

_passed: set[str] = set()


def usage_of(event: LlmData) -> Usage:
    return Usage(
        model=event.model,
        response_id=event.response_id,
        estimated=event.estimated,
        units=event.metadata,
        service_tier=event.service_tier,
        surcharge_permille=event.surcharge_permille,
        **{name: getattr(event, name) for name in TOKENS},
    )


TOKENS = (
    "input_tokens", "output_tokens", "cache_read_tokens", "cache_write_tokens",
    "cache_write_1h_tokens", "reasoning_tokens", "audio_tokens", "audio_input_tokens",
)  # fmt: skip


# What clients of others leave to the collector is not the subject here.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.matrix
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_exact_and_once(case: Case, standin: StandIn, observed: Any) -> None:
    if installed(case.client) is None:
        pytest.skip(f"{case.client} is not installed")
    standin.hold = case.mode in UNFINISHED
    try:
        case(standin.url)
    except UnavailableError:
        pytest.skip("this release of the client does not have it")
    assert observed.instrumentation.failures == 0
    assert observed.instrumentation.unseen_hosts() == ()
    assert len(standin.said) == 1
    assert len(observed.events) == 1
    said, found = standin.said[0], usage_of(observed.events[0])
    assert said is not None
    if case.mode in UNFINISHED or (case.estimated and not said.estimated):
        assert found.estimated
        assert (found.model or "").startswith((said.model or "").removesuffix("-001"))
        assert found.response_id in (said.response_id, None)
        assert 0 < found.input_tokens <= said.input_tokens
        assert 0 < found.output_tokens <= said.output_tokens
    else:
        assert found == said
    _passed.add(case.name)


@pytest.fixture(scope="module", autouse=True)
def written() -> Iterator[None]:
    """After a whole run with all clients: the table in the documentation is what was found."""
    yield
    if os.environ.get("GUARD_TEST_WRITE_MATRIX") == "1":
        start, end = MARKERS
        text = DOCUMENT.read_text()
        before, rest = text.split(start, 1)
        after = rest.split(end, 1)[1]
        DOCUMENT.write_text(f"{before}{start}\n{table(CASES, _passed)}{end}{after}")


def test_the_documentation_shows_the_matrix() -> None:
    """The rows that stand in the documentation are those of the cases here."""
    text = DOCUMENT.read_text().split(MARKERS[0])[1].split(MARKERS[1])[0]
    shown = [line for line in text.splitlines() if line.startswith("| `")]
    wanted = [
        line
        for line in table(CASES, {case.name for case in CASES}).splitlines()
        if line.startswith("| `")
    ]
    assert shown == wanted


def test_a_case_is_compared_in_every_bucket() -> None:
    names = set(Usage.__struct_fields__)
    assert names == {
        *TOKENS, "model", "response_id", "estimated", "estimate", "units", "cost_nanousd", "others",
        "service_tier", "surcharge_permille", "fees", "cut_short", "text_tokens", "later",
        "strangers",
    }  # fmt: skip
