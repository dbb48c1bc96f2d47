"""The map in the documentation and the tree say the same."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "architecture.md").read_text()


def test_every_file_that_the_page_names_is_there() -> None:
    named = set(re.findall(r"guard/[\w/]+\.py", PAGE))
    assert len(named) > 12
    assert not [name for name in sorted(named) if not (ROOT / name).is_file()]


def test_every_room_is_on_the_page() -> None:
    rooms = {
        path.parent.relative_to(ROOT).as_posix()
        for top in ("guard/*/__init__.py", "guard/gateway/*/__init__.py")
        for path in ROOT.glob(top)
    }
    named = {name.rstrip("/") for name in re.findall(r"^\| `(guard[\w/]*)`", PAGE, re.MULTILINE)}
    named.discard("guard")
    assert named == rooms - {"guard/gateway"}


def test_names_of_methods_in_the_flows_are_there() -> None:
    for path, names in re.findall(r"^(guard/\S+\.py)\s+(\w+\.\w+):", PAGE, re.MULTILINE):
        owner, method = names.split(".")
        source = (ROOT / path).read_text()
        assert f"class {owner}" in source, path
        assert f"def {method}(" in source, path


def test_records_of_decisions_are_short_and_of_one_form() -> None:
    records = sorted((ROOT / "docs" / "decisions").glob("0*.md"))
    assert len(records) > 20
    for path in records:
        lines = path.read_text("utf-8").splitlines()
        assert len(lines) <= 30, path.name
        assert lines[0].startswith(f"# {int(path.name[:4])}. "), path.name
        said = [part for part in ("Context", "Choice", "Rejected", "Consequence")
                if any(line.startswith(f"**{part}.**") for line in lines)]  # fmt: skip
        assert {"Context", "Choice", "Consequence"} <= set(said), path.name
