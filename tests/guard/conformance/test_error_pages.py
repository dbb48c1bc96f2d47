"""Every code has a page: at each gateway, where ``docs_url`` points, and in the manual."""

from __future__ import annotations

import html
import re
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import httpx
import pytest

import guard
from guard.breaker import exceptions
from guard.breaker.exceptions import GuardError
from guard.core.catalogue import CATALOGUE, FALLBACK_MESSAGE
from tests.support.generators import generator

_ROOT: Final = Path(__file__).parents[3]


def _codes() -> set[str]:
    """Return the default code of every exception class that has one."""
    return {
        value.error_code
        for value in vars(exceptions).values()
        if isinstance(value, type) and isinstance(getattr(value, "error_code", None), str)
    }


def test_the_manuals_page_is_up_to_date() -> None:
    """Part 7: ``docs_url``; ``python docs/generate_errors.py`` writes the page anew."""
    errors = generator("errors")
    assert errors.PAGE.read_text(encoding="utf-8") == errors.page()


def test_the_manuals_page_has_an_anchor_for_every_code() -> None:
    """Part 7: ``docs_url``; one section for each code, anchored by the code in lower case."""
    lines = generator("errors").PAGE.read_text(encoding="utf-8").splitlines()
    anchors = [line for line in lines if line.startswith("(gd-")]
    assert sorted(anchors) == sorted(f"({code.lower()})=" for code in CATALOGUE)


def test_every_code_that_the_package_names_has_a_catalogue_entry() -> None:
    """Part 2, User message: a string per error_code; also those of the gateway's answers."""
    named: set[str] = set()
    for path in (_ROOT / "guard").rglob("*.py"):
        named |= set(re.findall(r"GD-[A-Z]+\d{3}", path.read_text(encoding="utf-8")))
    assert named - {"GD-C099"} == set(CATALOGUE)  # which ends the range of the family


def test_every_code_of_every_exception_has_a_catalogue_entry() -> None:
    """Part 7: every exception carries an error_code; the catalogue has a message for each."""
    family = {f"GD-C00{number}" for number in range(6)} | {"GD-B005", "GD-B006"}
    assert _codes() | family <= set(CATALOGUE)


@pytest.mark.parametrize("code", sorted(CATALOGUE))
def test_messages_are_for_people(code: str) -> None:
    """Part 7, rule 4: a message for end users holds no internal identifiers."""
    message = CATALOGUE[code].user_message
    assert message.strip()
    assert code not in message
    assert "GD-" not in message
    if code != "GD-X000":
        assert message != FALLBACK_MESSAGE


@pytest.mark.parametrize("code", sorted(CATALOGUE))
def test_docs_url_is_served_by_every_gateway(gateway: Any, code: str) -> None:
    """Part 7: ``docs_url``; the page that it names is there, in either case of the code."""
    path = urlsplit(GuardError(error_code=code).docs_url).path
    for spelled in (path, path.replace(code, code.lower())):
        reply = httpx.get(gateway.base_url + spelled)
        assert reply.status_code == 200
        assert reply.headers["content-type"].startswith("text/html")
        assert "default-src 'none'" in reply.headers["content-security-policy"]
        text = html.unescape(reply.text)
        assert CATALOGUE[code].explanation in text
        assert CATALOGUE[code].user_message in text


def test_docs_url_names_the_gateway_in_use(gateway: Any) -> None:
    """Part 7: ``docs_url``; nobody has a page of a gateway that does not run."""
    runtime = guard.GuardRuntime("k" * 24, gateway.base_url)
    try:
        url = GuardError(error_code="GD-B001").docs_url
    finally:
        runtime.shutdown(flush=False)
    assert url == f"{gateway.base_url}/docs/errors/GD-B001"
    assert httpx.get(url).status_code == 200


def test_the_list_of_codes_links_to_each_page(gateway: Any) -> None:
    """Part 7: ``docs_url``."""
    text = httpx.get(f"{gateway.base_url}/docs/errors").text
    for code in CATALOGUE:
        assert f"'/docs/errors/{code}'" in text


def test_an_unknown_code_is_not_found_and_not_echoed(gateway: Any) -> None:
    """Part 7: ``docs_url``; what was asked for is not written into the page."""
    reply = httpx.get(f"{gateway.base_url}/docs/errors/%3Cscript%3Ealert(1)%3C%2Fscript%3E")
    assert reply.status_code == 404
    assert "alert" not in reply.text.lower()
