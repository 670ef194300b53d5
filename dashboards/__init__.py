"""The web application: where prediction and measurement part, op by op.

`create_app(settings)` in `dashboards.app` makes it; `fourfold dashboard` and any WSGI server run it.
Dashboards stand where the command line does: they may import all of the twin, and nothing imports
them. Figures are pure functions (tables in, figure out) in `dashboards.figures`, pages are in
`dashboards.pages`, what is read from disk goes through `dashboards.catalog`.
"""
