"""The shell of the self-contained HTML pages: a template of a page extends `shell.html` and fills its `body`.

A page is one file that a stranger may be sent: it loads nothing, and its content security policy forbids it to.
What it shows comes from strangers too (names in traces, titles in job files):

* every expression of a template is escaped, and characters that have no place in HTML are replaced;
* numbers for a script travel as JSON in an element of their own, in which no tag can begin;
* words are put in once and never looked at again, so that a job may be called like a placeholder.

Jinja and plotly's script are loaded when a page is written, not when the command line starts.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Any

from twin import __version__

if TYPE_CHECKING:
    from jinja2 import Environment
    from markupsafe import Markup

SHELL = "twin.pages"
"""Where the templates lie that every page may extend or import: `shell.html`, `parts.html`."""


def filled(
    package: str,
    template: str,
    *,
    title: str,
    facts: Sequence[tuple[str, str]],
    data: Any = None,
    plotly: bool = False,
    **words: Any,
) -> str:
    """Return the page that a template of a package makes of a title, facts (what, value) and its own words.

    `data` is for the page's script, which finds it as JSON in the element `data`; with `plotly` the library
    stands before that script.
    """
    library = _library() if plotly else ""
    return (
        _environment(package)
        .get_template(template)
        .render(
            title=title,
            facts=facts,
            data=_json(data),
            plotly=library,
            has_data=data is not None,
            version=__version__,
            **words,
        )
    )


def printable(word: str) -> str:
    r"""Replace control characters and lone surrogates, which have no place in HTML.

    >>> printable("a\x00b")
    'a�b'
    """
    return word if word.isprintable() else "".join(c if c.isprintable() else "�" for c in word)


@cache
def _environment(package: str) -> Environment:
    """Templates of a package, then those of the shell."""
    from jinja2 import Environment, FunctionLoader, StrictUndefined  # noqa: PLC0415 - needed only for pages

    def source(name: str) -> str | None:
        for place in (package, SHELL):
            file = resources.files(place).joinpath(name)
            if file.is_file():
                return file.read_text(encoding="utf-8")
        return None

    return Environment(
        loader=FunctionLoader(source),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_finalized,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def _finalized(value: Any) -> Any:
    """Make words printable; what a template has escaped already, which is `Markup`, stays as it is."""
    return printable(value) if type(value) is str else value


def _json(data: Any) -> Markup:
    """Return data as JSON in which neither `</script>` nor `<!--` may be seen."""
    from markupsafe import Markup  # noqa: PLC0415

    return Markup(json.dumps(data, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c"))


def _library() -> Markup:
    from markupsafe import Markup  # noqa: PLC0415
    from plotly.offline import get_plotlyjs  # noqa: PLC0415 - slow to import, needed only for pages

    return Markup(get_plotlyjs())
