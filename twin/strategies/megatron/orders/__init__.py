"""Pipeline schedules: in which order a rank runs the forward and backward passes of its micro-batches.

Pure functions of the number of ranks, micro-batches and chunks: they know no job, no model and no machine.

* `action`: what a rank does at a time, and how many activations it holds meanwhile.
* `steady` (GPipe, 1F1B, interleaved 1F1B), `zero_bubble` (ZB-H1, ZB-H2, ZB-V), `dualpipe` (DualPipe, DualPipeV),
  `deepspeed` (1F1B as DeepSpeed's clock has it, with its sends and receives): the schedules.
* `schedules`: all of them by name; which stage of the model a rank holds; `rules`: what a schedule asks for.
* `pytorch`: what a rank of `torch.distributed.pipelining` does around its passes: messages, gathers, reductions.
* `replay`: when each action starts and ends, by dependencies alone.
"""

from __future__ import annotations

from twin.strategies.megatron.orders.action import Action, Kind, in_flight
from twin.strategies.megatron.orders.deepspeed import Instruction, ticks
from twin.strategies.megatron.orders.pytorch import Operation, group_of, operations, rounds
from twin.strategies.megatron.orders.replay import Replay, replay
from twin.strategies.megatron.orders.rules import V_SHAPES, Name, problems
from twin.strategies.megatron.orders.schedules import order, stage_of

__all__ = [
    "V_SHAPES",
    "Action",
    "Instruction",
    "Kind",
    "Name",
    "Operation",
    "Replay",
    "group_of",
    "in_flight",
    "operations",
    "order",
    "problems",
    "replay",
    "rounds",
    "stage_of",
    "ticks",
]
