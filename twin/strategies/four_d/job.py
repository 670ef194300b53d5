"""The keys of a job that is cut by the 4D algorithm, and the rules that its grid must keep."""

from __future__ import annotations

from math import gcd
from typing import Annotated, Literal

from pydantic import Field, StrictBool

from twin.description.grid import divisors, nearest
from twin.description.job import Job
from twin.description.offload import Offload
from twin.description.problems import Problem
from twin.description.spec import Spec
from twin.strategies.four_d.grid import Grid
from twin.strategies.offload import check_held
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
    (`overlap.halves`, `overlap.across_blocks`, `divide`, `tensor`, `recompute_layers`, `data_reduction: {mode:
    sharded_overlapped}`)."""
    overlap: Overlap = Overlap()
    divide: Divide = Divide()
    tensor: Tensor = "2d"
    """How x and y cut the linears of blocks. 2d, as published: one side of a weight over x, the other over y, and
    partial outputs are all-reduced over one of them. 1d: the inner side over x and y together, as Megatron does over
    its one axis, with the residual stream (m, h/x) gathered over x before and reduce-scattered behind: less to send
    where y is small. The same where x is 1. Not published."""
    recompute_layers: Annotated[int, Field(ge=1, strict=True)] | None = None
    """Recompute the first so many blocks only; the others keep what their backward passes need. Not published."""
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
    def recomputed_layers(self) -> int:
        """Blocks that are computed again in the backward pass: the first so many."""
        if not self.recompute:
            return 0
        return self.model.layers if self.recompute_layers is None else self.recompute_layers

    @property
    def kept_flops(self) -> float:
        """Flops of the blocks that keep everything, where others are computed again."""
        if not self.recompute:
            return 0.0
        return (self.model.layers - self.recomputed_layers) * block_flops(self)

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


def check(job: FourDJob) -> list[Problem]:
    """Return the rules that the 4D keys of a job break; those of the grid only where it is given."""
    problems = []
    model = job.model
    if job.cache_gathered_layers > model.layers:
        problems.append(
            Problem(
                "cache_gathered_layers",
                f"the model has {model.layers} layers; use at most that many",
                job.cache_gathered_layers,
            )
        )
    problems += _check_beyond(job)
    if job.recompute_inputs == "host":
        problems += _check_host_inputs(job)
    problems += _check_offload(job)
    if job.lora is not None and job.communication_precision.gathers == "fp32":
        remedy = "weights that do not train have no fp32 form to be gathered in; use compute with lora"
        problems.append(Problem("communication_precision.gathers", remedy, "fp32"))
    if not may_shard(job) and job.data_reduction.sharded:
        problems.append(
            Problem(
                "communication_precision.gathers",
                f"with data_reduction {job.data_reduction.mode} a rank keeps the fp32 weights of its own part only; "
                "use compute, or another data_reduction",
                "fp32",
            )
        )
    return problems if job.grid == "auto" else [*problems, *check_axes(job, job.grid)]


def _check_beyond(job: FourDJob) -> list[Problem]:
    """Return what is wrong with options that go beyond the published algorithm."""
    problems: list[Problem] = []
    layers, ahead = job.recompute_layers, job.data_reduction.mode == "sharded_overlapped"
    if job.published:
        remedy = "goes beyond the published algorithm; leave it out, or published"
        further = {
            "overlap.halves": job.overlap.halves,
            "overlap.across_blocks": job.overlap.across_blocks,
            "divide.attention": job.divide.attention,
            "divide.mlp": job.divide.mlp,
        }
        problems += [Problem(key, remedy, value) for key, value in further.items() if value]
        problems += [] if job.tensor == "2d" else [Problem("tensor", remedy, job.tensor)]
        problems += [] if not ahead else [Problem("data_reduction.mode", remedy, job.data_reduction.mode)]
        problems += [] if layers is None else [Problem("recompute_layers", remedy, layers)]
    if layers is not None and not job.recompute:
        problems.append(Problem("recompute_layers", "needs recompute: true", layers))
    if layers is not None and layers > job.model.layers:
        remedy = f"the model has {job.model.layers} layers; use at most that many"
        problems.append(Problem("recompute_layers", remedy, layers))
    whole = {
        "overlap.halves": job.overlap.halves,
        "divide.attention": job.divide.attention,
        "divide.mlp": job.divide.mlp,
    }
    given = {key: value for key, value in whole.items() if value} | ({"tensor": "1d"} if job.tensor == "1d" else {})
    if job.lora is not None:
        remedy = "is for training all weights; leave it out with lora"
        problems += [Problem(key, remedy, value) for key, value in given.items()]
    if job.lora is not None and ahead:
        remedy = "is for training all weights, beside whose passes it works; use sharded with lora"
        problems.append(Problem("data_reduction.mode", remedy, job.data_reduction.mode))
    if job.model.qk_norm:
        remedy = "is for models without norms of queries and keys, whose gradients it would part; leave it out"
        parted = {key: value for key, value in given.items() if key in ("divide.attention", "tensor")}
        problems += [Problem(key, remedy, value) for key, value in parted.items()]
    if job.tensor == "1d":
        remedy = "has nothing to divide with tensor: 1d, which divides all between linears; leave one of them out"
        problems += [Problem(key, remedy, value) for key, value in whole.items() if value and key != "overlap.halves"]
    micro = job.batch.micro_sequences
    if job.overlap.halves and micro != "auto" and micro % 2:
        remedy = "must be even for overlap.halves, which divides them in two"
        problems.append(Problem("batch.micro_sequences", remedy, micro))
    return problems


def _check_offload(job: FourDJob) -> list[Problem]:
    """Return what does not go with parts of a job's state beyond the device."""
    problems = check_held(job, job.offload)
    if job.offload is None:
        return problems
    if job.offload.activations is not None:
        others = {"overlap.halves": job.overlap.halves, "recompute_inputs": job.recompute_inputs == "host"}
        remedy = "does not go with offload.activations; leave one out"
        problems += [Problem(key, remedy) for key, given in others.items() if given]
    if job.offload.optimizer is not None and job.communication_precision.gathers == "fp32" and job.element_bytes < 4:
        remedy = "gathers master weights, which offload.optimizer takes off the device; leave one out"
        problems.append(Problem("communication_precision.gathers", remedy, "fp32"))
    return problems


def _check_host_inputs(job: FourDJob) -> list[Problem]:
    """Return why a job cannot keep the inputs of its blocks on the host."""
    machine, reasons = job.machine, []
    if not job.recompute:
        reasons.append("is for recomputation; set recompute: true, or keep them on the device")
    if machine.device.type == "cpu":
        reasons.append(f"{machine.device.name} is a CPU, whose memory is the host's")
    elif machine.host_copy_bytes_per_second is None:
        reasons.append(f"{machine.name} does not say how fast copies to the host are; give it a host_link")
    return [Problem("recompute_inputs", reason, "host") for reason in reasons]


def may_shard(job: FourDJob) -> bool:
    """Tell whether states may be split over data: not where ranks gather fp32 weights, of which each keeps a part."""
    gathers = job.grid == "auto" or job.grid.z > 1
    return not gathers or job.gather_element_bytes == job.element_bytes


def check_axes(job: FourDJob, grid: Grid) -> list[Problem]:
    """Return the widths of the model that the axes do not divide (section 3 of the algorithm)."""
    model = job.model
    keys = "" if model.kv_heads in (None, model.heads) else f", {model.kv_heads} heads of keys"
    widths = f"hidden {model.hidden}, heads {model.heads}{keys} and MLP width {model.mlp_hidden}"
    rules = (
        ("x", grid.x, model.hidden, f"hidden {model.hidden}"),
        ("y", grid.y, gcd(model.heads, model.key_value_heads, model.mlp_hidden), widths),
    )
    problems = [] if not job.overlap.halves or grid.x * grid.y > 1 else [_idle_halves()]
    problems += _check_flat(job, grid) if job.tensor == "1d" else _check_parts(job, grid)
    return problems + [
        Problem(f"grid.{axis}", f"must divide {what}; nearest is {nearest(size, divisors(total))}", size)
        for axis, size, total, what in rules
        if total % size
    ]


def _check_parts(job: FourDJob, grid: Grid) -> list[Problem]:
    """Return why what is between linears cannot be divided over x."""
    micro = job.batch.micro_sequences
    if micro == "auto" or grid.x == 1:
        return []
    sequences = micro // (2 if job.overlap.halves else 1)
    heads = gcd(job.model.heads, job.model.key_value_heads) // grid.y
    problems = []
    if job.divide.attention and sequences % grid.x and heads % grid.x:
        what = f"neither {sequences} sequences at a time nor {heads} heads"
        remedy = f"{what} of a rank divide by x = {grid.x}; leave it out, or choose another grid or micro-batch"
        problems.append(Problem("divide.attention", remedy, True))
    if job.divide.mlp and sequences * job.model.sequence % grid.x:
        remedy = f"{sequences * job.model.sequence} tokens of a rank do not divide by x = {grid.x}; leave it out"
        problems.append(Problem("divide.mlp", remedy, True))
    return problems


def _check_flat(job: FourDJob, grid: Grid) -> list[Problem]:
    """Return why linears cannot be cut over x and y together."""
    model, both = job.model, grid.x * grid.y
    total = gcd(model.heads, model.key_value_heads, model.mlp_hidden)
    if total % both == 0:
        return []
    remedy = (
        f"cuts {model.heads} heads, {model.key_value_heads} of keys, and the MLP's width {model.mlp_hidden} over x·y = "
        f"{both}, which must divide them; use 2d, or another grid"
    )
    return [Problem("tensor", remedy, "1d")]


def _idle_halves() -> Problem:
    return Problem("overlap.halves", "hides all-reduces over x and y, of which there are none; leave it out", True)
