"""A strategy, an algorithm and a machine from outside the packages simulate; engines know roles and messages."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import yaml

from tests.strategies.toy import COPIED, GRADIENT, MESSAGE, STAGES, WORK, Toy, ToyJob
from twin.cost import algorithms
from twin.cost.collective_options import Option
from twin.cost.memory import memory_use
from twin.description.job import Job
from twin.description.load import load_machine
from twin.description.problems import DescriptionError
from twin.engine.all_ranks import simulate_ranks
from twin.engine.events import event_table
from twin.engine.program import START
from twin.engine.report import report
from twin.engine.simulate import simulate
from twin.schedule.communicator import Role
from twin.schedule.kernels import Memory
from twin.schedule.ops import Compute, Schedule, Start, Wait
from twin.search.search import search
from twin.strategies import load_job, named, names, registered
from twin.trace.metrics import breakdown

MODEL = {"layers": 1, "hidden": 8, "heads": 1, "sequence": 8, "vocabulary": 8}


@pytest.fixture
def toy() -> Iterator[Toy]:
    strategy = Toy()
    with registered(strategy):
        yield strategy


def job(ranks: int = 8, machine: Any = "perlmutter", micro_steps: int = 3, **options: Any) -> Job:
    data = ranks // STAGES
    return load_job(
        {
            "strategy": "toy",
            "model": MODEL,
            "machine": machine,
            "ranks": ranks,
            "grid": {"stage": STAGES, "data": data},
            "batch": {"sequences": data * micro_steps, "micro_sequences": 1},
            "slowest_device": False,
            **options,
        }
    )


@pytest.mark.usefixtures("toy")
def test_two_stages_take_turns() -> None:
    """Nothing overlaps here: a step is all work and all messages, one after the other, on each path."""
    simulation = simulate(job(2))
    assert [part.role.name for part in simulation.parts] == ["stage0", "stage1"]
    first, second = simulation.parts
    host = simulation.job.machine.device.host_seconds
    device = simulation.job.machine.device
    rate = device.memory_bandwidth_bytes_per_second * device.elementwise_efficiency
    forward = [w / rate + device.kernel_latency_seconds for w in WORK]
    backward = [2 * w / rate + device.kernel_latency_seconds for w in WORK]
    # what joins different programs runs at the speed beside compute
    slow = 1.0 + float(simulation.job.machine.variation.collective_slowdown)
    cost = simulation.prices.costs
    index = {c[0]: i for i, c in enumerate(first.program.calls)}
    down = cost[index["pipe_down"]][0].startup_seconds + slow * cost[index["pipe_down"]][0].transfer_seconds
    up = cost[index["pipe_up"]][0].startup_seconds + slow * cost[index["pipe_up"]][0].transfer_seconds
    turn = forward[0] + down + forward[1] + backward[1] + up
    # stage 0 goes backward alone at the end; before that, beside nothing of stage 1's but its waiting
    expected = 3 * (turn + backward[0])
    assert simulation.step_seconds == pytest.approx(expected, rel=0.02, abs=30 * host)
    assert first.timeline.end.shape != second.timeline.end.shape or len(first.program) == len(second.program)


@pytest.mark.usefixtures("toy")
@pytest.mark.parametrize("ranks", [2, 8, 32])
@pytest.mark.parametrize("stragglers", [[], [{"rank": 0, "slowdown": 1.5}], [{"rank": 1, "slowdown": 2.0}]])
@pytest.mark.parametrize("trade", [False, True])
def test_folded_and_unfolded_agree(ranks: int, stragglers: list[Any], trade: bool) -> None:
    """Folding begins with speed and role; a straggler in either stage splits classes and changes nothing else."""
    described = job(ranks, stragglers=stragglers, trade=trade and ranks > 2)
    folded, every = simulate(described), simulate(described, engine="des")
    assert folded.step_seconds == pytest.approx(every.step_seconds, rel=1e-12)
    assert folded.partition.rank_classes <= ranks
    if not stragglers:
        assert folded.partition.rank_classes < max(ranks, 3)
    assert every.partition.rank_classes == ranks
    ours, theirs = (event_table(s, list(range(ranks))) for s in (folded, every))
    assert ours.equals(theirs)


@pytest.mark.usefixtures("toy")
def test_events_and_figures_of_both_stages() -> None:
    described = job(8)
    simulation = simulate(described)
    table = event_table(simulation, list(range(8)))
    rank, axis = table["rank"].to_numpy(), table["axis"].to_pylist()
    assert set(axis) == {None, "data", "pipe"}
    assert {int(r) for r in rank} == set(range(8))
    # pairs are numbered by the rank of the first stage
    group = {(int(r), a): g for r, a, g in zip(rank, axis, table["group"].to_pylist(), strict=True) if a == "pipe"}
    assert [group[r, "pipe"] for r in range(8)] == [0, 1, 2, 3, 0, 1, 2, 3]
    figures = report(simulation)
    whole = figures.compute_seconds + figures.exposed_seconds + figures.idle_seconds
    assert whole + figures.slowest_device_wait_seconds == pytest.approx(figures.step_seconds)
    assert set(figures.exposed_by_axis) == {"stage", "data", "pipe", "expert", "host"}
    assert figures.exposed_by_axis["pipe"] > 0
    assert memory_use(described).by_category == {"weights": 2e9}
    # the mean over ranks of what each stage computes
    of_stage = [
        breakdown(simulation.step_seconds, (p.timeline.start[0][c], p.timeline.end[0][c]), {}, {}).compute
        for p in simulation.parts
        for c in [np.flatnonzero(np.array(p.program.code) == 0)]
    ]
    assert figures.compute_seconds == pytest.approx(np.mean(of_stage))


@pytest.mark.usefixtures("toy")
def test_messages_are_counted_and_both_ends_see_them_at_once() -> None:
    simulation = simulate(job(2, micro_steps=5))
    first, second = simulation.parts
    sent = [o for o, _ in first.program.ops if isinstance(o, Start) and o.kind == "send"]
    assert sum(o.bytes for o in sent) == 5 * MESSAGE
    assert sum(o.bytes for o, _ in second.program.ops if isinstance(o, Start) and o.kind == "send") == 5 * GRADIENT
    names = [{p.program.name(i): i for i, code in enumerate(p.program.code) if code == START} for p in simulation.parts]
    for micro in range(5):
        a, b = names[0][f"micro{micro}/to_above"], names[1][f"micro{micro}/from_below"]
        assert first.timeline.end[0, a] == second.timeline.end[0, b]
        assert first.timeline.start[0, a] == second.timeline.start[0, b]


@pytest.mark.usefixtures("toy")
def test_copies_need_a_host_link_and_take_its_time() -> None:
    with pytest.raises(DescriptionError, match=r"machine\.host_link"):
        simulate(job(2, machine={"extends": "perlmutter", "reliability": None}, copy_to_host=True))
    source = {"kind": "assumed", "source": "FOURFOLD: a test"}
    link = {"bandwidth": {"value": "25 GB/s", **source}, "latency": {"value": "10 us", **source}}
    machine = {"extends": "perlmutter", "host_link": link}
    with_link = job(2, machine=machine, copy_to_host=True)
    more = simulate(with_link).step_seconds - simulate(job(2, machine=machine)).step_seconds
    assert more == pytest.approx(10e-6 + COPIED / 25e9, rel=0.05)
    without = job(2, machine="perlmutter", copy_to_host=True)  # at the rate that checkpoints are counted with
    assert simulate(without).step_seconds - simulate(job(2, machine=machine)).step_seconds == pytest.approx(
        COPIED / 25e9, rel=0.05
    )


class _Broken(Toy):
    """Stage 1 does something else than stage 0 expects."""

    def __init__(self, change: str) -> None:
        self.change = change

    def schedule(self, job: ToyJob, role: Role) -> Schedule:
        whole = super().schedule(job, role)
        if role.name == "stage0":
            return whole
        ops = [replace(op, name=op.name.format_map(values)) for op, values in whole.flat()]
        if self.change == "fewer":
            cut = [op for op in ops if "micro2" not in op.name]
            return Schedule(tuple(cut))
        return Schedule(tuple(replace(o, bytes=1.0) if isinstance(o, Start) and o.kind == "send" else o for o in ops))


@pytest.mark.parametrize(("change", "said"), [("fewer", "wait for each other for ever.*micro2/"), ("other", "1 bytes")])
def test_programs_that_do_not_fit_are_refused_by_op(change: str, said: str) -> None:
    with registered(_Broken(change)), pytest.raises(DescriptionError, match=said):
        simulate(job(2))


@pytest.mark.usefixtures("toy")
def test_every_rank_on_its_own_takes_both_roles() -> None:
    """Without differences among ranks it says what classes of ranks say."""
    described = job(8)
    folded = simulate(described)
    every = simulate_ranks(described, nominal=folded, record=range(described.ranks), random=False)
    assert every.step_seconds == pytest.approx(folded.step_seconds, rel=1e-9)


@pytest.mark.usefixtures("toy")
def test_its_keys_are_checked_like_all_others() -> None:
    assert "toy" in names()
    with pytest.raises(DescriptionError, match="did you mean 'trade'"):
        job(2, tarde=True)
    with pytest.raises(DescriptionError, match=r"grid\.stage"):
        load_job({**_plain(), "grid": {"stage": 1, "data": 2}})
    found = search(load_job({**_plain(), "grid": "auto"}))
    assert [e.candidate.grid.sizes for e in found.entries] == [(2, 1)]


def _plain() -> dict[str, Any]:
    return {"strategy": "toy", "model": MODEL, "machine": "alps", "ranks": 2, "batch": {"sequences": 4}}


def test_an_unknown_strategy_is_refused_by_name() -> None:
    with pytest.raises(DescriptionError, match="did you mean 'four_d'"):
        load_job({**_plain(), "strategy": "four-d"})
    assert named("four_d").axes == ("data", "z", "y", "x")


@pytest.mark.usefixtures("toy")
def test_with_a_toy_algorithm_on_a_toy_machine(tmp_path: Any) -> None:
    """Each in one place, outside the packages."""

    @algorithms.register("pigeon")
    def pigeon(group: Any, library: Any, kind: str, bytes_: float) -> list[Option]:
        del group, library, bytes_
        return [Option("pigeon", "Simple", 1e-9, 1e-10, 9e-10, 0.0, 0.0)] if kind in ("send", "receive") else []

    try:
        raw = yaml.safe_load(yaml.safe_dump({"extends": "dgx-h100", "name": "coop", "nodes": 2}))
        path = tmp_path / "coop.yaml"
        path.write_text(yaml.safe_dump(raw))
        assert load_machine(path).name == "coop"
        fast = simulate(job(16, machine=str(path)))
    finally:
        algorithms.unregister("pigeon")
    slow = simulate(job(16, machine=str(path)))
    assert fast.step_seconds < slow.step_seconds
    assert {c.algorithm for costs in fast.prices.costs for c in costs} >= {"pigeon"}


def test_a_schedule_of_one_role_is_what_it_was() -> None:
    """Names of ops, flat and repeated, are the same thing said twice."""
    op = Compute("micro{micro}/a", "fwd", Memory(1.0))
    assert [n for n, _ in Schedule((op, Wait("b", "fwd"))[:1]).flat()] == [op]
