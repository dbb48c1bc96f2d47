"""The documentation site: it builds, its links lead somewhere, and machines can read it."""

from __future__ import annotations

import html.parser
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote, urlsplit

import pytest

from tests.support.axe import axe
from tests.support.browser import chromium

ROOT: Final = Path(__file__).parents[2]
PARTS: Final = ("start", "guides", "reference", "how-it-works")
LOOKED_AT: Final = (
    "index.html", "guides.html", "quickstart.html", "tutorial.html", "run.html",
    "recipes/fastapi.html", "gateway/settings.html", "search.html",
)  # fmt: skip
OF_THE_THEME: Final = {
    ("landmark-unique", ".sidebar-drawer"),  # Furo: two columns at the sides, both without a name
    ("page-has-heading-one", "html"),  # Furo: the page of the search begins with its second level
}
"""What axe finds in what Furo makes around our pages: the rule, and where."""
pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]


class Page(html.parser.HTMLParser):
    """What a page links to, loads and can be linked to."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.ids: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Take what a tag names."""
        found = {name: value or "" for name, value in attrs}
        self.ids.add(found.get("id", ""))
        if tag == "a" and "href" in found:
            self.links.append(found["href"])
        elif tag in ("img", "script") and "src" in found:
            self.loaded.append(found["src"])
        elif tag == "link" and found.get("rel") == "stylesheet":
            self.loaded.append(found["href"])


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("site")
    command = [
        sys.executable,
        "-m",
        "sphinx",
        "-q",
        "-W",
        "--keep-going",
        "-b",
        "html",
        "docs",
        out,
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return out


@pytest.fixture(scope="module")
def read(site: Path) -> dict[Path, Page]:
    return {path: Page(path.read_text("utf-8")) for path in site.rglob("*.html")}


@pytest.mark.generator("links of the site that lead somewhere")
def test_each_link_leads_somewhere(
    site: Path, read: dict[Path, Page], count_cases: Callable[[int], None]
) -> None:
    lost, followed = [], 0
    for path, page in read.items():
        for link in [*page.links, *page.loaded]:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            followed += 1
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            if not target.exists() or (
                parts.fragment and target in read and parts.fragment not in read[target].ids
            ):
                lost.append(f"{path.relative_to(site)}: {link}")
    assert not lost, "\n".join(lost)
    count_cases(followed)


def test_nothing_is_loaded_from_elsewhere(read: dict[Path, Page]) -> None:
    for path, page in read.items():
        assert not [each for each in page.loaded if "//" in each], path


def test_the_landing_page_shows_four_parts_and_not_every_page(read: dict[Path, Page]) -> None:
    (index,) = [page for path, page in read.items() if path.name == "index.html"
                and (path.parent / "llms.txt").exists()]  # fmt: skip
    assert {f"{part}.html" for part in PARTS} <= set(index.links)
    assert not [link for link in index.links if link.startswith("decisions/00")]
    assert sum(each.endswith("guard-run.svg") for each in index.loaded) == 1


def test_each_page_is_there_as_markdown(site: Path) -> None:
    for source in (ROOT / "docs").rglob("*.md"):
        if "_build" in source.parts:
            continue
        name = source.relative_to(ROOT / "docs")
        text = (site / name).read_text("utf-8")
        assert "{toctree}" not in text
        assert "{include}" not in text
        assert "<!--" not in text
        page = (site / name.with_suffix(".html")).read_text("utf-8")
        assert f'type="text/markdown" href="{name.name}"' in page, name


def test_the_list_for_machines_has_each_page(site: Path) -> None:
    text = (site / "llms.txt").read_text("utf-8")
    assert text.startswith("# guard\n\n> A hard stop for AI agents")
    listed = re.findall(r"^- \[.+?\]\((.+?)\)", text, re.MULTILINE)
    pages = {path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")
             if "_build" not in path.parts}  # fmt: skip
    left_out = {each for each in pages if each.startswith("decisions/0")} | {"index.md"}
    assert set(listed) == pages - left_out
    assert len(listed) == len(set(listed))


def test_decisions_are_out_of_the_way_of_the_search(site: Path) -> None:
    names = re.search(r'"?docnames"?:\s*\[(.*?)\]', (site / "searchindex.js").read_text("utf-8"))
    assert names is not None
    assert '"hard-stop"' in names[1]
    assert '"decisions/0' not in names[1]


def test_blocks_can_be_copied_without_their_prompt(site: Path) -> None:
    page = (site / "tutorial.html").read_text("utf-8")
    assert "copybutton.js" in page
    assert r"\\$ " in (site / "_static" / "copybutton.js").read_text("utf-8")


@pytest.fixture(scope="module", name="axe")
def _axe() -> Callable[[Any], set[tuple[str, str]]]:
    return axe()


@pytest.mark.browser
@pytest.mark.generator("pages of the site that pass axe")
def test_pages_of_each_kind_are_for_everyone(
    site: Path, axe: Callable[[Any], set[tuple[str, str]]], count_cases: Callable[[int], None]
) -> None:
    """Light and dark, in a window of the usual width, and on a phone."""
    shown: dict[str, Any] = {
        "light": {"color_scheme": "light"},
        "dark": {"color_scheme": "dark"},
        "phone": {"viewport": {"width": 390, "height": 844}},
    }
    found = {}
    with chromium() as browser:
        for how, options in shown.items():
            page = browser.new_page(**options)
            for name in LOOKED_AT:
                page.goto((site / name).as_uri())
                if wrong := axe(page) - OF_THE_THEME:
                    found[f"{name}, {how}"] = wrong
            page.close()
    assert not found, "\n".join(f"{name}: {wrong}" for name, wrong in found.items())
    count_cases(len(LOOKED_AT) * len(shown))


@pytest.mark.browser
def test_axe_finds_what_it_is_for(site: Path, axe: Callable[[Any], set[tuple[str, str]]]) -> None:
    with chromium() as browser:
        page = browser.new_page()
        page.goto((site / "tutorial.html").as_uri())
        page.evaluate("document.querySelector('article p').style.color = '#eee'")
        page.evaluate("document.querySelector('article').append(document.createElement('button'))")
        assert {"color-contrast", "button-name"} <= {rule for rule, _ in axe(page)}
