"""The keys of a job that is cut by the 4D algorithm."""

from __future__ import annotations

from collections.abc import Collection
from typing import Annotated, Literal

from pydantic import Field, StrictBool

from twin.description.job import Job
from twin.description.offload import Offload
from twin.description.spec import Spec
from twin.strategies.four_d.grid import Grid
from twin.strategies.sizes import FP32_BYTES, block_flops


class Overlap(Spec):
    """Which collectives may run beside compute (OAR, ORS, OAG of arXiv 2502.08145)."""

    all_reduce: StrictBool = True
    """OAR: the input gradient's all-reduce hides behind the weight gradient's GEMM."""
    reduce_scatter: StrictBool = True
    """ORS: reduce-scatters over z run on while the backward pass goes on; the last of them are
    waited for at its end."""
    all_gather: StrictBool = True
    """OAG: the all-gather of the next weights is started ahead of their use."""
    halves: StrictBool = False
    """A micro-step's sequences in two halves whose passes interleave: while one half's all-reduce over x or y is under
    way the other half computes. Not published; wants an even number of sequences a micro-step, and x or y above 1."""
    across_blocks: StrictBool = False
    """The all-gathers of a recomputation, or of a backward pass without one, go on from block to block, as in FSDP2.
    Not published: there each block begins with a gather that nothing hides."""
    prefetch_depth: Annotated[int, Field(ge=1, le=16, strict=True)] = 1
    """How many gather units ahead OAG gathers."""
    scatters_in_flight: Annotated[int, Field(ge=1, le=4096, strict=True)] | None = None
    """Reduce-scatters under way at once under ORS: when one more starts, the oldest is waited for,
    which frees its buffers. By default as many as two blocks start: 8 with `gather_unit: linear`,
    2 with `block`."""


class DataReduction(Spec):
    """How gradients are summed over the data axis."""

    mode: Literal["one_bucket", "overlapped", "sharded", "sharded_overlapped"] = "one_bucket"
    """one_bucket: after the backward pass (as published); overlapped: buckets start as the last
    micro-step's gradients become ready; sharded: optimizer states are split over data
    (reduce-scatter, update, all-gather); sharded_overlapped: split too, with reduce-scatters of buckets beside the last
    micro-step's backward pass, and all-gathers beside the next step's forward pass. The last is not published."""
    bucket_bytes: Annotated[float, Field(gt=0)] = 256 * 2.0**20
    """Least size of an overlapped bucket, of gradients in fp32."""

    @property
    def sharded(self) -> bool:
        """Whether replicas share the optimizer's states among them."""
        return self.mode in ("sharded", "sharded_overlapped")

    @property
    def beside_backward(self) -> bool:
        """Whether gradients leave in buckets beside the last micro-step's backward pass."""
        return self.mode in ("overlapped", "sharded_overlapped")


class Divide(Spec):
    """What lies between two linears of a block divided over x, where the published algorithm repeats it on every rank.

    The partial products before it are reduce-scattered over x instead of all-reduced, and what it gives is gathered
    for the linear behind it.
    """

    attention: StrictBool = False
    """Attention: whole sequences to each rank where a micro-step's divide by x, else heads."""
    mlp: StrictBool = False
    """The activation of the MLP: tokens to each rank."""


Tensor = Literal["2d", "1d"]
Keeps = Literal["nothing", "attention", "products"]
ATTENTION_KEPT = ("qkv", "mlp_up")
"""Linears that run again where what attention and its projection give is kept."""


class CommunicationPrecision(Spec):
    """In which type weights and their gradients travel over z, where layers compute in 16 bits and z is not 1."""

    gathers: Literal["compute", "fp32"] = "compute"
    """Of weights. fp32: the master weights travel and are rounded where they arrive, as under autocast and in FSDP
    without `param_dtype`."""
    scatters: Literal["compute", "fp32"] = "compute"
    """Of weight gradients, which are summed over z in it. fp32 is the usual `reduce_dtype` of FSDP."""


class FourDJob(Job):
    """A job on a 4D grid."""

    strategy: Literal["four_d"] = "four_d"
    """AxoNN's algorithm: data × z × y × x."""
    grid: Grid | Literal["auto"] = "auto"
    published: StrictBool = False
    """The algorithm as its authors published it, and nothing else: what goes beyond is refused, and no search varies it
    (`overlap.halves`, `overlap.across_blocks`, `divide`, `tensor`, `recompute_layers`, `recompute_keeps`,
    `recompute_stops_early`,
    `data_reduction: {mode: sharded_overlapped}`)."""
    overlap: Overlap = Overlap()
    divide: Divide = Divide()
    tensor: Tensor = "2d"
    """How x and y cut the linears of blocks. 2d, as published: one side of a weight over x, the other over y, and
    partial outputs are all-reduced over one of them. 1d: the inner side over x and y together, as Megatron does over
    its one axis, with the residual stream (m, h/x) gathered over x before and reduce-scattered behind: less to send
    where y is small. The same where x is 1. Not published."""
    recompute_layers: Annotated[int, Field(ge=1, strict=True)] | None = None
    """Recompute the first so many blocks only; the others keep what their backward passes need. Not published."""
    recompute_keeps: Keeps = "nothing"
    """What the blocks that are recomputed keep besides their inputs. attention: what attention gives and what its
    projection does, so that neither is computed again; nor is what only a block's output needs, MLP down. products:
    what linears and attention give; what norms and the MLP's activation give is computed again, each just before the
    weight gradient that reads it. Not published."""
    recompute_stops_early: StrictBool = False
    """With recompute_keeps: nothing, a block that runs again leaves out its last product, MLP down, and that one's
    sums: nothing needs its output. With attention kept it does so anyway. Not published."""
    cache_gathered_layers: Annotated[int, Field(ge=0, strict=True)] = 0
    """Keep the gathered weights of the first so many blocks from forward to backward."""
    offload: Offload | None = None
    """What of the job's state lies beyond the devices' memory."""
    recompute_inputs: Literal["device", "host"] = "device"
    """Where the inputs of blocks wait for their recomputation. host: in the host's memory; the device waits for both
    copies, as with DeepSpeed's `cpu_checkpointing` and PyTorch's `save_on_cpu`. For simulation only."""
    gather_unit: Literal["linear", "block"] = "linear"
    """What one all-gather or reduce-scatter over z carries: one linear's weight, or all four of a
    block: fewer, larger messages, for libraries with slow starts such as gloo."""
    data_reduction: DataReduction = DataReduction()
    communication_precision: CommunicationPrecision = CommunicationPrecision()

    @property
    def concrete_grid(self) -> Grid:
        """The grid, which must not be `auto` any more."""
        grid = super().concrete_grid
        assert isinstance(grid, Grid)
        return grid

    @property
    def takes_cudnn_attention(self) -> bool:
        """Whether cuDNN's attention is taken where it is usual: PyTorch did not when the algorithm was published."""
        return not self.published and super().takes_cudnn_attention

    @property
    def tunes_products(self) -> bool:
        """Whether the fastest mode of each product is taken, as `train.gemm_modes` says of GPUs."""
        wanted = self.train.gemm_modes
        return wanted == "tuned" or (wanted == "auto" and self.kernel_tuning and not self.train.deterministic)

    @property
    def recomputed_layers(self) -> int:
        """Blocks that run again before their backward pass, if not but for what is kept of attention: the first."""
        return 0 if self.recompute_keeps == "products" else self._touched_layers

    @property
    def attention_kept_layers(self) -> int:
        """Blocks of them that keep what attention and its projection give."""
        return self._touched_layers if self.recompute_keeps == "attention" else 0

    @property
    def products_kept_layers(self) -> int:
        """Blocks that keep products, and compute norms and activations again: the first so many."""
        return self._touched_layers if self.recompute_keeps == "products" else 0

    @property
    def _touched_layers(self) -> int:
        if not self.recompute:
            return 0
        return self.model.layers if self.recompute_layers is None else self.recompute_layers

    @property
    def stops_early(self) -> bool:
        """Whether blocks of which nothing but the input is kept leave out their last product when they run again."""
        return self.recompute_stops_early and self.recompute_keeps == "nothing"

    @property
    def kept_flops(self) -> float:
        """Flops of the blocks that keep everything, where others are computed again, and of what those leave out."""
        if not self.recompute:
            return 0.0
        layers, kept = self.model.layers, self.attention_kept_layers
        left_out = kept * (block_flops(self, but=ATTENTION_KEPT) - self._read_again_flops(ATTENTION_KEPT))
        if self.stops_early:
            run = tuple(name for name in self.model.block_linears if name != "mlp_down")
            last = block_flops(self) - block_flops(self, but=("mlp_down",))
            left_out += self.recomputed_layers * (last - self._read_again_flops(run))
        return (layers - self.recomputed_layers) * block_flops(self) + left_out

    def _read_again_flops(self, run: Collection[str]) -> float:
        """Flops of a block's adapters whose linears do not run again, with what these read: of their gradients."""
        if self.lora is None:
            return 0.0
        left = (name for name in self.model.block_linears if name not in run)
        return 2.0 * self.tokens_per_step * sum(self.lora.elements(self.model, name)[0] for name in left)

    @property
    def gathers_ahead(self) -> bool:
        """Whether replicas gather what they have updated beside the next step's forward pass."""
        return self.data_reduction.mode == "sharded_overlapped" and self.concrete_grid.data > 1

    @property
    def gather_element_bytes(self) -> int:
        """Bytes of a weight's number on its way over z."""
        return self.element_bytes if self.communication_precision.gathers == "compute" else FP32_BYTES

    @property
    def scatter_element_bytes(self) -> int:
        """Bytes of a weight gradient's number on its way over z."""
        return self.element_bytes if self.communication_precision.scatters == "compute" else FP32_BYTES

    @property
    def scatters_in_flight(self) -> int:
        """Reduce-scatters over z that may be under way at once."""
        if not self.overlap.reduce_scatter:
            return 0
        return self.overlap.scatters_in_flight or (2 if self.gather_unit == "block" else 8)
