"""One device: a GPU, one GCD of a package of two, or a CPU core, and what bounds its kernels.

Everything here is a property of the device and of the libraries that usually run on it, never
of the machine around it. The numbers are in `topologies/devices/*.yaml`.

* `GemmModel`: what the matrix-multiply library has to work with (tiles, units, caches).
* `AttentionModel`: rates of flash attention.
* `Device`: memory, bandwidth, power, launch costs, and the two models.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import Field, StrictBool, model_validator

from twin.description.earlier import device_of_today
from twin.description.parameter import Parameter
from twin.description.power import Power
from twin.description.spec import Spec

Size = Annotated[int, Field(gt=0, strict=True)]


class SlowLayout(Spec):
    """A GEMM mode that the library runs far below its usual rate for some leading dimensions."""

    mode: Literal["NN", "NT", "TN"]
    """Mode that is affected (see `twin.schedule.kernels.Mode`)."""
    leading_dimension_bytes: Parameter
    """The contraction's length in bytes is a multiple of this (memory channels alias)."""
    peak_share: Parameter
    """Share of the device's peak that such a product reaches."""


class PromotedSums(Spec):
    """Products of 8-bit numbers whose sums are added up in fp32 while they are made, as in backward passes.

    Hopper's tensor cores add up numbers of 8 bits with some 14 bits. What wants more takes each partial sum out and
    adds it to one in fp32, with arithmetic of its own. What a tile reads and writes of its results is counted behind
    its loop, at an effective rate: kernels hide a part of it.
    """

    main_loop_share: Parameter
    """Share of the peak of 8-bit numbers that the loop over k reaches."""
    write_bytes_per_flop: Parameter
    """Bytes of results that a unit writes, or reads to add to, in the time of one 16-bit operation at peak."""


class EightBits(Spec):
    """Matrix products of 8-bit numbers, with 16-bit results."""

    peak_ratio: Parameter
    """Peak over that of 16-bit numbers."""
    sustained_share: Parameter
    """Share of that peak at which the power limit holds large products of operands that hold data."""
    any_layout: StrictBool = False
    """Products read operands stored by rows or by columns, so that nothing is kept a second time, transposed."""
    promoted: PromotedSums | None = None
    """Where sums are added up in fp32 while they are made; absent: those products are as fast as others."""


class CoreLibrary(Spec):
    """Products on one CPU core by one library."""

    least_multiplications: Size = 1
    """Size m · n · k from which fp32 products of linear layers are given to it; 1: all that go to no other."""
    least_size: Size = 1
    """Least of m, n and k."""
    call_seconds: Parameter
    """What a product costs before and besides its arithmetic, among other ops."""
    peak_share: Parameter
    """Share of the peak that its arithmetic reaches."""
    columns_bytes_per_second: Parameter | None = None
    """Rate at which it makes of a first operand that is stored by columns one that it can read; absent: it reads it."""


class CoreProducts(Spec):
    """Products on one CPU core: what `twin.cost.core_gemm` needs to time one."""

    operands_bytes_per_second: Parameter
    """Rate at which operands come and results go, beside the arithmetic: caches hold what other ops left."""
    libraries: dict[str, CoreLibrary] = Field(min_length=1)
    """By name; one of them takes what the others do not."""

    @model_validator(mode="after")
    def _each_for_its_own(self) -> Self:
        least = {name: library.least_multiplications for name, library in self.libraries.items()}
        if 1 not in least.values() or len(set(least.values())) < len(least):
            said = ", ".join(f"{name} {size}" for name, size in least.items())
            raise ValueError(f"libraries: least_multiplications ({said}) must differ, and one must be 1")
        return self


class GemmModel(Spec):
    """A tiled matrix-multiply library: what `twin.cost.gemm` needs to time one product."""

    units: Parameter
    """Multiprocessors, compute units or cores, each working on one tile at a time."""
    tiles: tuple[tuple[Size, Size], ...] = Field(min_length=1)
    """Output tiles (rows of m, columns of n) that the library chooses from."""
    splits: tuple[Size, ...] = Field(default=(1,), min_length=1)
    """In how many parts the contraction may be cut to occupy more units."""
    tile_depth_bytes: Parameter
    """The contraction is padded to a multiple of this."""
    main_loop_share: Parameter
    """Share of the peak that the inner loop reaches when its operands are there."""
    fp32_share: Parameter
    """Peak rate with 4-byte operands as a share of the 2-byte peak."""
    feed_bytes_per_flop: Parameter
    """Bytes of operand tiles that reach a unit, from the shared cache, while it could do one flop at peak."""
    write_bytes_per_flop: Parameter
    """The same for a finished tile that is written, not hidden behind the inner loop."""
    tile_seconds: Parameter
    """Start of one tile: filling the pipeline."""
    wave_smoothing: Parameter
    """0: the last, partial wave costs a whole one; 1: its share (dynamic scheduling)."""
    launch_seconds: Parameter
    """What one product costs on the device before any tile starts."""
    split_seconds: Parameter
    """Extra cost of summing the parts of a split contraction."""
    cache_bytes: Parameter
    """Shared last-level cache."""
    memory_share: Parameter
    """Share of the peak memory rate that operands stream at."""
    sustained_share: Parameter
    """Share of the peak at which the power limit holds large products of operands that hold data."""
    eight_bits: EightBits | None = None
    """Products of 8-bit floating point; absent: the device has none, or none was measured."""
    slow_layouts: tuple[SlowLayout, ...] = ()
    """Layouts that this device is known to be slow at."""
    core: CoreProducts | None = None
    """Of a CPU core whose products were measured: instead of tiles, which say nothing then; absent: tiles."""


class AttentionModel(Spec):
    """Self-attention that keeps no score matrix, by one kernel."""

    forward_share: Parameter
    """Share of peak of forward on the flops it computes: long sequences, heads of 128."""
    backward_share: Parameter
    """The same for backward, which computes 2.5 times the flops of forward."""
    narrow_ratio: Parameter
    """Rate with heads of 64 over that with heads of 128; other sizes follow the same power law."""
    half_length: Parameter
    """Sequence length at which the rate is half of that with long ones, were nothing masked."""
    masked_rows: Parameter
    """Rows of the score matrix's masked half that are computed all the same: half-masked blocks, and the
    wait for longer rows."""
    block_rows: Parameter
    """Rows of Q that one unit works on at a time."""


class Issue(Spec):
    """CPU time to issue one collective, with all that the software which does so works beside it."""

    fsdp2_seconds: Parameter | None = None
    """PyTorch's `fully_shard`: hooks, buffers, views of gathered weights."""
    dtensor_seconds: Parameter | None = None
    """PyTorch's DTensor: its dispatch of the ops around the collective."""

    def by(self, software: str) -> Parameter | None:
        """Return the time of one software; None if it was not measured."""
        found: Parameter | None = getattr(self, f"{software}_seconds", None)
        return found


class ColdHost(Spec):
    """What a CPU's way from op to op takes longer behind ops that leave little of its own in the caches."""

    most_seconds: Parameter
    """Behind the largest ops."""
    half_bytes: Parameter
    """Bytes of an op behind which it is half of that."""

    def behind(self, bytes_: float) -> float:
        """Seconds more behind an op of so many bytes."""
        return float(self.most_seconds * bytes_ / (bytes_ + self.half_bytes))


class KernelRate(Spec):
    """Speed of a device at one kind of memory-bound work, all its kernels together."""

    rate_bytes_per_second: Parameter
    """Bytes of `twin.schedule.kernels.Memory` for each second."""
    start_seconds: Parameter
    """Least time, however few the bytes."""


class Device(Spec):
    """One device, as a rank sees it."""

    name: str
    """Name of the file in `topologies/devices`."""
    title: str
    """Name for people."""
    caveat: str = ""
    """What a reader must know before a number of this device is used: what of it was measured, what was not."""
    type: Literal["gpu", "cpu"]
    """What drives the clock of a kernel: a GPU with asynchronous launches, or a CPU."""
    sources: dict[str, str]
    """Short name → address or document."""
    memory_bytes: Parameter
    """Memory the driver shows."""
    reserved_memory_bytes: Parameter
    """Context, allocator fragments and library buffers, not available to tensors."""
    peak_flops_per_second: Parameter
    """Dense bf16/fp16 with fp32 accumulation."""
    precisions: tuple[Literal["bf16", "fp16", "fp32"], ...] = Field(default=("bf16", "fp16", "fp32"), min_length=1)
    """Types that it computes in; jobs in others are refused."""
    memory_bandwidth_bytes_per_second: Parameter
    """Peak of the device's memory."""
    memory_efficiency: Parameter
    """Share of peak that a large, well-written streaming kernel reaches."""
    elementwise_efficiency: Parameter
    """Share of peak that an ordinary element-wise, norm or softmax kernel reaches."""
    kernel_latency_seconds: Parameter
    """Least time of one kernel on the device."""
    host_seconds: Parameter
    """CPU time an eager training loop needs to issue one kernel, autograd included."""
    cold_host: ColdHost | None = None
    """What that takes longer behind large ops; absent: nothing, as where ops run elsewhere."""
    collective_host_seconds: Parameter | None = None
    """CPU time to issue one collective; by default that of two kernels, its launch and its events."""
    issue: Issue = Field(default_factory=Issue)
    """CPU time to issue one collective by software of which it was measured; of all others `collective_host`."""
    idle_watts: Parameter
    """Power with nothing running."""
    busy_watts: Parameter
    """Power of a device at work, at most its limit."""
    power: Power | None = None
    """Watts by kind of work; absent: a device at work draws `busy`, and one that waits `idle`."""
    gemm: GemmModel
    """Matrix products."""
    attention: dict[str, AttentionModel] = Field(min_length=1)
    """Self-attention by kernel (`flash2`, `cudnn`, …)."""
    usual_attention: str
    """Which of these `attention: flash` is."""
    memory_shares: dict[str, Parameter] = Field(default_factory=dict)
    """Share of the peak memory rate by kind of work (`twin.cost.kernels.kind_of_work`); of all others
    `elementwise_efficiency`."""
    kernels: dict[str, KernelRate] = Field(default_factory=dict)
    """Rates of kinds of work (`twin.cost.kernels.kind_of_work`) that were measured one by one; all
    others run at `elementwise_efficiency`. What bounds a CPU is not memory alone: exp, tanh, sums."""

    @model_validator(mode="before")
    @classmethod
    def _of_today(cls, raw: Any) -> Any:
        return device_of_today(raw) if isinstance(raw, Mapping) else raw

    @model_validator(mode="after")
    def _possible(self) -> Self:
        problems = [
            f"{name}: {getattr(self, name):g} is not between 0 and 1"
            for name in ("memory_efficiency", "elementwise_efficiency")
            if not 0 < getattr(self, name) <= 1
        ]
        problems += [
            f"gemm.{name}: {getattr(self.gemm, name):g} is not between 0 and 1"
            for name in ("main_loop_share", "memory_share", "fp32_share", "sustained_share")
            if not 0 < getattr(self.gemm, name) <= 1
        ]
        if not 0 <= self.gemm.wave_smoothing <= 1:
            problems.append(f"gemm.wave_smoothing: {self.gemm.wave_smoothing:g} is not between 0 and 1")
        problems += [
            f"gemm.{name}: {getattr(self.gemm, name):g} must be more than 0"
            for name in ("feed_bytes_per_flop", "write_bytes_per_flop")
            if not getattr(self.gemm, name) > 0
        ]
        problems += [
            f"attention.{kernel}.{name}: {getattr(model, name):g} must be more than 0"
            for kernel, model in self.attention.items()
            for name in ("forward_share", "backward_share", "narrow_ratio", "block_rows")
            if not getattr(model, name) > 0
        ]
        if self.gemm.units < 1:
            problems.append(f"gemm.units: {self.gemm.units:g} must be at least 1")
        if self.reserved_memory_bytes >= self.memory_bytes:
            problems.append("reserved_memory: leaves no memory for tensors")
        if self.idle_watts > self.busy_watts:
            problems.append(f"idle: {self.idle_watts:g} W is more than busy {self.busy_watts:g} W")
        if self.power is not None:
            context, busy = float(self.power.context_watts), self.busy_watts
            full = context + self.power.products_watts
            if context > busy:
                problems.append(f"power.context: {context:g} W is more than busy {busy:g} W")
            elif full > busy:  # as where a limit is changed and the watts are inherited: joules would be above it
                problems.append(
                    f"power.products: with the context's they are {full:g} W, more than busy {busy:g} W; "
                    "lower products, or leave busy and give jobs a power_cap"
                )
        if self.usual_attention not in self.attention:
            problems.append(f"usual_attention: {self.usual_attention!r} is none of {', '.join(self.attention)}")
        problems += [
            f"memory_shares.{kind}: {share:g} is not between 0 and 1"
            for kind, share in self.memory_shares.items()
            if not 0 < share <= 1
        ]
        if problems:
            raise ValueError("; ".join(problems))
        return self
