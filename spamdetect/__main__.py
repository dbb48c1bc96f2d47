"""``python -m spamdetect`` and the console script."""

from __future__ import annotations

import sys

from spamdetect.version import installs


def main() -> None:
    """Run the command line."""
    try:
        from spamdetect.cli.main import run

        code = run()
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] in ("guard", "spamdetect"):
            raise
        sys.exit(f"spamdetect: the command line needs its extra: {installs('spam')}")
    sys.exit(code)


if __name__ == "__main__":
    main()
