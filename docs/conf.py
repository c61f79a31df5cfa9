"""Turns the pages into a site: Sphinx reads the Markdown pages as they are, and the API from its docstrings.

    python -m sphinx -W -c docs . build/site

The source folder is the root of the project, so a link between two pages is the same here and in the repository. Links
to programs and tests lead to copies of them.
"""

from __future__ import annotations

from shmq.version import __version__

project = "shmq"
author = "the shmq authors"
release = version = __version__
root_doc = "docs/index"
include_patterns = [
    *("README*.md", "ARCHITECTURE.md", "CHANGELOG.md", "SECURITY.md"),
    *("docs/**", "examples/**", "benchmarks/*.md", "tests/*.md", "tests/crash/*.md"),
]
exclude_patterns = ["docs/images", "docs/deploy", "docs/grafana", "**/__pycache__"]
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx_copybutton"]
html_theme = "furo"
html_title = f"shmq {release}"
html_show_sphinx = False
html_copy_source = False
copybutton_prompt_text = "$ "

# Headings are linked as GitHub names them.
myst_heading_anchors = 4
# What stands in single backticks in a docstring is code.
default_role = "code"
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented"
autodoc_member_order = "groupwise"
autodoc_default_options = {"members": True, "inherited-members": True}
napoleon_google_docstring = True
napoleon_numpy_docstring = False
