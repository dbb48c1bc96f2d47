"""Leads one program to the proxy of its run: by its environment, its command and its settings."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, Self

import attrs

from guard.local_gateway import open_private
from guard.running import outward, programs, reports, routes
from guard.running.program_settings import StartPlace
from guard.running.routes import PROXY, PROXY_VARIABLE, Routes

_SETTINGS: Final = "settings"
_FILE_BYTES_MAX: Final = 4_194_304


@attrs.frozen
class Routing:
    """How one program is led to a proxy that does not serve yet.

    Attributes:
        environ: the caller's environment, without the changes of an outer run.
        unroutable: why the program cannot be led to it; None if it can.
    """

    environ: dict[str, str] = attrs.field(repr=False)
    unroutable: str | None
    _command: list[str]
    _routes: Routes
    _copied: dict[str, dict[str, str]] = attrs.field(repr=False)
    _written: dict[str, str] = attrs.field(repr=False)
    _kept: dict[str, str] = attrs.field(repr=False)

    @classmethod
    def of(cls, command: Sequence[str], environ: Mapping[str, str]) -> Self:
        """Find the addresses that a program would use, and lead it to the proxy instead.

        Args:
            command: the command of the program.
            environ: the environment of this process.
        """
        own = dict(environ)
        outer = own.pop(reports.RUN_DIR_VARIABLE, None)
        if outer:  # its proxy would charge requests that this run's proxy has charged already
            routes.put_back(own, reports.routed(Path(outer)))
        own.pop(PROXY_VARIABLE, None)
        found = Routes.of(own)
        home = Path(own.get("HOME") or "/")
        place = StartPlace(own, home, Path.cwd(), _text_of, _names_in)
        led, pointed = programs.point(command, place, found.upstreams)
        with_more = found.with_more(pointed.variables, own)
        return cls(
            own, pointed.unroutable, led, with_more, pointed.copied, pointed.written, pointed.kept
        )

    @property
    def upstreams(self) -> dict[str, str]:
        """The addresses behind the proxy that are not the vendors' own, by name."""
        return self._routes.upstreams.named

    def at(
        self, url: str, forward: str, directory: Path, *, walled: bool = False
    ) -> tuple[list[str], dict[str, str]]:
        """Return the program's command and the variables for its environment.

        Writes the changes into the run's directory, for its guarded processes, and copies of
        settings.

        Args:
            url: the URL of the proxy.
            forward: the URL of the forward proxy.
            directory: the directory of the run.
            walled: whether the program has no network but guard.
        """
        changed = self._routes.at(url)
        # Behind a wall not among the changes: guarded Python has to go out by it as well.
        only_way = outward.behind_wall(forward) if walled else {}
        for name, text in () if walled else outward.variables(self.environ, forward).items():
            changed[name] = routes.Changed(text, self.environ.get(name))
        for variable, files in self._copied.items():
            folder = directory / _SETTINGS / variable.lower()
            folder.mkdir(parents=True, mode=0o700)
            for name, text in files.items():
                (folder / name).write_text(text.replace(PROXY, url), encoding="utf-8")
            changed[variable] = routes.Changed(str(folder), self.environ.get(variable))
        own = directory / _SETTINGS
        for texts, place in ((self._written, own), (self._kept, self._place_for_all(directory))):
            for variable, text in texts.items():
                path = place / f"{variable.lower()}.json"
                _write(path, text.replace(PROXY, url))
                changed[variable] = routes.Changed(str(path), self.environ.get(variable))
        reports.say_routed(directory, changed)
        variables = {name: change.routed for name, change in changed.items()}
        command = [word.replace(PROXY, url) for word in self._command]
        return command, {**variables, **only_way, PROXY_VARIABLE: url}

    def _place_for_all(self, directory: Path) -> Path:
        """Return where a file of settings for all runs is: where nobody else may write above it.

        Some programs read nothing below ``/tmp``.
        """
        around = reports.place_of(directory)
        gateways = "" if around is None else around.gateway
        found = (gateways, self.environ.get("XDG_RUNTIME_DIR"))
        return next(
            (Path(each) for each in found if each and is_ours_alone(Path(each))),
            directory / _SETTINGS,
        )


def _write(path: Path, text: str) -> None:
    """Write a file that only this user reads; one that has the text already stays."""
    if _text_of(path) == text:
        return
    path.parent.mkdir(mode=0o700, exist_ok=True)
    fresh = path.with_name(f"{path.name}.{os.getpid()}")
    with open(open_private(fresh, os.O_WRONLY | os.O_TRUNC), "w", encoding="utf-8") as file:
        file.write(text)
    fresh.rename(path)


def is_ours_alone(place: Path) -> bool:
    """Return whether only this user and root may write in a directory and those above it."""
    with contextlib.suppress(OSError):
        real = place.resolve()
        own = real.stat().st_uid == os.geteuid() and os.access(real, os.W_OK)
        return own and not any(each.stat().st_mode & 0o022 for each in (real, *real.parents))
    return False


def _text_of(path: Path) -> str | None:
    """Return the text of a settings file; None if it is missing, too large or unreadable."""
    try:
        if os.path.getsize(path) > _FILE_BYTES_MAX:
            return None
        return path.read_text("utf-8")
    except (OSError, ValueError):
        return None


def _names_in(folder: Path) -> list[str]:
    """Return the names in a directory; none if it is missing or unreadable."""
    try:
        return os.listdir(folder)
    except OSError:
        return []
