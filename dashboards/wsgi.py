"""The application for a WSGI server, told what to show by the environment.

    FOURFOLD_DASHBOARD_RUNS=runs FOURFOLD_DASHBOARD_TOKEN=... \
        gunicorn --worker-class gthread --threads 8 --bind 127.0.0.1:8050 'dashboards.wsgi:application()'

One worker process: what was read of runs is kept in its memory, and what-if answers live there.
"""

from __future__ import annotations

import os

import flask

from dashboards.app import create_app
from dashboards.settings import from_environment, prepare_process


def application() -> flask.Flask:
    """Make the application from FOURFOLD_DASHBOARD_{RUNS, TOKEN, PREFIX, HOSTS}.

    Raises:
        DescriptionError: if RUNS or TOKEN is missing or wrong.
    """
    prepare_process()
    server = create_app(from_environment(os.environ)).server
    assert isinstance(server, flask.Flask)  # for the type checker: `create_app` made it
    return server
