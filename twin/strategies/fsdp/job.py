"""The keys of a job that shards weights, gradients and optimizer states over data-parallel ranks.

Each of the three is cut over a group of its own, the smaller inside the larger. Four axes say how: ranks work on
different sequences, whatever axis they differ in. A fifth says which ranks share each layer instead.

| | grid |
|---|---|
| plain replicas | `{data: N}` |
| ZeRO-1 | `{optimizer: N}` |
| ZeRO-2, `SHARD_GRAD_OP` with gathered weights dropped | `{gradients: N}` |
| ZeRO-3, FSDP | `{weights: N}` |
| HSDP | `{data: N/8, weights: 8}` |
| three levels (arXiv 2501.04266) | `{optimizer: N/8, gradients: 4, weights: 2}` |
| ZeRO-3 of layers that eight ranks share | `{weights: N/8, tensor: 8}` |
"""

from __future__ import annotations

from math import gcd
from typing import ClassVar, Literal

from pydantic import StrictBool

from twin.description.grid import GridSpec, divisors, nearest
from twin.description.job import Job
from twin.description.model import Positive
from twin.description.offload import Offload
from twin.description.problems import Problem
from twin.strategies import offload as tiers
from twin.strategies.sizes import block_flops

BUCKET_ELEMENTS = 500_000_000
PREFETCH_ELEMENTS = 50_000_000
Flavour = Literal["fsdp2", "fsdp1", "deepspeed"]


class Grid(GridSpec):
    """What is cut over which ranks, outermost first."""

    batch_axes: ClassVar[tuple[str, ...]] = ("data", "optimizer", "gradients", "weights")
    rare_axes: ClassVar[tuple[str, ...]] = ("tensor",)
    streams: ClassVar[tuple[str, ...]] = ("data", "optimizer", "gradients", "weights_gather", "weights_scatter")

    data: Positive = 1
    """Replicas that share nothing."""
    optimizer: Positive = 1
    """Ranks among which optimizer states are divided, and nothing else."""
    gradients: Positive = 1
    """Ranks among which gradients are divided too."""
    weights: Positive = 1
    """Ranks among which weights are divided too."""
    tensor: Positive = 1
    """Of flavour deepspeed, for simulation: ranks that share each layer as Megatron-LM cuts it, and work on the same
    sequences (Megatron-DeepSpeed); innermost. FSDP2 beside tensor ranks is strategy megatron, flavour torch."""

    @property
    def gradient_parts(self) -> int:
        """Parts that gradients are cut into."""
        return self.gradients * self.weights

    @property
    def optimizer_parts(self) -> int:
        """Parts that optimizer states are cut into."""
        return self.optimizer * self.gradient_parts


class FsdpJob(Job):
    """A job whose ranks share the work of holding a model."""

    strategy: Literal["fsdp"] = "fsdp"
    """FSDP and ZeRO. FSDP2 and HSDP train, the rest is for simulation."""
    grid: Grid | Literal["auto"] = "auto"
    flavour: Flavour = "fsdp2"
    """Whose implementation: PyTorch's fully_shard, its older FullyShardedDataParallel, or DeepSpeed's."""
    reshard_after_forward: StrictBool = True
    """Drop gathered weights after the forward pass (FULL_SHARD); false: keep them to the backward pass
    (SHARD_GRAD_OP)."""
    recompute_stops_early: StrictBool = False
    """With recompute, and without dropout: a block that runs again stops before its last product, whose result nothing
    needs, as PyTorch's checkpoints do unless they are re-entrant (torchtitan's; `set_checkpoint_early_stop`). false: it
    runs whole, as it trains here."""
    reduce_precision: Literal["compute", "fp32"] = "compute"
    """In which type gradients are summed over ranks; torchtitan's default is fp32."""
    accumulate: Literal["sharded", "whole"] = "sharded"
    """sharded: gradients are reduced in every micro-step; whole: in the last one only, and kept whole till then
    (`no_sync`)."""
    separate_reduction_group: StrictBool | None = None
    """Gradients are reduced by a communicator of their own, beside gathers. One that does both runs one collective at a
    time: so it is in PyTorch's FSDP, unless `set_separate_reduce_scatter_group` is called (github pytorch, issue 65299
    and pull request 186335), and in DeepSpeed. Absent: true of FSDP2, as it trains here, false of the others."""
    loss_in_place: StrictBool | None = None
    """Of FSDP2: logits' gradients take the place of their exponentials, in fp32 of the logits, as they train here
    (true, and if absent); false: as in programs with PyTorch's own `cross_entropy`, 12 bytes a logit in 16 bits, not 8,
    and 16 in fp32, not 4."""
    bucket_elements: Positive | None = None
    """Of DeepSpeed: gradients that are reduced together (`reduce_bucket_size`); 5e8 if absent."""
    prefetch_elements: Positive | None = None
    """Of DeepSpeed: weights that are gathered ahead (`stage3_prefetch_bucket_size`); 5e7 if absent."""
    all_reduce_buckets: StrictBool = True
    """Of DeepSpeed's ZeRO-1 and 2: buckets are all-reduced, and each rank takes its part (its default,
    `use_multi_rank_bucket_allreduce`); false: reduce-scattered, as the papers have it."""
    overlap_reduction: StrictBool | None = None
    """Of DeepSpeed: gradients are reduced beside the backward pass (`overlap_comm`); with weights sharded if absent."""
    waits_for_gathers: StrictBool = False
    """Of DeepSpeed's ZeRO-3: each weight is gathered by itself when it is needed, while nothing computes, into a list
    of parts that are copied out one by one, and once more; gradients are all-reduced. So it was until the summer of
    2021 (github DeepSpeed, pull request 1188 and issue 1173; of the lists: github pytorch, pull request 33924)."""
    secondary: Positive | None = None
    """hpZ of ZeRO++: a second copy of the weights, cut over so many neighbouring ranks of `weights`, from which the
    backward pass gathers."""
    quantized_weights: StrictBool = False
    """qwZ of ZeRO++: weights are gathered in 8 bits for the forward pass, and for the backward pass too unless there is
    a secondary copy."""
    quantized_gradients: StrictBool = False
    """qgZ of ZeRO++: instead of a reduce-scatter two all-to-alls in 4 bits, inside nodes and between them."""

    offload: Offload | None = None
    """What of the job's state lies beyond the devices' memory."""

    @property
    def concrete_grid(self) -> Grid:
        """The grid, which must not be `auto` any more."""
        grid = super().concrete_grid
        assert isinstance(grid, Grid)
        return grid

    @property
    def bucket(self) -> int:
        """Elements of a bucket of DeepSpeed's gradients."""
        return self.bucket_elements or BUCKET_ELEMENTS

    @property
    def prefetch(self) -> int:
        """Elements that DeepSpeed gathers ahead."""
        return self.prefetch_elements or PREFETCH_ELEMENTS

    @property
    def overlaps_reduction(self) -> bool:
        """Whether gradients are reduced beside the backward pass."""
        if self.flavour == "fsdp2":
            return self.machine.device.type != "cpu"  # it goes on beside a stream
        if self.flavour != "deepspeed":
            return True
        return self.concrete_grid.weights > 1 if self.overlap_reduction is None else self.overlap_reduction

    @property
    def reduces_where_it_gathers(self) -> bool:
        """Whether one communicator gathers weights and reduces their gradients."""
        return self.flavour != "fsdp2" if self.separate_reduction_group is None else not self.separate_reduction_group

    @property
    def kept_flops(self) -> float:
        """Flops of the blocks that are swapped whole, where others are computed again, and of what those leave out."""
        if not self.recompute:
            return 0.0
        layers, offload = self.model.layers, self.offload
        swapped = 0 if offload is None else sum(map(offload.swaps, range(layers)))
        n, k = self.model.block_linears["mlp_down"]
        down = 2.0 * n * k * self.tokens_per_step if self.stops_early else 0.0
        return swapped * block_flops(self) + (layers - swapped) * down

    @property
    def stops_early(self) -> bool:
        """Whether blocks that run again leave out their last product; dropout's mask comes behind it."""
        return self.recompute_stops_early and not self.dropout

    @property
    def copies_logits(self) -> bool:
        """Whether the loss needs copies of logits and of their gradient in fp32."""
        return self.flavour != "fsdp2" or self.loss_in_place is False

    @property
    def kept_bytes(self) -> int:
        """Bytes of a gradient's number that is kept whole: FSDP2 adds up in the type of reductions."""
        return self.reduce_bytes if self.flavour == "fsdp2" else self.element_bytes

    @property
    def reduce_bytes(self) -> int:
        """Bytes of a gradient's number on its way."""
        return 4 if self.reduce_precision == "fp32" else self.element_bytes


ONLY_DEEPSPEED = (
    *("bucket_elements", "prefetch_elements", "overlap_reduction", "waits_for_gathers"),
    *("secondary", "quantized_weights", "quantized_gradients"),
)
"""Keys that only its flavour has."""


def check(job: FsdpJob) -> list[Problem]:
    """Return the rules of the strategy that a job breaks."""
    problems = []
    if job.flavour != "fsdp2" and job.loss_in_place:
        remedy = "is how FSDP2 trains here; leave it out, or set flavour: fsdp2"
        problems.append(Problem("loss_in_place", remedy, True))
    if job.loss_in_place is False and job.loss_rows is not None:
        problems.append(Problem("loss_in_place", "is of all logits at once; leave it out, or loss_rows", False))
    if job.recompute_stops_early and not job.recompute:
        problems.append(Problem("recompute_stops_early", "needs recompute: true", True))
    elif job.recompute_stops_early and job.dropout:
        remedy = "with dropout, whose mask comes behind the last product, blocks run again whole; leave one of both out"
        problems.append(Problem("recompute_stops_early", remedy, True))
    if job.flavour != "deepspeed":
        remedy = "is of DeepSpeed; leave it out, or set flavour: deepspeed"
        given = [key for key in ONLY_DEEPSPEED if getattr(job, key) not in (None, False)]
        given += [] if job.all_reduce_buckets else ["all_reduce_buckets"]
        given += ["overlap_reduction"] if job.overlap_reduction is False else []
        problems += [Problem(key, remedy, getattr(job, key)) for key in given]
    elif not job.reshard_after_forward:
        remedy = "DeepSpeed's ZeRO-3 drops them; for weights that stay use grid {gradients: N}, its ZeRO-2"
        problems.append(Problem("reshard_after_forward", remedy, False))
    problems += (tiers.check if job.flavour == "deepspeed" else tiers.check_held)(job, job.offload)
    if job.lora is not None:
        problems.append(Problem("lora", "fsdp trains every weight; leave it out, or use strategy: four_d"))
    return problems if job.grid == "auto" else problems + check_sharded(job, job.grid)


def check_sharded(job: FsdpJob, grid: Grid) -> list[Problem]:
    """Return the rules that a grid breaks."""
    problems = check_tensor(job, grid)
    node, parts = job.machine.devices_per_node, grid.gradient_parts
    if job.secondary is not None and (grid.weights % job.secondary or job.secondary == grid.weights):
        remedy = f"must divide the {grid.weights} ranks of weights, and be fewer"
        problems.append(Problem("secondary", remedy, job.secondary))
    quantized = [key for key in ("quantized_weights", "quantized_gradients") if getattr(job, key)]
    if job.waits_for_gathers and (quantized or job.secondary is not None):
        problems.append(Problem("waits_for_gathers", "is of before ZeRO++; leave out its keys, or this one", True))
    if job.waits_for_gathers and job.prefetch_elements is not None:
        remedy = "with waits_for_gathers nothing is gathered ahead; leave one of both out"
        problems.append(Problem("prefetch_elements", remedy, job.prefetch_elements))
    quantized += ["waits_for_gathers"] if job.waits_for_gathers else []
    if grid.weights == 1:
        problems += [Problem(key, "is of ZeRO-3; give grid.weights more than one rank", True) for key in quantized]
    if job.quantized_gradients and (parts <= node or parts % node):
        remedy = f"needs several whole nodes: gradients × weights must be a multiple of {node}, and more"
        problems.append(Problem("quantized_gradients", remedy, True))
    return problems


def check_tensor(job: FsdpJob, grid: Grid) -> list[Problem]:
    """Return what layers that several ranks share do not go with."""
    if grid.tensor == 1:
        return []
    if job.flavour != "deepspeed":
        remedy = (
            "is of flavour deepspeed, for simulation; FSDP2 beside tensor ranks is strategy megatron, flavour torch"
        )
        return [Problem("grid.tensor", remedy, grid.tensor)]
    model = job.model
    whole = gcd(model.heads, model.key_value_heads, model.mlp_hidden)
    problems = []
    if whole % grid.tensor:
        remedy = f"must divide heads {model.heads}, those of keys {model.key_value_heads} and MLP width "
        remedy += f"{model.mlp_hidden}; nearest is {nearest(grid.tensor, divisors(whole))}"
        problems.append(Problem("grid.tensor", remedy, grid.tensor))
    remedy = "groups neighbouring ranks, of which each layer's already are one; set grid.tensor: 1, or leave it out"
    given = [key for key in ("secondary", "quantized_gradients") if getattr(job, key)]
    return problems + [Problem(key, remedy, getattr(job, key)) for key in given]
