"""Adapters that PEFT has saved answer as they do there; they go out as they came in; what does not fit is refused."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from runtime.checkpoint.checkpoints import Checkpoints
from runtime.huggingface import merging
from runtime.huggingface.exporting import export_huggingface
from runtime.huggingface.peft import Scales, modules
from runtime.huggingface.peft_in import load_adapters
from runtime.huggingface.peft_out import export_peft
from runtime.huggingface.weights import initial_weights
from runtime.parallel.mesh import Mesh
from runtime.step.optimizer import Optimizer
from tests.runtime.huggingface import tasks
from tests.runtime.huggingface.test_logits import FOURS, HALVES, allowed, name
from tests.tiers import quick
from twin.description.lora import Lora
from twin.description.problems import DescriptionError
from twin.description.train import Adam
from twin.strategies.four_d.grid import Grid

FAMILIES = sorted(tasks.LORA)


@pytest.mark.parametrize("family", FAMILIES)
def test_answers_as_in_peft(family):
    model = tasks.with_adapters(family)
    assert tasks.error_of(model, tasks.DATA / family / "peft" / "answer.safetensors") < tasks.TOLERANCE
    # and not as the model alone does
    assert tasks.error_of(model, tasks.DATA / family / "answer.safetensors") > 0.1


EACH = [(family, grid) for family in FAMILIES for grid in HALVES if allowed(family, grid)]
ON_FOUR = [(family, grid) for family, grid in FOURS if family in FAMILIES]


@pytest.mark.parametrize(("family", "grid"), quick([*EACH, *ON_FOUR], EACH[1]), ids=name)
def test_answers_so_on_every_grid(pool, family, grid):
    ranks = Grid(**grid).ranks
    errors = pool.run("tests.runtime.huggingface.tasks:check_adapters", ranks, grid=grid, family=family)
    assert max(errors) < tasks.TOLERANCE


def saved(family: str, folder: Path) -> Path:
    """A checkpoint of adapters as a run leaves it."""
    model = tasks.with_adapters(family)
    context = model.context
    optimizer = Optimizer(context, Adam())
    checkpoints = Checkpoints(folder / "checkpoints", Mesh.alone(Grid()))
    lora = context.job.lora
    assert lora is not None
    about = merging.describe(lora, f"hf:{tasks.DATA / family}", named=True)
    checkpoints.save(context, optimizer, step=3, samples=12, extra={merging.KEY: about})
    checkpoints.close()
    return folder / "checkpoints"


@pytest.mark.parametrize("family", FAMILIES)
def test_exported_adapters_answer_as_those_that_were_read(family, tmp_path):
    done = export_peft(saved(family, tmp_path), tmp_path / "peft")
    lora = tasks.LORA[family]
    job = tasks.job(f"hf:{tasks.DATA / family}", tasks.ALONE, lora)
    assert done.parameters == job.lora.parameters(job.model)
    model = tasks.build(f"hf:{tasks.DATA / family}", lora=lora)
    initial_weights(f"hf:{tasks.DATA / family}", model.context)
    load_adapters(tmp_path / "peft", model.context, done.family)
    assert tasks.error_of(model, tasks.DATA / family / "peft" / "answer.safetensors") < tasks.TOLERANCE


def test_one_adapter_a_module_comes_out_byte_for_byte(tmp_path):
    export_peft(saved("llama", tmp_path), tmp_path / "peft")
    there, back = (load_file(f / "adapter_model.safetensors") for f in (tasks.DATA / "llama/peft", tmp_path / "peft"))
    assert there.keys() == back.keys()
    assert all(torch.equal(there[key], back[key]) for key in there)
    config = json.loads((tmp_path / "peft" / "adapter_config.json").read_text())
    assert (config["r"], config["lora_alpha"]) == (3, 6)
    assert config["target_modules"] == ["down_proj", "gate_proj", "q_proj", "v_proj"]


@pytest.mark.parametrize("family", FAMILIES)
def test_merged_weights_answer_as_adapters_do(family, tmp_path):
    export_huggingface(saved(family, tmp_path), tmp_path / "merged", dtype="fp32")
    model = tasks.build(f"hf:{tmp_path / 'merged'}")
    initial_weights(f"hf:{tmp_path / 'merged'}", model.context)
    # W + s·B·A rounded once is another sum than W·x + s·B·(A·x)
    error = tasks.error_of(model, tasks.DATA / family / "peft" / "answer.safetensors")
    assert error < 3 * tasks.TOLERANCE


def test_another_base_is_refused(tmp_path):
    base = tmp_path / "base"
    shutil.copytree(tasks.DATA / "gpt2", base)
    about = merging.describe(Lora(), f"hf:{base}", named=True)
    merging.check_base(f"hf:{base}", about[merging.FINGERPRINT])
    weights = load_file(base / "model.safetensors")
    weights["transformer.h.1.mlp.c_fc.bias"][-1] += 1
    save_file(weights, base / "model.safetensors", {"format": "pt"})
    with pytest.raises(DescriptionError, match="other weights than the adapters were trained beside"):
        merging.check_base(f"hf:{base}", about[merging.FINGERPRINT])


CONFIGS: dict[str, tuple[dict[str, Any], str]] = {
    "dora": ({"use_dora": True}, "use_dora"),
    "another method": ({"peft_type": "IA3"}, "only LORA"),
    "biases": ({"bias": "all"}, "bias"),
    "other parameters": ({"modules_to_save": ["lm_head"]}, "modules_to_save"),
    "changes the base": ({"init_lora_weights": "pissa"}, "init_lora_weights"),
    "from the future": ({"use_something": True}, "use_something"),
    "no number": ({"lora_alpha": "much"}, "lora_alpha"),
    "negative": ({"alpha_pattern": {"c_attn": -1}}, "lora_alpha"),
    "a regular expression": ({"alpha_pattern": {".*c_attn": 4}}, "regular expressions"),
    "no truth": ({"use_rslora": 1}, "use_rslora"),
    "huge": ({"note": "x" * (1 << 20)}, "too large"),
}
LORAS: dict[str, tuple[dict[str, Any], str]] = {
    "another rank": ({"rank": 4}, "has rank 3; the job's lora.rank is 4"),
    "too few targets": ({"targets": ["q", "k", "v"]}, "no target of the job is adapted by it"),
    "a part of a module": ({"targets": ["q", "v", "down"]}, "adapts k too"),
    "too many": ({"targets": ["q", "k", "v", "o", "down"]}, "is missing, but lora.targets has o"),
}


def refused(directory: Path, lora: dict[str, Any], match: str) -> None:
    model = tasks.build(f"hf:{tasks.DATA / 'gpt2'}", lora={"rank": 3, "targets": ["q", "k", "v", "down"], **lora})
    before = model.context.store.compute.clone()
    with pytest.raises(DescriptionError, match=match):
        load_adapters(directory, model.context, "gpt2")
    assert torch.equal(model.context.store.compute, before)


@pytest.mark.parametrize("case", CONFIGS)
def test_unknown_adapters_are_refused(case, tmp_path):
    change, match = CONFIGS[case]
    shutil.copytree(tasks.DATA / "gpt2" / "peft", tmp_path / "peft")
    path = tmp_path / "peft" / "adapter_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    refused(tmp_path / "peft", {}, match)


@pytest.mark.parametrize("case", LORAS)
def test_adapters_of_another_job_are_refused(case):
    lora, match = LORAS[case]
    refused(tasks.DATA / "gpt2" / "peft", lora, match)


def test_the_first_pattern_decides():
    model = tasks.build(f"hf:{tasks.DATA / 'gpt2'}").context.job.model
    module = next(m for m in modules(model, "gpt2") if m.name.endswith("attn.c_proj"))
    assert Scales(4, {"attn.c_proj": 8, "c_proj": 16}, root=False).of(module, 2) == 4.0
    assert Scales(4, {"c_attn": 8}, root=False).of(module, 2) == 2.0
    assert Scales(4, {"c_attn": 8}, root=True).of(module, 4) == 2.0


def test_numbers_and_names_that_mean_nothing_are_refused(tmp_path):
    folder = tmp_path / "peft"
    shutil.copytree(tasks.DATA / "gpt2" / "peft", folder)
    weights = load_file(folder / "adapter_model.safetensors")
    name = next(key for key in weights if "lora_A" in key)
    save_file({**weights, name: torch.full_like(weights[name], float("nan"))}, folder / "adapter_model.safetensors")
    refused(folder, {}, "not finite")
    other = name.replace(".lora_A.weight", ".lora_A.second.weight")
    save_file({**weights, other: weights[name].clone()}, folder / "adapter_model.safetensors")
    refused(folder, {}, "several adapters")


def test_damaged_files_are_refused(tmp_path):
    folder = tmp_path / "peft"
    shutil.copytree(tasks.DATA / "gpt2" / "peft", folder)
    weights = folder / "adapter_model.safetensors"
    whole = weights.read_bytes()
    weights.write_bytes(whole[:-5])
    refused(folder, {}, "truncated")
    weights.unlink()
    (folder / "adapter_model.bin").write_bytes(b"pickle")
    refused(folder, {}, "never opened")
    (folder / "adapter_config.json").write_text("[]")
    refused(folder, {}, "only LORA")
    (folder / "adapter_config.json").unlink()
    refused(folder, {}, "cannot be read")
