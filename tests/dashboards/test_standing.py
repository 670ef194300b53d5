"""For how many ranks of a job each written one stands: the same figures, however many ranks of a run were written."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from dashboards.anatomy import SLOWEST, anatomies_of
from dashboards.catalog import Catalog, Entry
from dashboards.collectives import read_collectives
from dashboards.events import events_of
from dashboards.page import PageContext
from dashboards.pages import communication, compare, rank_map
from dashboards.pages.rank_map import axis_means
from dashboards.pairs import pairs_of
from dashboards.rank_table import rank_table_of
from dashboards.report_front import front_of
from dashboards.settings import Settings
from dashboards.standing import over, quantile, stand_ins, weights_of
from tests.compare.compare_traces import by_hand_predicted, table, write
from tests.dashboards.test_pages import text_of
from twin.api import simulate
from twin.description.problems import DescriptionError

MODEL = {"layers": 4, "hidden": 2048, "heads": 16, "sequence": 1024, "vocabulary": 32000}
DATA_8: dict[str, Any] = {
    "machine": "perlmutter",
    "ranks": 8,
    "grid": {"data": 8, "z": 1, "y": 1, "x": 1},
    "model": MODEL,
    "batch": {"sequences": 64, "micro_sequences": 8},
    "stragglers": [{"rank": 5, "slowdown": 3}],
}
"""All but rank 5 are alike: two classes."""
ALL_16 = {
    **DATA_8,
    "ranks": 16,
    "grid": {"data": 2, "z": 2, "y": 2, "x": 2},
    "stragglers": [{"rank": 5, "slowdown": 1.5}],
}
"""Every rank has a class of its own."""
ROWS_64 = {
    **ALL_16,
    "ranks": 64,
    "grid": {"data": 16, "z": 1, "y": 1, "x": 4},
    "batch": {"sequences": 64, "micro_sequences": 4},
}
"""Four classes: rank 5, its row, its column, all others."""


@pytest.fixture(scope="module")
def catalog(tmp_path_factory: pytest.TempPathFactory) -> Catalog:
    """Each job with one rank of each class, and with all; and one of which every rank was simulated, with four."""
    folder = tmp_path_factory.mktemp("standing")
    for name, job in (("data", DATA_8), ("all", ALL_16), ("rows", ROWS_64)):
        predicted = simulate(job)
        predicted.write(folder / f"{name}-folded")
        predicted.write(folder / f"{name}-whole", list(range(job["ranks"])))
    predicted.write(folder / "rows-part", [0, 1])
    simulate(ROWS_64, engine="ranks").write(folder / "drawn-four")
    return Catalog(folder)


def entry_of(catalog: Catalog, label: str) -> Entry:
    return next(entry for entry in catalog.entries() if entry.label == label)


def weights(catalog: Catalog, label: str) -> dict[int, int]:
    entry = entry_of(catalog, label)
    return dict(weights_of(catalog, entry, events_of(catalog, entry)))


def test_a_written_rank_stands_for_itself_and_for_what_was_not_written_of_its_class(catalog: Catalog) -> None:
    assert sorted(weights(catalog, "data-folded").items()) == [(0, 7), (5, 1)]
    assert weights(catalog, "data-whole") == dict.fromkeys(range(8), 1)
    assert weights(catalog, "all-folded") == dict.fromkeys(range(16), 1)
    assert sorted(weights(catalog, "rows-folded").values()) == [1, 3, 15, 45]
    assert sorted(weights(catalog, "rows-part").items()) == [(0, 45), (1, 15)]
    assert weights(catalog, "drawn-four") == dict.fromkeys(entry_of(catalog, "drawn-four").head["ranks_written"], 1)


@pytest.mark.parametrize("name", ["data", "all", "rows"])
def test_the_step_is_the_same_however_many_ranks_were_written(catalog: Catalog, name: str) -> None:
    """A representative counted seven times beside its seven peers: 122 ms of compute where 134 are right."""
    for label in (f"{name}-folded", f"{name}-whole"):
        entry = entry_of(catalog, label)
        found, figures = anatomies_of(catalog, entry), entry.head["figures"]
        assert found.middle.parts["compute"] == pytest.approx(figures["compute_seconds"], rel=1e-4)
        assert found.middle.parts.get(SLOWEST, 0.0) == pytest.approx(figures["slowest_device_wait_seconds"], rel=1e-4)
        assert sum(found.middle.parts.values()) == pytest.approx(found.middle.step_seconds)
        assert found.middle.phases == pytest.approx(figures["compute_by_phase"], rel=1e-3)
        assert found.middle.parts["idle"] == pytest.approx(figures["idle_seconds"], rel=1e-3)
        assert (found.parts_over, found.kinds_over) == ("ranks", "ranks")


@pytest.mark.parametrize("name", ["data", "all", "rows"])
def test_communication_is_the_same_however_many_ranks_were_written(catalog: Catalog, name: str) -> None:
    """And ranks stand still for as long as the simulation says of all."""
    folded, whole = (read_collectives(catalog, entry_of(catalog, f"{name}-{how}")) for how in ("folded", "whole"))
    peers = sum(entry_of(catalog, f"{name}-folded").head["figures"]["peers_by_axis"].values())
    assert folded.skew_seconds_per_rank == pytest.approx(peers, rel=2e-3)
    for one, other in zip(
        *(sorted(found.rows, key=lambda r: (r.name, r.stream, r.bytes)) for found in (folded, whole)), strict=True
    ):
        assert replace(one, members=None) == replace(other, members=None)


@pytest.mark.parametrize("name", ["data", "all", "rows"])
def test_means_along_axes_are_the_same_however_many_ranks_were_written(catalog: Catalog, name: str) -> None:
    """Place 1 of x was 10.1 % above the others where it is 2.8 %."""
    folded, whole = (rank_table_of(catalog, entry_of(catalog, f"{name}-{how}")) for how in ("folded", "whole"))
    assert folded.recorded == whole.recorded == whole.grid.ranks
    assert axis_means(folded, "compute_seconds") == axis_means(whole, "compute_seconds")
    for figure, values in whole.figures.items():
        np.testing.assert_allclose(folded.figures[figure], values, atol=1e-12)
    assert folded.stands[0] == 0


def test_a_folded_rank_leads_to_the_timeline_of_that_which_stands_for_it(catalog: Catalog) -> None:
    """It has no events of its own, and the timeline refuses ranks without."""
    context = PageContext(Settings(catalog.root), catalog)
    for label, expected in (("data-folded", "0"), ("data-whole", "7")):
        assert rank_map.with_events(context, {"run": entry_of(catalog, label).name}, 7) == expected
    assert rank_map.with_events(context, {"run": "nowhere"}, 7) == "7"


def test_medians_of_ops_are_the_same_however_many_ranks_were_written(catalog: Catalog) -> None:
    """Of two written ranks the median lay between the straggler and the seven others."""
    runs = [entry_of(catalog, label) for label in ("data-folded", "data-whole")]
    first, second = (events_of(catalog, entry) for entry in runs)
    found = pairs_of(first, second, (), (weights(catalog, runs[0].label), weights(catalog, runs[1].label)))
    assert len(found.op) > 50
    assert found.first_ns.tolist() == found.second_ns.tolist()


def test_of_ranks_that_stand_for_no_others_the_means_are_those_of_the_manifest(catalog: Catalog) -> None:
    """Rank 0, the slowest, the median and the first to be done are no sample of all."""
    entry = entry_of(catalog, "drawn-four")
    figures, context = entry.head["figures"], PageContext(Settings(catalog.root), catalog)
    found = anatomies_of(catalog, entry)
    assert found.middle.parts["compute"] == figures["compute_seconds"]
    assert found.middle.parts["idle"] == figures["idle_seconds"]
    assert found.middle.parts["exposed data"] == figures["exposed_by_axis"]["data"]
    assert found.middle.phases == pytest.approx(figures["compute_by_phase"])
    assert (found.parts_over, found.kinds_over) == ("ranks", "4 of 64 ranks")
    assert "Of a step, mean over ranks: " in front_of(context, {"run": entry.name}, "", None).conclusion[1]
    words = text_of(communication.shown(context, {"run": entry.name}))
    peers = 1e3 * sum(figures["peers_by_axis"].values())
    assert "drawn-four (predicted), mean over 4 of 64 ranks: a rank and step has" in words
    assert f"({peers:.3g} ms as a mean over all ranks)" in words
    other = entry_of(catalog, "rows-folded")
    words = text_of(compare.shown(context, {"run": entry.name, "other": other.name}))
    assert words.count("Of drawn-four: mean over 4 of 64 ranks.") == 2  # kinds and streams, of which nothing else is


def test_where_nothing_says_the_means_of_all_it_is_said_of_whom_they_are(catalog: Catalog) -> None:
    entry = entry_of(catalog, "rows-part")
    less = {**entry.head, "figures": {"step_seconds": entry.head["figures"]["step_seconds"], "compute_seconds": "x"}}
    found = replace(entry, head=less, name="other")
    context = PageContext(Settings(catalog.root), catalog)
    assert anatomies_of(catalog, found).parts_over == "2 of 64 ranks"
    assert read_collectives(catalog, found).peers_seconds is None
    assert anatomies_of(catalog, entry).parts_over == "ranks"
    assert over(entry, 2, 60) == "2 of 64 ranks"
    assert over(entry, 2, 64) == "ranks"
    assert over(replace(entry, head={}), 2, 2) == "ranks"
    assert rank_table_of(catalog, entry).recorded == 60
    assert text_of(communication.shown(context, {"run": entry.name}))


def test_classes_of_other_ranks_are_refused(tmp_path: Path) -> None:
    classes = pa.table({name: pa.array([0, 5], pa.int32()) for name in ("rank", "class")})
    write(tmp_path / "a", "predicted", table(by_hand_predicted()), classes=classes)
    catalog = Catalog(tmp_path)
    (entry,) = catalog.entries()
    with pytest.raises(DescriptionError, match="each of the 2 ranks a class"):
        stand_ins(catalog, entry, events_of(catalog, entry))


@pytest.mark.parametrize("share", [0.0, 0.25, 0.5, 0.9, 1.0])
@pytest.mark.parametrize("counts", [[1], [1, 1], [2, 1, 7], [3, 1, 1, 2], [45, 15, 3, 1]])
def test_quantiles_are_those_of_values_written_out(share: float, counts: Sequence[int]) -> None:
    values = np.random.default_rng(len(counts)).integers(0, 1000, len(counts))
    found = quantile(values, np.array(counts), share)
    assert found == pytest.approx(float(np.quantile(np.repeat(values, counts), share)))
