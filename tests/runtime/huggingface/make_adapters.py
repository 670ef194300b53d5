"""Make adapters beside the models of `data/` with PEFT, and what transformers and PEFT say that they answer together.

    python tests/runtime/huggingface/make_adapters.py

No test needs PEFT; `data/README.md` says which release made what lies there.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

DATA = Path(__file__).parent / "data"
ADAPTERS: dict[str, dict[str, Any]] = {
    "llama": {"r": 3, "lora_alpha": 6, "target_modules": ["q_proj", "v_proj", "gate_proj", "down_proj"]},
    "qwen3": {"r": 2, "lora_alpha": 5, "use_rslora": True, "target_modules": "all-linear"},
    "gpt2": {"r": 3, "lora_alpha": 4, "target_modules": ["c_attn", "mlp.c_proj"], "fan_in_fan_out": True},
    "gpt_neox": {"r": 2, "lora_alpha": 2, "target_modules": ["query_key_value", "dense", "dense_h_to_4h"]},
}


def make(name: str) -> None:
    """Write the adapters of one model and the answer."""
    torch.manual_seed(len(name))
    base = AutoModelForCausalLM.from_pretrained(DATA / name, dtype=torch.float32, attn_implementation="eager")
    model = get_peft_model(base, LoraConfig(task_type="CAUSAL_LM", **ADAPTERS[name])).eval()
    with torch.no_grad():
        for key, parameter in model.named_parameters():
            if "lora_" in key:
                parameter.copy_(0.3 * torch.randn(parameter.shape))
    folder = DATA / name / "peft"
    model.save_pretrained(folder)
    (folder / "README.md").unlink(missing_ok=True)
    config = folder / "adapter_config.json"
    config.write_text(config.read_text().replace(str(DATA / name), name))
    tokens = load_file(DATA / name / "answer.safetensors")["tokens"]
    with torch.no_grad():
        logits = model(tokens).logits
    save_file({"tokens": tokens, "logits": logits.contiguous()}, folder / "answer.safetensors")


if __name__ == "__main__":
    for each in ADAPTERS:
        make(each)
