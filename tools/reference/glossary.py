"""The glossary: the words of `twin.description.words`, and the axes and streams of each strategy."""

from __future__ import annotations

from tools.reference.markdown import code, first_paragraph, table
from twin.description.words import WORDS
from twin.strategies import named, names


def glossary() -> str:
    """Write the words, then what each strategy calls its axes."""
    parts = ["## Words\n", table(["word", "meaning"], [[f"**{word}**", text] for word, text in sorted(WORDS.items())])]
    parts.append("## Axes and streams, by strategy\n")
    rows = []
    for name in names():
        strategy = named(name)
        streams = ", ".join(code(stream) for stream in ("compute", *strategy.grid.streams))
        rows.append([code(name), ", ".join(map(code, strategy.axes)), streams, first_paragraph(strategy.grid.__doc__)])
    return "\n".join([*parts, table(["strategy", "axes, outermost first", "streams", ""], rows)])
