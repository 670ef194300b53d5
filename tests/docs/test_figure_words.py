"""What tables of validation call their rows, and say of rows that are left out."""

from __future__ import annotations

import pytest

from tools.figure_benchmarks import WANTED, by_the_same_products
from tools.figure_sentences import bias_of, energy, far_off, inside, power, waits
from tools.figure_validation import left_out, short_names


def test_names_are_short_unless_others_are_alike_then() -> None:
    names = ["A Table 2 (first)", "A Table 2 (second), split", "B (x), p/1 and q", "B (x), p/2 and q", "C (long words)"]
    assert list(short_names(names).values()) == ["A Table 2: first", "A Table 2: second", "B: p/1", "B: p/2", "C"]


def test_names_that_stay_alike_are_whole() -> None:
    for names in (["A (x), p and q", "A (x), p and r"], ["B", "B (y)"], ["C (x), a", "C (x), b", "C (y)"]):
        assert short_names(names) == {name: name for name in names}


def test_machines_that_are_not_described_are_named_together() -> None:
    skipped = {"machine 'b' is not known; give another": 2, "no time": 3, "machine 'a' is not known; give another": 7}
    assert left_out({"rows": [{}] * 5, "skipped": skipped}) == (
        "17 rows, 5 of them expressed; not the others: no time (3); machines that are not described: a (7), b (2)"
    )
    assert left_out({"rows": [{}] * 5, "skipped": {}}) == "all 5 rows expressed"


def test_energy_is_told_of_rows_that_counted_it() -> None:
    counted = {"id": "gpt-1b", "predicted_joules": 360.0, "traced_step_joules": 400.0, "predicted_seconds": 0.6}
    answer = {"rows": [counted, {"id": "other"}]}
    assert "| gpt-1b | 360 | 400 | −10.0 % | 600 |" in energy(answer)
    assert "other" not in energy(answer)
    assert "600 W predicted, 656 W measured (−8.6 %, joules −14 %)" in power(answer)


def test_what_benchmarks_lack_is_told_apart_from_what_they_reach() -> None:
    key = "4D, PyTorch's products / PyTorch, "
    ratio = {**WANTED, "z=4 against FSDP2": 1.2}
    rows = {title: {key + "best": found, key + "median": 1.0} for title, found in ratio.items()}
    found = by_the_same_products({"rows": rows, "contestants": {title: {"4D": title} for title in WANTED}})
    assert found.endswith("not reached z=4 against FSDP2 1.20 (1.00) of 1.25")


def test_sentences_read_groups_rows_and_points() -> None:
    answer = {
        "groups": [{"name": "first (a)", "bias": -0.027}, {"name": "second", "bias": 0.04}],
        "rows": [{"inside": True}, {"inside": True}, {"inside": False}],
        "points": [{"name": "one GCD 20 % slow", "peers_y_seconds": 0.0655, "peers_z_seconds": 0.03}],
    }
    answer["points"][0]["peers_data_seconds"] = 1.031
    assert bias_of("first", "second")(answer) == "−2.7 % and +4.0 %"
    assert inside(answer) == "66.7 %"
    assert waits(answer) == "1.03 s on average for the data axis, 0.066 s for y and 0.030 s for z"


@pytest.mark.parametrize(
    ("tokens", "told"), [(2048, "1B on 32 H100 −21.0 %"), (8192, "1B on 32 H100 with 8,192 tokens −21.0 %")]
)
def test_rows_that_are_far_off_are_named(tokens: int, told: str) -> None:
    row = {"model": "1b", "gpus": 32.0, "group": "H100", "sequence_length": float(tokens)}
    assert far_off({"rows": [row | {"error": -0.21}, row | {"error": 0.19}]}) == told
