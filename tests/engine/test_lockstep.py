"""One class of ranks in one loop: equal to the SimPy engine, whatever the job."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.profiles import examples
from twin.engine import des, lockstep
from twin.engine.compiler import compile_program
from twin.engine.simulate import simulate
from twin.schedule.ops import Compute, Repeat, Start, Wait
from twin.strategies import load_job
from twin.strategies.four_d.step import generate

MODEL = {"layers": 3, "hidden": 768, "heads": 12, "sequence": 256, "vocabulary": 8192}
ROUNDING = 1e-12

jobs = st.fixed_dictionaries(
    {
        "machine": st.sampled_from(["perlmutter", "frontier", "alps", "dgx-h100"]),
        "grid": st.tuples(*[st.sampled_from([1, 2, 4])] * 4),
        "micro_steps": st.sampled_from([1, 2, 3, 7]),
        "recompute": st.booleans(),
        "cache_gathered_layers": st.integers(0, 3),
        "mode": st.sampled_from(["one_bucket", "overlapped", "sharded", "sharded_overlapped"]),
        "overlap": st.tuples(st.booleans(), st.booleans(), st.booleans()),
        "gather_unit": st.sampled_from(["linear", "block"]),
        "host": st.sampled_from([None, "0 us", "60 us"]),
    }
)


def described(drawn):
    data, z, y, x = drawn["grid"]
    changes = [] if drawn["host"] is None else [f"machine.device.host={drawn['host']}"]
    return load_job(
        {
            "model": MODEL,
            "machine": drawn["machine"],
            "ranks": data * z * y * x,
            "grid": {"data": data, "z": z, "y": y, "x": x},
            "batch": {"sequences": data * z * drawn["micro_steps"], "micro_sequences": 1},
            "recompute": drawn["recompute"],
            "cache_gathered_layers": drawn["cache_gathered_layers"],
            "data_reduction": {"mode": drawn["mode"], "bucket_bytes": 1e6},
            "overlap": dict(zip(("all_reduce", "reduce_scatter", "all_gather"), drawn["overlap"], strict=True)),
            "gather_unit": drawn["gather_unit"],
        },
        changes,
    )


def both(monkeypatch, job):
    """Timelines of the loop and of SimPy for one setting; None if there are several classes."""
    seen = []
    real = lockstep.run

    def spy(program, setting):
        seen.append((real(program, setting), des.run([program], setting)[0]))
        return seen[-1][0]

    with monkeypatch.context() as patch:
        patch.setattr(lockstep, "run", spy)
        simulate(job)
    return seen[0] if seen else None


@examples(0.6)
@given(jobs)
def test_equal_to_the_simpy_engine(drawn):
    with pytest.MonkeyPatch.context() as patch:
        found = both(patch, described(drawn))
    if found is None:
        return
    ours, theirs = found
    for name in ("start", "end", "arrival"):
        a, b = getattr(ours, name), getattr(theirs, name)
        assert np.abs(a - b).max() <= ROUNDING * b.max()
    # a share is a ratio of times as short as a microsecond, taken late in the step
    assert np.allclose(ours.share, theirs.share, rtol=1e-6)


def test_a_micro_step_that_the_host_holds_up_is_not_copied(monkeypatch):
    """A host so slow that every op waits for it: then the next micro-step is not the same, later."""
    drawn = {
        "machine": "perlmutter",
        "grid": (1, 2, 1, 2),
        "micro_steps": 7,
        "recompute": True,
        "cache_gathered_layers": 0,
        "mode": "one_bucket",
        "overlap": (True, True, True),
        "gather_unit": "linear",
        "host": "1 ms",
    }
    ours, theirs = both(monkeypatch, described(drawn))
    assert np.abs(ours.end - theirs.end).max() <= ROUNDING * theirs.end.max()


def test_several_classes_stay_with_simpy(make_job):
    job = make_job({"data": 2, "z": 2}, stragglers=[{"rank": 1, "slowdown": 1.5}])
    simulation = simulate(job)
    assert simulation.partition.rank_classes > 1
    assert simulation.timeline.step_seconds == pytest.approx(simulate(job, engine="des").step_seconds, rel=1e-12)


def test_what_repeats_is_compiled_as_if_written_out(make_job):
    """A program of 7 micro-steps against its schedule, op by op."""
    job = make_job({"data": 2, "z": 2, "y": 2, "x": 2}, per_rank=7)
    schedule = generate(job)
    assert any(isinstance(op, Repeat) for op in schedule.ops)
    program = compile_program(schedule, job)
    begun: dict[str, int] = {}
    price: dict[object, float] = {}
    named = list(schedule.named())
    assert len(named) == len(program)
    for i, (name, op) in enumerate(named):
        kept, values = program.ops[i]
        assert kept == op
        assert kept.name.format_map(values) == name
        if isinstance(op, Start):
            begun[name] = i
            assert program.calls[program.target[i]] == (op.communicator, op.kind, op.bytes)
        elif isinstance(op, Wait):
            assert program.target[i] == begun[name]
        elif isinstance(op, Compute):
            assert price.setdefault(op.kernel, program.amount[i]) == program.amount[i]
