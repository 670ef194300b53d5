"""Timing the three operand modes of every product a job has, and agreeing on the fastest."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from runtime.context import Context
from runtime.gemm import MODES, NATURAL, Mode, Signature, time_modes
from runtime.model import GPT, Block
from runtime.ops import Place


@dataclass(frozen=True)
class Choice:
    """What was measured for one product: seconds in each of `MODES`."""

    signature: Signature
    seconds: tuple[float, ...]

    @property
    def mode(self) -> Mode:
        """The fastest."""
        return MODES[min(range(len(MODES)), key=lambda i: self.seconds[i])]

    @property
    def gain(self) -> float:
        """How many times faster than the natural mode."""
        return self.seconds[MODES.index(NATURAL[self.signature.pass_])] / min(self.seconds)


def signatures(context: Context, model: GPT) -> list[Signature]:
    """Every product of a step, each once."""
    m = context.job.concrete_micro_sequences * context.job.model.sequence
    block = model.blocks[0]
    assert isinstance(block, Block)
    found: dict[Signature, None] = {}
    for linear in (*block.linears, model.head):
        n, k = linear.weight_shard.shard.local_shape
        found[Signature("forward", m, n, k)] = None
        found[Signature("input_gradient", m, k, n)] = None
        found[Signature("weight_gradient", n, k, m)] = None
    return list(found)


def tune(context: Context, model: GPT) -> list[Choice]:
    """Time all modes on every rank, sum over ranks, and let the layers use the fastest.

    Every rank must call it; all make the same choices.
    """
    wanted = signatures(context, model)
    times = torch.tensor(
        [time_modes(signature, context.compute_type, context.device) for signature in wanted],
        dtype=torch.float64, device=context.device,
    )  # fmt: skip
    for communicator in ("x", "y", "z_scatter", "data"):
        if context.mesh.size(communicator) > 1:
            times = context.collectives.all_reduce(
                Place("tuning"), communicator, times.contiguous(), phase="optimizer"
            ).wait()
    times /= context.mesh.grid.ranks
    choices = [Choice(s, tuple(row)) for s, row in zip(wanted, times.tolist(), strict=True)]
    use(context, {str(choice.signature): choice.mode for choice in choices}, wanted)
    return choices


def use(context: Context, modes: dict[str, Mode], known: list[Signature]) -> None:
    """Let the layers use these modes; unknown products keep their natural one."""
    context.gemms.modes.clear()
    for signature in known:
        mode = modes.get(str(signature))
        if mode in MODES and mode != NATURAL[signature.pass_]:
            context.gemms.modes[signature] = mode
