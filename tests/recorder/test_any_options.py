"""Whatever options of `four_d` come together, the runtime's own step is the one that the twin generates."""

from __future__ import annotations

from typing import Any

from hypothesis import assume, given
from hypothesis import strategies as st

from runtime.recorder import record
from tests.profiles import examples
from tests.recorder.jobs import job
from twin.description.problems import DescriptionError
from twin.schedule.difference import difference
from twin.strategies.four_d.step import generate

YES_OR_NO = st.booleans()
GRIDS = st.fixed_dictionaries({axis: st.integers(1, 2) for axis in ("data", "z", "y", "x")})
OVERLAPS = st.fixed_dictionaries(
    {
        **dict.fromkeys(("halves", "across_blocks", "all_reduce", "reduce_scatter", "all_gather"), YES_OR_NO),
        "prefetch_depth": st.sampled_from([1, 2, 3, 5]),
    }
)
RECOMPUTED = st.fixed_dictionaries(
    {"recompute": st.just(True), "recompute_keeps": st.sampled_from(["nothing", "attention", "products"])},
    optional={"recompute_layers": st.just(1), "recompute_stops_early": st.just(True)},
)
CUT = st.one_of(
    st.just({}),
    st.just({"tensor": "1d"}),
    st.fixed_dictionaries({"divide": st.fixed_dictionaries(dict.fromkeys(("attention", "mlp"), YES_OR_NO))}),
)
OTHERS = st.fixed_dictionaries(
    {
        "per_rank": st.sampled_from([2, 4, 6]),
        "gather_unit": st.sampled_from(["linear", "block"]),
        "precision": st.sampled_from(["bf16", "fp32"]),
        "data_reduction": st.sampled_from(
            [
                *({"mode": mode} for mode in ("one_bucket", "overlapped", "sharded", "sharded_overlapped")),
                *({"mode": mode, "bucket": "4 KiB"} for mode in ("overlapped", "sharded_overlapped")),
            ]
        ),
    },
    optional={"cache_gathered_layers": st.just(1), "loss_rows": st.just(5), "dropout": st.just(0.1)},
)


@examples(3)
@given(GRIDS, OVERLAPS, st.one_of(st.just({"recompute": False}), RECOMPUTED), CUT, OTHERS)
def test_recorded_and_generated_schedules_are_equal(
    grid: dict[str, int], overlap: dict[str, Any], again: dict[str, Any], cut: dict[str, Any], others: dict[str, Any]
) -> None:
    try:
        described = job(grid, micro=2, attention="flash", overlap=overlap, **again, **cut, **others)
    except DescriptionError:
        assume(False)  # what does not go together is refused
    found = difference(record(described, described.ranks - 1).schedule, generate(described))
    assert not found, found
