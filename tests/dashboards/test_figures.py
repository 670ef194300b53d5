"""Numbers of the pages against the command line, and against adding up by hand."""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Any

import numpy as np
import plotly.graph_objects as go
import pytest

from dashboards.anatomy import Anatomies, Anatomy
from dashboards.collectives import BUS_FACTOR, Collectives, Row, collectives_of, link_loads, predicted_curve
from dashboards.events import columns, events_of
from dashboards.figures.bandwidth import bandwidth, skew
from dashboards.figures.parity import parity
from dashboards.figures.waterfall import in_order, largest, waterfall
from dashboards.members import members_of
from dashboards.page import PageContext
from dashboards.pages import memory
from dashboards.pages.compare import steps_of
from dashboards.pages.memory import beyond, stacked, variants
from dashboards.pages.runs import choices
from dashboards.pages.verdict import compared, shown, term_row
from dashboards.pairs import pairs_of
from dashboards.run_rows import differences
from dashboards.timeline.lanes import lanes
from dashboards.timeline.opened import opened as opened_pair
from dashboards.timeline.view import View
from tests.compare.compare_traces import by_hand_measured, by_hand_predicted, table
from tests.dashboards.test_pages import text_of
from tests.offloaded_job import OFFLOADED
from twin.cli import main
from twin.compare.terms import Term
from twin.cost.memory import memory_use
from twin.strategies import load_job

PAIRS = [
    ("testbed/2x2x2x1-predicted", "testbed/2x2x2x1-measured"),
    ("by-hand/predicted", "by-hand/measured"),
    ("testbed/8x1x1x1-measured", "testbed/8x1x1x1-predicted"),
]


def opened(context: PageContext, label: str):
    return next(entry for entry in context.catalog.entries() if entry.label == label)


@pytest.mark.parametrize("labels", PAIRS, ids=lambda p: p[0].partition("/")[2])
def test_the_waterfall_is_what_compare_says(context: PageContext, labels, capsys):
    """The figure's bars, the table's rows and `fourfold compare --json` hold the same numbers."""
    entries = [opened(context, label) for label in labels]
    found = compared(context, {"run": entries[0].name, "other": entries[1].name})
    paths = sorted((e.path for e in entries), key=lambda p: "measured" in p.name)
    with pytest.raises(SystemExit):
        main(["compare", *map(str, paths), "--json"])
    said = json.loads(capsys.readouterr().out)
    assert (found.predicted_seconds, found.measured_seconds) == (said["predicted_seconds"], said["measured_seconds"])
    rows = [term_row(term) for term in found.terms]
    for key in ("predicted", "measured", "difference"):
        assert [row[f"{key} (s)"] for row in rows] == [term[f"{key}_seconds"] for term in said["terms"]]
    figure = waterfall(found.predicted_seconds, found.measured_seconds, found.terms)
    assert figure.layout.xaxis.range[0] == 0
    bars = {key: (x, b) for t in figure.data for key, x, b in zip(t.customdata, t.x, t.base, strict=True)}
    assert {key: x for key, (x, _) in bars.items()} == {
        **{term["name"]: term["difference_seconds"] for term in said["terms"]},
        "predicted": said["predicted_seconds"],
        "measured": said["measured_seconds"],
    }
    level = said["predicted_seconds"]
    for term in in_order(found.terms):  # each begins where the one before ended
        assert bars[term.name][1] == pytest.approx(level, abs=1e-15)
        level += term.difference_seconds
    assert level == pytest.approx(said["measured_seconds"], rel=1e-12)


def term(name: str, difference: float) -> Term:
    return Term(name, name, 1.0, 1.0 + difference, difference)


def test_terms_are_sorted_and_savings_stand_apart():
    found = in_order([term("a", -0.1), term("b", 0.2), term("c", -0.5), term("d", 0.4)])
    assert [t.name for t in found] == ["d", "b", "c", "a"]


def test_what_is_named_first_goes_the_way_of_the_difference():
    """The step takes longer; the largest term, a saving, cannot be why."""
    terms = [term("gemm", -0.078), term("between", 0.064), term("skew_y", 0.039)]
    assert largest(terms, 0.03).name == "between"
    assert largest(terms, -0.03).name == "gemm"
    assert largest([term("gemm", -1.0)], 0.1) is None


@pytest.mark.parametrize("labels", PAIRS[:2], ids=lambda p: p[0].partition("/")[2])
def test_gaps_are_the_terms_that_no_op_accounts_for(context: PageContext, labels):
    """Mean over ranks of what lies before, between and behind ops is what `compare` says of the measured step."""
    entries = [opened(context, label) for label in labels]
    query = {"run": entries[0].name, "other": entries[1].name, "show": "gap"}
    found = compared(context, query)
    pair, _ = opened_pair(context, {**query, "step": str(found.step)})
    step, rows = pair.steps[1], lanes(pair, View(show="gap"))
    at = rows.side == 1
    total = float((rows.end - rows.start)[at].sum()) / len(set(step.rank.tolist()))
    expected = sum(t.measured_seconds for t in found.terms if t.name in ("before", "between", "after"))
    assert total == pytest.approx(expected, rel=1e-6, abs=1e-12)


def test_the_drawn_verdict_holds_them_too(context: PageContext, names):
    query = {"run": names["by-hand/predicted"], "other": names["by-hand/measured"]}
    page = shown(context, query)
    graph = next(n for n in page._traverse() if getattr(n, "id", "") == "waterfall")
    bars = {k: x for t in go.Figure(graph.figure).data for k, x in zip(t.customdata, t.x, strict=True)}
    assert (bars.pop("predicted"), bars.pop("measured")) == (pytest.approx(18e-9), pytest.approx(33e-9))
    assert sum(bars.values()) == pytest.approx(15e-9)


def test_ops_are_paired_by_name_with_medians():
    """By hand: product 10 and 10 ns against 12 and 13, transfer 5 against 6, norm 3 against 3 and 2."""
    found = pairs_of(columns(table(by_hand_predicted())), columns(table(by_hand_measured())))
    rows = {op: (a, b) for op, a, b in zip(found.op, found.first_ns, found.second_ns, strict=True)}
    assert rows == {
        "micro0/fwd/qkv/gemm": (10.0, 12.5),
        "micro0/fwd/qkv/all_reduce_x": (5.0, 6.0),
        "micro0/fwd/norm1/normalize": (3.0, 2.5),
    }
    assert dict(zip(found.op, found.work, strict=True))["micro0/fwd/qkv/all_reduce_x"] == "all_reduce"
    assert set(found.axis) == {"", "x"}


def test_collectives_are_counted_by_hand():
    """Rank 0 comes 7 ns before rank 1, its device 6; and the transfer takes 6 ns: 8 bytes over two ranks."""
    found = collectives_of(columns(table(by_hand_measured())), {"x": 2})
    (row,) = found.rows
    assert (row.kind, row.axis, row.members, row.bytes, row.count) == ("all_reduce", "x", 2, 8.0, 1.0)
    assert (row.transfer_ns, row.skew_ns, row.total_transfer_ns, row.total_skew_ns) == (6.0, 3.0, 12.0, 6.0)
    assert row.total_ahead_ns == 1.0  # from asking until the device is there
    assert row.bus_bytes_per_second == pytest.approx(2.0 * 0.5 * 8.0 / 6e-9)
    assert found.transfer_seconds_per_rank == pytest.approx(6e-9)
    assert found.skew_seconds_per_rank == pytest.approx(3e-9)
    assert collectives_of(columns(table({0: []})), {"x": 2}).rows == ()


def test_times_of_collectives_are_drawn_with_their_unit():
    """As the test above counts them, of a rank: 6 ns of transfer, and 3 ns until the last member came."""
    figure = skew([("measured", collectives_of(columns(table(by_hand_measured())), {"x": 2}))])
    drawn = {bar.name: bar.x[0] for bar in figure.data}
    assert drawn == {"measured: transfer": pytest.approx(6e-9), "measured: skew": pytest.approx(3e-9)}
    assert (figure.layout.xaxis.ticksuffix, figure.layout.xaxis.tickformat) == ("s", "~s")
    assert all("s<extra>" in bar.hovertemplate for bar in figure.data)


def test_collectives_of_a_real_run_by_a_dictionary(context: PageContext):
    entry = opened(context, "testbed/1x2x2x2-measured")
    events = events_of(context.catalog, entry)
    by_key: dict[tuple[str, str, float], list[int]] = {}
    for i in np.flatnonzero(events.kind.are("collective")):
        key = (events.name[i], events.stream[i], float(events.bytes[i]))
        by_key.setdefault(key, []).append(int(events.end_ns[i] - events.start_ns[i]))
    rows = {(r.name, r.stream, r.bytes): r for r in collectives_of(events, members_of(entry, events)).rows}
    assert rows.keys() == by_key.keys()
    for key, times in by_key.items():
        assert rows[key].transfer_ns == statistics.median(times)
        assert rows[key].count == len(times) / (len(events.ranks) * len(events.steps))


def test_the_models_curve_rises_to_what_links_carry(context: PageContext):
    curves = predicted_curve(opened(context, "gpt-320b-frontier"))
    assert {curve["kind"] for curve in curves} <= set(BUS_FACTOR)
    for curve in curves:
        assert curve["bus"][-1] > curve["bus"][0] > 0
    loads = link_loads(opened(context, "gpt-320b-frontier"))
    assert all(0 < row["share of the step (%)"] < 100 for row in loads)


def test_memory_of_other_options():
    """By the twin's own count: recomputation and sharding take less, plain attention more."""
    uses = dict(
        variants(
            load_job(
                {
                    "model": "gpt-5b",
                    "machine": "perlmutter",
                    "ranks": 8,
                    "grid": {"data": 2, "x": 4},
                    "batch": {"sequences": 16, "micro_sequences": 4},
                    "recompute": True,
                }
            )
        )
    )
    size = {name: use.per_rank_bytes for name, use in uses.items()}
    assert size["recompute off"] > size["as it is"] > size["optimizer sharded over data"]
    assert size["2 sequences at a time"] < size["as it is"] < size["8 sequences at a time"]


JOBS = Path(__file__).parents[2] / "examples"
STRIDE = {"optimizer": {"stride": 2, "sub_group_elements": 100_000_000}}


def test_no_category_of_memory_looks_like_another():
    use = memory_use(load_job(OFFLOADED | {"offload": STRIDE}))
    figure = stacked([("offloaded", use)])
    looks = [(bar.marker.color, bar.marker.pattern.shape) for bar in figure.data]
    assert len(looks) == len(use.by_category) == 7
    assert len(set(looks)) == len({colour for colour, _ in looks}) == len(looks)


def test_memory_beyond_the_devices_is_told():
    """12 bytes of optimizer states for each of 8.03e9 parameters, whose gradients lie there in 4 and 2 bytes."""
    use = memory_use(load_job(OFFLOADED | {"offload": STRIDE}))
    assert "144.5 GB of 512.0 GB in the memory of each host, most of it optimizer" in beyond(use)
    assert memory.rows_of([("offloaded", use)])[0]["host, a node (B)"] == pytest.approx(18 * 8.03e9, rel=1e-3)


@pytest.mark.parametrize("turned", [False, True])
def test_memory_of_two_strategies_adds_up_whichever_comes_first(make_job: Any, turned: bool) -> None:
    """DDP gathers no weights, a 4D rank sends no messages of a pipeline."""
    jobs = [
        ("four_d", make_job({"z": 2})),
        ("ddp", load_job(JOBS / "tiny-gpt-ddp.yaml")),
        ("offloaded", load_job(OFFLOADED | {"offload": STRIDE})),
    ]
    uses = [(name, memory_use(job)) for name, job in (jobs[::-1] if turned else jobs)]
    bars = stacked(uses).data
    for number, (name, use) in enumerate(uses):
        assert sum(bar.x[number] for bar in bars) == pytest.approx(use.per_rank_bytes)
        row = memory.rows_of(uses)[number]
        shown = [row[f"{bar.name} (B)"] for bar in bars]
        assert (row["job"], sum(shown)) == (name, pytest.approx(row["all (B)"]))
    assert len({tuple(row) for row in memory.rows_of(uses)}) == 1


def test_no_more_sequences_at_a_time_than_a_rank_has():
    """Four sequences over four ranks: there are no two of them at a time."""
    assert not [name for name, _ in variants(load_job(OFFLOADED)) if "at a time" in name]


def test_a_legend_promises_no_points_that_there_are_not():
    """What one rank copies uses no bus."""
    alone = Row("update", "host_update", "cpu", "cpu", 1, 4e9, 1.0, 1e6, 1e6, 0.0, 0.0, 1e6, 0.0, 0.0)
    together = Row("gather", "all_gather", "weights", "weights_gather", 4, 4e9, 1.0, 1e6, 1e6, 0.0, 0.0, 1e6, 0.0, 0.0)
    figure = bandwidth([("run", Collectives((alone, together), ranks=1, steps=1))], [])
    assert [trace.name for trace in figure.data] == ["run, weights"]


def test_where_one_can_go_from_a_choice(context: PageContext):
    first, second = (opened(context, f"by-hand/{kind}") for kind in ("measured", "predicted"))
    both = {"run": second.name, "other": first.name}
    assert choices([first, second])[0] == ("Verdict", "/verdict", both)
    assert differences(first, second) == []
    other = opened(context, "gpt-320b-frontier")
    every = differences(first, other, 10_000)
    assert "model.layers" in every
    assert differences(first, other, 2) == [*every[:2], f"and {len(every) - 2:,} more"]
    assert differences(first, opened(context, "gpt-5b-search")) == []


def test_ticks_of_logarithmic_axes_have_units() -> None:
    """Plotly writes the unit at powers of ten alone, and 0.001 beside 100µ."""
    wide = parity(np.array([1e-5, 0.2]), np.array([2e-5, 0.1]), ["a", "a"], ["b", "c"]).layout
    narrow = parity(np.array([0.5, 1.4]), np.array([0.6, 1.5]), ["a", "a"], ["b", "c"]).layout
    for axis in (wide.xaxis, wide.yaxis):
        assert (axis.dtick, axis.ticksuffix, axis.tickformat) == (1, "s", "~s")
    for axis in (narrow.xaxis, narrow.yaxis):
        found = dict(zip(axis.tickvals, axis.ticktext, strict=True))
        assert (found[0.5], found[1.0]) == ("500 ms", "1 s")


def test_memory_has_a_unit_that_suits_its_size(make_job: Any) -> None:
    use = memory_use(make_job({"z": 2}, "laptop"))
    figure = stacked([("tiny", use)])
    assert sum(bar.x[0] for bar in figure.data) == pytest.approx(use.per_rank_bytes)
    assert (figure.layout.xaxis.ticksuffix, figure.layout.xaxis.tickformat) == ("B", "~s")


def test_every_run_has_its_steps_in_order() -> None:
    """Of runs that traced steps 3 and 4, and 0 to 3, the second one's stood as 3, 0, 1, 2.

    Plotly orders inner names by where they appear first, whichever outer name they are below.
    """
    step = Anatomy(1.0, {"compute": 0.75, "idle": 0.25}, {}, {}, {})
    runs = {"one": (3, 4), "other": (0, 1, 2, 3)}
    figure, _ = steps_of(list(runs), [Anatomies(step, dict.fromkeys(numbers, step)) for numbers in runs.values()])
    outer, inner = figure.data[0].x
    order = list(dict.fromkeys(inner))
    for run, numbers in runs.items():
        names = [name for name, of in zip(inner, outer, strict=True) if of == run]
        seen = [name.strip("\u200b") for name in sorted(names, key=order.index)]
        assert seen == [str(number) for number in numbers]


def test_a_verdict_of_two_jobs_leads_to_what_shows_them(context: PageContext) -> None:
    """It named keys of the first and the second trace, and offered nothing."""
    query = {"run": opened(context, "by-hand/predicted").name, "other": opened(context, "gpt-320b-frontier").name}
    said = text_of(shown(context, query))
    assert "A verdict is about two runs of one job" in said
    assert f"/compare?run={query['run']}&other={query['other']}" in said
