"""guard's own copy of httpx, so that the program's own stays untouched.

Where guard is loaded before the program, as by ``guard run``, the packages that its HTTP client is
made of are loaded under names of guard's own, from the same files. The program imports httpx,
httpcore and anyio later as if guard were not there: pytest can rewrite them, tests can fake them,
and a tracer that patches them does not see guard's requests. Only the names differ; nothing is
hidden from the program meanwhile.

Where the program has loaded httpx itself, guard shares it: a second copy would take time
and memory.
"""

from __future__ import annotations

import builtins
import importlib
import sys
from collections.abc import Mapping, Sequence
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final

_PREFIX: Final = f"{__name__}."
_COPIED: Final = ("httpx", "httpcore", "anyio")
# Optional packages that they load if installed, and that guard does not use: another event loop,
# HTTP/2, and decoders of answers that guard does not accept.
_LEFT_OUT: Final = ("trio", "h2", "brotli", "brotlicffi", "zstandard")

__path__: list[str] = []  # makes this module the package that the copies are in


def _copy_of(name: str) -> str:
    return _PREFIX + name if name.partition(".")[0] in _COPIED else name


def _import(
    name: str,
    globals: Mapping[str, object] | None = None,  # noqa: A002  # these names are Python's
    locals: Mapping[str, object] | None = None,  # noqa: A002
    fromlist: Sequence[str] | None = (),
    level: int = 0,
) -> ModuleType:
    """Import a module for a copy: this is the ``__import__`` of the copies."""
    if level == 0:
        top = name.partition(".")[0]
        if top in _LEFT_OUT:
            raise ModuleNotFoundError(f"guard does not use {top}", name=name)
        if top in _COPIED:
            module = __import__(_PREFIX + name, globals, locals, fromlist, 0)
            return module if fromlist else sys.modules[_PREFIX + top]
        if name == "importlib" and fromlist:
            return _importlib
    return __import__(name, globals, locals, fromlist, level)


def _import_module(name: str, package: str | None = None) -> ModuleType:
    """Import a module for a copy: this is the ``importlib.import_module`` of the copies."""
    return importlib.import_module(_copy_of(name), package)


_paths: Final[dict[str, list[str]]] = {}
"""The search path of each copied package, by its name here."""

_builtins: Final = {**vars(builtins), "__import__": _import}
_importlib: Final = ModuleType("importlib")
vars(_importlib).update({**vars(importlib), "import_module": _import_module})


class _CopyLoader(SourceFileLoader):
    def exec_module(self, module: ModuleType) -> None:
        module.__dict__["__builtins__"] = _builtins
        super().exec_module(module)


class _CopyFinder:
    """Finds the copies, by their names; last of all finders, so that other imports do not wait."""

    @staticmethod
    def find_spec(name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if not name.startswith(_PREFIX):
            return None
        # The top-level packages are found on `sys.path`, where the program would find them.
        spec = PathFinder.find_spec(name, _paths.get(name.rpartition(".")[0]))
        if spec is None or type(spec.loader) is not SourceFileLoader:
            return None  # in an archive, or compiled: httpx itself is used then
        spec.loader = _CopyLoader(name, spec.loader.path)
        if spec.submodule_search_locations is not None:
            _paths[name] = spec.submodule_search_locations
            spec.submodule_search_locations = []  # or Python's own finder would find them
        return spec


def _load() -> Any:
    if "httpx" not in sys.modules:
        sys.meta_path.append(_CopyFinder)
        # Without its command line, whose libraries take longer to load than the client.
        sys.modules[f"{_PREFIX}httpx._main"] = None  # type: ignore[assignment]  # cannot be imported
        try:
            return importlib.import_module(f"{_PREFIX}httpx")
        except ImportError:  # it cannot be copied: share the program's
            sys.meta_path.remove(_CopyFinder)
    return importlib.import_module("httpx")


if TYPE_CHECKING:
    import httpx
else:
    httpx = _load()

__all__ = ["httpx"]
