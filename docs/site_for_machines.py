"""What the site has for machines: each page as Markdown, ``llms.txt``, and a search without records.

The decisions are part of the site and of its sidebar, but not of its search: whoever looks for
``budget`` looks for the guide.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from docutils import nodes

if TYPE_CHECKING:
    from sphinx.application import Sphinx

_INCLUDE: Final = re.compile(r"^```\{include\} (?P<path>\S+)\n(?:.*\n)*?```$", re.MULTILINE)
_TREE: Final = re.compile(r"^```\{toctree\}\n.*?^```\n?", re.MULTILINE | re.DOTALL)
_COMMENT: Final = re.compile(r"<!--.*?-->\n?", re.DOTALL)
_UNSEARCHED: Final = ("decisions/", "changelog")
_HEAD: Final = """\
# guard

> A hard stop for AI agents: budgets, tool rules and a kill switch that are checked before each LLM
> and tool call, in Python and, by `guard run`, in any language. Self-hosted.

Install: `pip install 'agent-hard-stop[all]'`. First command: `guard run --limit '$2' -- python agent.py`.
Each page below is Markdown; the same address with `.html` is for people.
"""


def markdown_of(source: Path) -> str:
    """Return a page as a reader of plain Markdown wants it: no trees, no comments, includes in place.

    Args:
        source: the page's file.
    """
    text = _INCLUDE.sub(
        lambda match: (source.parent / match["path"]).read_text("utf-8"), source.read_text("utf-8")
    )
    return _COMMENT.sub("", _TREE.sub("", text)).strip() + "\n"


def _leave_out_of_search(app: Sphinx, doctree: nodes.document) -> None:
    name = app.env.current_document.docname
    if name.startswith(_UNSEARCHED):
        app.env.metadata[name]["nosearch"] = "true"


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
        below = [name for name in _below(app, part) if not name.startswith("decisions/")]
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
    app.connect("doctree-read", _leave_out_of_search)
    app.connect("html-page-context", _link_markdown)
    app.connect("build-finished", _write)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
