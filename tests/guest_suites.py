"""Run the test suites of vendor clients with and without ``guard run``: the same tests must fail.

    python tests/guest_suites.py FOLDER [NAME ...]

``FOLDER`` holds source distributions (``httpx-*.tar.gz`` and others; ``nox -s guests`` downloads
them), of the very releases that are installed. Each suite runs twice; tests that then differ run
again, alone, both ways, so that those that fail now and then are not counted. The exit code is 1 if
tests differ.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import tempfile
import xml.etree.ElementTree as ET
from collections import Counter
from pathlib import Path
from typing import Final

AGAIN_MAX: Final = 100
"""Above this many different tests something is wrong with all of them."""

LEFT_OUT: Final = {
    # Its mock sends the usage of a stream though nobody has asked; the vendor does not, and guard,
    # which asks for it, takes it out again.
    "openai": ("tests/api_resources", "tests/lib/chat/test_stream_moderation.py"),
    "anthropic": ("tests/api_resources",),
}
"""The API's resources need a mock server of the vendor's that is no Python package: all fail."""

OPTIONS: Final = (
    "-q", "-p", "no:cacheprovider", "--continue-on-collection-errors",
    # Of libraries that are newer than the suite; some suites make them errors.
    "-W", "ignore::DeprecationWarning",
)  # fmt: skip

Outcomes = dict[str, str]


def outcomes(folder: Path, guarded: bool, tests: list[str], left_out: tuple[str, ...]) -> Outcomes:
    """Run tests; return the outcome of each."""
    report = folder / f"report-{'guarded' if guarded else 'plain'}.xml"
    report.unlink(missing_ok=True)
    command = [
        sys.executable, "-m", "pytest", *OPTIONS, f"--junitxml={report}",
        *(f"--ignore={each}" for each in left_out), *tests,
    ]  # fmt: skip
    if guarded:
        command = [sys.executable, "-m", "guard", "run", "--", *command]
    environment = {key: text for key, text in os.environ.items() if not key.startswith("GUARD_")}
    environment["GUARD_LOCAL_DIR"] = str(folder / ".guard")
    done = subprocess.run(
        command, cwd=folder, env=environment, stdin=subprocess.DEVNULL, timeout=3600,
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if not report.exists():
        print(done.stdout[-3000:], done.stderr[-3000:])
        return {}
    found: Outcomes = {}
    for case in ET.parse(report).getroot().iter("testcase"):
        kinds = {child.tag for child in case} & {"failure", "error", "skipped"}
        name = f"{case.get('classname')}::{case.get('name')}"
        found[name] = max(kinds, default="passed")
    return found


def compare(archive: Path) -> list[str]:
    """Compare one suite; return the tests that differ."""
    name = archive.name.rpartition("-")[0]
    with tempfile.TemporaryDirectory() as place:
        with tarfile.open(archive) as packed:
            packed.extractall(place, filter="data")
        (folder,) = Path(place).iterdir()
        # The installed package is tested, as a program would import it.
        for source in (folder / "src", folder / name):
            if source.exists():
                source.rename(source.with_name(f"{source.name}-not-installed"))
        left_out = LEFT_OUT.get(name, ())
        plain = outcomes(folder, False, ["tests"], left_out)
        guarded = outcomes(folder, True, ["tests"], left_out)
        different = sorted(
            test for test in plain.keys() | guarded.keys() if plain.get(test) != guarded.get(test)
        )
        if 0 < len(different) <= AGAIN_MAX:
            words = ["tests", "-k", " or ".join({_word(test) for test in different})]
            plain_again = outcomes(folder, False, words, left_out)
            guarded_again = outcomes(folder, True, words, left_out)
            different = [t for t in different if plain_again.get(t) != guarded_again.get(t)]
    print(f"{archive.name}: {len(plain)} tests; {dict(Counter(plain.values()))} without guard, "
          f"{dict(Counter(guarded.values()))} under guard run; "
          f"{len(different)} differ", flush=True)  # fmt: skip
    for test in different:
        print(f"  {test}: {plain.get(test)} without, {guarded.get(test)} with", flush=True)
    return different if plain and guarded else ["no report"]


def _word(test: str) -> str:
    return test.rpartition("::")[2].partition("[")[0]


def main() -> int:
    folder, *names = sys.argv[1:]
    archives = sorted(Path(folder).glob("*.tar.gz"))
    wanted = [each for each in archives if not names or each.name.rpartition("-")[0] in names]
    return 1 if [test for archive in wanted for test in compare(archive)] else 0


if __name__ == "__main__":
    sys.exit(main())
