"""Looks at intervals: they go on whatever one of them raises."""

from __future__ import annotations

import logging

import pytest

from guard.running.repeating import repeating
from tests.support.waiting import until


def test_a_look_that_fails_does_not_end_the_others(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR, logger="guard.run")
    looks: list[str] = []
    fails = ["disk", "disk", "disk", "", "disk", "gateway"]

    def look() -> None:
        looks.append(fails[len(looks)] if len(looks) < len(fails) else "")
        if looks[-1]:
            raise RuntimeError(looks[-1])

    with repeating(look, 0.001, "guard-test"):
        until(lambda: len(looks) > len(fails))
    said = [str(record.exc_info[1]) for record in caplog.records if record.exc_info]
    assert said == ["disk", "disk", "gateway"], "each once, and again after a look that succeeded"
    assert all("guard-test" in record.getMessage() for record in caplog.records)
