"""Ops as JSON: what is written reads as it was; facts that older files lack are written where they are told alone."""

import json
from typing import Any

import pytest

from twin.schedule.kernels import Gemm
from twin.schedule.ops import Compute
from twin.schedule.wire import ComputeForm, op_of, wire_of

USUAL = {"type", "m", "n", "k", "mode", "batch", "element_bytes", "adds"}


@pytest.mark.parametrize(
    "facts", [{}, {"promotes": True}, {"result_bytes": 4, "adds": True, "promotes": True}, {"result_bytes": 2}], ids=str
)
def test_a_product_reads_as_it_was_written(facts: dict[str, Any]) -> None:
    op = Compute("block0/qkv/input_gradient", "bwd", Gemm(2, 3, 4, "NN", element_bytes=1, **facts), 0)
    written = json.loads(json.dumps(wire_of(op)))
    assert set(written["kernel"]) == USUAL | set(facts)
    assert op_of(ComputeForm.model_validate(written)) == op
