"""What tables of validation call their rows, and say of rows that are left out."""

from __future__ import annotations

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
