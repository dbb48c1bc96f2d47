"""What a row of the table of programs says."""

from __future__ import annotations

from pathlib import Path

import attrs


@attrs.frozen
class Redirect:
    """The changes that one program needs beside the common variables.

    Texts have ``PROXY`` in place of the proxy's address.

    Attributes:
        variables: for its environment.
        arguments: inserted after its name in the command.
        copied: copies of its settings, by the variable that names their directory: text by file
            name.
        written: settings for a file of the run, by the variable that names the file.
        kept: the same for what no run changes: one file for all of them.
        unroutable: why it cannot be led to the proxy; None if it can.
    """

    variables: dict[str, str] = attrs.Factory(dict)
    arguments: tuple[str, ...] = ()
    copied: dict[str, dict[str, str]] = attrs.Factory(dict)
    written: dict[str, str] = attrs.Factory(dict)
    kept: dict[str, str] = attrs.Factory(dict)
    unroutable: str | None = None


class UnroutableError(Exception):
    """Raised for a program that cannot be led to the proxy; the text says why."""


def is_on(value: object) -> bool:
    """Return whether a variable that turns something on does so with this value."""
    return str(value or "").strip().lower() not in ("", "0", "false", "no", "off")


def overrides(path: Path | str, name: str) -> str:
    """Return why a program cannot be led: a place of its settings names an address."""
    return (
        f"{path} sets {name}, which goes before what guard sets; "
        "take it out there, and set it in the environment where it is needed"
    )
