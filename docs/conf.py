"""Sphinx configuration of the documentation site; `make docs` builds it without network.

Sphinx, because it is maintained and reads the public docstrings; pages are Markdown (MyST), so that
they also read well where the repository is browsed.
"""

from __future__ import annotations

import client_lib

project = "client_lib"
author = "the client_lib authors"
release = version = client_lib.__version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["_build"]
html_theme = "furo"
html_title = f"client_lib {release}"

myst_heading_anchors = 3  # pages link to headings of others
suppress_warnings = ["myst.xref_missing"]  # links to files of the repository outside of docs/

default_role = "code"  # docstrings write `code` with single backticks, as Markdown does
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
napoleon_numpy_docstring = False
