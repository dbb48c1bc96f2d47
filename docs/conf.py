"""Configuration of the documentation build."""

from __future__ import annotations

from guard.version import __version__

project = "guard"
author = "The Guard maintainers"
copyright = "2026, The Guard maintainers"
release = version = __version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
source_suffix = {".md": "markdown"}
exclude_patterns = ["_build"]
myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3
# Pages link to files of the checkout (licence, contributing guide) that are not pages.
suppress_warnings = ["myst.xref_missing"]

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autoclass_content = "class"

html_theme = "furo"
html_title = f"guard {__version__}"
