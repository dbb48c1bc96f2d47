"""Files that operators write."""

from __future__ import annotations

import json
import math
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import click

from guard.gateway.cli.output import safe
from guard.gateway.cli.written_rules import in_wire

VALUES_MAX: Final = 100_000

FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


def read_file(path: Path, *, dates: bool = False) -> Any:
    """Read TOML, YAML or JSON by the file's suffix.

    Args:
        path: of the file.
        dates: whether it may hold dates, and whatever else JSON has not.

    Raises:
        ClickException: another suffix, or a file that cannot be read in that format.
    """
    checked: Callable[[Any], Any] = (lambda found: found) if dates else _checked
    try:
        text = path.read_text("utf-8")
        if path.suffix == ".toml":
            return checked(tomllib.loads(text))
        if path.suffix == ".json":
            return checked(json.loads(text))
        if path.suffix in (".yaml", ".yml"):
            import yaml  # type: ignore[import-untyped]  # comes with uvicorn[standard]

            return checked(yaml.safe_load(text) or {})
    except UnicodeDecodeError:
        raise click.ClickException(f"{path.name} is not UTF-8 text") from None
    except RecursionError:
        raise click.ClickException(f"{path.name} is nested too deeply") from None
    except (ValueError, OSError) as exc:
        raise click.ClickException(f"{path.name}: {safe(exc)}") from None
    except Exception as exc:  # noqa: BLE001  # yaml's own errors, whose type needs the import
        raise click.ClickException(f"{path.name}: {safe(exc)}") from None
    raise click.ClickException(f"{path.name}: a .toml, .yaml or .json file is needed")


def read_rules(path: Path) -> dict[str, Any]:
    """Read a file whose top is a table, as the admin API takes it.

    Raises:
        ClickException: as :func:`read_file`, or it is none.
    """
    found = read_file(path)
    if not isinstance(found, dict):
        raise click.ClickException(f"{path.name}: a table of names and values is expected")
    try:
        return in_wire(found)
    except ValueError as exc:
        raise click.ClickException(f"{path.name}: {safe(exc)}") from None


def _checked(value: Any) -> Any:
    """Return the content of a file; it can be sent as JSON.

    Raises:
        ValueError: it holds itself, too many values, or one that JSON has not.
    """
    left, count = [value], 0
    while left:
        each = left.pop()
        count += 1
        if count > VALUES_MAX:
            raise ValueError(f"it holds itself, or more than {VALUES_MAX:,} values")
        if isinstance(each, dict):
            if not all(isinstance(key, str) for key in each):
                raise ValueError("names are texts: put them in quotes")
            left += each.values()
        elif isinstance(each, list):
            left += each
        elif not isinstance(each, str | int | float | None):
            raise ValueError(f"{each} is no text, number, list or table: put it in quotes")
        elif isinstance(each, float) and not math.isfinite(each):
            raise ValueError(f"{each} is not a finite number")
    return value
