"""The application: frame, menu, addresses."""

from __future__ import annotations

from collections.abc import Sequence
from http import HTTPStatus
from pathlib import Path
from typing import Any, cast
from urllib.parse import urlencode

import dash_mantine_components as dmc
import flask
import plotly
from dash import ALL, ClientsideFunction, Dash, Input, Output, State, dcc, html
from dash.development.base_component import Component
from dash.fingerprint import build_fingerprint
from werkzeug.wrappers import Response

from dashboards.ahead import Ahead
from dashboards.catalog import Catalog
from dashboards.chooser import header, nav_words, picker, suited
from dashboards.chooser import register as register_chooser
from dashboards.page import Page, PageContext
from dashboards.pages import PAGES
from dashboards.parts import aria, problem
from dashboards.query import query_of
from dashboards.security import guard, policy
from dashboards.settings import Settings
from twin.description.problems import DescriptionError

INDEX = """<!DOCTYPE html>
<html lang="en">
  <head>
    {%metas%}
    <meta name="plotly" content="{plotly}">
    <title>{%title%}</title>
    {%favicon%}
    {%css%}
  </head>
  <body>
    {%app_entry%}
    <footer>{%config%}{%scripts%}{%renderer%}</footer>
  </body>
</html>
"""

LOADING: dict[str, Any] = {
    "delay_show": 300,
    "overlay_style": {"visibility": "visible", "opacity": 0.5},
    "type": "circle",
    "target_components": {"content": "children"},
}
"""Shown after 0.3 s, over the page as it was."""
Address = tuple[str, tuple[tuple[str, str], ...]]
"""A page's path, and the parameters in the order of their names."""
PLOTLY = "package_data/plotly.min.js"
"""The script of figures: `fourfold.js` has it read while the server makes the page's content."""
DEVELOPERS = (
    "dev_tools_ui",
    "dev_tools_props_check",
    "dev_tools_serve_dev_bundles",
    "dev_tools_hot_reload",
    "dev_tools_validate_callbacks",
)
"""Tools that variables of the environment would turn on, here said to stay off."""


def create_app(settings: Settings, pages: Sequence[Page] = PAGES) -> Dash:
    """Make the application of these pages, in the order of the menu."""
    server = flask.Flask("fourfold")
    app = Dash(
        "dashboards",
        server=cast("Any", server),
        title="Fourfold",
        update_title="",
        suppress_callback_exceptions=True,
        serve_locally=True,
        compress=False,
        index_string=INDEX.replace("{plotly}", plotly_address(settings)),
        routes_pathname_prefix="/",
        requests_pathname_prefix=settings.prefix,
        assets_folder="assets",
        enable_mcp=False,
        meta_tags=[{"name": "viewport", "content": "width=device-width, initial-scale=1"}],
    )
    app.enable_dev_tools(debug=False, **dict.fromkeys(DEVELOPERS, False), dev_tools_disable_version_check=True)
    context = PageContext(settings, Catalog(settings.root))
    app.layout = frame(pages, settings)
    _route(app, server, pages, context)
    _keep_state(app)
    register_chooser(app)
    for page in pages:
        page.register(app, context)
    guard(server, settings, policy(app.csp_hashes()))
    return app


def plotly_address(settings: Settings) -> str:
    """Return where Plotly's script is, with its version: such a file is asked for once, others at every load."""
    file = Path(plotly.__file__).parent / PLOTLY
    name = build_fingerprint(PLOTLY, plotly.__version__, int(file.stat().st_mtime))
    return f"{settings.prefix}_dash-component-suites/plotly/{name}"


def frame(pages: Sequence[Page], settings: Settings) -> Component:
    """What stands around every page."""
    hidden: dict[str, Any] = {"aria-hidden": "true"}
    links = [
        dmc.NavLink(
            label=page.title, href=settings.prefix.rstrip("/") + page.path, id={"type": "link", "path": page.path}
        )
        for page in pages
    ]
    return dmc.MantineProvider(
        [
            dcc.Location(id="address", refresh="callback-nav"),
            dcc.Location(id="chooser-leads", refresh="callback-nav"),
            dcc.Store(id="state"),
            dcc.Store(id="menu-chosen"),
            dcc.Store(id="titled"),
            html.A("Skip to content", href="#content", className="skip"),
            dmc.AppShell(
                [
                    dmc.AppShellHeader(
                        dmc.Group(
                            [
                                dmc.Text("Fourfold", fw=700, size="lg"),
                                dmc.ColorSchemeToggle(
                                    lightIcon=html.Span("☀", **hidden),
                                    darkIcon=html.Span("☾", **hidden),
                                    id="theme",
                                    size="lg",
                                    variant="default",
                                    **aria("Light or dark"),
                                ),
                            ],
                            justify="space-between",
                            h="100%",
                            px="md",
                        )
                    ),
                    dmc.AppShellNavbar(html.Nav(links, **aria("Pages")), p="xs"),
                    dmc.AppShellMain(dcc.Loading(html.Div(id="content", role="region", **aria("Page")), **LOADING)),
                ],
                header={"height": 52},
                navbar={"width": 190, "breakpoint": "sm", "collapsed": {"mobile": False}},
                padding="md",
            ),
        ],
        defaultColorScheme="auto",
        theme={"primaryShade": {"light": 9, "dark": 8}},  # text on a tint of it can be read
    )


def _route(app: Dash, server: flask.Flask, pages: Sequence[Page], context: PageContext) -> None:
    by_path = {page.path: page for page in pages}
    prefix = context.settings.prefix.rstrip("/")

    def made(address: Address) -> tuple[Component, str]:
        page, query = by_path.get(address[0]), dict(address[1])
        return content(page, context, query), titled(page, context, query)

    ahead = Ahead(made)

    @app.callback(
        Output("content", "children"),
        Output("titled", "data"),
        Input("address", "pathname"),
        Input("address", "search"),
    )
    def show(pathname: str | None, search: str | None) -> tuple[Component, str]:
        return ahead.take(address_of((pathname or "/").removeprefix(prefix), search))

    def begin(response: Response) -> Response:
        """Begin a page's content when its frame goes out, to those who may see it."""
        request = flask.request
        if request.path in by_path and request.method == "GET" and response.status_code == HTTPStatus.OK:
            ahead.begin(address_of(request.path, request.query_string.decode(errors="replace")))
        return response

    server.after_request(begin)

    links = ("href", "active", "description", "className", "aria-label")

    @app.callback(
        *(Output({"type": "link", "path": ALL}, name) for name in links),
        Input("address", "pathname"),
        Input("address", "search"),
        Input("menu-chosen", "data"),
    )
    def link(pathname: str | None, search: str | None, kept: Any) -> tuple[list[Any], ...]:
        path = (pathname or "/").removeprefix(prefix) or "/"
        chosen = {k: str(v) for k, v in kept.items()} if isinstance(kept, dict) else {}
        query = {k: v for k, v in {**query_of(search), **chosen}.items() if v}
        entries = {entry.name: entry for entry in context.catalog.entries()}
        words = [nav_words(page, suited(page, entries, query)) for page in pages]
        return (
            [prefix + p.path + carried(p, query) for p in pages],
            [p.path == path for p in pages],
            *([one[name] for one in words] for name in links[2:]),
        )

    app.clientside_callback(
        ClientsideFunction("fourfold", "prepare"), Output("menu-chosen", "storage_type"), Input("address", "pathname")
    )
    app.clientside_callback(
        ClientsideFunction("fourfold", "title"), Output("titled", "storage_type"), Input("titled", "data")
    )


def address_of(path: str, search: str | None) -> Address:
    """Read an address, so that the same one is known again.

    >>> address_of("/verdict", "?run=a&other=b") == address_of("/verdict", "other=b&run=a")
    True
    """
    return path or "/", tuple(sorted(query_of(search).items()))


def content(page: Page | None, context: PageContext, query: dict[str, str]) -> Component:
    """Show a page, offer what it could show, or say why it cannot be shown."""
    if page is None:
        return problem("There is no such page; choose one on the left.")
    entries = {entry.name: entry for entry in context.catalog.entries()}
    why = suited(page, entries, query)
    try:
        if not why:
            shown: Component = page.shown(context, query)
        else:
            shown = picker(page, context, why)
    except DescriptionError as error:
        shown = problem(error, *_without_choices(page, context, query))
    title = dmc.Title(page.title, order=1, size="h2", mb="sm")
    return html.Div([title, header(page, context.catalog, query), shown])


def _without_choices(page: Page, context: PageContext, query: dict[str, str]) -> list[Component]:
    """Offer the same page without what else its address asks for, which may be what is wrong."""
    if not set(query) - set(page.needs.split(",")):
        return []
    href = context.settings.prefix.rstrip("/") + page.path + carried(page, query)
    return [dmc.Anchor("Show it without further choices", href=href, size="sm")]


def titled(page: Page | None, context: PageContext, query: dict[str, str]) -> str:
    """Name page and run, for the tab of the browser."""
    if page is None:
        return "Fourfold"
    entries = {entry.name: entry.label for entry in context.catalog.entries()}
    named = [entries[query[key]] for key in ("run", "other") if query.get(key) in entries and key in page.needs]
    return " · ".join([page.title, *([" and ".join(named)] if named and page.kinds else []), "Fourfold"])


def carried(page: Page, query: dict[str, str]) -> str:
    """Return the part of an address that a link to a page takes along."""
    kept = {key: query[key] for key in page.needs.split(",") if key in query}
    # half a surrogate pair, which JSON can hold, has no bytes in UTF-8
    return f"?{urlencode(kept, errors='replace')}" if kept else ""


def _keep_state(app: Dash) -> None:
    """Write the values of a page's controls into the address, without loading anything."""
    app.clientside_callback(
        ClientsideFunction("fourfold", "keep"),
        Output("state", "data"),
        Output("menu-chosen", "data"),
        Input({"type": "state", "key": ALL}, "value"),
        State({"type": "state", "key": ALL}, "id"),
        State("menu-chosen", "data"),
        prevent_initial_call=True,
    )
    app.clientside_callback(
        ClientsideFunction("fourfold", "download"),
        Output({"type": "csv", "table": ALL}, "n_clicks"),
        Input({"type": "csv", "table": ALL}, "n_clicks"),
        prevent_initial_call=True,
    )
