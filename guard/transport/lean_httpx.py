"""Imports httpx without its command line, whose libraries take longer to load than the client.

``httpx`` imports ``click``, ``rich`` and ``pygments`` if they are installed, for ``httpx.main``.
Here it is imported only when it is called.
"""

from __future__ import annotations

import sys
from typing import Any

_COMMAND_LINE = "httpx._main"


def _main(*args: Any, **options: Any) -> Any:
    import importlib

    return importlib.import_module(_COMMAND_LINE).main(*args, **options)


if "httpx" in sys.modules:  # the application has imported it, command line and all
    import httpx
else:
    sys.modules[_COMMAND_LINE] = None  # type: ignore[assignment]  # makes its import fail
    try:
        import httpx
    finally:
        del sys.modules[_COMMAND_LINE]
    httpx.main = _main  # type: ignore[assignment]  # a stand-in for a click command

__all__ = ["httpx"]
