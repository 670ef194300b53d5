"""Metrics against brute force on a grid of whole time units."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.profiles import examples
from twin.engine.report import report
from twin.engine.simulate import simulate
from twin.strategies import load_job
from twin.trace.metrics import breakdown, union_length

LAST = 40
AXES = ("data", "z", "y", "x")
repeatable = examples(2, derandomize=True)

intervals = st.lists(
    st.tuples(st.integers(0, LAST), st.integers(0, LAST)).map(lambda pair: (min(pair), max(pair))), max_size=7
)
by_axis = st.dictionaries(st.sampled_from(AXES), intervals)


def arrays(pairs: list[tuple[int, int]]) -> tuple[np.ndarray, np.ndarray]:
    made = np.array(pairs, dtype=np.float64).reshape(-1, 2)
    return made[:, 0], made[:, 1]


def units(pairs: list[tuple[int, int]]) -> set[int]:
    """Whole units [t, t + 1) that are covered."""
    return {t for start, end in pairs for t in range(start, end)}


@given(pairs=intervals)
@repeatable
def test_union_length(pairs) -> None:
    assert union_length(arrays(pairs)) == len(units(pairs))


@given(compute=intervals, communication=by_axis, waits=by_axis)
@repeatable
def test_breakdown(compute, communication, waits) -> None:
    """Exposed time is the awaited axis's if it can be, else the first active one's."""
    found = breakdown(
        float(LAST),
        arrays(compute),
        {a: arrays(p) for a, p in communication.items()},
        {a: arrays(p) for a, p in waits.items()},
    )
    computing = units(compute)
    active = {axis: units(pairs) for axis, pairs in communication.items()}
    expected = dict.fromkeys(communication, 0)
    exposed = 0
    for t in range(LAST):
        running = [axis for axis in active if t in active[axis]]
        if t in computing or not running:
            continue
        exposed += 1
        awaited = [axis for axis in active if t in units(waits.get(axis, []))]
        expected[(awaited or running)[0]] += 1
    assert found.compute == len(computing)
    assert found.exposed == exposed
    assert found.idle == LAST - len(computing) - exposed
    assert found.exposed_by_axis == expected


@given(lengths=st.lists(st.floats(1e-9, 10.0), min_size=1, max_size=20), first=st.floats(0.0, 1.0))
def test_where_there_is_no_gap_nothing_is_idle(lengths, first) -> None:
    """Compute and communication in turn, without a gap: 0 to the last bit, and before them what is before them."""
    edges = np.cumsum([first, *lengths])
    pieces = list(pairwise(edges.tolist()))
    found = breakdown(float(edges[-1] - edges[0]), arrays(pieces[::2]), {"x": arrays(pieces[1::2])}, {})
    assert found.idle == 0.0
    later = breakdown(float(edges[-1]), arrays(pieces[::2]), {"x": arrays(pieces[1::2])}, {})
    assert later.idle >= 0.0
    assert later.idle == pytest.approx(first, abs=1e-12)


@pytest.mark.parametrize(("machine", "ranks", "sequences"), [("frontier", 1, 4), ("laptop", 1, 2), ("dgx-a100", 4, 8)])
def test_a_step_that_no_host_holds_up_is_never_idle(machine, ranks, sequences) -> None:
    """Data parallel ranks that are alike and compute whenever they do not communicate."""
    model = {"layers": 4 if ranks > 1 else 2, "hidden": 256, "heads": 8, "sequence": 512, "vocabulary": 1024}
    raw = {"model": model, "machine": machine, "ranks": ranks, "strategy": "ddp", "grid": {"data": ranks}}
    batch = {"sequences": sequences * ranks, "micro_sequences": 2}
    free = ["machine.device.host=0 us", "machine.device.collective_host=0 us"]
    simulation = simulate(load_job(raw | {"batch": batch}, free))
    assert report(simulation).idle_seconds == 0.0


def test_nothing_happened() -> None:
    found = breakdown(5.0, arrays([]), {}, {})
    assert (found.compute, found.exposed, found.idle) == (0.0, 0.0, 5.0)
    assert union_length(arrays([])) == 0.0


@pytest.mark.parametrize("grid", [{}, {"x": 2, "z": 2}, {"data": 2, "z": 3, "y": 2, "x": 2}], ids=str)
def test_a_simulated_step_adds_up(make_job, grid) -> None:
    """compute + wait for the slowest device + exposed + idle = step; exposed = sum over axes."""
    figures = report(simulate(make_job(grid, stragglers=[{"rank": 0, "slowdown": 1.5}])))
    parts = (
        figures.compute_seconds,
        figures.slowest_device_wait_seconds,
        figures.exposed_seconds,
        figures.idle_seconds,
    )
    assert all(part >= -1e-15 for part in parts)
    assert sum(parts) == pytest.approx(figures.step_seconds, rel=1e-9)
    assert sum(figures.exposed_by_axis.values()) == pytest.approx(figures.exposed_seconds, rel=1e-9)
    # Phases are sums of durations; compute is a union of them: they agree without overlap.
    assert sum(figures.compute_by_phase.values()) == pytest.approx(figures.compute_seconds, rel=1e-9)


def test_rates_are_counts_over_the_step(make_job) -> None:
    """Model FLOP/s leaves recomputation out, hardware FLOP/s counts it; the head runs once."""
    job = make_job({"data": 2, "x": 2}, model="gpt2", per_rank=4)
    figures = report(simulate(job))
    tokens, layers, h = 8 * 1024, 12, 768
    block, head = 24 * h**2 + 4 * 1024 * h, 2 * h * 50304
    model = tokens * 3 * (layers * block + head)
    hardware = tokens * (4 * layers * block + 3 * head)
    step = figures.step_seconds
    assert figures.model_flops_per_second * step == pytest.approx(model)
    assert figures.hardware_flops_per_second * step == pytest.approx(hardware)
    assert figures.tokens_per_second * step == pytest.approx(tokens)
    peak = 4 * job.machine.device.peak_flops_per_second
    assert figures.hardware_percent_of_peak == pytest.approx(100 * hardware / step / peak)
    assert figures.model_percent_of_peak == pytest.approx(100 * model / step / peak)
    kept = report(simulate(job.model_copy(update={"recompute": False})))
    assert kept.hardware_flops_per_second == kept.model_flops_per_second
