"""Bodies that are copied are compiled as if every op were written out."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given

from tests.profiles import examples
from tests.strategies.pipelined import described
from tests.strategies.test_megatron_step import any_jobs
from twin.engine.compiler import compile_program
from twin.engine.program import COMPUTE
from twin.schedule.kernels import Memory
from twin.schedule.ops import Compute, Copy, Schedule
from twin.strategies import strategy_of


def written_out(schedule: Schedule) -> Schedule:
    """The same ops without copies, each with its full name."""
    named = []
    for name, op in schedule.named():
        fields = {field: getattr(op, field) for field in type(op).__dataclass_fields__}
        named.append(type(op)(**{**fields, "name": name}))
    return Schedule(tuple(named))


@given(any_jobs())
@examples(0.3)
def test_copies_are_compiled_as_if_written_out(job: Any) -> None:
    strategy = strategy_of(job)
    for role in strategy.roles(job):
        schedule = strategy.schedule(job, role)
        assert any(isinstance(op, Copy) for op in schedule.ops)
        program, plain = compile_program(schedule, job), compile_program(written_out(schedule), job)
        assert program.calls == plain.calls
        for column in ("code", "amount", "target", "host_seconds"):
            np.testing.assert_array_equal(getattr(program, column), getattr(plain, column), err_msg=column)
        assert [program.name(i) for i in range(len(program))] == [name for name, _ in schedule.named()]
        micros = [values.get("micro", -1) for _, values in program.ops]
        np.testing.assert_array_equal(program.ops.values_of("micro", np.arange(len(program))), micros)


def test_bodies_without_ops_may_have_other_variables() -> None:
    """Passes of stages without layers: alone they have one micro-batch, two at once have two."""
    work = Compute("micro{micro}/F/work", "fwd", Memory(1.0))
    copies = (Copy((), {"micro": 0, "behind": 1}), Copy((), {"micro": 2}), Copy((work,), {"micro": 3}))
    program = compile_program(Schedule(copies), described({"pipeline": 2}))
    assert [program.name(i) for i in range(len(program))] == ["micro3/F/work"]


def test_a_host_with_cold_caches_takes_longer_behind_large_ops(make_job: Any) -> None:
    """By hand: 100 us more behind endless ops, half of that behind ops of 1 MB."""
    cold = "machine.device.cold_host={most: 100 us, half: 1 MB}"
    usual, colder = (make_job(machine="laptop", precision="fp32", overrides=given) for given in ((), (cold,)))
    schedule = strategy_of(usual).schedule(usual, *strategy_of(usual).roles(usual))
    moved = [op.kernel.bytes for _, op in schedule.named() if isinstance(op, Compute)]
    amounts = [
        [seconds for seconds, code in zip(program.amount, program.code, strict=True) if code == COMPUTE]
        for program in (compile_program(schedule, usual), compile_program(schedule, colder))
    ]
    expected = [short + 100e-6 * bytes_ / (bytes_ + 1e6) for short, bytes_ in zip(amounts[0], moved, strict=True)]
    assert amounts[1] == pytest.approx(expected)
    assert max(moved) > 1e6 > min(moved)
