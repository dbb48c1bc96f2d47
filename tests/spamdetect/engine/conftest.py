"""The shipped engine, loaded once."""

from __future__ import annotations

import pytest

from spamdetect.engine import Engine


@pytest.fixture(scope="session")
def engine() -> Engine:
    return Engine.load()
