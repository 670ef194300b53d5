"""`fourfold dashboard [DIR]`."""

from __future__ import annotations

import socket
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

# Commands import what they need when they run, so that --help is instant.
# ruff: noqa: PLC0415, T201

THREADS = 8
"""Requests that are answered at once: a page asks for a few figures, and numpy leaves the interpreter to others."""
MAX_CONNECTIONS, IDLE_SECONDS = 500, 30
"""A browser keeps six open for a while; who comes when all are taken waits."""


def register(app: typer.Typer, *_: Callable[..., Any]) -> None:
    """Add the command to the command line."""
    app.command()(dashboard)


def dashboard(
    runs: Annotated[
        Path | None,
        typer.Argument(
            metavar="[DIR]",
            help="Directory that holds runs, searches and "
            "studies; runs/ if absent, or the examples that come with "
            "Fourfold.",
        ),
    ] = None,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; a free one if 0.")] = 0,
    prefix: Annotated[
        str, typer.Option(metavar="PATH", help="Path under which a proxy shows it, such as /user/me/proxy/8050/.")
    ] = "/",
    host_name: Annotated[
        list[str] | None,
        typer.Option(
            "--host-name", metavar="NAME", help="Further name under which a proxy asks for it. May be repeated."
        ),
    ] = None,
    no_token: Annotated[
        bool, typer.Option("--no-token", help="Ask for no token: every user of this host can look.")
    ] = False,
) -> None:
    """Look at runs in the browser: predicted beside measured. Listens on this host only."""
    from dataclasses import replace
    from importlib.util import find_spec

    from twin.description.problems import fail

    for needed in ("dash", "dash_mantine_components", "dash_ag_grid", "waitress"):
        if find_spec(needed) is None:
            raise fail("dashboard", f"needs {needed}, which is not installed; pip install 'fourfold[dashboard]'")
    from waitress import create_server

    from dashboards.app import create_app
    from dashboards.examples import default_runs
    from dashboards.settings import LOCAL_HOSTS, Settings, prepare_process

    runs = runs or default_runs(Path())
    settings = Settings(runs, prefix=prefix, hosts=(*LOCAL_HOSTS, *(host_name or ())))
    if no_token:
        settings = replace(settings, token="")
    prepare_process()
    application = create_app(settings)
    try:
        server = create_server(
            application.server,
            host="127.0.0.1",
            port=port,
            threads=THREADS,
            ident="fourfold",
            connection_limit=MAX_CONNECTIONS,
            channel_timeout=IDLE_SECONDS,
        )
    except OSError as error:
        raise fail("--port", f"cannot be used: {error.strerror}; choose another, or 0 for a free one", port) from None
    chosen = server.socket.getsockname()[1]
    query = f"?token={settings.token}" if settings.token else ""
    print(f"Fourfold's dashboard of {runs}:\n")
    if prefix == "/":
        print(f"  http://127.0.0.1:{chosen}/{query}\n")
        print(f"From another computer, first: ssh -N -L {chosen}:127.0.0.1:{chosen} {socket.gethostname()}")
    else:  # it is the proxy that takes the prefix off; without it no page would find its parts
        print(f"  {prefix}{query}\n\nunder the address of the proxy, which passes it on to port {chosen}.")
    if no_token:
        print("Without a token every user of this host can look.")
    print("Ctrl-C ends it.", flush=True)
    server.run()
