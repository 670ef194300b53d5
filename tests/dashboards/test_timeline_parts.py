"""Steps, pairs, lanes and pictures against brute force."""

from __future__ import annotations

import base64
import dataclasses
from urllib.parse import urlencode

import numpy as np
import pytest
from dash._utils import to_json
from dash_ag_grid import AgGrid
from hypothesis import given
from hypothesis import strategies as st

from dashboards.events import CATEGORIES, columns
from dashboards.figures.timeline import MAX_BARS, describe, timeline
from dashboards.figures.timeline_marks import reframed
from dashboards.figures.timeline_picture import COLUMNS, picture, rows_of, spelled_out
from dashboards.pages.timeline import shown
from dashboards.pages.timeline_later import list_worst
from dashboards.pages.timeline_open import CHOICES, open_all
from dashboards.pages.timeline_parts import worst_rows
from dashboards.timeline import raster
from dashboards.timeline.lanes import MAX_LANES, lanes, unpaired, worst
from dashboards.timeline.raster import coverage, painted
from dashboards.timeline.step import partners, step_of
from dashboards.timeline.view import View, all_ranks, paired
from tests.compare.compare_traces import Row, by_hand_measured, by_hand_predicted, table
from tests.profiles import examples
from twin.description.problems import DescriptionError


def by_hand():
    return (columns(table(by_hand_predicted())), columns(table(by_hand_measured())))


def pair_of(first, second, **options):
    return paired(("predicted", "measured"), (step_of(first, None), step_of(second, None)), **options)


def test_columns_are_what_the_table_says():
    rows = table(by_hand_measured())
    found = columns(rows)
    for name in ("rank", "step", "start_ns", "end_ns", "arrival_ns", "bytes", "flops"):
        assert getattr(found, name).tolist() == rows.column(name).to_pylist()
    for name in ("kind", "stream", "op", "name", "phase", "axis"):
        assert [getattr(found, name)[i] for i in range(len(found))] == [w or "" for w in rows.column(name).to_pylist()]
    expected = [
        k if k in ("compute", "wait") else a
        for k, a in zip(rows["kind"].to_pylist(), rows["axis"].to_pylist(), strict=True)
    ]
    assert [CATEGORIES[c] for c in found.category] == expected
    assert found.group.tolist() == [-1 if g is None else g for g in rows["group"].to_pylist()]
    assert (found.ranks.tolist(), found.steps) == ([0, 1], [0])


def test_an_empty_run_has_no_step():
    empty = columns(table({0: []}))
    assert (len(empty), empty.steps, empty.kind.are("compute").tolist()) == (0, [], [])
    with pytest.raises(DescriptionError, match="no events"):
        step_of(empty, None)


def test_a_step_begins_at_zero():
    """Rank 0 is first in, 100 ns after the run's begin; the last op ends 33 ns later."""
    step = step_of(by_hand()[1], None)
    assert (step.number, step.start.min(), step.length) == (0, 0.0, pytest.approx(33e-9))
    assert step.streams == ("compute", "x")
    assert [step.rows_of(r) for r in (0, 1, 2)] == [slice(0, 4), slice(4, 8), slice(8, 8)]
    with pytest.raises(DescriptionError, match="step"):
        step_of(by_hand()[1], 7)


@st.composite
def two_runs(draw):
    """Two runs of some ranks, whose ops partly agree, in any order."""

    def run():
        ranks = draw(st.sets(st.integers(0, 5), min_size=1))
        return {
            r: [
                Row(f"micro0/fwd/op{n}", "compute", 10 * i, 10 * i + 5)
                for i, n in enumerate(draw(st.permutations(range(draw(st.integers(1, 8))))))
            ]
            for r in ranks
        }

    return run(), run()


@given(two_runs())
@examples(0.5, derandomize=True)
def test_partners_are_those_of_the_same_name(runs):
    steps = [step_of(columns(table(dict(sorted(run.items())))), None) for run in runs]
    places = {(int(r), steps[1].names[b]): i for i, (r, b) in enumerate(zip(steps[1].rank, steps[1].base, strict=True))}
    expected = [places.get((int(r), steps[0].names[b]), -1) for r, b in zip(steps[0].rank, steps[0].base, strict=True)]
    assert partners(*steps).tolist() == expected
    pair = paired(("a", "b"), tuple(steps))
    assert unpaired(pair, 0) == sum(p < 0 for p in expected)


def test_a_rank_that_stands_for_others_is_their_partner():
    predicted = columns(table({0: by_hand_predicted()[0]}))
    measured = columns(table(by_hand_measured()))
    pair = pair_of(predicted, measured, stands_for=({0: 0, 1: 0}, {}))
    assert pair.partner[1].tolist() == [0, 1, 2, 3, 0, 1, 2, 3]
    shown = lanes(pair, View(ranks=(1,)))
    assert sum(name.endswith("predicted") for name in shown.names) == 2


def test_runs_can_be_aligned_at_an_op():
    name = "micro0/fwd/qkv/all_reduce_x"
    pair = pair_of(*by_hand(), align=name)
    starts = [s.start[s.base == s.names.index(name)].min() + d for s, d in zip(pair.steps, pair.shift, strict=True)]
    assert starts[0] == pytest.approx(starts[1])
    with pytest.raises(DescriptionError, match="align"):
        pair_of(*by_hand(), align="nothing")


def test_the_largest_differences_come_first():
    """Rank 1's product takes 13 ns for 10, rank 0's 12 ns; a collective counts from its last member."""
    pair = pair_of(*by_hand())
    shown = lanes(pair, View())
    found = worst(pair, shown)
    assert [round(d * 1e9) for _, d in found] in ([3, 2, 1, -1, 1, 0], [3, 2, 1, 1, -1, 0], [3, 2, -1, 1, 1, 0])
    first = found[0][0]
    assert shown.side[first] == 1
    assert pair.steps[1].rank[shown.event[first]] == 1


def test_many_ranks_are_thinned_evenly():
    run = {r: [Row("micro0/fwd/a", "compute", 0, 5)] for r in range(1000)}
    step = step_of(columns(table(run)), None)
    pair = paired(("predicted",), (step,))
    shown = lanes(pair, View())
    assert len(shown.names) <= MAX_LANES
    assert shown.left_out == 1000 - len(shown.names)
    assert {"rank 0", "rank 999"} <= {n.split(" ·")[0].removesuffix(" compute") for n in shown.names}
    assert all_ranks(pair) == list(range(1000))


def test_bars_carry_times_and_escape_names():
    evil = "<b>x</b>&amp;"
    runs = [columns(table({0: [Row(f"micro0/fwd/{evil}", "compute", 0, end)]})) for end in (10, 15)]
    pair = pair_of(*runs)
    shown = lanes(pair, View())
    words = describe(pair, tuple(runs), shown, 0)
    assert "&lt;b&gt;x&lt;/b&gt;&amp;amp;" in words
    assert words.replace("<br>", "").count("<") == 0
    assert "10 ns" in words
    assert "15 ns" in words
    assert "+50 %" in words
    figure, said = timeline(pair, tuple(runs), shown, View(), None)
    assert "2 ops, one bar each" in said
    drawn = sorted((float(b), float(b) + float(x)) for t in figure.data for b, x in zip(t.base, t.x, strict=True))
    assert drawn == [(0.0, pytest.approx(10e-9)), (0.0, pytest.approx(15e-9))]


def test_never_more_bars_than_a_browser_draws():
    run = {r: [Row(f"micro0/fwd/o{n}", "compute", 10 * n, 10 * n + 9) for n in range(400)] for r in range(10)}
    events = columns(table(run))
    pair = paired(("predicted",), (step_of(events, None),))
    shown = lanes(pair, View())
    whole, words = timeline(pair, (events,), shown, View(), None)
    assert "4,000 ops, too many" in words
    assert {t.type for t in whole.data if t.type != "bar" or t.x[0] is not None} == {"heatmap"}
    assert len(whole.layout.images) == 1
    part, words = timeline(pair, (events,), shown, View(), (0.0, 1e-6))
    assert "1,000 ops, one bar each" in words
    assert sum(len(t.x) for t in part.data) == 1000 <= MAX_BARS


Event = st.tuples(st.integers(0, 2), st.integers(0, 2), st.floats(-2, 12), st.floats(0, 6), st.floats(0, 3))


@given(st.lists(Event, max_size=30), st.integers(1, 17), st.booleans())
@examples(0.8, derandomize=True)
def test_a_picture_holds_the_exact_time_of_each_kind(events, pixels, weighted):
    """Each pixel's share by the overlap of every event with it, one by one."""
    low, high, kinds, rows = 1.0, 9.0, 3, 3
    lane, kind, start, length, weight = (
        (np.array(v) for v in zip(*events, strict=True))
        if events
        else (np.zeros(0, dtype=int), np.zeros(0, dtype=int), np.zeros(0), np.zeros(0), np.zeros(0))
    )
    end = start + length
    found = coverage(lane, kind, start, end, (low, high), (kinds, rows, pixels), weight if weighted else None)
    width = (high - low) / pixels
    expected = np.zeros((kinds, rows, pixels))
    for row, of, a, n, w in events:
        for column in range(pixels):
            left = low + column * width
            overlap = max(0.0, min(a + n, left + width) - max(a, left))
            expected[of, row, column] += overlap / width * (w if weighted else 1.0)
    np.testing.assert_allclose(found, expected, atol=1e-9)
    with pytest.MonkeyPatch.context() as patched:  # the same in pieces
        patched.setattr(raster, "CHUNK", 7)
        pieces = coverage(lane, kind, start, end, (low, high), (kinds, rows, pixels), weight if weighted else None)
    np.testing.assert_allclose(pieces, expected, atol=1e-9)
    total = sum(max(0.0, min(a + n, high) - max(a, low)) * (w if weighted else 1.0) for _, _, a, n, w in events)
    assert found.sum() * width == pytest.approx(total, abs=1e-8)


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2), st.floats(0, 0.3)), max_size=60), st.integers(1, 9))
@examples(0.8, derandomize=True)
def test_drawn_shares_are_busy_shares(events, rows):
    """Red, green and blue for three kinds: what is drawn of each, added up, is for how long it was busy."""
    shares = np.zeros((3, 3, 8))
    for number, (lane, kind, share) in enumerate(events):
        shares[kind, lane, number % 8] += min(share, max(0.0, 1 - shares[:, lane, number % 8].sum()))
    pixels = painted(shares, 255 * np.eye(3), rows).reshape(3, rows, 8, 4) / 255
    drawn = (pixels[..., :3] * pixels[..., 3:]).mean(axis=1).transpose(2, 0, 1)
    np.testing.assert_allclose(drawn, shares, atol=0.01)


@pytest.mark.parametrize("window", [(0.0, 1.0), (0.2, 0.21), (0.0, 25.0)])
def test_a_lane_of_short_ops_is_drawn_as_busy_as_it_is(window):
    """Ops of a tenth of a pixel, 15 % of the time: the picture showed a third of them, at some zooms none."""
    run = {
        0: [Row(f"micro0/fwd/o{n}", "collective", n * 100_000, n * 100_000 + 15_000, axis="y") for n in range(10_000)]
    }
    events = columns(table(run))
    pair = paired(("predicted",), (step_of(events, None),))
    shown = lanes(pair, View())
    drawn = pixels_of(picture(shown, window, by_error=False).image.source)
    rows, gap = rows_of(len(shown.names))
    part = min(1.0, 1.0 / (window[1] - window[0]))  # of the window in which the run is
    assert drawn[..., 3].mean() / 255 * rows / (rows - gap) == pytest.approx(0.15 * part, rel=0.01)


def pixels_of(source: str) -> np.ndarray:
    """Read a picture back as bytes (rows, columns, 4), by the decoder that Plotly has beside its encoder."""
    from _plotly_utils.png import Reader

    width, height, values, _ = Reader(bytes=base64.b64decode(source.partition(",")[2])).asRGBA8()
    return np.array([list(row) for row in values], dtype=np.uint8).reshape(height, width, 4)


def test_where_streams_share_a_lane_compute_and_all_else_have_a_half_each():
    """Compute is busy throughout, and hides the other half of no lane."""
    run = {
        r: [Row("micro0/fwd/a", "compute", 0, 1000), Row("micro0/fwd/y", "collective", 0, 500, axis="y")]
        for r in range(100)
    }
    pair = paired(("predicted",), (step_of(columns(table(run)), None),))
    shown = lanes(pair, View())
    assert all(shown.whole)
    found = picture(shown, (0.0, 1e-6), by_error=False)
    pixels = pixels_of(found.image.source).reshape(len(shown.names), -1, COLUMNS, 4)
    _, gap = rows_of(len(shown.names))
    assert (pixels[:, :gap, :, 3] == 0).all()
    rows = pixels.shape[1] - gap
    assert pixels[..., 3].mean() / 255 * pixels.shape[1] / rows == pytest.approx(0.5 * 1 + 0.5 * 0.5, abs=0.06)
    words = np.array(picture(shown, (0.0, 1e-6), by_error=False, spelled=True).traces[0].text)
    assert words[0, 0] == "rank 0<br>compute 100 %<br>collective, y 100 %"
    assert words[0, -1] == "rank 0<br>compute 100 %"
    lightly = found.traces[0]
    assert (lightly.meta["lanes"][0], lightly.meta["kinds"]) == ("rank 0", ["compute", "collective, y"])
    assert (lightly.text, lightly.customdata.shape) == (None, (*words.shape, 2))
    assert spelled_out(**{key: lightly.meta[key] for key in ("lanes", "kinds")}, percent=lightly.customdata) == [
        list(row) for row in words
    ]
    assert lightly.x0 + lightly.dx * (words.shape[1] - 0.5) == pytest.approx(1e-6)


def test_a_picture_travels_without_its_words():
    """Ten thousand places, of each the shares of seven kinds: below what their words took alone."""
    axes = ("x", "y", "z", "data")
    run = {
        r: [
            *(Row(f"micro0/fwd/a{n}", "compute", 10 * n, 10 * n + 5) for n in range(40)),
            *(Row(f"micro0/fwd/{a}{n}", "collective", 10 * n, 10 * n + 4, axis=a) for n in range(40) for a in axes),
        ]
        for r in range(64)
    }
    events = columns(table(run))
    pair = paired(("predicted",), (step_of(events, None),))
    shown = lanes(pair, View(lay="rank"))
    figure, _ = timeline(pair, (events,), shown, View(), None)
    assert figure.layout.yaxis.ticklabeloverflow == "allow"  # else Plotly measures each of the lanes' names
    size = len(to_json(figure)) - len(figure.layout.images[0].source)
    spelled, _ = timeline(pair, (events,), shown, View(), None, spelled=True)
    assert size < 450_000 < len(to_json(spelled)) - len(spelled.layout.images[0].source)


@given(st.lists(st.integers(0, 90), min_size=1, max_size=200))
@examples(0.3)
def test_the_worst_are_those_of_a_full_sort(lengths):
    """Fifty are taken out of all without sorting all; of equal ones the first."""
    run = {0: [Row(f"micro0/fwd/o{n}", "compute", 100 * n, 100 * n + w) for n, w in enumerate(lengths)]}
    pair = paired(("predicted",), (step_of(columns(table(run)), None),))
    shown = lanes(pair, View())
    size = (shown.end - shown.start).tolist()
    assert [place for place, _ in worst(pair, shown)] == sorted(range(len(size)), key=lambda n: -size[n])[:50]


def test_a_zoom_moves_the_maps_window_alone():
    """The map's picture, of the whole step, does not travel again."""
    sent = to_json(reframed((0.25, 0.5)))
    assert "image" not in sent
    assert len(sent) < 600


def test_what_is_shown_can_be_one_axis():
    pair = pair_of(*by_hand())
    shown = lanes(pair, View(show="x"))
    assert {CATEGORIES[c] for c in shown.category} == {"x", "wait"}
    assert {CATEGORIES[c] for c in lanes(pair, View(show="compute")).category} == {"compute"}
    assert dataclasses.is_dataclass(shown)


def test_the_first_answer_has_no_large_table(context, queries):
    """Their scripts and cells would hold up the picture; the ops that differ most are listed when it is seen."""
    query = queries["/timeline"]
    made = shown(context, query)
    assert not [part for part in made._traverse() if isinstance(part, AgGrid)]
    later = list_worst(context, 1, *("" for _ in CHOICES), urlencode(query))
    (table,) = [part for part in later._traverse() if isinstance(part, AgGrid)]
    assert table.id == "timeline-worst"
    found = open_all(context, query, meet=False)
    assert [row["key"] for row in table.rowData] == [row["key"] for row in worst_rows(found.pair, found.laid)]
