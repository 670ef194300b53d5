"""Which runs are held against each other, and which ranks."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dashboards.catalog import Catalog
from dashboards.page import PageContext
from dashboards.pages.rank_map import axis_means, spread_card
from dashboards.pages.trust import both_ways, spearman
from dashboards.pages.trust import shown as trust_page
from dashboards.rank_table import RANKS, rank_table_of
from dashboards.settings import Settings
from tests.compare.compare_traces import Row as Event
from tests.compare.compare_traces import by_hand_predicted, collective, manifest, table, write
from tests.dashboards.test_figures import opened
from tests.dashboards.test_pages import text_of
from twin.description.problems import DescriptionError


def test_ranks_by_adding_up_events(context: PageContext):
    table_of = rank_table_of(context.catalog, opened(context, "by-hand/measured"))
    assert table_of.figures["compute_seconds"].tolist() == pytest.approx([15e-9, 15e-9])
    assert table_of.figures["peers_x_seconds"].tolist() == pytest.approx([6e-9, 0.0])
    assert table_of.figures["exposed_x_seconds"].tolist() == pytest.approx([13e-9, 5e-9])


def test_the_spread_of_one_rank_is_a_sentence_and_means_are_called_so(context: PageContext):
    """Of one rank a bar went from 1 to 2 s; the median of means along an axis was that of all."""
    page = text_of(spread_card(np.array([2.5, np.nan]), "compute_seconds"))
    assert "2.5 s is compute of the only rank that is known: nothing is spread." in page
    assert "figure" not in page
    assert "all 2 ranks that are known" in text_of(spread_card(np.array([2.5, 2.5]), "compute_seconds"))
    found = rank_table_of(context.catalog, opened(context, "gpt-320b-frontier-every-rank"))
    for row in axis_means(found, found.names[0]):
        assert [name.removesuffix(" (s)") for name in row][2:4] == ["mean there", "median mean"]


def test_what_ranks_wait_for_members_is_what_their_devices_do(tmp_path: Path):
    """A message asked for at 0 that comes at 50 while the device computes until 40: it stands still for 10."""
    asked = collective("messages/micro0/F/receive", 0, 50, 60, (40, 60))
    write(tmp_path / "ahead", "measured", table({0: [Event("a/fwd/a", "compute", 0, 40), *asked], 1: asked}))
    catalog = Catalog(tmp_path)
    found = rank_table_of(catalog, catalog.entries()[0])
    assert found.figures["peers_x_seconds"].tolist() == pytest.approx([10e-9, 10e-9])


def test_ranks_as_a_simulation_wrote_them(context: PageContext):
    entry = opened(context, "gpt-320b-frontier-every-rank")
    found = rank_table_of(context.catalog, entry)
    rows = pq.read_table(entry.path / RANKS)
    assert found.recorded == rows.num_rows == found.grid.ranks == 32_768
    assert found.figures["compute_seconds"][rows["rank"][17].as_py()] == rows["compute_seconds"][17].as_py()
    name = found.names[0]
    cube = found.figures[name].reshape(found.grid.sizes)
    for row in axis_means(found, name):
        number = ("data", "z", "y", "x").index(row["axis"])
        means = [float(np.take(cube, i, axis=number).mean()) for i in range(cube.shape[number])]
        assert row["highest at"] == int(np.argmax(means))
        assert row["mean there (s)"] == pytest.approx(max(means), rel=1e-5)


@pytest.mark.parametrize("bad", ["short", "outside", "twice the type", "text"])
def test_damaged_rank_tables_are_refused(tmp_path: Path, bad: str):
    write(tmp_path / "a", "predicted", table(by_hand_predicted()))
    ranks = {"short": [0], "outside": [0, 9], "twice the type": [0.5, 1.5], "text": ["0", "1"]}[bad]
    pq.write_table(pa.table({"rank": ranks, "compute_seconds": [1.0] * len(ranks)}), tmp_path / "a" / RANKS)
    catalog = Catalog(tmp_path)
    with pytest.raises(DescriptionError):
        rank_table_of(catalog, catalog.entries()[0])


def test_jobs_that_were_predicted_and_measured(context: PageContext):
    found = {one.name: one for one in both_ways(context.catalog)}
    assert len([name for name in found if "by-hand" in name]) == 1
    assert len(found) >= 8
    assert spearman(np.array([1.0, 2.0, 3.0]), np.array([3.0, 2.0, 1.0])) == pytest.approx(-1.0)


def test_only_runs_of_one_work_have_an_order(tmp_path: Path):
    """By hand: of three grids of two sequences the second best is predicted best; two of four sequences have no order.

    Predicted lengths of a step, and measured ones, in ns.
    """
    runs = {("a", 2): (50, 70), ("b", 2): (60, 60), ("c", 2): (70, 90), ("d", 4): (10, 500), ("e", 4): (20, 400)}
    for (name, sequences), lengths in runs.items():
        changes = {"name": name, "batch": {"sequences": sequences, "micro_sequences": 1}}
        for kind, length in zip(("predicted", "measured"), lengths, strict=True):
            rank = [Event("micro0/fwd/qkv/gemm", "compute", 0, length)]
            write(tmp_path / f"{name}-{kind}", kind, table({0: rank, 1: rank}), job=manifest(kind, changes)["job"])
    context = PageContext(Settings(tmp_path), Catalog(tmp_path))
    page = trust_page(context, {})
    assert "5 runs were both predicted and measured. Of the 3 of 1 layers" in text_of(page)
    assert "8 tokens, 2 sequences on 2 ranks of laptop, rank correlation 0.500; the best" in text_of(page)
    assert "the best predicted is number 2 of the measured." in text_of(page)
    assert text_of(page).count("rank correlation") == 2  # said of the figure, and above it
    (grid,) = [part for part in page._traverse() if getattr(part, "id", "") == "runs-table"]
    places = {row["job"][0]: (row["predicted place"], row["measured place"], row["of"]) for row in grid.rowData}
    assert places == {"a": (1, 2, 3), "b": (2, 1, 3), "c": (3, 3, 3), "d": (1, 2, 2), "e": (2, 1, 2)}
