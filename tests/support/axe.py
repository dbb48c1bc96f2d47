"""What axe finds in a page that is open in a browser."""

from __future__ import annotations

import importlib.resources
from collections.abc import Callable
from typing import Any


def axe() -> Callable[[Any], set[tuple[str, str]]]:
    """Return a function that says what axe finds: the rules, and where."""
    source = (importlib.resources.files("axe_playwright_python") / "axe.min.js").read_text("utf-8")

    def find(page: Any) -> set[tuple[str, str]]:
        page.evaluate(source)
        return {
            (each["id"], " ".join(map(str, node["target"])))
            for each in page.evaluate("axe.run()")["violations"]
            for node in each["nodes"]
        }

    return find
