"""No device draws more than its limit at any moment; what is drawn is still the ops' joules, and still adds up."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.profiles import examples
from twin.cost.power import follows_clock
from twin.engine.energy import CONTEXT, StepEnergy, step_energy
from twin.engine.held_power import held_back
from twin.engine.program import COMPUTE, START, WAIT
from twin.engine.simulate import simulate
from twin.engine.simulation import Part
from twin.engine.times import Times
from twin.schedule.kernels import Memory
from twin.schedule.ops import Compute, Start
from twin.strategies import load_job

MODEL: dict[str, Any] = {"layers": 4, "hidden": 4096, "heads": 32, "sequence": 2048, "vocabulary": 32000}
JOBS: dict[str, dict[str, Any]] = {
    "four_d": {"grid": {"z": 4, "y": 2}},
    "four_d over data": {"grid": {"data": 4, "x": 2}},
    "four_d away": {"grid": {"data": 2, "z": 4}, "offload": {"optimizer": {"to": "host"}}, "machine": "4xh100"},
    "fsdp": {"strategy": "fsdp", "grid": {"data": 8}},
    "ddp": {"strategy": "ddp", "grid": {"data": 8}},
    "megatron": {"strategy": "megatron", "grid": {"pipeline": 2, "data": 2, "tensor": 2}, "micro": 4},
    "megatron, many": {"strategy": "megatron", "grid": {"pipeline": 4, "tensor": 2}, "micro": 32},
    "megatron, context": {"strategy": "megatron", "grid": {"context": 4, "tensor": 2}},
}


def energy_of(name: str, machine: str, *, engine: Any = "folded", **options: Any) -> StepEnergy:
    given = dict(JOBS[name])
    micro = given.pop("micro", 1)
    sequences = 8 * micro if given.get("strategy") != "megatron" else 4 * micro
    raw = {
        "model": MODEL,
        "machine": machine,
        "ranks": 8,
        "batch": {"sequences": sequences, "micro_sequences": 1},
        **given,
        **options,
    }
    found = step_energy(simulate(load_job(raw), engine=engine))
    assert found is not None
    return found


def class_power(energy: StepEnergy, part: Part, row: int) -> tuple[Any, Any, Any]:
    """Between all moments at which an op of a rank begins or ends: seconds, watts by the device's numbers, and whether
    a kernel runs."""
    device, power = energy.simulation.job.machine.device, energy.power
    times = part.timeline.rows[row].dense(len(part.program))
    changes: list[tuple[float, float, float]] = []
    for (op, _), begin, end, amount in zip(part.program.ops, times.start, times.end, part.program.amount, strict=True):
        if isinstance(op, Compute):
            kernel, streams = op.kernel, isinstance(op.kernel, Memory)
            moved = kernel.bytes if streams else getattr(kernel, "moved_bytes", kernel.bytes)
            rate = moved / amount / device.memory_bandwidth_bytes_per_second if amount > 0 else 0.0
            units = power.others_watts if streams else power.products_watts
            assert streams is not follows_clock(kernel)
            watts = units * power.clocked(energy.simulation.clock) + power.memory_watts * min(rate, 1.0)
            done = begin + (end - begin) / energy.simulation.typical_slowness
            changes += [(begin, watts, 0.0), (done, -watts, 0.0)]
        elif isinstance(op, Start) and op.kind not in ("host_update", "disk_read", "disk_write"):
            changes += [(begin, 0.0, power.links_watts), (end, 0.0, -power.links_watts)]
    changes.append((energy.simulation.step_seconds, 0.0, 0.0))
    changes.append((0.0, 0.0, 0.0))
    at, kernels, links = np.array(sorted(changes)).T
    level = power.context_watts + np.cumsum(kernels) + np.cumsum(links)
    computes = np.cumsum(kernels)[:-1] > 1e-6
    return np.diff(at), np.minimum(level[:-1], device.busy_watts), computes


@examples(0.2)
@given(
    st.sampled_from(list(JOBS)),
    st.sampled_from(["frontier", "dgx-h100", "perlmutter"]),
    st.sampled_from([{}, {"stragglers": [{"rank": 3, "slowdown": 1.4}]}, {"power_cap": "260 W"}]),
)
@pytest.mark.full
def test_each_rank_draws_what_its_ops_do_up_to_its_limit(name: str, machine: str, more: dict[str, Any]) -> None:
    energy = energy_of(name, machine, **more)
    simulation, limit = energy.simulation, energy.simulation.job.machine.device.busy_watts
    assert energy.drawn.step_seconds == simulation.step_seconds
    ranks, joules, by_rank = np.bincount(simulation.partition.rank_class), 0.0, energy.rank_joules()
    for role, part in enumerate(simulation.parts):
        of_role = energy.active_watts_of_classes(role)
        for row, number in enumerate(part.classes.tolist()):
            seconds, watts, computes = class_power(energy, part, row)
            assert by_rank[number] == pytest.approx(float(seconds @ watts), rel=1e-9)
            active = (seconds[computes] @ watts[computes]) / seconds[computes].sum()
            assert of_role[row] == pytest.approx(active, rel=1e-9)
            joules += float(ranks[number] * by_rank[number])
    assert energy.joules == pytest.approx(joules, rel=1e-9)
    assert energy.joules_by_kind[CONTEXT] == pytest.approx(8 * energy.power.context_watts * simulation.step_seconds)
    moments, watts = energy.over_time
    assert float(np.diff(moments) @ watts[:-1]) == pytest.approx(energy.joules, rel=1e-9)
    assert energy.peak_watts <= 8 * limit * (1 + 1e-9)
    assert energy.active_watts <= limit * (1 + 1e-9)
    assert min(each.min() for each in (energy.op_joules(n) for n in range(len(simulation.parts)))) >= 0.0


@pytest.mark.parametrize("name", ["four_d", "fsdp", "megatron, many"])
def test_products_beside_collectives_are_held_at_the_limit(name: str) -> None:
    """Watts of products, memory and links added up to 756 of an H100's 700, and to 785."""
    energy = energy_of(name, "dgx-h100")
    moments, watts = energy.over_time
    lasting = np.diff(moments) > 1e-9 * moments[-1]
    assert watts[:-1][lasting].max() <= 8 * 700 * (1 + 1e-9)
    assert energy.peak_watts >= 8 * 680


def test_every_engine_is_held_at_the_same_limit() -> None:
    for name in ("four_d", "fsdp", "megatron, many"):
        folded, every = (energy_of(name, "dgx-h100", engine=engine) for engine in ("folded", "des"))
        assert folded.joules == pytest.approx(every.joules, rel=1e-9)
        assert folded.peak_watts == pytest.approx(every.peak_watts, rel=1e-6)


OPS = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 6), st.integers(0, 9), st.booleans()), max_size=12)


@given(OPS, st.integers(1, 20))
def test_what_is_held_back_by_brute_force(ops: list[tuple[int, int, int, bool]], spare: int) -> None:
    """In whole seconds: kernels give way first, links share the rest; kernels here may even run at one time."""
    begin, seconds, watts = (np.array([op[n] for op in ops], dtype=float) for n in range(3))
    code = np.array([COMPUTE if op[3] else START for op in ops], dtype=np.int8)
    times = Times(begin, begin + seconds, begin, np.ones(len(ops)))
    held = held_back(times, code, watts, 1.0, float(spare))
    expected, pieces = np.zeros(len(ops)), np.zeros(40)
    for second in range(40):
        at = [n for n, (b, s, _, _) in enumerate(ops) if b <= second < b + s]
        kernels, links = ([n for n in at if ops[n][3] is kind] for kind in (True, False))
        drawn, linked = (sum(watts[group]) for group in (kernels, links))
        for group, total, left in ((kernels, drawn, max(spare - linked, 0.0)), (links, linked, float(spare))):
            for n in group:
                expected[n] += watts[n] * (1.0 - min(left / total, 1.0)) if total else 0.0
        pieces[second] = min(spare - drawn - linked, 0.0)
    np.testing.assert_allclose(held.joules, expected, atol=1e-9)
    found = np.zeros(40)
    for piece, lasts, less in zip(held.pieces.begins, held.pieces.seconds, held.pieces.watts, strict=True):
        found[int(piece) : int(piece + lasts)] += less
    np.testing.assert_allclose(found, pieces, atol=1e-9)


def test_waits_draw_nothing_and_are_not_held_back() -> None:
    times = Times(np.zeros(2), np.ones(2), np.zeros(2), np.ones(2))
    held = held_back(times, np.array([COMPUTE, WAIT], dtype=np.int8), np.array([5.0, 0.0]), 1.0, 3.0)
    assert held.joules.tolist() == [2.0, 0.0]
