"""The dashboard's own script, styles and icon: read once, served with a hash in the address."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from guard.gateway.dashboard.security import HEADERS

FOLDER: Final = Path(__file__).parent / "static"
_TYPES: Final = {
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}


class Assets:
    """Every file of the folder, read into memory: they are few and small, and no request can name
    a path."""

    def __init__(self) -> None:
        self._files = {
            path.name: path.read_bytes() for path in FOLDER.iterdir() if path.suffix in _TYPES
        }
        self._hashes = {
            name: hashlib.sha256(data).hexdigest()[:12] for name, data in self._files.items()
        }

    def address(self, name: str) -> str:
        """Return where a file is served; the address changes with its content."""
        return f"/static/{name}?v={self._hashes[name]}"

    def routes(self) -> list[BaseRoute]:
        """Return the route of the files."""
        return [Route("/static/{name}", self._serve, methods=["GET"])]

    async def _serve(self, request: Request) -> Response:
        name = str(request.path_params["name"])
        data = self._files.get(name)
        if data is None:
            return Response("no such file", status_code=404, headers=HEADERS)
        current = request.query_params.get("v") == self._hashes[name]
        cache = "public, max-age=31536000, immutable" if current else "no-cache"
        return Response(
            data, media_type=_TYPES[Path(name).suffix], headers=HEADERS | {"Cache-Control": cache}
        )
