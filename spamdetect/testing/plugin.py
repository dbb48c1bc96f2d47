"""Fixtures that run the real service in a user's own tests.

Add ``pytest_plugins = ["spamdetect.testing.plugin"]`` to the top-level ``conftest.py``.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from spamdetect.sync import SpamClient
from spamdetect.testing import RunningService, run_service


@pytest.fixture(scope="session")
def spam_service() -> Iterator[RunningService]:
    """The real service on a free loopback port, started once per test run."""
    with run_service() as running:
        yield running


@pytest.fixture
def spam_client(spam_service: RunningService) -> Iterator[SpamClient]:
    """A blocking client of that service."""
    with SpamClient(spam_service.base_url, spam_service.api_key) as client:
        yield client


@pytest.fixture
def spam_environment(
    spam_service: RunningService, monkeypatch: pytest.MonkeyPatch
) -> RunningService:
    """``SPAMDETECT_BASE_URL`` and ``SPAMDETECT_API_KEY`` of that service, for this test."""
    monkeypatch.setenv("SPAMDETECT_BASE_URL", spam_service.base_url)
    monkeypatch.setenv("SPAMDETECT_API_KEY", spam_service.api_key)
    return spam_service
