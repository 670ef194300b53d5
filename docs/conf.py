"""How Sphinx builds the site: `make docs`. It asks no other host for anything."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from twin import __version__ as release

project = "Fourfold"
author = "Fourfold's authors"
copyright = author  # noqa: A001  Sphinx's word
version = release
extensions = ["myst_parser", "tools.reference.directive"]
exclude_patterns = ["_build"]
source_suffix = {".md": "markdown"}
myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 4
suppress_warnings = ["misc.highlighting_failure"]

html_theme = "furo"
html_title = "Fourfold"
html_static_path = ["_static"]
html_css_files = ["fourfold.css"]
html_copy_source = False
html_show_sphinx = False
html_theme_options = {
    "navigation_with_keys": True,
    "light_css_variables": {"color-brand-primary": "#1f5fa8", "color-brand-content": "#1f5fa8"},
    "dark_css_variables": {"color-brand-primary": "#7db4f0", "color-brand-content": "#7db4f0"},
}
