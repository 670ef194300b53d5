"""Timing the three operand modes of every product a job has, and agreeing on the fastest."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from runtime.parallel.ops import Place
from runtime.strategies.four_d.block import Block
from runtime.strategies.four_d.context import FourDContext
from runtime.strategies.four_d.gemm import MODES, NATURAL, Mode, Signature, time_modes
from runtime.strategies.four_d.model import GPT


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


def signatures(context: FourDContext, model: GPT) -> list[Signature]:
    """Every product of a step, each once."""
    m = context.job.concrete_micro_sequences * context.job.model.sequence // (2 if context.job.overlap.halves else 1)
    block = model.blocks[0]
    assert isinstance(block, Block)
    found: dict[Signature, None] = {}
    for linear in (*block.linears, model.head):
        n, k = linear.weight_shard.shard.local_shape
        found[Signature("forward", m, n, k)] = None
        found[Signature("input_gradient", m, k, n)] = None
        found[Signature("weight_gradient", n, k, m)] = None
    return list(found)


def tune(context: FourDContext, model: GPT) -> list[Choice]:
    """Time all modes on every rank, sum over ranks, and let the layers use the fastest.

    Every rank must call it; all make the same choices.
    """
    wanted = signatures(context, model)
    times = torch.tensor(
        [time_modes(signature, context.compute_type, context.device, context.products) for signature in wanted],
        dtype=torch.float64,
        device=context.device,
    )
    for communicator in ("x", "y", "z_scatter", "data"):
        if context.mesh.size(communicator) > 1:
            times = context.collectives.all_reduce(
                Place("tuning"), communicator, times.contiguous(), phase="optimizer"
            ).wait()
    times /= context.grid.ranks
    choices = [Choice(s, tuple(row)) for s, row in zip(wanted, times.tolist(), strict=True)]
    use(context, {str(choice.signature): choice.mode for choice in choices}, wanted)
    return choices


def use(context: FourDContext, modes: dict[str, Mode], known: list[Signature]) -> None:
    """Let the layers use these modes; unknown products keep their natural one."""
    context.gemms.modes.clear()
    for signature in known:
        mode = modes.get(str(signature))
        if mode in MODES and mode != NATURAL[signature.pass_]:
            context.gemms.modes[signature] = mode


def settle(
    context: FourDContext,
    model: GPT,
    wanted: str,
    before: dict[str, str],
    *,
    deterministic: bool,
    say: Callable[[str], None],
) -> dict[str, str]:
    """Tune the products' operand modes, or use what the run used before; return what is used.

    `wanted` is `train.gemm_modes`; `say` gets a line for each choice. Every rank must call it.
    """
    on_gpu = context.device.type == "cuda" and context.job.kernel_tuning and not deterministic
    if wanted != "tuned" and not (wanted == "auto" and on_gpu):
        return before
    known = signatures(context, model)
    if all(str(signature) in before for signature in known):  # on another grid they are not
        use(context, before, known)  # type: ignore[arg-type]  # modes unknown to it are left out
        return before
    choices = tune(context, model)
    changed = [each for each in choices if each.mode != NATURAL[each.signature.pass_]]
    for each in changed:
        say(f"product {each.signature}: {each.mode}, {each.gain:.2f} times as fast as its natural mode")
    if len(changed) < len(choices):
        say(f"{len(choices) - len(changed)} of {len(choices)} products are fastest in their natural mode")
    return {str(choice.signature): choice.mode for choice in choices}
