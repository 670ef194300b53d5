"""Commands of `fourfold` that ask more than one simulation; `twin.cli` registers them."""

from __future__ import annotations

import typer


def register(app: typer.Typer) -> None:
    """Add these commands to the command line."""
    from twin.commands.diagnose import diagnose  # noqa: PLC0415 - here, for a help that is instant
    from twin.commands.goodput import goodput  # noqa: PLC0415
    from twin.commands.search import search  # noqa: PLC0415
    from twin.commands.study import study  # noqa: PLC0415

    app.command()(search)
    app.command()(study)
    app.command()(goodput)
    app.command()(diagnose)
