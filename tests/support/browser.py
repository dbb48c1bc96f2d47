"""Headless Chromium, driven by Playwright."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from typing import Any

import pytest

_BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
_ARGUMENTS = [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
]  # fmt: skip


@contextlib.contextmanager
def chromium() -> Iterator[Any]:
    """Open Chromium. Without one the tests skip, but never in CI."""
    named = os.environ.get("GUARD_CHROMIUM") or next(filter(None, map(shutil.which, _BROWSERS)), "")
    try:
        from playwright.sync_api import sync_playwright
    except ModuleNotFoundError:
        named = ""
    if not named:
        text = "NO BROWSER TESTS: they need Playwright for Python and a Chromium (GUARD_CHROMIUM)"
        if os.environ.get("CI") == "true":
            pytest.fail(text)
        pytest.skip(text)
    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=named, args=_ARGUMENTS)
        yield opened
        opened.close()
