"""One op looked at, windows added up, the critical path, files, any two runs: against sums by hand."""

from __future__ import annotations

import csv
import io
import json
import os
import re
from itertools import pairwise

import numpy as np
import pytest

from dashboards.anatomy import anatomies_of, take_apart, terms_between
from dashboards.app import content, titled
from dashboards.catalog import Catalog
from dashboards.chooser import suited
from dashboards.events import CATEGORIES, columns, events_of, step_seconds
from dashboards.jobs import contents, partners
from dashboards.pages import PAGES, compare, rank_map, runs
from dashboards.pages.timeline_files import as_chrome, as_csv
from dashboards.pages.timeline_open import open_all
from dashboards.pages.trust import both_ways
from dashboards.pages.verdict import compared
from dashboards.run_rows import rows_of
from dashboards.timeline.gaps import gaps_of
from dashboards.timeline.inspect import chosen_op, looked_at
from dashboards.timeline.lanes import lanes
from dashboards.timeline.meetings import critical_path, meetings_of
from dashboards.timeline.statistics import found_rows, window_rows
from dashboards.timeline.step import step_of
from dashboards.timeline.view import View, paired
from dashboards.whatif.base import base_of
from dashboards.whatif.kept import sound
from tests.compare.compare_traces import JOB, Row, by_hand_measured, by_hand_predicted, collective, table, write

BY_PATH = {page.path: page for page in PAGES}


def by_hand():
    events = tuple(columns(table(one())) for one in (by_hand_predicted, by_hand_measured))
    return events, paired(("predicted", "measured"), tuple(step_of(one, None) for one in events))


def event_of(step, rank: int, name: str) -> int:
    rows = step.rows_of(rank)
    return rows.start + next(i for i, b in enumerate(step.base[rows].tolist()) if step.names[b] == name)


def test_who_came_last_is_named_with_what_it_did():
    """Rank 1 begins 5 ns late and its product takes 13 ns: it is the last at the all-reduce."""
    events, pair = by_hand()
    step = pair.steps[1]
    meetings = meetings_of(step, events[1])
    wait = event_of(step, 0, "micro0/fwd/qkv/all_reduce_x/wait")
    found = looked_at(pair, events, meetings, 1, wait)
    rows = {row["rank"]: row for row in found.members}
    arrivals = {
        int(r): int(a)
        for r, a, k in zip(events[1].rank, events[1].arrival_ns, events[1].kind.code, strict=True)
        if events[1].kind.words[k] == "collective"
    }
    late = arrivals[1] - arrivals[0]
    assert late > 0
    assert found.members[0]["rank"] == 1
    assert rows[1]["after the first (s)"] == pytest.approx(late * 1e-9)
    assert f"Rank 1 came last, {late} ns after the first" in found.why
    assert "micro0/fwd/qkv/gemm, 13 ns" in found.why
    assert {row["rank"] for row in found.elsewhere} == {0, 1}


@pytest.mark.parametrize("text", ["", "x", "1", "2.0", "0.99999", "-1.0", "0.-1", "0.1.2", "²._", "0." + "9" * 40])
def test_an_op_that_is_not_there_is_none(text):
    assert chosen_op(text, by_hand()[1]) is None


def test_a_window_adds_up_to_what_runs_in_it():
    """Both ranks compute from 0 to 10 and from 15 to 18 ns; of 5 to 16 ns that is 5 and 1."""
    _, pair = by_hand()
    rows = {row["kind"]: row for row in window_rows(pair, lanes(pair, View()), (5e-9, 16e-9))}
    assert rows["compute"]["predicted (s)"] == pytest.approx(6e-9)
    assert rows["compute"]["predicted, share (%)"] == pytest.approx(100 * 6 / 11, abs=1e-3)
    assert rows["collective, x"]["predicted (s)"] == pytest.approx(5e-9)


def test_a_search_by_name_adds_up_what_it_finds():
    _, pair = by_hand()
    (row,) = found_rows(pair, lanes(pair, View()), "GEMM")
    assert (row["predicted, times"], row["measured, times"]) == (2, 2)
    assert row["predicted, total (s)"] == pytest.approx(20e-9)
    assert row["measured, total (s)"] == pytest.approx(25e-9)
    assert row["measured, mean (s)"] == pytest.approx(12.5e-9)
    assert found_rows(pair, lanes(pair, View()), "nothing of the kind") == []


def test_the_critical_path_goes_over_to_the_rank_that_came_last():
    """Rank 1's long product, then the transfer, then the norm that ends last: 40 + 5 + 10 of 55 ns."""

    def rank(product: int, norm: int) -> list[Row]:
        return [
            Row("micro0/fwd/a/gemm", "compute", 0, product),
            *collective("micro0/fwd/a/all_reduce_x", product, 40, 45, (product, 45)),
            Row("micro0/fwd/b/normalize", "compute", 45, 45 + norm),
        ]

    events = columns(table({0: rank(10, 10), 1: rank(40, 3)}))
    step = step_of(events, None)
    links = critical_path(step, meetings_of(step, events))
    said = [
        (int(step.rank[e.event]), CATEGORIES[step.category[e.event]], round((e.end - e.start) * 1e9)) for e in links
    ]
    assert said == [(1, "compute", 40), (0, "x", 5), (0, "compute", 10)]


def test_the_path_goes_from_the_steps_begin_to_its_end(context, names):
    """Where it has a gap, nothing runs on the rank that it comes from: its host is late, as it is before the first."""
    found = open_all(context, {"run": names["testbed/2x2x2x1-predicted"], "path": "0"}, meet=True)
    step = found.pair.steps[0]
    links = critical_path(step, found.meetings[0])
    assert (links[0].start, links[-1].end) == (step.start.min(), step.length)
    compute = step.category == CATEGORIES.index("compute")
    for a, b in pairwise(links):
        assert a.end <= b.start + 1e-12
        there = compute & (step.rank == step.rank[a.event]) & (step.start < b.start - 1e-9) & (step.end > a.end + 1e-9)
        assert not there.any()


@pytest.mark.parametrize("lay", ["rank", "host", "data", "z"])
def test_lanes_of_groups_are_means_of_their_ranks(context, names, lay):
    """What is drawn of a group, times its ranks, is what its ranks take."""
    query = {"run": names["testbed/2x2x2x1-measured"], "lay": lay}
    found = open_all(context, query, meet=False)
    step, laid = found.pair.steps[0], found.laid
    weight = np.ones(len(laid.start)) if laid.weight is None else laid.weight
    ranks = np.array([len(of) for of in laid.ranks])
    compute = laid.category == CATEGORIES.index("compute")
    total = ((laid.end - laid.start) * weight * ranks[laid.lane])[compute].sum()
    assert total == pytest.approx((step.end - step.start)[step.category == CATEGORIES.index("compute")].sum())
    assert len(laid.names) == {"rank": 8, "host": 1, "data": 2, "z": 2}[lay]


def test_pinned_ranks_stand_above(context, names):
    query = {"run": names["testbed/2x2x2x1-measured"], "pins": "5", "lay": "rank", "ranks": "0-2"}
    laid = open_all(context, query, meet=False).laid
    assert [of[0] for of in laid.ranks] == [5, 0, 1, 2]


def test_files_hold_every_op():
    found = [table(by_hand_predicted()), table(by_hand_measured())]
    rows = list(csv.DictReader(io.StringIO(as_csv(found, ("predicted", "measured")))))
    assert [row["run"] for row in rows].count("measured") == found[1].num_rows
    assert [int(row["start_ns"]) for row in rows] == [n for one in found for n in one["start_ns"].to_pylist()]
    events = json.loads(as_chrome(found, ("predicted", "measured")))["traceEvents"]
    drawn = [event for event in events if event["ph"] == "X"]
    assert len(drawn) == sum(k != "wait" for one in found for k in one["kind"].to_pylist())
    assert {e["args"]["name"] for e in events if e["name"] == "process_name"} == {
        f"rank {rank}, {label}" for rank in (0, 1) for label in ("predicted", "measured")
    }


def test_parts_of_a_step_are_what_simulate_says(context, names):
    """Of a folded run, from its events alone: exposed communication and idle time as its manifest has them."""
    for label in ("testbed/2x2x2x1-predicted", "testbed/8x1x1x1-predicted"):
        entry = context.catalog.entry(names[label])
        found, figures = anatomies_of(context.catalog, entry).middle, entry.head["figures"]
        assert found.step_seconds == pytest.approx(figures["step_seconds"], abs=2e-9)
        assert sum(found.parts.values()) == pytest.approx(found.step_seconds, rel=1e-9)
        for axis, exposed in figures["exposed_by_axis"].items():
            assert found.parts.get(f"exposed {axis}", 0.0) == pytest.approx(exposed, abs=2e-3 * found.step_seconds)


def test_a_prediction_has_one_length_on_all_pages(context, names):
    """As `simulate` wrote it, with what the host does before the first op, which no event shows."""
    pair = [context.catalog.entry(names[f"testbed/2x2x2x1-{kind}"]) for kind in ("predicted", "measured")]
    said = pair[0].head["figures"]["step_seconds"]
    found = compared(context, {"run": pair[0].name, "other": pair[1].name})
    events = events_of(context.catalog, pair[0])
    step = step_of(events, None)
    assert events.arrival_ns.min() > 0
    assert said == step_seconds(context.catalog, pair[0])
    assert [found.predicted_seconds, step.length] == pytest.approx([said, said], abs=2e-9)
    gaps = gaps_of(step, step.rows_of(step.ranks[0]))
    assert gaps.start[0] == 0.0


def test_terms_between_any_two_runs_add_up():
    first, second = (take_apart(columns(table(one())), {}).middle for one in (by_hand_predicted, by_hand_measured))
    terms = terms_between(first, second)
    assert sum(t.difference_seconds for t in terms) == pytest.approx(second.step_seconds - first.step_seconds)
    assert first.phases == {"fwd": pytest.approx(13e-9)}
    assert first.kinds["all_reduce x"] == pytest.approx(5e-9)


def test_the_winner_is_said_by_tokens(context, names):
    entries = [context.catalog.entry(names[f"testbed/{grid}-measured"]) for grid in ("2x2x2x1", "8x1x1x1")]
    halves = [anatomies_of(context.catalog, entry).middle for entry in entries]
    words = compare.verdict(entries, *halves)
    ratio = halves[0].step_seconds / halves[1].step_seconds
    assert f"testbed/8x1x1x1-measured wins: {ratio:.2f} × the tokens per second" in words


def test_runs_sort_as_numbers_and_say_what_they_hold(context):
    rows = {row["label"]: row for row in rows_of(context.catalog, context.catalog.entries(), None)}
    predicted, measured = rows["testbed/2x2x2x1-predicted"], rows["testbed/2x2x2x1-measured"]
    assert isinstance(predicted["step"], float)
    assert predicted["error"] == measured["error"] == round(100 * (predicted["step"] / measured["step"] - 1), 1)
    assert predicted["partner"] == "testbed/2x2x2x1-measured (predicted for testbed, measured on laptop)"
    assert predicted["model"] == "2 layers × 256"
    assert "220 candidates, 199 can run" in rows["gpt-5b-search"]["holds"]
    assert "weak scaling, 15 points" in rows["weak-scaling"]["holds"]
    assert rows["gpt-320b-frontier"]["peak"] > 10
    assert {column["field"]: column.get("filter") for column in runs.columns_of("-step")}[
        "step"
    ] == "agNumberColumnFilter"
    assert next(c for c in runs.columns_of("-step") if c["field"] == "step")["sort"] == "desc"


def test_a_pair_on_the_rank_map_is_the_measured_run(context, names):
    pair = {"run": names["testbed/2x2x2x1-predicted"], "other": names["testbed/2x2x2x1-measured"]}
    assert rank_map.side_of(context, pair).kind == "measured"
    assert rank_map.side_of(context, {**pair, "side": "predicted"}).kind == "predicted"
    words = next(
        n.children
        for n in rank_map.shown(context, pair)._traverse()
        if "median" in str(getattr(n, "children", "")) and isinstance(n.children, str)
    )
    assert re.search(r"\(measured\): compute of 8 of 8 ranks; median [\d.]+ ms, largest [\d.]+ ms on rank \d", words)


def test_no_page_is_a_dead_end(context, names):
    """Without a choice, or with an unsuited one, each page offers what it can show."""
    entries = {entry.name: entry for entry in context.catalog.entries()}
    for page in PAGES:
        if not page.runs:
            continue
        assert suited(page, entries, {}).startswith("needs")
        shown = content(page, context, {})
        assert "picker" in str(shown)
        assert "href='/" in str(shown) or 'href="/' in str(shown)
    assert suited(BY_PATH["/verdict"], entries, {"run": names["weak-scaling"], "other": names["gpt-5b-search"]})
    assert suited(BY_PATH["/scaling"], entries, {"run": names["weak-scaling"]}) == ""


def test_the_tab_names_page_and_run(context, names):
    assert titled(BY_PATH["/memory"], context, {"run": names["gpt-320b-frontier"]}) == (
        "Memory · gpt-320b-frontier · Fourfold"
    )


def test_a_candidate_is_where_a_what_if_begins(context, names):
    job, words = base_of(context.catalog, names["gpt-5b-search"], "3")
    ranking = context.catalog.entry(names["gpt-5b-search"]).head["ranking"][3]
    assert dict(zip(job.grid.axes, job.grid.sizes, strict=True)) == ranking["grid"]
    assert "candidate" in words


@pytest.mark.parametrize("kept", [None, 3, [3], [{}], [{"address": "x" * 9999}], [{"address": 1, "words": "a"}]])
def test_kept_what_ifs_that_make_no_sense_are_left_out(kept):
    assert sound(kept) == []


def test_predictions_and_measurements_of_a_job_find_each_other(context, names):
    found = partners(context.catalog.entries())
    assert found[names["testbed/4x2x1x1-predicted"]].label == "testbed/4x2x1x1-measured"
    assert contents(context.catalog.entry(names["testbed/4x2x1x1-predicted"])) == ""


def test_runs_of_one_name_and_grid_are_no_pair_if_they_do_other_work(tmp_path):
    """A run with recomputation counted as the prediction of one without, and the error of it as the model's."""
    write(tmp_path / "predicted", "predicted", table(by_hand_predicted()), job={**JOB, "recompute": True})
    for name in ("measured", "again"):
        write(tmp_path / name, "measured", table(by_hand_measured()), job={**JOB, "recompute": False, "seed": 3})
    catalog = Catalog(tmp_path)
    assert (partners(catalog.entries()), both_ways(catalog)) == ({}, [])
    write(tmp_path / "same", "predicted", table(by_hand_predicted()), job={**JOB, "recompute": False})
    catalog = Catalog(tmp_path)
    found = partners(catalog.entries())
    assert {entry.label for entry in catalog.entries() if entry.name in found} == {"same", "measured", "again"}
    assert len(both_ways(catalog)) == 1


def test_a_prediction_for_another_machine_is_told_apart(tmp_path):
    """A what-if written last stood as the prediction of what was measured, under that one's machine."""
    here, there = {**JOB, "machine": "laptop"}, {**JOB, "machine": "perlmutter"}
    write(tmp_path / "measured", "measured", table(by_hand_measured()), job=here)
    write(tmp_path / "what if", "predicted", table(by_hand_predicted()), job=there)
    catalog = Catalog(tmp_path)
    by_label = {row["label"]: row for row in rows_of(catalog, catalog.entries(), None)}
    assert by_label["measured"]["partner"] == "what if (predicted for perlmutter, measured on laptop)"
    assert "predicted for perlmutter" in both_ways(catalog)[0].work
    write(tmp_path / "own", "predicted", table(by_hand_predicted()), job=here)
    os.utime(tmp_path / "own", (1, 1))  # the older one, and yet it is the one
    for file in (tmp_path / "own").iterdir():
        os.utime(file, (1, 1))
    catalog = Catalog(tmp_path)
    by_label = {row["label"]: row["partner"] for row in rows_of(catalog, catalog.entries(), None)}
    assert by_label["measured"] == "own"
    assert by_label["own"] == "measured"
    assert "perlmutter" in by_label["what if"]
    [both] = both_ways(catalog)
    assert both.work.endswith("of laptop")


def test_a_machine_is_the_same_by_its_name(tmp_path):
    """Its numbers are corrected, and the newest prediction for it is the one; a slow rank is something else."""
    write(tmp_path / "measured", "measured", table(by_hand_measured()))
    slow = {**JOB, "stragglers": [{"rank": 1, "slowdown": 2}]}
    write(tmp_path / "slow", "predicted", table(by_hand_predicted()), job=slow)
    catalog = Catalog(tmp_path)
    [row] = [row for row in rows_of(catalog, catalog.entries(), None) if row["label"] == "slow"]
    assert row["partner"] == "measured (predicted with other stragglers)"
    manifest = tmp_path / "slow" / "manifest.json"
    said = json.loads(manifest.read_text())
    said["job"]["stragglers"] = []
    said["job"]["machine"]["device"]["memory"] = "1 GB"
    manifest.write_text(json.dumps(said))
    catalog = Catalog(tmp_path)
    [row] = [row for row in rows_of(catalog, catalog.entries(), None) if row["label"] == "slow"]
    assert row["partner"] == "measured"
