"""The pytest plugin, in a user's own test run."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

_USERS_TESTS = """
import pytest
from spamdetect import AsyncSpamClient, SpamClient

def test_blocking(spam_client):
    assert spam_client.predict("You won a free prize! Claim: http://bit.ly/x").is_spam

def test_service(spam_service, monkeypatch):
    with SpamClient(spam_service.base_url, spam_service.api_key) as spam:
        assert spam.preprocess("Hello").word_count == 1

def test_environment(spam_environment):
    with SpamClient() as spam:
        assert spam.predict("Hello").text_length == 5
"""


def test_the_fixtures_work(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text('pytest_plugins = ["spamdetect.testing.plugin"]\n')
    (tmp_path / "test_users.py").write_text(_USERS_TESTS)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stdout
    assert "3 passed" in done.stdout


def test_the_helpers_need_no_pytest() -> None:
    script = (
        "import spamdetect.testing, sys; print('pytest' in sys.modules, 'httpx' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=240, check=True
    )
    assert done.stdout == "False False\n"
