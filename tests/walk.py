"""Walk as a new user: a fresh environment, and only a folder of wheels to install from.

README, tutorial and recipes are followed as printed, each in a folder of its own and without a
setting of guard, beside a stand-in of the vendors. What a page says to install is installed, and
nothing else.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Callable
from pathlib import Path
from typing import Final, TypeVar

from guard.version import DISTRIBUTION
from tests.support.agent_vendor import AgentVendor
from tests.support.pages import PageFailure, PageReader, pages
from tests.support.programs import ROOT
from tests.support.runs import local_directory

T = TypeVar("T")
RECIPES: Final = "fastapi", "langgraph", "mcp"
_INSTALLS: Final = re.compile(rf"pip install (?P<what>[^`\n]*{DISTRIBUTION}[^`\n]*)")
_AGENT: Final = """\
import openai

print(openai.OpenAI().chat.completions.create(
    model="gpt-4o-mini", max_tokens=50, messages=[{"role": "user", "content": "Hello"}]
).choices[0].message.content)
"""


def main(recipes: tuple[str, ...]) -> None:
    """Make the folder of wheels, then walk; fails at the end if a page met a wall."""
    walked = ["README.md", "docs/tutorial.md", *(f"docs/recipes/{name}.md" for name in recipes)]
    found = pages()
    walls: list[str] = []
    with tempfile.TemporaryDirectory(prefix="walk-") as name, contextlib.ExitStack() as ends:
        folder = Path(name)
        wheels = _timed("the folder of wheels", lambda: wheels_in(folder, walked))
        python = folder / "environment" / "bin" / "python"
        _timed("a fresh environment", lambda: venv.create(folder / "environment", with_pip=True))
        vendor = ends.enter_context(contextlib.closing(AgentVendor()))
        for page in walked:
            began = time.monotonic()
            for what in installs(page):
                _pip(python, "install", "--no-index", "--find-links", str(wheels), *what)
            installed = time.monotonic()
            place = folder / Path(page).stem
            place.mkdir()
            (place / "agent.py").write_text(_AGENT)
            with local_directory(place / "local") as local:
                reader = PageReader(place, environ(python, place, local, vendor.url), str(python))
                with contextlib.closing(reader):
                    before = found["docs/recipes/index.md"] if "/recipes/" in page else []
                    for block in [*before, *found[page]]:
                        try:
                            reader.run(block)
                        except PageFailure as exc:
                            walls.append(str(exc))
            ended = time.monotonic()
            print(f"{page}: {installed - began:.0f} s to install, {ended - installed:.0f} s")
    if walls:
        raise SystemExit("\n\n".join(["walls:", *walls]))


def installs(page: str) -> list[list[str]]:
    """Return what a page says to install, as arguments of pip."""
    text = (ROOT / page).read_text("utf-8")
    return [shlex.split(match["what"]) for match in _INSTALLS.finditer(text)]


def wheels_in(folder: Path, walked: list[str]) -> Path:
    """Fill a folder with the wheel of this checkout and those of all that the pages install."""
    wheels = folder / "wheels"
    _pip(sys.executable, "wheel", "--no-deps", "--wheel-dir", str(wheels), str(ROOT))
    named = {each for page in walked for what in installs(page) for each in what}
    where = "--dest", str(wheels), "--find-links", str(wheels)
    _pip(sys.executable, "download", "--only-binary=:all:", *where, *sorted(named))
    return wheels


def environ(python: Path, home: Path, local: Path, vendor: str) -> dict[str, str]:
    """Return what a stranger's shell holds."""
    return {
        "PATH": os.pathsep.join([str(python.parent), os.environ["PATH"]]),
        "HOME": str(home), "XDG_DATA_HOME": str(home / "data"), "GUARD_LOCAL_DIR": str(local),
        "GUARD_GATEWAY_PORT": "0", "SPAMDETECT_PORT": "0",  # the usual ones may be in use here
        "OPENAI_BASE_URL": f"{vendor}/v1", "OPENAI_API_KEY": "of-the-stand-in",
        "OPENAI_AGENTS_DISABLE_TRACING": "1",  # it would go to the vendor itself
    }  # fmt: skip


def _pip(python: str | Path, *arguments: str) -> None:
    subprocess.run([str(python), "-m", "pip", "--quiet", *arguments], check=True, cwd="/")


def _timed(what: str, do: Callable[[], T]) -> T:
    began = time.monotonic()
    result = do()
    print(f"{what}: {time.monotonic() - began:.0f} s")
    return result


if __name__ == "__main__":
    main(tuple(sys.argv[1:]) or RECIPES)
