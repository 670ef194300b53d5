"""Parameters of an address."""

from __future__ import annotations

from urllib.parse import parse_qsl

MAX_QUERY = 4_000
"""Longer addresses are not read."""


def query_of(search: str | None) -> dict[str, str]:
    """Read the parameters of an address.

    >>> query_of("?run=a&other=b&run=c")
    {'run': 'a', 'other': 'b'}
    """
    found: dict[str, str] = {}
    for key, value in parse_qsl((search or "")[:MAX_QUERY].lstrip("?")):
        found.setdefault(key, value)
    return found
