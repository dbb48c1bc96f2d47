"""Files that operators write."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import click

from guard.gateway.cli.output import safe

FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


def read_file(path: Path) -> Any:
    """Read TOML, YAML or JSON by the file's suffix.

    Raises:
        ClickException: another suffix, or a file that cannot be read in that format.
    """
    text = path.read_text("utf-8")
    try:
        if path.suffix == ".toml":
            return tomllib.loads(text)
        if path.suffix == ".json":
            return json.loads(text)
        if path.suffix in (".yaml", ".yml"):
            import yaml  # type: ignore[import-untyped]  # comes with uvicorn[standard]

            return yaml.safe_load(text) or {}
    except ValueError as exc:
        raise click.ClickException(f"{path.name}: {exc}") from None
    except Exception as exc:  # noqa: BLE001  # yaml's own errors, whose type needs the import
        raise click.ClickException(f"{path.name}: {safe(exc)}") from None
    raise click.ClickException(f"{path.name}: a .toml, .yaml or .json file is needed")
