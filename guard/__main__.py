"""``python -m guard`` and the ``guard`` command."""

from __future__ import annotations

import sys

from guard.version import installs


def main() -> None:
    """Run the command line; say what to install when its parts are missing."""
    try:
        from guard.cli import cli

        cli(prog_name="guard")
    except ModuleNotFoundError as exc:  # also of a command that imports as it runs
        if exc.name is None or exc.name.partition(".")[0] in ("guard", "spamdetect"):
            raise
        sys.stderr.write(
            f"guard: this command needs the package {exc.name!r}, which is not installed.\n"
            f"Install the extra: {installs('gateway')}, or all of them: {installs('all')}\n"
        )
        raise SystemExit(1) from None


if __name__ == "__main__":
    main()
