"""The form of ops in files: one strict form for each, and nothing else is read.

Every op says what it is (`op`), a compute op also what its kernel is (`type`).
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from twin.description.attention import AttentionForm
from twin.description.library import CollectiveKind
from twin.description.problems import fail
from twin.schedule.kernels import Attention, Gemm, Kernel, Memory, Mode
from twin.schedule.ops import Compute, Copy, Op, Phase, Repeat, Rounds, Simple, Start, Wait

FORMAT = "fourfold-schedule"
SCHEMA_VERSION = 2

Size = Annotated[int, Field(ge=0, le=2**48)]
Count = Annotated[int, Field(ge=1, le=2**48)]
Width = Literal[1, 2, 4, 8]
Amount = Annotated[float, Field(ge=0, le=1e24, allow_inf_nan=False)]
NameOfRepeat = Annotated[
    str, Field(min_length=1, max_length=400, pattern=r"^[^{}\x00-\x1f]*(\{micro\}[^{}\x00-\x1f]*)?$")
]
NameOfAxis = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]{0,39}$")]
Layer = Annotated[int, Field(ge=0, le=10**6)] | None


class _Form(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)


class GemmForm(_Form):
    """A matrix product."""

    type: Literal["gemm"]
    m: Size
    n: Size
    k: Size
    mode: Mode
    batch: Size
    element_bytes: Width
    adds: bool = False
    result_bytes: Width | None = None
    promotes: bool = False


class AttentionOfHeads(_Form):
    """Attention, forward or backward."""

    type: Literal["attention"]
    sequences: Count
    sequence_length: Count
    heads: Count
    head_size: Count
    form: AttentionForm
    dropout: bool
    backward: bool
    element_bytes: Width
    kv_heads: Count | None = None
    mask: bool = False
    causal: bool = True
    key_length: Count | None = None


class MemoryForm(_Form):
    """Work bounded by memory."""

    type: Literal["memory"]
    bytes: Amount
    kernels: Annotated[int, Field(ge=0, le=10**6)]
    flops: Amount
    work: Annotated[str, Field(max_length=100, pattern=r"^[a-z0-9_/]*$")]


KernelForm = Annotated[GemmForm | AttentionOfHeads | MemoryForm, Field(discriminator="type")]


class ComputeForm(_Form):
    """Device work."""

    op: Literal["compute"]
    name: NameOfRepeat
    phase: Phase
    kernel: KernelForm
    layer: Layer = None


class StartForm(_Form):
    """The start of a collective."""

    op: Literal["start"]
    name: NameOfRepeat
    phase: Phase
    kind: CollectiveKind
    communicator: NameOfAxis
    bytes: Amount
    layer: Layer = None


class WaitForm(_Form):
    """The wait for a collective."""

    op: Literal["wait"]
    name: NameOfRepeat
    phase: Phase
    layer: Layer = None


SimpleForm = Annotated[ComputeForm | StartForm | WaitForm, Field(discriminator="op")]


class RepeatForm(_Form):
    """Equal micro-steps."""

    op: Literal["repeat"]
    variable: Literal["micro"]
    values: Annotated[tuple[Size, ...], Field(min_length=1, max_length=10**6)]
    body: tuple[SimpleForm, ...]


OpForm = Annotated[ComputeForm | StartForm | WaitForm | RepeatForm, Field(discriminator="op")]
AxisSize = Annotated[int, Field(ge=1, le=10**9)]


class RecordingFile(_Form):
    """A whole file."""

    format: Literal["fourfold-schedule"]
    schema_version: Literal[2]
    rank: Annotated[int, Field(ge=0)]
    grid: Annotated[dict[NameOfAxis, AxisSize], Field(min_length=1, max_length=16)]
    """Sizes of the axes, outermost first."""
    job: dict[str, Any] | None
    ops: tuple[OpForm, ...]


KERNEL_TYPES: dict[type[Kernel], str] = {Gemm: "gemm", Attention: "attention", Memory: "memory"}

LEFT_OUT: dict[str, bool | None] = {"result_bytes": None, "promotes": False, "causal": True, "key_length": None}
"""Facts of kernels that are written only where they are others: files from before they were known are the same."""


def wire_of(op: Op) -> dict[str, Any]:
    """Write an op as a mapping for JSON; what is None is left out."""
    if isinstance(op, Repeat):
        body = [wire_of(inner) for inner in op.body]
        return {"op": "repeat", "variable": op.variable, "values": op.values, "body": body}
    assert not isinstance(op, Copy | Rounds), "files have repeats"
    plain = {key: value for key, value in asdict(op).items() if value is not None}
    if isinstance(op, Compute):
        facts = asdict(op.kernel)
        usual = {key for key, value in LEFT_OUT.items() if facts.get(key, ...) is value}
        plain["kernel"] = {"type": KERNEL_TYPES[type(op.kernel)], **{k: v for k, v in facts.items() if k not in usual}}
    return {"op": type(op).__name__.lower(), **plain}


def op_of(form: ComputeForm | StartForm | WaitForm | RepeatForm) -> Op:
    """Make the op that a form that was read stands for."""
    if isinstance(form, RepeatForm):
        return Repeat(form.variable, form.values, tuple(_simple(inner) for inner in form.body))
    return _simple(form, literal=True)


def _simple(form: ComputeForm | StartForm | WaitForm, *, literal: bool = False) -> Simple:
    name = form.name
    if literal and "{" in name:
        raise fail(name, "has a variable outside of a repeat")
    match form:
        case ComputeForm():
            return Compute(name, form.phase, _kernel(form.kernel), form.layer)
        case StartForm():
            return Start(name, form.phase, form.kind, form.communicator, form.bytes, form.layer)
        case WaitForm():
            return Wait(name, form.phase, form.layer)


def _kernel(form: GemmForm | AttentionOfHeads | MemoryForm) -> Kernel:
    facts = form.model_dump(exclude={"type"})
    match form:
        case GemmForm():
            return Gemm(**facts)
        case AttentionOfHeads():
            return Attention(**facts)
        case MemoryForm():
            return Memory(**facts)
