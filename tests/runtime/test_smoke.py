"""`fourfold train --smoke`: what works is told, what does not is named, and nothing is trained."""

from __future__ import annotations

import math

import pytest
import torch

from runtime.model.attention_backend import (
    MATH,
    NAMED,
    attention_backend,
    check_backend,
    chosen,
    kernel_of,
    settled_backend,
)
from runtime.model.elementwise import activate
from runtime.smoke import run as smoking
from runtime.smoke.cases import CASES, Case, described
from runtime.smoke.run import Seen, smoke
from runtime.smoke.show import as_json
from twin.description.attention import TRAINED_ATTENTION, UNNAMED_ATTENTION
from twin.description.problems import DescriptionError
from twin.strategies import load_job

CPU = torch.device("cpu")
JOB = {
    "model": {"layers": 40, "hidden": 5120, "heads": 40, "sequence": 64, "vocabulary": 1000},
    "machine": {"extends": "laptop", "nodes": 4},
    "ranks": 8,
    "grid": {"data": 2, "z": 4},
    "batch": {"sequences": 16, "micro_sequences": 2},
    "precision": "fp32",
}


def test_every_path_of_a_job_too_large_for_here_is_tried_on_a_small_model() -> None:
    job = load_job(JOB)
    found = [described(case, job) for case in CASES]
    assert not [each for each in found if isinstance(each, str)]
    assert all(each.model.parameters < 20e6 and each.ranks == 1 for each in found if not isinstance(each, str))


@pytest.mark.full
def test_paths_train_and_losses_fall() -> None:
    chosen = (Case("plain"), Case("by tokens", {"loss_rows": 5}), Case("documents", {"document_mask": True}))
    seen = list(smoke(load_job(JOB), CPU, 0.0, chosen))
    assert [one.name for one in seen] == ["plain", "by tokens", "documents"]
    for one in seen:
        assert not one.error
        assert one.last_loss < one.first_loss
        assert one.first_loss == pytest.approx(math.log(1000), rel=0.02)  # a model that knows nothing
        assert one.peak_bytes is None
        assert one.host_seconds is None
    assert as_json(seen, "here")["failed"] == 0


def test_what_a_machine_cannot_do_is_left_out_and_is_no_failure() -> None:
    (seen,) = smoke(load_job(JOB), CPU, 0.0, (Case("graphs", {"cuda_graphs": True}),))
    assert seen.skipped
    assert "cuda_graphs" in seen.error
    assert as_json([seen], "here")["failed"] == 0


def test_a_kernel_that_fails_is_named_and_the_others_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    tried = smoking._tried

    def broken(name: str, *rest: object) -> Seen:
        if name == "bad":
            raise RuntimeError("CUDA error: an illegal memory access was encountered\nmore of it")
        return tried(name, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(smoking, "_tried", broken)
    seen = list(smoke(load_job(JOB), CPU, 0.0, (Case("bad"), Case("good"))))
    assert seen[0].error == "RuntimeError: CUDA error: an illegal memory access was encountered"
    assert not seen[1].error
    assert as_json(seen, "here")["failed"] == 1


def test_a_loss_that_is_none_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    def nan(*arguments: object) -> torch.Tensor:
        return activate(*arguments) * math.nan  # type: ignore[arg-type]

    monkeypatch.setattr("runtime.strategies.four_d.block.activate", nan)
    (seen,) = smoke(load_job(JOB), CPU, 0.0, (Case("any"),))
    assert seen.error == "the loss is nan"


@pytest.mark.parametrize("kv_heads", [4, 2])
def test_the_kernel_is_the_one_that_pytorch_takes(kv_heads: int) -> None:
    """Asked of PyTorch, whose own kernel for CPUs it calls flash."""
    query, keys = (torch.empty(1, heads, 32, 16, dtype=torch.bfloat16) for heads in (4, kv_heads))
    assert chosen(query, keys, None) == "flash"


def test_the_kernel_has_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    query = torch.empty(1, 4, 32, 16)
    for number, name in enumerate((MATH, "flash", "efficient", "cudnn")):
        monkeypatch.setattr(torch, "_fused_sdp_choice", lambda *_, number=number, **__: number)
        assert chosen(query, query, None) == name


@pytest.mark.parametrize(
    ("form", "taken"), [("flash", "flash"), ("flash2", "flash"), ("cudnn", MATH), ("cutlass", MATH)]
)
def test_a_named_kernel_is_asked_for_alone(form: str, taken: str) -> None:
    """PyTorch has one kernel for CPUs, which it calls flash."""
    query = torch.empty(1, 4, 32, 16)
    with kernel_of(form):
        assert chosen(query, query, None) == taken


def test_a_kernel_that_is_not_there_is_refused() -> None:
    machine = JOB | {"machine": "dgx-h100"}
    for form in ("cudnn", "flash2"):
        with pytest.raises(DescriptionError, match="PyTorch has no such kernel") as refused:
            settled_backend(load_job(machine | {"attention": form}), CPU, torch.float32)
        assert refused.value.problems[0].path == "attention"
    assert set(NAMED) | set(UNNAMED_ATTENTION) == set(TRAINED_ATTENTION)
    assert not check_backend(load_job(machine | {"attention": "cudnn"}), "cudnn", 4)
    assert not check_backend(load_job(machine | {"attention": "flash2"}), "flash", 4)
    assert check_backend(load_job(machine | {"attention": "flash2"}), "cudnn", 4)


def test_parts_of_a_sequence_need_flash_attention() -> None:
    """Whatever PyTorch would take of whole sequences."""
    shared = JOB | {
        "strategy": "megatron",
        "flavour": "torch",
        "machine": "dgx-h100",
        "grid": {"data": 4, "context": 2},
    }
    job = load_job(shared)
    assert job.attends_to_parts
    assert not check_backend(job, "flash", 4)
    assert settled_backend(job, CPU, torch.float32) == "cpu"
    for other in ("cudnn", "efficient", MATH):
        (problem,) = check_backend(job, other, 4)
        assert "context_exchange: all_to_all" in str(problem)
    odd = load_job(shared | {"model": {**JOB["model"], "hidden": 400, "heads": 4}})
    assert odd.model.head_size == 100
    (problem,) = check_backend(odd, "flash", 4)
    assert "multiples of 8" in str(problem)
    traded = load_job(shared | {"context_exchange": "all_to_all"})
    assert not traded.attends_to_parts
    assert not check_backend(traded, "cudnn", 4)


def test_plain_products_are_refused_where_scores_are_large() -> None:
    job = load_job(JOB)
    assert attention_backend(job, CPU, torch.float32, 40, 40) == "cpu"
    assert settled_backend(job, CPU, torch.float32) == "cpu"
    assert not check_backend(job, MATH, 40)
    long = load_job(JOB | {"model": JOB["model"] | {"sequence": 8192}})  # type: ignore[operator]
    assert not check_backend(long, "flash", 40)
    (problem,) = check_backend(long, MATH, 40)
    scores = 4.0 * 2 * 40 * 8192**2
    assert problem.path == "attention"
    assert f"{scores / 1e9:.1f} GB" in str(problem)
