"""What the page of a search says of its candidates, and of none."""

from __future__ import annotations

from pathlib import Path

import pytest

from dashboards.candidate_rows import able, model_rows
from dashboards.candidate_words import model_summary, summary_of
from dashboards.figures.pareto import TOP, orders, parallel, pareto
from dashboards.page import PageContext
from dashboards.pages.configurations import PAGE, filtered
from tests.dashboards.test_configurations import RANKING, candidate, read, written
from tests.dashboards.test_pages import text_of


@pytest.fixture
def search(tmp_path: Path) -> tuple[PageContext, dict[str, str]]:
    return written(tmp_path, RANKING)


def test_the_models_best_are_said_in_its_order(search):
    known = read(search)
    assert model_summary(known, known) == (
        "The published communication model's first 10 lie at places 3, 1, 2 in simulated time."
    )
    first = next(t for t in orders(known).data if t.name == f"the model's first {TOP}")
    assert sorted(zip(first.x, first.y, strict=True)) == [(1, 3), (2, 1), (3, 2)]


def test_places_of_the_models_best_are_those_of_their_number_of_ranks(tmp_path):
    """Two numbers of ranks: the best of the small one takes four times as long, and is its first all the same."""
    ranking = [
        candidate((8, 1, 1, 1), step=1.0, rank=1, model_rank=2),
        candidate((4, 2, 1, 1), step=2.0, rank=2, model_rank=1),
        candidate((4, 1, 1, 1), step=4.0, rank=1, model_rank=1, ranks=4),
        candidate((2, 2, 1, 1), step=5.0, rank=2, model_rank=2, ranks=4),
    ]
    known = read(written(tmp_path, ranking))
    rows = [(r["ranks"], r["simulated place"], r["slower than place 1 (%)"]) for r in model_rows(known, known)]
    assert rows == [(4, 1, 0.0), (4, 2, 25.0), (8, 2, 100.0), (8, 1, 0.0)]
    assert model_summary(known, known) == (
        "The published communication model's first 10 of each number of ranks lie at places 1, 2 of 4 ranks; "
        "places 2, 1 of 8 ranks in simulated time."
    )
    kept = filtered(known, {"z": "2", "ranks": "8"})
    assert [r["slower than place 1 (%)"] for r in model_rows(kept, known)] == [100.0]
    assert model_summary(kept, known) == (
        "The published communication model's first 10 of each number of ranks lie at places 2 of 8 ranks "
        "(1 of 2 are shown) in simulated time."
    )


def test_where_filters_leave_nothing_a_sentence_says_so_and_no_axis_is_invented(search):
    known = read(search)
    context, query = search
    kept = filtered(known, {"z": "2", "y": "8"})
    assert kept == []
    for draw in (pareto, parallel, orders):
        figure = draw(kept)
        assert len(figure.data) == 0
        assert (figure.layout.xaxis.visible, figure.layout.yaxis.visible) == (False, False)
        assert len(figure.layout.annotations) == 1
    assert summary_of(known, kept) == "The filters leave none of 5 candidates."
    assert model_summary(kept, known) == "The filters leave no candidate."
    assert "All of them can run." not in text_of(PAGE.shown(context, {**query, "z": "2", "y": "8"}))
    refused = filtered(known, {"y": "8"})  # the one that cannot run
    assert len(parallel(refused).data) == 0
    assert summary_of(known, refused) == "5 candidates, 4 can run; 0 drawn."


def test_models_best_without_a_place_are_counted(tmp_path):
    """They were a row of dashes."""
    ranking = [candidate((8, 1, 1, 1), rank=1, model_rank=1), candidate((1, 8, 1, 1), rank=None, model_rank=2)]
    known = read(written(tmp_path, ranking))
    words = model_summary(known, known)
    assert words.endswith(
        "at places 1 in simulated time; without a place, as they cannot run or cannot be the fastest: 1."
    )


def test_a_search_by_energy_says_what_draws_the_fewest_joules(tmp_path):
    """Its fastest was all that was said, beside a best of Runs that was another."""
    ranking = [
        candidate((4, 1, 1, 1), step=4.0, rank=1, model_rank=1, ranks=4, energy_joules=9e3, billed_joules=1e4),
        candidate((8, 1, 1, 1), step=1.0, rank=2, model_rank=1, energy_joules=1e4, billed_joules=3e4),
        candidate((4, 2, 1, 1), step=2.0, rank=1, model_rank=2, energy_joules=1e4, billed_joules=2e4),
    ]
    known = read(written(tmp_path, ranking, by="energy"))
    words = summary_of(known, known)
    assert "Fastest: 8 × 1 × 1 × 1 (data × z × y × x), 1 s" in words
    assert words.endswith(
        "Fewest joules: 4 × 1 × 1 × 1 (data × z × y × x), 10 kJ a step. "
        "Places are by joules, of each number of ranks by itself."
    )
    assert [(r["place"], r["energy of a step (J)"]) for r in able(known)] == [(1, 1e4), (2, 3e4), (1, 2e4)]
    plain = read(written(tmp_path / "other", ranking))
    assert "joules" not in summary_of(plain, plain)
    assert "energy of a step (J)" not in able(plain)[0]
