"""A job: model + machine + grid + batch + options, and the rules they must keep together.

The same file is read by the twin and by the runtime. Here are the keys of every job; how the model is
cut over ranks is a strategy's business, whose keys stand beside these in the same file: each
strategy derives its job from this one. `strategy: auto`, `grid: auto` and `micro_sequences: auto` are
resolved by `twin.search.choose`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeVar

from pydantic import Field, SerializationInfo, StrictBool, field_serializer

from twin.description.attention import UNNAMED_ATTENTION, AttentionForm
from twin.description.degraded import Degraded, check_degraded
from twin.description.grid import GridSpec, divisors, nearest
from twin.description.lora import Lora
from twin.description.lora import check as check_lora
from twin.description.machine import Machine
from twin.description.model import Model, Positive
from twin.description.model import check as check_model
from twin.description.parameter import Parameter
from twin.description.placement import PlacementChoice, check_placement, nodes_used
from twin.description.power import EnergyInputs
from twin.description.problems import Problem
from twin.description.spec import Spec
from twin.description.train import Train, check_train

DEFAULT_STRATEGY = "four_d"
AUTO = "auto"
"""In place of a strategy's name: the one that is the fastest by simulation."""
MAX_BLOCKS = 40_000
"""Micro-steps × layers of a step that is written out op by op (some 110 ops a block)."""


class Batch(Spec):
    """Sequences that a step trains on, and sequences at a time."""

    sequences: Positive
    """Sequences of the global batch."""
    micro_sequences: Positive | Literal["auto"] = "auto"
    """Sequences a rank works on at once; auto is the most that fit into memory."""


class Straggler(Spec):
    """One slow device."""

    rank: Annotated[int, Field(ge=0, strict=True)]
    """Whose device it is."""
    slowdown: Annotated[float, Field(ge=1, le=1000)]
    """Factor by which its compute takes longer."""


class Job(Spec):
    """What to train, on what, and how."""

    name: str = "job"
    """For people, and for directories of runs; the file's name if absent."""
    model: Model
    """The name of a preset, hf:DIR (a Hugging Face directory), or keys; with `preset:` some keys of one are changed."""
    machine: Machine
    """A name, a path, or the keys of a machine; with `extends:` some keys of one are changed."""
    ranks: Positive
    """Devices to train on."""
    strategy: str = DEFAULT_STRATEGY
    """The way the model is cut over ranks: a folder of `twin/strategies`, whose own keys stand beside these; or auto:
    the fastest of all by simulation, when training of those that train. Then there are no such keys, and no grid."""
    grid: GridSpec | Literal["auto"] = "auto"
    """Sizes of the strategy's axes."""
    batch: Batch
    precision: Literal["bf16", "fp16", "fp32"] = "bf16"
    """Of products and activations; master weights are fp32. The runtime trains in bf16 and fp32."""
    recompute: StrictBool = True
    """Activation checkpointing of every block."""
    attention: AttentionForm = "flash"
    """flash: no score matrix in memory, by the kernel that is usual on the device (or, where that takes no such shape,
    mask or type, by the one that PyTorch takes then: `twin.cost.kernels`), or by the one named
    (FlashAttention 1 to 3, its first and second version in Triton, cuDNN's, AMD's CK, xformers' cutlass),
    whose rates are measured one by one; fused_softmax: one kernel between two batched products
    (Megatron's); plain: a kernel each for scale, mask and softmax. Ranks of `megatron`, flavour torch, that share
    sequences meet parts of them by FlashAttention 2 where the device has its rates, with flash too."""
    document_mask: StrictBool = False
    """Attention does not cross the bounds of documents within a sequence, and positions begin anew in each; else a
    sequence is one text, whatever it holds. The kernel then reads a mask and computes the whole window."""
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Probability of dropout after attention and MLP, and on unfused attention's scores."""
    lora: Lora | None = None
    """Train low-rank adapters instead of the weights: no gradients, no optimizer states of these. `{}` takes the
    defaults."""
    fused_elementwise: StrictBool = False
    """Bias, dropout and residual in one kernel (hand-written or compiled), as Megatron has them."""
    loss_rows: Annotated[int, Field(ge=1, strict=True)] | None = None
    """Compute the loss of so many tokens at a time, so that no copy of all logits in fp32 is made: less memory,
    exponentials computed twice. By default of all tokens of a micro-step at once."""
    cuda_graphs: StrictBool = False
    """Launch a step's kernels and collectives from a captured graph (CUDA's or HIP's): the host takes no time; what is
    left of starting a kernel on the device stays, and the graph's own memory is not counted. For simulation only."""
    profiler: StrictBool = False
    """torch.profiler records: the host takes longer over every kernel and collective. For simulation only; the
    runtime has traces of its own."""
    kernel_tuning: StrictBool = True
    """Of `four_d`: time NN, NT and TN for each GEMM and keep the fastest (section 6 of the algorithm)."""
    clip_gradients: StrictBool = True
    """Scale the gradient down to `train.optimizer.clip_norm`, where it is longer."""
    library: str | None = None
    """Collective library; the machine's default if absent."""
    slowest_device: StrictBool = True
    """Equal devices differ: let all wait for the slowest one that so many devices are expected
    to contain (`variation.device_speed_spread` of the machine)."""
    stragglers: tuple[Straggler, ...] = ()
    placement: PlacementChoice = "contiguous"
    """Dragonfly groups of the job's nodes: as few as possible, or `{groups: 8, order: blocks}` (or
    `cyclic`): spread over that many."""
    degraded: tuple[Degraded, ...] = ()
    """NICs, links and global links below their rate, such as `{node: 17, nic: 0, rate: 0.5}`."""
    power_cap_watts: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    """Watts that no device may draw in the mean while it computes: its clock is lowered until it does. For simulation
    only, on devices whose watts by kind of work are known."""
    energy: EnergyInputs | None = None
    """What turns the devices' energy into that of a facility, into carbon and into money."""
    seed: Annotated[int, Field(ge=0, strict=True)] = 0
    """Of all that is random: device speeds, jitter and noise of the all-ranks engine; in the runtime
    weights, dropout and the order of samples."""
    train: Train = Train()
    """For the runtime: data, optimizer, steps, checkpoints. The twin reads how it multiplies, and if it is
    deterministic."""

    @field_serializer("train")
    def _train_as_given(self, train: Train, info: SerializationInfo) -> dict[str, Any]:
        """Write what was given, no defaults: a simulated job is not made longer by what it does not use."""
        return train.model_dump(mode=info.mode, by_alias=info.by_alias, exclude_unset=True)

    @property
    def element_bytes(self) -> int:
        """Bytes of one number in compute precision."""
        return 4 if self.precision == "fp32" else 2

    @property
    def is_concrete(self) -> bool:
        """True where grid and micro-batch are given."""
        return self.grid != "auto" and self.batch.micro_sequences != "auto"

    @property
    def concrete_grid(self) -> GridSpec:
        """The grid, which must not be `auto` any more."""
        if self.grid == "auto":
            raise ValueError("grid is auto; resolve the job first (twin.search.choose)")
        return self.grid

    @property
    def concrete_micro_sequences(self) -> int:
        """Sequences of one micro-step of one rank, which must not be `auto` any more."""
        if self.batch.micro_sequences == "auto":
            raise ValueError("micro_sequences is auto; resolve the job first (twin.search.choose)")
        return self.batch.micro_sequences

    @property
    def micro_steps(self) -> int:
        """Forward and backward passes in one step."""
        return self.batch.sequences // (self.concrete_grid.replicas * self.concrete_micro_sequences)

    @property
    def compute_slowdown(self) -> Parameter:
        """How much longer compute takes beside a collective, on as many nodes as the job has."""
        return self.machine.variation.slowdown_on(nodes_used(self.machine, self.ranks))

    @property
    def tunes_products(self) -> bool:
        """Whether the fastest mode of each product is taken."""
        return False

    @property
    def takes_cudnn_attention(self) -> bool:
        """Whether cuDNN's attention is taken where it is usual: it is not deterministic."""
        return not self.train.deterministic

    @property
    def attends_to_parts(self) -> bool:
        """Whether attention meets a sequence's keys in parts, as ranks that share it send them."""
        return False

    @property
    def kept_flops(self) -> float:
        """Flops of a step that recomputing all blocks would be, and that a strategy leaves out.

        Below zero those that it does though `recompute` is false.
        """
        return 0.0

    @property
    def tokens_per_step(self) -> int:
        """Tokens of the global batch."""
        return self.batch.sequences * self.model.sequence


J = TypeVar("J", bound=Job)


def with_below(job: J, key: str, values: Mapping[str, Any]) -> J:
    """Return a job with other values below one of its keys, such as `overlap`; they are not checked."""
    part: Spec = getattr(job, key)
    return job.model_copy(update={key: part.model_copy(update=dict(values))})


def check(job: Job) -> list[Problem]:
    """Return every rule that the job as a whole breaks."""
    machine, model = job.machine, job.model
    problems = []
    capacity = machine.nodes * machine.devices_per_node
    if job.ranks > capacity:
        problems.append(
            Problem(
                "ranks",
                f"{machine.name} has {capacity:,} devices ({machine.nodes:,} "
                f"nodes × {machine.devices_per_node}); use at most that many",
                job.ranks,
            )
        )
    if job.precision not in machine.device.precisions:
        known = " or ".join(machine.device.precisions)
        problems.append(
            Problem("precision", f"{machine.device.name} does not compute in it; use {known}", job.precision)
        )
    problems += _check_power_cap(job)
    if job.cuda_graphs and machine.device.type == "cpu":
        problems.append(Problem("cuda_graphs", f"{machine.device.name} is a CPU; only GPUs have graphs", True))
    if job.profiler and machine.device.type == "cpu":
        problems.append(Problem("profiler", f"{machine.device.name} is a CPU; what it costs there is not known", True))
    if job.profiler and job.cuda_graphs:
        problems.append(Problem("profiler", "what it costs under cuda_graphs is not known; choose one of them", True))
    problems += check_model(model) + _check_attention(job)
    if job.lora is not None:
        problems += check_lora(job.lora, model)
    elif job.train.initial_adapters is not None:
        remedy = "adapters need lora, with the rank and the targets that they have"
        problems.append(Problem("train.initial_adapters", remedy, job.train.initial_adapters))
    if job.library is not None and job.library not in machine.libraries:
        problems.append(Problem("library", f"{machine.name} has {', '.join(machine.libraries)}", job.library))
    for i, straggler in enumerate(job.stragglers):
        if straggler.rank in {s.rank for s in job.stragglers[:i]}:
            problems.append(Problem(f"stragglers.{i}.rank", "is given twice; keep one", straggler.rank))
        if straggler.rank >= job.ranks:
            problems.append(Problem(f"stragglers.{i}.rank", f"ranks are 0 to {job.ranks - 1}", straggler.rank))
    misplaced = check_placement(machine, job.ranks, job.placement)
    problems += misplaced
    if not misplaced:
        problems += check_degraded(machine, job.ranks, job.placement, job.degraded)
    return problems + check_train(job.train)


def _check_attention(job: Job) -> list[Problem]:
    """A kernel named one by one must have rates on the job's device."""
    device = job.machine.device
    if job.attention in UNNAMED_ATTENTION or job.attention in device.attention:
        return []
    known = ", ".join([*UNNAMED_ATTENTION, *device.attention])
    return [Problem("attention", f"no rate of it is known on {device.name}; choose from {known}", job.attention)]


def _check_power_cap(job: Job) -> list[Problem]:
    """Return why a power cap means nothing on a job's device."""
    device, cap = job.machine.device, job.power_cap_watts
    if cap is None:
        return []
    if device.power is None:
        remedy = f"{device.name} does not say what it draws by kind of work; give its device a `power`"
        return [Problem("power_cap", remedy, cap)]
    if cap <= device.power.context_watts:
        remedy = f"is no more than the {device.power.context_watts:g} W that {device.name} draws while it waits"
        return [Problem("power_cap", remedy, cap)]
    return []


def check_grid(job: Job) -> list[Problem]:
    """Return the rules that ranks, a concrete grid and the batch break together, whatever the strategy."""
    grid = job.concrete_grid
    return [*check_ranks(job, grid), *check_batch(job, grid)]


def check_ranks(job: Job, grid: GridSpec) -> list[Problem]:
    """Hold the grid's ranks against the job's."""
    if grid.ranks == job.ranks:
        return []
    outermost, *others = grid.axes
    inside = grid.ranks // grid.size(outermost)
    if job.ranks % inside == 0:
        remedy = f"set {outermost} to {job.ranks // inside}"
    else:
        remedy = (
            f"{'·'.join(others)} = {inside} does not divide {job.ranks}: choose axes among its divisors "
            f"{_some(divisors(job.ranks))}"
        )
    return [Problem("grid", f"has {grid.ranks} ranks ({grid}), but ranks is {job.ranks}; {remedy}")]


def check_batch(job: Job, grid: GridSpec) -> list[Problem]:
    """Divide the batch over the grid's replicas, and each part into micro-steps."""
    sequences, micro, replicas = job.batch.sequences, job.batch.micro_sequences, grid.replicas
    if sequences % replicas:
        below = sequences // replicas * replicas
        near = below if below and below + replicas > 2 * sequences - below else below + replicas
        over = "·".join(grid.batch_axes)
        return [Problem("batch.sequences", f"must be a multiple of {over} = {replicas}; nearest is {near}", sequences)]
    if micro == "auto":
        return []
    if sequences % (replicas * micro):
        local = sequences // replicas
        remedy = f"must divide the {local} sequences of each rank; nearest is {nearest(micro, divisors(local))}"
        return [Problem("batch.micro_sequences", remedy, micro)]
    if (steps := sequences // (replicas * micro)) * job.model.layers > MAX_BLOCKS * grid.depth:
        remedy = (
            f"makes {steps:,} micro-steps of {job.model.layers} layers, "
            f"more than the {MAX_BLOCKS:,} blocks that can be simulated; use larger ones"
        )
        return [Problem("batch.micro_sequences", remedy, micro)]
    return []


def _some(numbers: list[int], most: int = 12) -> str:
    shown = ", ".join(map(str, numbers[:most]))
    return shown if len(numbers) <= most else shown + ", …"
