"""Keeps child processes of a run's process in the run, whatever environment they are given.

An agent starts its tools with an environment of their own: the MCP client passes on six variables,
others none, others another ``PYTHONPATH``. Such a child would not load guard. So the functions that
start a program add the variables that guard needs to the given environment, if they are missing.
The caller's own mapping is never changed.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import attrs

from guard.running import env_command
from guard.running.outward import BEHIND_WALL, WALL_VARIABLE
from guard.running.plan import HOOK
from guard.running.reports import RUN_DIR_VARIABLE, SEEN_ONLY_VARIABLE
from guard.running.routes import PROXY_VARIABLE, Changed
from guard.settings import VARIABLES

_KEY: Final = b"GUARD_API_KEY"
_PATH: Final = b"PYTHONPATH"
_RUN: Final = os.fsencode(RUN_DIR_VARIABLE)
_SEPARATOR: Final = os.fsencode(os.pathsep)
_ENVIRONMENT: Final = 4
"""The place of the environment in ``_posixsubprocess.fork_exec``, after the command's words."""


@attrs.frozen
class RunEnvironment:
    """The variables that every process of a run needs.

    Args:
        variables: guard's own.
        routed: by name, the value that leads to the run's proxy, for children that are not guarded
            Python, and the value before.
        before, after: entries of ``PYTHONPATH``: the hook, and the place of guard itself if that
            was in ``PYTHONPATH``.
    """

    variables: dict[bytes, bytes] = attrs.field(repr=False)
    routed: dict[bytes, tuple[bytes, bytes | None]] = attrs.field(factory=dict, repr=False)
    before: bytes = os.fsencode(HOOK)
    after: tuple[bytes, ...] = ()

    @classmethod
    def of_process(
        cls, environ: Mapping[str, str], changed: Mapping[str, Changed] | None = None
    ) -> RunEnvironment:
        """Return the variables that this process was started with.

        Args:
            environ: its environment.
            changed: the variables that lead the programs of its run to the proxy.
        """
        names = [*VARIABLES, RUN_DIR_VARIABLE, SEEN_ONLY_VARIABLE, PROXY_VARIABLE, WALL_VARIABLE]
        if environ.get(WALL_VARIABLE):
            names += BEHIND_WALL
        found = {os.fsencode(n): os.fsencode(environ[n]) for n in names if n in environ}
        paths = [Path(path) for path in environ.get("PYTHONPATH", "").split(os.pathsep) if path]
        home = Path(__file__).resolve().parents[2]
        after = tuple(os.fsencode(path) for path in paths if path.resolve() == home)
        routed = {
            os.fsencode(name): (
                os.fsencode(change.routed),
                None if change.before is None else os.fsencode(change.before),
            )
            for name, change in (changed or {}).items()
        }
        return cls(found, routed, after=after)

    def missing(self, given: Mapping[bytes, bytes]) -> dict[bytes, bytes]:
        """Return the variables to add to an environment, or to replace in it (``PYTHONPATH``)."""
        # 1. Another key or another run: its caller has chosen another gateway or run for the child.
        if given.get(_KEY, self.variables.get(_KEY)) != self.variables.get(_KEY):
            return {}
        if given.get(_RUN, self.variables[_RUN]) != self.variables[_RUN]:
            return {}
        lacks = {name: text for name, text in self.variables.items() if name not in given}
        # 2. Routes only where the value is the one before the run: one that the program has set for
        #    its child stays.
        lacks |= {
            name: routed
            for name, (routed, before) in self.routed.items()
            if given.get(name) == before
        }
        path = self.path_from(given.get(_PATH, b""))
        if path != given.get(_PATH):
            lacks[_PATH] = path
        return lacks

    def path_from(self, given: bytes) -> bytes:
        """Return a ``PYTHONPATH`` with the hook before the given entries and guard after them."""
        own = [entry for entry in given.split(_SEPARATOR) if entry and entry != self.before]
        rest = [entry for entry in self.after if entry not in own]
        return _SEPARATOR.join([self.before, *own, *rest])


class ChildEnvironments:
    """Adds to the environments of a process's children, while its run lasts.

    Args:
        directory: the directory of the run.
        needed: the variables that the children need.
    """

    def __init__(self, directory: Path, needed: RunEnvironment) -> None:
        self._directory = str(directory)
        self._needed = needed

    def mapping(self, given: Mapping[Any, Any]) -> Mapping[Any, Any]:
        """Return an environment with the missing variables; the same object if none is missing."""
        if not self._is_on:
            return given
        known = {os.fsencode(name): os.fsencode(text) for name, text in given.items()}
        lacks = self._needed.missing(known)
        return {**known, **lacks} if lacks else given

    def entries(self, given: Sequence[bytes]) -> Sequence[bytes]:
        """Do the same for an environment that is a list of ``NAME=text``."""
        if not self._is_on:
            return given
        lacks = self._needed.missing(_mapping(given))
        if not lacks:
            return given
        kept = [entry for entry in given if entry.partition(b"=")[0] not in lacks]
        return [*kept, *(b"%b=%b" % each for each in lacks.items())]

    def restore(self) -> None:
        """Restore for children the variables that the program has removed from its environment.

        Only in the C library's environment, which a child inherits: ``os.environ`` stays as it is.
        """
        if not self._is_on:
            return
        for name, text in self._needed.missing(dict(os.environb)).items():
            os.putenv(name, text)

    def unhidden(self, words: Any, given: Mapping[Any, Any]) -> tuple[Any, Mapping[Any, Any]]:
        """Return a command and its environment so that ``env`` removes none of guard's
        variables."""
        if not env_command.is_env(words) or not self._is_on:
            return words, given
        found = env_command.read([os.fsencode(word) for word in words])
        if found is None or not found.hides((*self._needed.variables, _PATH)):
            return words, given
        known = {os.fsencode(name): os.fsencode(text) for name, text in given.items()}
        own = found.environment(known)
        own.update(self._needed.missing(own))
        is_text = isinstance(words[0], str)
        return [os.fsdecode(word) for word in found.words] if is_text else found.words, own

    @property
    def _is_on(self) -> bool:
        return os.path.isdir(self._directory)  # gone with its run


def _mapping(entries: Sequence[bytes]) -> dict[bytes, bytes]:
    return {name: text for name, _, text in (entry.partition(b"=") for entry in entries)}


def keep_in_run(directory: Path, needed: RunEnvironment) -> None:
    """Make every program that this process starts later start in the run as well.

    Args:
        directory: the directory of the run.
        needed: the variables that they need for that.
    """
    _patch(ChildEnvironments(directory, needed))


def _patch(children: ChildEnvironments) -> None:
    import _posixsubprocess
    import subprocess

    fork_exec = _with_fork_exec(_posixsubprocess.fork_exec, children)
    _set(_posixsubprocess, "fork_exec", fork_exec)  # multiprocessing takes it from here
    _set(subprocess, "_fork_exec", fork_exec)
    # All other functions of `os` that start a program call one of these.
    for name in ("posix_spawn", "posix_spawnp"):
        _set(os, name, _with_environment(getattr(os, name), children))
    _set(os, "execve", _with_environment(os.execve, children))
    _set(os, "execv", _with_execv(os.execv, children))
    _set(os, "system", _with_system(os.system, children))
    if "uvloop" in sys.modules:
        _patch_uvloop(sys.modules["uvloop"], children)
    else:
        import wrapt

        wrapt.register_post_import_hook(lambda module: _patch_uvloop(module, children), "uvloop")


def _set(module: ModuleType, name: str, value: Any) -> None:
    if hasattr(module, name):
        setattr(module, name, value)


def _with_fork_exec(function: Callable[..., int], children: ChildEnvironments) -> Any:
    @functools.wraps(function)
    def fork_exec(words: Any, *args: Any) -> int:
        rest = list(args)
        given = rest[_ENVIRONMENT]
        if given is None:
            children.restore()
        else:
            rest[_ENVIRONMENT] = given = children.entries(given)
        known = os.environb if given is None else _mapping(given)
        words, made = children.unhidden(words, known)
        if made is not known:
            rest[_ENVIRONMENT] = [b"%b=%b" % each for each in made.items()]
        return function(words, *rest)

    return fork_exec


def _with_environment(function: Callable[..., Any], children: ChildEnvironments) -> Any:
    """Wrap a function that takes a path, a command's words and an environment."""

    @functools.wraps(function)
    def start(path: Any, argv: Any, env: Any, *args: Any, **more: Any) -> Any:
        if isinstance(env, Mapping):
            argv, env = children.unhidden(argv, children.mapping(env))
        return function(path, argv, env, *args, **more)

    return start


def _with_execv(function: Callable[..., Any], children: ChildEnvironments) -> Any:
    @functools.wraps(function)
    def execv(path: Any, argv: Any) -> Any:
        children.restore()
        words, made = children.unhidden(argv, os.environb)
        if made is os.environb:
            return function(path, argv)
        return os.execve(path, words, made)  # noqa: S606  # as its caller does

    return execv


def _with_system(function: Callable[..., int], children: ChildEnvironments) -> Any:
    @functools.wraps(function)
    def system(command: Any) -> int:
        children.restore()
        return function(command)

    return system


def _patch_uvloop(module: ModuleType, children: ChildEnvironments) -> None:
    """Wrap the methods that start a program: libuv starts it in C, through none of the above."""
    for name in ("subprocess_exec", "subprocess_shell"):
        setattr(module.Loop, name, _with_uvloop(getattr(module.Loop, name), children))


def _with_uvloop(method: Any, children: ChildEnvironments) -> Any:
    @functools.wraps(method)
    async def start(loop: Any, factory: Any, *args: Any, **more: Any) -> Any:
        given = more.get("env")
        if given is None:
            children.restore()
        known = os.environb if given is None else children.mapping(given)
        words, made = children.unhidden(args, known)
        if made is not given and made is not os.environb:
            more["env"] = {os.fsdecode(name): os.fsdecode(text) for name, text in made.items()}
        return await method(loop, factory, *words, **more)

    return start
