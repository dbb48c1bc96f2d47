"""The recording of ``guard run``: the README opens with it, and it can be made again."""

from __future__ import annotations

import re
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from tests.support.coding_agents import MISSING, are_installed
from tests.support.programs import ROOT, environment

RECORDING = ROOT / "docs" / "recording" / "guard-run.svg"


def texts(path: Path) -> str:
    """Return what a picture shows, line by line."""
    rows: dict[str, str] = {}
    for each in ET.parse(path).iter("{http://www.w3.org/2000/svg}text"):
        row = each.get("clip-path", "")
        rows[row] = rows.get(row, "") + (each.text or "").strip("\n")
    return "\n".join(rows.values()).replace("\xa0", " ")


def made_by(script: str, folder: Path) -> Path:
    """Return the picture that a script makes anew."""
    made = folder / "made.svg"
    subprocess.run(
        [sys.executable, f"docs/recording/{script}", str(made)],
        cwd=ROOT, env=environment(), check=True, timeout=280, stdout=subprocess.DEVNULL,
    )  # fmt: skip
    return made


def asks_nobody(path: Path) -> None:
    assert re.findall(r"https?://[^\"']+", path.read_text()) == ["http://www.w3.org/2000/svg"]


def check(path: Path) -> None:
    shown = texts(path)
    for part in (
        "$ guard run --limit '$0.05' --watch -- python agent.py",
        "4 LLM requests, $0.0399 of $0.05",
        "stopped: this run's --limit of $0.05 is reached",
        "--block-tool 'delete_*'",
        "stopped: the tool delete_mail is blocked",
        "[GD-T001]",
    ):
        assert part in shown
    assert shown.count("$ echo $?\n77") == 2


def check_coding_agent(path: Path) -> None:
    shown = texts(path)
    for part in (
        "$ guard run --limit '$1' --watch -- claude -p 'make the tests pass'",
        "API Error: 400 guard: the limit of $1 is reached",
        "stopped: this run's --limit of $1 is reached",
        "# in another terminal: guard kill report --local --reason 'that is enough'",
        "API Error: 400 guard: an operator has stopped this: that is enough",
        "stopped: report is killed",
    ):
        assert part in shown
    assert shown.count("$ echo $?\n77") == 2


def test_the_recipe_of_coding_agents_opens_with_its_recording() -> None:
    page = (ROOT / "docs" / "coding-agents.md").read_text()
    assert page.index("(recording/coding-agent.svg)") < page.index("## ")
    recording = RECORDING.with_name("coding-agent.svg")
    check_coding_agent(recording)
    asks_nobody(recording)


@pytest.mark.long
@pytest.mark.timeout(300)
@pytest.mark.skipif(not are_installed(), reason=MISSING)
def test_the_recording_of_a_coding_agent_is_made_anew(tmp_path: Path) -> None:
    check_coding_agent(made_by("make_coding_agent.py", tmp_path))


def test_the_readme_opens_with_it() -> None:
    text = (ROOT / "README.md").read_text()
    first, second = re.findall(r"^```\w+\n(.*?)^```", text, re.DOTALL | re.MULTILINE)[:2]
    assert "guard run --limit '$2' --block-tool 'delete_*' -- python agent.py" in first
    assert "guard.init(" in second
    for name in ("guard-run", "coding-agent"):
        assert f'src="docs/recording/{name}.svg"' in text[: text.index(first)]
    assert "(recording/guard-run.svg)" in (ROOT / "docs" / "run.md").read_text()


def test_it_shows_both_ends_and_asks_nobody_for_anything() -> None:
    check(RECORDING)
    asks_nobody(RECORDING)
    assert "<script" not in RECORDING.read_text()


@pytest.mark.long
@pytest.mark.timeout(300)
def test_it_is_made_anew(tmp_path: Path) -> None:
    check(made_by("make.py", tmp_path))
