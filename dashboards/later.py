"""What a page shows only when its picture is drawn.

A field with its list of choices costs a browser some 20 ms, a page of them as much as the picture itself. Until they
come their room is kept, so that nothing jumps. Dash knows them from the beginning: callbacks read them as any other.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from dash.development.base_component import Component

FIELD_PIXELS = 55
"""Height of a small field with its label."""


class Later(Component):
    """What `fourfold.js` puts into the page when the timeline's first picture is seen; at once where there is none."""

    _namespace = "fourfold"
    _type = "Later"
    _prop_names: ClassVar[list[str]] = ["children", "width", "height"]  # type: ignore[misc]  # Dash reads the class'
    _valid_wildcard_attributes: ClassVar[list[str]] = []  # type: ignore[misc]

    def __init__(
        self, children: Component | Sequence[Component] | None = None, width: int | None = None, height: int = 0
    ) -> None:
        """Keep a room of so many pixels; without a width it is as wide as the page."""
        room: dict[str, Any] = {} if width is None else {"width": width}
        super().__init__(children=children, height=height, **room)  # type: ignore[no-untyped-call]
