"""Programs of a user without any right, started by root."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

NOBODY = 65_534

# Python itself may be in a directory of root's: there it is put in a place that all may enter, for
# these programs alone.
_OPENED = """
set -e
if [ -n "$CLOSED" ]; then
  mount --bind "$PYTHON" /mnt
  mount -t tmpfs -o mode=755 none "$CLOSED"
  mkdir -p "$PYTHON"
  mount --bind /mnt "$PYTHON"
fi
exec setpriv --reuid=65534 --regid=65534 --clear-groups --inh-caps=-all "$@"
"""


def as_nobody() -> list[str]:
    """Return what a command begins with that another user shall run; skip where root is needed."""
    if os.geteuid() != 0:
        pytest.skip("only root starts programs of another user")
    if shutil.which("setpriv") is None or shutil.which("unshare") is None:
        pytest.skip("setpriv and unshare are not installed")
    base = Path(sys.base_prefix).resolve()
    closed = next((str(p) for p in reversed(base.parents) if not p.stat().st_mode & 0o001), "")
    variables = [f"CLOSED={closed}", f"PYTHON={base}"]
    return ["env", *variables, "unshare", "--mount", "sh", "-c", _OPENED, "sh"]


def require_nobody() -> list[str]:
    """Return the same; skip if such programs do not run here."""
    found = as_nobody()
    done = subprocess.run([*found, sys.executable, "-c", ""], capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"a program of another user does not run here: {done.stderr.strip()}")
    return found


def directory_of_nobody() -> Path:
    """Make a directory that is theirs."""
    path = Path(tempfile.mkdtemp(prefix="nobody-"))
    os.chown(path, NOBODY, NOBODY)
    return path
