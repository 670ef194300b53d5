"""The directive `{generated} NAME`: what the code says, put into a page by Sphinx."""

from __future__ import annotations

from typing import Any

from docutils import nodes
from docutils.statemachine import StringList
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from tools.reference import api, commands, glossary, house, keys

PAGES = {
    "job": keys.job,
    "machine": keys.machine,
    "commands": commands.commands,
    "api": api.api,
    "glossary": glossary.glossary,
    "house": house.page,
}


class Generated(SphinxDirective):
    """Parse a generated part as if it stood in the page."""

    required_arguments = 1
    has_content = False

    def run(self) -> list[nodes.Node]:
        """Make the part and parse it; it is made again with every build."""
        self.env.note_reread()
        name = self.arguments[0]
        if name == "picture":
            return [nodes.raw("", f'<div class="house">{house.picture()}</div>', format="html")]
        text = StringList(PAGES[name]().splitlines(), source=f"generated {name}")
        part = nodes.Element()
        self.state.nested_parse(text, self.content_offset, part, match_titles=True)
        return part.children


def setup(app: Sphinx) -> dict[str, Any]:
    """Make the directive known to Sphinx."""
    app.add_directive("generated", Generated)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
