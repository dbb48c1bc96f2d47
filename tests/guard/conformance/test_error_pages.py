"""Every code has a page: at each gateway, where ``docs_url`` points, and in the manual."""

from __future__ import annotations

import html
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from guard.breaker import exceptions
from guard.breaker.exceptions import GuardError
from guard.core.catalogue import CATALOGUE, FALLBACK_MESSAGE


def _codes() -> set[str]:
    """Return the default code of every exception class that has one."""
    return {
        value.error_code
        for value in vars(exceptions).values()
        if isinstance(value, type) and isinstance(getattr(value, "error_code", None), str)
    }


def test_every_code_of_every_exception_has_a_catalogue_entry() -> None:
    """Part 7: every exception carries an error_code; the catalogue has a message for each."""
    family = {f"GD-C00{number}" for number in range(6)} | {"GD-B005"}
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
