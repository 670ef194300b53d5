"""All schedules by name, and which stage of the model a rank holds in each."""

from __future__ import annotations

from twin.strategies.megatron.orders.action import Action
from twin.strategies.megatron.orders.deepspeed import compute_order
from twin.strategies.megatron.orders.dualpipe import dualpipe, dualpipe_v
from twin.strategies.megatron.orders.rules import V_SHAPES, Name, problems
from twin.strategies.megatron.orders.steady import gpipe, interleaved, one_forward_one_backward
from twin.strategies.megatron.orders.zero_bubble import zb_h1, zb_h2, zb_v

WITHOUT_CHOICE = {
    "1f1b": one_forward_one_backward,
    "deepspeed": compute_order,
    "zb_h1": zb_h1,
    "zb_h2": zb_h2,
    "zb_v": zb_v,
    "dualpipe": dualpipe,
    "dualpipe_v": dualpipe_v,
}
"""Schedules that leave no choice of chunks or groups."""


def order(
    name: Name, rank: int, ranks: int, micro_steps: int, chunks: int = 1, group: int | None = None
) -> tuple[Action, ...]:
    """Return what pipeline rank `rank` of `ranks` does in a step of `micro_steps` micro-batches, in program order.

    `chunks` are the parts that a rank's layers are cut into. `group`, of interleaving, is how many micro-batches pass
    a chunk before the next chunk (Megatron's `microbatch_group_size_per_vp_stage`), by default one per rank. Raises
    ValueError for a rank that there is not, and with all rules that are broken (`problems`).

    >>> print(*order("1f1b", rank=0, ranks=2, micro_steps=3))
    F0 F1 B0 F2 B1 B2
    """
    if not 0 <= rank < ranks:
        raise ValueError(f"rank={rank}: choose one from 0 to {ranks - 1}")
    broken = problems(name, ranks, micro_steps, chunks, group)
    if broken:
        raise ValueError("; ".join(f"{key}: {remedy}" for key, remedy, _ in broken))
    if name == "gpipe":
        return gpipe(micro_steps)
    if name == "interleaved":
        return interleaved(rank, ranks, micro_steps, chunks, ranks if group is None else group)
    return WITHOUT_CHOICE[name](rank, ranks, micro_steps)


def stage_of(name: Name, rank: int, chunk: int, ranks: int, chunks: int) -> int:
    """Return the stage of the model, from 0 to `ranks * chunks` - 1, that a chunk of a rank is.

    DualPipe's model has as many stages as ranks, and each is on two of these: there the chunk is the direction that
    micro-batches come from. Raises ValueError for a rank or a chunk that there is not.

    >>> [stage_of("interleaved", 1, chunk, ranks=4, chunks=2) for chunk in (0, 1)]
    [1, 5]
    >>> [stage_of("zb_v", 1, chunk, ranks=4, chunks=2) for chunk in (0, 1)]
    [1, 6]
    """
    parts = 2 if name == "dualpipe" else chunks
    if not (0 <= rank < ranks and 0 <= chunk < parts):
        raise ValueError(f"rank={rank}, chunk={chunk}: {name} has {ranks} ranks and {parts} chunks here, from 0")
    if name == "dualpipe":
        return ranks - 1 - rank if chunk else rank
    if name in V_SHAPES and chunk:
        return 2 * ranks - 1 - rank
    return chunk * ranks + rank
