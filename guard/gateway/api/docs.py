"""Serves a page for each error code, where the SDK's ``docs_url`` points to."""

from __future__ import annotations

from html import escape
from typing import Final

from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import BaseRoute, Route

from guard.core.catalogue import CATALOGUE, CatalogueEntry

ERRORS_PATH: Final = "/docs/errors"

_HEADERS: Final = {
    "Content-Security-Policy": (
        "default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "Cache-Control": "max-age=3600",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


def routes() -> list[BaseRoute]:
    """Return the routes of the list of codes and of the page of each."""
    return [
        Route(ERRORS_PATH, _index, methods=["GET"]),
        Route(f"{ERRORS_PATH}/{{code}}", _code, methods=["GET"]),
    ]


async def _index(_: Request) -> Response:
    rows = "".join(
        f"<dt><a href='{ERRORS_PATH}/{escape(code)}'>{escape(code)}</a></dt>"
        f"<dd>{escape(entry.title)}</dd>"
        for code, entry in sorted(CATALOGUE.items())
    )
    return _page("Error codes", f"<dl>{rows}</dl>")


async def _code(request: Request) -> Response:
    code = str(request.path_params["code"]).upper()
    entry = CATALOGUE.get(code)
    if entry is None:
        body = f"<p>This version knows no such code. <a href='{ERRORS_PATH}'>All codes</a></p>"
        return _page("Unknown error code", body, status_code=404)
    return _page(f"{code}: {entry.title}", _described(entry))


def _described(entry: CatalogueEntry) -> str:
    return (
        f"<p>{escape(entry.explanation)}</p>"
        "<h2>What an end user is told</h2>"
        f"<blockquote>{escape(entry.user_message)}</blockquote>"
        f"<p><a href='{ERRORS_PATH}'>All codes</a></p>"
    )


def _page(title: str, body: str, *, status_code: int = 200) -> Response:
    """Return a page without script, style or picture, so that its policy can forbid them all."""
    return HTMLResponse(
        "<!doctype html><html lang='en'><head><meta charset='utf-8'>"
        "<meta name='viewport' content='width=device-width'>"
        "<meta name='color-scheme' content='light dark'>"
        f"<title>{escape(title)}</title></head>"
        f"<body><main><h1>{escape(title)}</h1>{body}</main></body></html>",
        status_code=status_code,
        headers=_HEADERS,
    )
