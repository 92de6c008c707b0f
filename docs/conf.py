"""Builds the documentation: ``make docs``."""

from triomq import __version__

project = "triomq"
copyright = "the triomq authors"  # noqa: A001  # Sphinx's name
version = release = __version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 4
html_theme = "furo"
html_title = f"triomq {__version__}"
html_static_path = ["pictures"]
autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_typehints_format = "short"
napoleon_use_ivar = True
napoleon_use_rtype = False
suppress_warnings = ["ref.python"]  # attributes of one name in two classes
exclude_patterns = ["_build"]
