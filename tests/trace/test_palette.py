"""The same thing has the same colour wherever it is drawn."""

from __future__ import annotations

import json
import re
from itertools import combinations

import pytest

from dashboards.events import CATEGORIES
from dashboards.figures import scaling, timeline_picture
from twin.pages.timeline import timeline_html
from twin.schedule.ops import OWN_STREAMS, axis_of
from twin.strategies.registry import known_axes
from twin.studies import figures
from twin.trace.palette import AXES, BEYOND, EVENTS, KINDS, OTHER_AXES, axis_colour
from twin.trace.table import SCHEMA

WHITE, DARK = "#ffffff", "#1a1b1e"


def luminance(colour: str) -> float:
    """Relative luminance as WCAG 2 defines it."""
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    red, green, blue = (p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    high, low = sorted((luminance(one), luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def test_an_axis_has_one_colour_in_timelines_studies_and_the_dashboard():
    page = timeline_html(SCHEMA.empty_table(), {}, "title")
    (data,) = re.findall(r'id="data" type="application/json">(.*?)</script>', page)
    in_page = json.loads(data)["colours"]
    legend = {
        timeline_picture.WORDS[name]: colour for name, colour in zip(CATEGORIES, timeline_picture.COLOURS, strict=True)
    }
    for axis, colour in AXES.items():
        assert in_page[axis] == colour
        assert legend[f"collective, {axis}"] == colour
        assert figures.PARTS[f"exposed_{axis}_seconds"] == (f"exposed {axis}", colour)
        assert scaling.PARTS[f"exposed {axis}"] == colour
    assert legend["compute"] == figures.PARTS["compute_seconds"][1] == KINDS["compute"]


def test_no_axis_looks_like_another_or_like_compute():
    for one, other in combinations([*AXES.values(), KINDS["compute"], KINDS["wait"]], 2):
        assert one != other
    assert not {EVENTS[axis] for axis in AXES} & {EVENTS[phase] for phase in EVENTS if phase not in AXES}


def test_what_lies_beyond_the_device_looks_like_no_axis_of_any_strategy():
    """All that `offload` adds may be under way beside collectives: a host's update had the colour of FSDP's weights."""
    assert set(BEYOND) == {axis_of(stream) for stream in OWN_STREAMS}
    assert len(set(BEYOND.values())) == len(BEYOND)
    assert not {axis_colour(name) for name in BEYOND} & {axis_colour(axis) for axis in known_axes()}
    assert not set(BEYOND.values()) & set(EVENTS.values())


@pytest.mark.parametrize("colour", [*AXES.values(), *OTHER_AXES, *BEYOND.values()])
def test_an_axis_is_seen_on_white_and_on_dark_pages(colour):
    """WCAG 2.2 asks 3:1 of graphics; light colours on white rely on their size instead."""
    assert contrast(colour, DARK) >= 3
    assert contrast(colour, WHITE) >= 2.5
