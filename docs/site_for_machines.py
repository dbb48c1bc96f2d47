"""What the site has for machines: pages as Markdown, ``llms.txt``, a search without records.

The decisions are listed on a page of their own, which lists what is there, and are in neither the
sidebar nor the search: whoever looks for ``budget`` looks for the guide.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import site_of_commands
from docutils import nodes

if TYPE_CHECKING:
    from sphinx.application import Sphinx

_INCLUDE: Final = re.compile(r"^```\{include\} (?P<path>\S+)\n(?:.*\n)*?```$", re.MULTILINE)
_TREE: Final = re.compile(r"^```\{toctree\}\n.*?^```\n?", re.MULTILINE | re.DOTALL)
_COMMENT: Final = re.compile(r"<!--.*?-->\n?", re.DOTALL)
_RECORDS: Final = "decisions/0"
_LIST_OF_RECORDS: Final = "decisions/index"
_HEAD: Final = """\
# guard

> A hard stop for AI agents: budgets, tool rules and a kill switch that are checked before each LLM
> and tool call, in Python and, by `guard run`, in any language. Self-hosted.

Install: `pip install 'agent-hard-stop[all]'`.
First command: `guard run --limit '$2' -- python agent.py`.
Each page below is Markdown; the same address with `.html` is for people.
"""


def markdown_of(source: Path) -> str:
    """Return a page as plain Markdown: no trees, no comments, includes in place.

    Args:
        source: the page's file.
    """
    text = _INCLUDE.sub(
        lambda match: (source.parent / match["path"]).read_text("utf-8"), source.read_text("utf-8")
    )
    if source.as_posix().endswith(f"{_LIST_OF_RECORDS}.md"):
        text += records(source.parent)
    if source.name == f"{site_of_commands.PAGE}.md":
        text += site_of_commands.text()
    return _COMMENT.sub("", _TREE.sub("", text)).strip() + "\n"


def records(folder: Path) -> str:
    """Return a list of the decisions in a folder, newest first."""
    found = []
    for path in sorted(folder.glob("0*.md"), reverse=True):
        title = path.read_text("utf-8").partition("\n")[0].lstrip("# ")
        number = path.name[:4].lstrip("0")
        found.append(f"- {number}. [{re.sub(r'^[0-9]+[.] *', '', title)}]({path.name})\n")
    return "\n" + "".join(found)


def _list_records(app: Sphinx, name: str, source: list[str]) -> None:
    if name == _LIST_OF_RECORDS:
        source[0] += records(Path(app.srcdir) / "decisions")


def _know_records(app: Sphinx, doctree: nodes.document) -> None:
    name = app.env.current_document.docname
    if name.startswith(_RECORDS):  # else Sphinx misses them in a tree
        app.env.metadata[name]["orphan"] = "true"


def _leave_out_of_search(app: Sphinx) -> list[Any]:
    kept = [name for name in app.env.found_docs if not name.startswith(_RECORDS)]
    indexer = getattr(app.builder, "indexer", None)
    if indexer is not None:
        indexer.prune(kept)
    return []


def _link_markdown(
    app: Sphinx, name: str, _template: str, context: dict[str, Any], doctree: nodes.document | None
) -> None:
    if doctree is not None:
        address = context["pathto"](f"{name}.md", 1)
        context["metatags"] += f'<link rel="alternate" type="text/markdown" href="{address}">'


def _write(app: Sphinx, error: Exception | None) -> None:
    if error is not None or app.builder.format != "html":
        return
    out = Path(app.outdir)
    for name in sorted(app.env.found_docs):
        target = out / f"{name}.md"
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(markdown_of(Path(app.env.doc2path(name))), "utf-8")
    (out / "llms.txt").write_text(_index(app), "utf-8")


def _index(app: Sphinx) -> str:
    """Return ``llms.txt``: the parts of the site with their pages, in the order of the sidebar."""
    lines = [_HEAD]
    for part in app.env.toctree_includes[app.config.root_doc]:
        below = _below(app, part)
        lines.append(f"\n## {_title(app, part)}\n")
        lines += [f"- [{_title(app, name)}]({name}.md){_about(app, name)}" for name in below]
    return "\n".join(lines) + "\n"


def _below(app: Sphinx, name: str) -> list[str]:
    found = [name]
    for inner in app.env.toctree_includes.get(name, []):
        found += _below(app, inner)
    return found


def _title(app: Sphinx, name: str) -> str:
    return app.env.titles[name].astext()


def _about(app: Sphinx, name: str) -> str:
    """Return the first sentence of a page."""
    for node in app.env.get_doctree(name).findall(nodes.paragraph):
        first = re.match(r"(.+?[.:])(\s|$)", " ".join(node.astext().split()))
        return f": {first[1].rstrip(':')}" if first else ""
    return ""


def setup(app: Sphinx) -> dict[str, Any]:
    """Register with Sphinx."""
    app.connect("source-read", _list_records)
    app.connect("doctree-read", _know_records)
    app.connect("html-collect-pages", _leave_out_of_search)
    app.connect("html-page-context", _link_markdown)
    app.connect("build-finished", _write)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
