"""The keys of `strategy: megatron` for a published run of Megatron-LM, NeMo, Megatron-DeepSpeed or GPT-NeoX.

Settled where a source says nothing, by what the programs of its time did: messages between stages are waited for
until the releases of 2023 (`overlap_p2p_comm` came with them), and cut over tensor ranks; selective recomputation or
none are the same with flash attention, and full one would be said; fp16 gradients are summed in fp16, those of bf16 in
fp32; not a word about interleaving is no interleaving; layers that stages do not divide are spread evenly, the
first stages having one more, or if that is two layers too few, the first and the last stage one less.
"""

from __future__ import annotations

from typing import Any

from twin.strategies.megatron.rules import evenly
from twin.validate.megatron import MEGATRON
from twin.validate.published_run import Run

SCHEDULES = {"none": "1f1b", "1f1b": "1f1b", "interleaved_1f1b": "interleaved", "zb1p": "zb_h1", "zb2p": "zb_h2"}
EARLY = ("2104.04473", "2205.05198", "Megatron-LM README 2020")
"""Sources of before messages ran beside compute."""
WAITED_FOR = ("2401.10241", "2402.15627")
"""Sources of runs of 2023 whose interleaved stages wait for messages, since `overlap_p2p_comm` was still to be asked
for. The zero-bubble repository's scripts do not (`pretrain_zbh1.sh`), later refuse it (`pretrain_zero_bubble.sh`);
MegaScale's paper counts the overlap among what it adds to Megatron-LM (its table 3)."""
RESIDUAL_IN_STEPS = ("2401.10241",)
"""Sources of runs of 2023 with dropout, as far as that is known: three kernels are assumed, since pull request 532 of
github NVIDIA/Megatron-LM (October 2023) reports that Torch did not fuse `bias_dropout_add` as it stood then. When other
runs with dropout were made is not said; they are older papers, or vTrain's, which stay fused."""
UNFUSED = ("2104.04473", "Megatron-LM README 2020")
"""Sources of before products of weight gradients added to their sums themselves (about the end of 2021: assumed)."""

OF_NEMO_S_LAUNCHER = ("performance summary 24.07", "dgxc-benchmarking repository, release v24", "release v25.02")
"""Sources whose GPT-3 is configured by NeMo's launcher: dropout of 0.1, and gradients summed in bf16 (`hidden_dropout`
and `grad_sync_dtype` of github NVIDIA/NeMo-Framework-Launcher, conf/training/gpt3/{5b,175b}_fp8_performance.yaml, and
of NVIDIA/dgxc-benchmarking, nemo_megatron/gpt3_175b_hydra.yaml). NeMo 2's own 175B has neither."""

SUMMED_IN_BF16 = ("Megatron-Bridge", "dgxc-benchmarking repository, release v25.04")
"""Sources whose recipes sum gradients in bf16 (`grad_reduce_in_fp32 = False`: `set_llama3_common_configs` of github
NVIDIA-NeMo/Megatron-Bridge, and the performance recipes and scripts of NVIDIA/NeMo, of which v25.04 is the first)."""

LOSS_FUSIONS = {"Megatron-Bridge": "te", "dgxc-benchmarking repository, release v25.04": "native"}
"""Sources whose recipes fuse cross-entropy, and how: `cross_entropy_fusion_impl` of models of github
NVIDIA-NeMo/Megatron-Bridge; NeMo 2's `cross_entropy_loss_fusion`, with Megatron's own kernels till scripts say `te`."""


def is_of_launcher(run: Run) -> bool:
    """Tell whether a row is a GPT-3 of NeMo's launcher."""
    gpt3 = str(run.row.get("model", "")).startswith("gpt3")
    return gpt3 and any(name in str(run.row["source"]) for name in OF_NEMO_S_LAUNCHER)


def chunks(run: Run) -> int:
    """Return virtual stages of a pipeline rank; 1 where their number is not stated."""
    value = run.row.get("interleave_v", 1)
    return value if isinstance(value, int) and int(run.row.get("pp", 1)) > 1 else 1


def schedule(run: Run) -> str | None:
    """Return the order of micro-batches, None for one that is not known here."""
    if int(run.row.get("pp", 1)) == 1:
        return "1f1b"
    said = run.says("schedule").partition(" ")[0]
    if chunks(run) > 1 or said.startswith("interleaved"):
        return "interleaved" if chunks(run) > 1 else "1f1b"
    return SCHEDULES.get(said)


def is_deepspeed(run: Run) -> bool:
    """Tell whether DeepSpeed runs the pipeline, or the step where there is none."""
    known = ("forge", "gpt-neox", "ornl", "lumi", "bloom")
    return "deepspeed" in run.says("schedule") or any(name in run.says("source") for name in known)


def refusal(run: Run) -> str | None:
    """Say why a row is no job of this strategy."""
    heads = run.shape("heads")
    if schedule(run) is None:
        return f"schedule {run.says('schedule')}"
    if heads % int(run.row.get("tp", 1)):
        return f"{heads} heads over {run.row['tp']} tensor ranks"
    stages = run.row.get("stage_layers")
    if isinstance(stages, str) and "one layer less" not in stages:
        return f"stages: {stages}"
    return _recomputation(run)


def _recomputation(run: Run) -> str | None:
    said = run.says("recompute")
    if said.startswith("not stated") and run.flash is not True:
        return "recomputation is not stated"
    known = said.startswith(("full", "none", "selective", "not stated"))
    if not known or said.startswith(("selective per-op", "selective layer")):
        return f"recomputation: {said}"
    return None


def keys(run: Run) -> dict[str, Any]:
    """Make the strategy's keys of a row that nothing refuses."""
    row = run.row
    pipeline, tensor, context = (int(row.get(key, 1)) for key in ("pp", "tp", "cp"))
    split = tensor > 1 and sequence_parallel(run)
    deepspeed = is_deepspeed(run)
    zero = deepspeed and run.stage in {"1", "2"} and pipeline == 1  # its optimizer keeps gradients as they come
    narrow = run.says("precision").startswith("fp16") or zero or is_of_launcher(run)
    narrow |= any(name in str(row["source"]) for name in SUMMED_IN_BF16)
    found: dict[str, Any] = {
        "strategy": "megatron",
        "grid": {"pipeline": pipeline, "data": run.replicas, "context": context, "tensor": tensor},
        "flavour": "deepspeed" if deepspeed else "megatron",
        "sequence_parallel": split,
        "tensor_overlap": split and (tensor_overlap(run) or run.is_megascale),
        "gradient_precision": "compute" if narrow else "fp32",
        "fused_accumulation": not any(name in str(row["source"]) for name in UNFUSED),
        "fused_residual": not any(name in str(row["source"]) for name in RESIDUAL_IN_STEPS),
        "fp8_linears": "fp8" in run.says("precision"),
    }
    if "current scaling" in run.says("precision"):
        found["fp8_recipe"] = "tensorwise"
    for name, how in LOSS_FUSIONS.items():
        if name in str(row["source"]):
            found["loss_fusion"] = how
    if pipeline > 1 and not deepspeed:
        early = any(name in str(row["source"]) for name in EARLY)
        found |= {
            "schedule": schedule(run),
            "chunks": chunks(run),
            # scatter/gather of messages was the default then
            "split_messages": row.get("scatter_gather_p2p", early) is True and tensor > 1 and not split,
        }
        asked = run.is_megascale or not any(name in str(row["source"]) for name in WAITED_FOR)
        if early or (found["schedule"] == "interleaved" and not asked):
            found["overlap_messages"] = False
    found |= stages(run, pipeline * chunks(run))
    if is_of_launcher(run):
        found["dropout"] = MEGATRON["dropout"]
    if run.replicas * context > 1:
        overlapped = run.stage == "overlapped" or run.is_megascale
        found |= {"distributed_optimizer": overlapped or run.stage in {"1", "2"}}
        if overlapped:
            found |= {"overlap_gradients": True, "overlap_parameters": True}
    if run.says("recompute").startswith("selective"):
        found["recompute_attention"] = not run.flash  # whose path in Megatron-LM is not checkpointed
    return found


def sequence_parallel(run: Run) -> bool:
    """Tell whether the residual stream is split over tensor ranks."""
    said = run.says("sequence_parallel")
    return said.startswith("true") or "yes" in said or "sequence parallelism" in run.says("strategy")


def tensor_overlap(run: Run) -> bool:
    """Tell whether collectives of tensor ranks run beside products."""
    return run.row.get("tp_comm_overlap") is True or run.says("sequence_parallel").startswith("tp overlap on")


def stages(run: Run, number: int) -> dict[str, Any]:
    """Return the layers of so many stages, where they are not equal."""
    layers, given = run.shape("layers_override", "layers"), run.row.get("stage_layers")
    if isinstance(given, list):
        return {"stage_layers": given}
    if layers % number == 0 and given is None:
        return {}
    if given is not None or (layers + 2) % number == 0:  # embedding and head take a layer's place
        inner = evenly(layers + 2, number)
        return {"stage_layers": [inner[0] - 1, *inner[1:-1], inner[-1] - 1]}
    return {"stage_layers": evenly(layers, number)}
