"""Bodies that are copied are compiled as if every op were written out."""

from typing import Any

import numpy as np
from hypothesis import given

from tests.profiles import examples
from tests.strategies.pipelined import described
from tests.strategies.test_megatron_step import any_jobs
from twin.engine.compiler import compile_program
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
