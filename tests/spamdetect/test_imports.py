"""What importing costs, and that the arrows point downward."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import spamdetect

_PACKAGE = Path(spamdetect.__file__).parent
_HEAVY = ["httpx", "numpy", "starlette", "uvicorn", "telegram", "prometheus_client", "click"]


def _loaded_after(statement: str) -> set[str]:
    script = f"{statement}\nimport sys; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", script], check=True, capture_output=True, text=True, timeout=240
    )
    return set(done.stdout.split())


def test_importing_the_package_loads_nothing_heavy() -> None:
    assert not _loaded_after("import spamdetect").intersection([*_HEAVY, "attrs", "msgspec"])


def test_a_client_loads_neither_engine_nor_server() -> None:
    loaded = _loaded_after("from spamdetect import SpamClient; SpamClient(api_key='k')")
    assert "httpx" in loaded
    # httpx itself loads click.
    assert not loaded.intersection(set(_HEAVY) - {"httpx", "click"})
    assert not [name for name in loaded if name.startswith("spamdetect.engine")]


def test_every_public_name_exists_and_nothing_else_is_found() -> None:
    for name in spamdetect.__all__:
        assert getattr(spamdetect, name) is not None
    assert set(spamdetect.__all__) <= set(dir(spamdetect))
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = spamdetect.nothing


def _imports(path: Path) -> set[tuple[str, bool]]:
    """Modules that a file imports, and whether at run time when the module is loaded."""
    found: set[tuple[str, bool]] = set()

    def visit(node: ast.AST, eager: bool) -> None:
        for child in ast.iter_child_nodes(node):
            inner = eager and not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef)
            if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
                inner = False
            if isinstance(child, ast.Import):
                found.update((alias.name, inner) for alias in child.names)
            elif isinstance(child, ast.ImportFrom):
                found.add((child.module or "", inner))
                found.update((f"{child.module}.{alias.name}", inner) for alias in child.names)
            visit(child, inner)

    visit(ast.parse(path.read_text("utf-8")), True)
    return found


def _files(*names: str) -> list[Path]:
    return [file for name in names for file in sorted(_PACKAGE.glob(name))]


def test_arrows_point_downward() -> None:
    upward: list[str] = []

    def forbid(files: list[Path], *prefixes: str, eager_only: bool = False) -> None:
        for file in files:
            for module, eager in _imports(file):
                inside = any(f"{module}.".startswith(f"{prefix}.") for prefix in prefixes)
                if inside and (eager or not eager_only):
                    upward.append(f"{file.relative_to(_PACKAGE)} -> {module}")

    everything = _files("**/*.py")
    assert len(everything) > 30
    forbid(everything, "guard")
    clients = _files("client.py", "sync.py", "_*.py", "models.py", "errors.py", "settings.py")
    clients = [file for file in clients if file.name not in {"__init__.py", "__main__.py"}]
    forbid(clients, "spamdetect.service", "spamdetect.cli", "spamdetect.files")
    forbid(clients, "spamdetect.engine", eager_only=True)
    forbid(_files("engine/*.py"), "spamdetect.service", "spamdetect.client", "spamdetect.cli")
    forbid(_files("engine/*.py"), "httpx", "starlette", "uvicorn", "msgspec.json")
    forbid(_files("pool.py"), "spamdetect.service", "spamdetect.files", "spamdetect.client")
    forbid(_files("service/*.py", "files/*.py", "training/*.py"), "spamdetect.cli")
    pure = _files("_exchange.py", "_retry.py", "models.py", "errors.py")
    forbid(pure, "asyncio", "httpx", "time", "anyio")
    assert upward == []
