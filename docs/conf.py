"""Configuration of the documentation build."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from sphinx.application import Sphinx

from guard.version import __version__

sys.path.insert(0, str(Path(__file__).parent))

project = "guard"
author = "The Guard maintainers"
copyright = "2026, The Guard maintainers"
release = version = __version__

extensions = [
    "myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx_copybutton",
    "sphinx_design", "site_for_machines", "site_of_commands",
]  # fmt: skip
source_suffix = {".md": "markdown"}
exclude_patterns = ["_build"]
myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3
# Pages link to files of the checkout (licence, contributing guide) that are not pages.
suppress_warnings = ["myst.xref_missing"]

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autoclass_content = "class"

copybutton_exclude = ".linenos, .gp, .go"  # a prompt and what is printed after it stay behind
copybutton_prompt_text = r"\$ "
copybutton_prompt_is_regexp = True

html_theme = "furo"
html_title = "guard"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_theme_options = {"sidebar_hide_name": False, "top_of_page_buttons": ["view"]}
html_show_sphinx = False
html_copy_source = False  # each page is there as Markdown: see site_for_machines


def for_everyone(
    _app: Sphinx, _page: str, _template: str, context: dict[str, Any], *_: Any
) -> None:
    """Let the keyboard scroll blocks and tables, and an empty corner of a table be no heading."""
    if "body" in context:
        body = context["body"].replace("<pre>", '<pre tabindex="0">')
        body = body.replace('<div class="table-wrapper', '<div tabindex="0" class="table-wrapper')
        context["body"] = body.replace('<th class="head"><p></p></th>', "<td></td>")


def setup(app: Sphinx) -> None:
    """Register with Sphinx."""
    app.connect("html-page-context", for_everyone)
