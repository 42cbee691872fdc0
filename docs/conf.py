"""Settings of Sphinx: `make docs` builds these pages into build/docs."""

from __future__ import annotations

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE / "_extensions"), str(HERE.parent)]

import engine  # noqa: E402  # of this checkout, which the line above finds

project = "edgegrad"
author = "the edgegrad authors"
copyright = author
version = release = engine.__version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
    "plain_docstrings",
    "repository",
    "hidden_comments",
    "messages",
]
exclude_patterns = ["_extensions"]
nitpick_ignore_regex = [
    # Code in docstrings becomes a link where it names something of the reference, and only there.
    ("py:obj", ".*"),
    # Types in signatures, as those of numpy and names that only checkers import.
    ("py:(class|data|exc)", ".*"),
]

myst_enable_extensions = ["colon_fence", "deflist", "fieldlist"]
myst_heading_anchors = 3
myst_url_schemes = {"http": None, "https": None}

default_role = "py:obj"
autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
autodoc_class_signature = "mixed"
napoleon_numpy_docstring = False
napoleon_use_param = False  # several names share a line
napoleon_custom_sections = [("Attributes", "params_style")]
napoleon_use_rtype = False
python_use_unqualified_type_names = True
add_module_names = False
toc_object_entries_show_parents = "hide"

html_theme = "furo"
html_title = f"edgegrad {release}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_js_files = ["site.js"]
html_copy_source = False
html_show_sphinx = False
html_show_copyright = False
pygments_style = "friendly"
pygments_dark_style = "native"
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True
suppress_warnings = ["ref.python"]  # an attribute of one class has the name of another's
