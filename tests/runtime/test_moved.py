"""Described bytes are those moved, within a tenth, for every kind of op: real steps are run and counted.

What is counted is said in `tests.runtime.moved`. Steps run on the CPU in a world of one real rank: collectives
answer at once, and what they copy is theirs. RMS norms say what they move on a CPU; on a GPU they are one kernel.
Sums over tokens in 16 bits are those of devices, which CPUs widen.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import pytest
import torch

from runtime.model import attention, elementwise, narrow_sums
from runtime.recorder.gpt import batch_of
from runtime.recorder.world import fake_world
from runtime.strategies import trains
from tests.recorder import jobs, test_families, test_lora
from tests.runtime.moved import Counter
from tests.tiers import full
from twin.cost.kernels import kind_of_work
from twin.description.job import Job
from twin.description.train import Adam
from twin.schedule.kernels import Attention, Gemm, Kernel
from twin.schedule.ops import Compute, Phase
from twin.strategies import load_job
from twin.strategies.jobs import generated

TOLERANCE = 0.1
UNNAMED = 0.003
"""Share of a step's bytes that may be moved by what has no name: a few numbers of each token."""

MODEL = {"layers": 1, "hidden": 256, "heads": 4, "sequence": 128, "vocabulary": 512}
LLAMA = {"activation": "swiglu", "positions": "rotary", "biases": False, "norm": "rms"}
GROUPED = {**LLAMA, "kv_heads": 2, "qk_norm": True, "tied_embeddings": True}
NEOX = {"positions": "rotary", "rotary_share": 0.5, "residual": "parallel", "activation": "gelu_exact"}
SCALED = {**LLAMA, "biases": True, "rotary_scaling": {"kind": "llama3", "factor": 8.0}}
ALL = {"data": 2, "z": 2, "y": 2, "x": 2}
WIDE = {"gathers": "fp32", "scatters": "fp32"}
Options = dict[str, Any]


def describe(grid: dict[str, int] | None = None, model: Options | None = None, micro: int = 1, **options: Any) -> Job:
    """The job of a case: two sequences a micro-step on each rank."""
    sizes = {"data": 1, **(grid or {})}
    if options.get("strategy") != "ddp":
        sizes = {"z": 1, "y": 1, "x": 1, **sizes}
    replicas = sizes["data"] * sizes.get("z", 1)
    raw = {
        "model": {**MODEL, **(model or {})},
        "machine": {"extends": "dgx-h100", "nodes": 8},
        "ranks": replicas * sizes.get("y", 1) * sizes.get("x", 1),
        "grid": sizes,
        "batch": {"sequences": 2 * replicas * micro, "micro_sequences": 2},
        "train": {"gemm_library": "pytorch"},  # oneDNN's way to write a result where it stays is of CPUs alone
        **options,
    }
    return load_job(raw)


CASES = {
    "gpt": describe(),
    "gpt fp32": describe(precision="fp32", recompute=False, clip_gradients=False),
    "gpt on all axes": describe(ALL, micro=2),
    "gpt on all axes fp32": describe(ALL, precision="fp32", data_reduction={"mode": "overlapped"}),
    "llama": describe(model=LLAMA, micro=2),
    "llama fp32": describe(model=LLAMA, precision="fp32"),
    "grouped": describe(model=GROUPED),
    "grouped on all axes": describe(ALL, GROUPED, data_reduction={"mode": "sharded"}),
    "grouped, all axes, fp32, fused": describe(ALL, GROUPED, precision="fp32", fused_elementwise=True),
    "scaled on x": describe({"x": 2}, SCALED),
    "neox": describe(model=NEOX, dropout=0.1),
    "neox, fused": describe({"x": 2, "y": 2}, NEOX, dropout=0.1, fused_elementwise=True),
    "fused": describe({"x": 2}, {**LLAMA, "biases": True}, dropout=0.1, fused_elementwise=True),
    "plain, dropout": describe({"y": 2}, attention="plain", dropout=0.1),
    "plain, dropout, grouped fp32": describe(
        model={"kv_heads": 2}, attention="plain", dropout=0.1, precision="fp32", fused_elementwise=True
    ),
    "fused softmax": describe(attention="fused_softmax", dropout=0.1),
    "fused softmax, longer": describe(model={"sequence": 512}, attention="fused_softmax", precision="fp32"),
    "fused softmax, documents": describe(attention="fused_softmax", document_mask=True),
    "blocks in fp32": describe({"z": 2}, communication_precision=WIDE, gather_unit="block", micro=2),
    "documents": describe(document_mask=True, micro=2),
    "documents, rotary": describe({"y": 2}, LLAMA, document_mask=True),
    "documents, plain fp32": describe(model=LLAMA, document_mask=True, attention="plain", precision="fp32"),
    "adapters": describe({"x": 2, "y": 2}, LLAMA, lora={"rank": 16, "targets": ["q", "v", "gate", "down"]}, micro=2),
    "gpt fp32, micro-steps": describe({"y": 2}, precision="fp32", micro=2),
    "adapters fp32": describe(
        {"data": 2, "x": 2}, precision="fp32", micro=2, lora={"rank": 16, "targets": ["k", "o", "up"]}
    ),
    "adapters, grouped": describe({"z": 2}, GROUPED, lora={"rank": 8}),
    "ddp": describe({"data": 2}, strategy="ddp", micro=2),
    "ddp, grouped": describe({"data": 2}, {**LLAMA, "kv_heads": 2, "biases": "qkv"}, strategy="ddp", micro=2),
    "ddp, wide heads, fp32": describe(
        model={**NEOX, "residual": "serial", "norm": "rms", "kv_heads": 1, "head_width": 96},
        strategy="ddp",
        precision="fp32",
    ),
    "ddp, rotary, fp32": describe(
        model={"positions": "rotary", "activation": "swiglu", "biases": False}, strategy="ddp", precision="fp32"
    ),
}
QUICK = ("gpt on all axes", "grouped", "neox, fused")


def kind(kernel: Kernel, phase: Phase) -> str:
    """Name a kind of op."""
    match kernel:
        case Gemm():
            return "product"
        case Attention():
            return f"{kernel.form} attention{' backward' if kernel.backward else ''}"
    return kind_of_work(kernel.work, phase)


def described(kernel: Kernel) -> float:
    """Bytes that an op is described to move; of attention as Megatron's kernel does it, with what the runtime adds."""
    if not isinstance(kernel, Attention):
        return kernel.bytes
    return kernel.moved_bytes + (beyond_megatron(kernel) if kernel.form == "fused_softmax" else 0.0)


def beyond_megatron(kernel: Attention) -> float:
    """Bytes that PyTorch's kernels move and Megatron's one would not, which this form describes.

    That one scales, masks and takes the softmax at once and reads only the half that is not masked. PyTorch's softmax
    reads all: half a pass over the scores more, and of two matrices backward. Backward, the scale is a kernel for the
    gradient of the queries and one for that of the keys. With a mask of documents three kernels do it, as in `plain`.
    """
    scores = kernel.sequences * kernel.heads * kernel.sequence_length**2 * kernel.element_bytes
    if kernel.mask:
        return (2.0 if kernel.backward else 4.0) * scores
    tokens = kernel.sequences * kernel.sequence_length
    gradients = 2 * tokens * kernel.heads * kernel.head_size * kernel.element_bytes
    return 1.0 * scores + 2 * gradients if kernel.backward else 0.5 * scores


def count(job: Job, rank: int) -> Counter:
    """Run steps of a rank and count the last: those before make what is made once."""
    with fake_world(job.concrete_grid, rank) as mesh:
        trainee = trains(job)(job, mesh, torch.device("cpu"), Adam())
        batch = batch_of(job, trainee.context)
        for _ in range(1 + trainee.warm_up_steps):
            trainee.step(batch, 1e-3)
        counter = Counter()
        trainee.context.ops.listener = counter
        with pytest.MonkeyPatch.context() as patch, counter.launches:
            patch.setattr(narrow_sums, "narrow", lambda _x: False)  # as devices do it
            if job.fused_elementwise:  # torch.compile would take minutes
                for module in (elementwise, attention):
                    patch.setattr(module, "fused", lambda _context, function, _in_steps: counter.as_one(function))
            trainee.step(batch, 1e-3)
    return counter


@pytest.mark.parametrize("name", full(CASES, *(set(CASES) - set(QUICK))))
def test_described_bytes_are_those_moved(name) -> None:
    job = CASES[name]
    tied = job.model.tied_embeddings and job.concrete_grid.size("data") > 1
    shared: dict[str, list[float]] = defaultdict(list)
    wrong = []
    for rank in {0, job.ranks - 1} if tied else {0}:
        counter = count(job, rank)
        everything = sum(op.bytes for op in counter.found)
        for op in counter.found:
            expected, found = described(op.kernel), float(op.bytes)
            if op.op.name == "reduce/collect":
                found += counter.unnamed  # gradients added by autograd itself
                counter.unnamed = 0
            if op.op.name == "optimizer/tied/copy" and tied:
                shared[op.op.name] += [found / expected]  # described is the mean of replicas
                continue
            if op.op.name == "optimizer/clip/norm" and rank:
                continue  # described is the first rank, which counts what several have: all wait for it
            if abs(found / expected - 1) > TOLERANCE:
                wrong.append(f"{op.op.name}: described {expected:,.0f}, moved {found:,.0f} by {' '.join(op.names)}")
        assert counter.unnamed < UNNAMED * everything
        assert {kind(op.kernel, op.op.phase) for op in counter.found} == kinds(job)
    assert not wrong, "\n".join(wrong)
    for op_name, shares in shared.items():
        assert sum(shares) / len(shares) == pytest.approx(1, abs=TOLERANCE), op_name


def kinds(job: Job) -> frozenset[str]:
    """Every kind of op that the twin generates for a job."""
    ops = (op for _, op in generated(job).named() if isinstance(op, Compute))
    return frozenset(kind(op.kernel, op.phase) for op in ops)


def test_every_kind_of_op_is_among_them() -> None:
    counted = frozenset().union(*map(kinds, CASES.values()))
    known = (*test_families.CASES.values(), *test_lora.CASES.values())
    families = map(test_families.described, known)
    missing = {name for job in (*jobs.JOBS.values(), *families) for name in kinds(job) - counted}
    assert not missing
