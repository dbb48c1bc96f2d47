"""``python -m spamdetect`` and the console script."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line."""
    try:
        from spamdetect.cli.main import run
    except ModuleNotFoundError as error:
        if error.name not in {"click", "rich"}:
            raise
        sys.exit("spamdetect: the command line needs its extra: pip install 'guard[spam]'")
    sys.exit(run())


if __name__ == "__main__":
    main()
