"""Who may ask, and what the browser may do: token, Host and Origin checks, content policy.

The application listens on this host only, but on a login node that is a door for every user of it.
So a visitor shows the token once, in the address that the server prints, and gets a cookie for it.
A page of another site cannot ask in the visitor's name: its requests carry another Origin. A name
that another site has pointed at this host is not among the allowed ones.
"""

from __future__ import annotations

import hmac
from collections.abc import Sequence
from hashlib import sha256
from urllib.parse import urlencode, urlsplit

import flask
from dash.exceptions import DependencyException
from werkzeug.wrappers import Response

from dashboards.settings import Settings

MAX_REQUEST_BYTES = 1 << 20
"""A callback sends what controls and a table of 50 rows hold, far less than this."""
HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), microphone=(), geolocation=()",
}

LASTING, YEAR_SECONDS = ("/assets/", "/_favicon.ico"), 365 * 24 * 3600
"""What carries its version in its address, after a question mark: browsers ask for it once."""


def policy(script_hashes: Sequence[str]) -> str:
    """Return the content security policy: nothing from elsewhere, no script but our own.

    Plotly sets styles on elements, which needs 'unsafe-inline' for styles.
    """
    scripts = " ".join(["'self'", *script_hashes])
    return (
        f"default-src 'self'; script-src {scripts}; style-src 'self' 'unsafe-inline'; "
        "img-src 'self' data: blob:; connect-src 'self'; object-src 'none'; base-uri 'none'; "
        "form-action 'none'; frame-ancestors 'none'"
    )


def guard(server: flask.Flask, settings: Settings, content_policy: str) -> None:
    """Check every request before it is answered, and mark every answer."""
    server.config["MAX_CONTENT_LENGTH"] = MAX_REQUEST_BYTES

    @server.before_request
    def check() -> Response | None:
        request = flask.request
        if _host(request.host) not in settings.hosts:
            return _refuse(
                400, "This address is not one that the dashboard was started for. Start it with --host-name NAME."
            )
        origin = request.headers.get("Origin")
        if origin is not None and urlsplit(origin).netloc != request.host:
            return _refuse(403, "Requests from other sites are not answered.")
        if not settings.token or _knows(request.cookies.get(cookie_name(settings.token), ""), _cookie_value(settings)):
            return None
        if _knows(request.args.get("token", ""), settings.token):
            return _welcome(settings)
        return _refuse(403, "Open the address that `fourfold dashboard` printed, with its token.")

    @server.errorhandler(DependencyException)
    def missing(_error: DependencyException) -> Response:
        """Answer for a script that there is not; Dash raises, which would be an error of the server."""
        return _refuse(404, "There is no such file.")

    @server.after_request
    def mark(response: Response) -> Response:
        for name, value in HEADERS.items():
            response.headers[name] = value
        response.headers["Content-Security-Policy"] = content_policy
        if flask.request.path.startswith("/_dash-layout"):
            response.headers["Cache-Control"] = "no-store"
        elif flask.request.path.startswith(LASTING) and flask.request.query_string and response.status_code < 300:
            response.headers["Cache-Control"] = f"private, max-age={YEAR_SECONDS}"
        return response


def _welcome(settings: Settings) -> Response:
    """Exchange the token for a cookie, and take it out of the address."""
    rest = {k: v for k, v in flask.request.args.items() if k != "token"}
    query = f"?{urlencode(rest)}" if rest else ""
    response = flask.redirect(f"{settings.prefix.rstrip('/')}{flask.request.path}{query}")
    response.set_cookie(
        cookie_name(settings.token),
        _cookie_value(settings),
        httponly=True,
        samesite="Strict",
        path=settings.prefix,
        secure=flask.request.is_secure,
    )
    return response


def cookie_name(token: str) -> str:
    """Each server has a cookie of its own: a browser keeps cookies by host, whatever the port."""
    return f"fourfold-{hmac.new(token.encode(), b'name', sha256).hexdigest()[:8]}"


def _cookie_value(settings: Settings) -> str:
    """What the cookie holds: not the token itself, which stays with the one who started the server."""
    return hmac.new(settings.token.encode(), b"fourfold dashboard", sha256).hexdigest()


def _knows(given: str, expected: str) -> bool:
    return hmac.compare_digest(given.encode(), expected.encode())


def _host(value: str) -> str:
    """Return a Host header's name without its port."""
    name, colon, port = value.rpartition(":")
    return name.lower() if colon and port.isdecimal() else value.lower()


def _refuse(status: int, text: str) -> Response:
    return flask.Response(f"{text}\n", status, mimetype="text/plain")
