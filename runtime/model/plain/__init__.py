"""The GPT as plain PyTorch modules, whole wherever it is computed, for strategies that let autograd be.

Its work has the twin's names, and its parameters those of every strategy: `embedding.tokens`, `blocks.3.qkv.weight`,
`final_norm.bias`, `head.weight`, … Gradients go to `.grad`, where a library that reduces them takes them.
"""

from __future__ import annotations

from runtime.model.plain.gpt import Block, PlainGPT, plain_gpt
from runtime.model.plain.parts import Layers, Span

__all__ = ["Block", "Layers", "PlainGPT", "Span", "plain_gpt"]
