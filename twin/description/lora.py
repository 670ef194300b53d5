"""Low-rank adapters (LoRA, arXiv 2106.09685): the model's own weights stay as they are, small ones beside them train.

Of a linear y = W·x the part of a target becomes W·x + (alpha / rank) · B·(A·x), with A (rank, in) and B (out, rank).
B starts at zero, so that training starts from the model as it is.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field

from twin.description.model import Model
from twin.description.problems import Problem
from twin.description.spec import Spec

Target = Literal["q", "k", "v", "o", "gate", "up", "down"]


class Lora(Spec):
    """Train adapters only."""

    rank: Annotated[int, Field(ge=1, le=65_536, strict=True)] = 8
    """Rows of A, columns of B."""
    alpha: Annotated[float, Field(gt=0, le=1e6)] = 16.0
    """What an adapter gives is multiplied by alpha / rank."""
    targets: tuple[Target, ...] = ("q", "v")
    """Products with an adapter: queries, keys, values, attention's output, and the MLP's gate (of SwiGLU), up, down."""

    @property
    def scale(self) -> float:
        """What an adapter gives is multiplied by."""
        return self.alpha / self.rank

    def of_linear(self, model: Model, linear: str) -> tuple[tuple[Target, int], ...]:
        """Return the targets in one of a block's linears, each with its rows there, in the order of the rows."""
        return tuple((name, rows) for name, rows in parts_of(model, linear) if name in self.targets)

    def parameters(self, model: Model) -> int:
        """Elements of all adapters of a model."""
        return model.layers * sum(sum(self.elements(model, linear)) for linear in model.block_linears)

    def elements(self, model: Model, linear: str) -> tuple[int, int]:
        """Return the elements of all A, and of all B, of one of a block's linears."""
        _, k = model.block_linears[linear]
        parts = self.of_linear(model, linear)
        return self.rank * k * len(parts), self.rank * sum(rows for _, rows in parts)


def parts_of(model: Model, linear: str) -> Iterator[tuple[Target, int]]:
    """Yield what a block's linear consists of: names, and rows of each, in order."""
    rows = model.block_linears[linear][0]
    if linear == "qkv":
        q, k, v = model.qkv_parts
        yield from (("q", q), ("k", k), ("v", v))
    elif linear == "mlp_up" and model.activation == "swiglu":
        yield from (("gate", rows // 2), ("up", rows // 2))
    else:
        of_one: dict[str, Target] = {"projection": "o", "mlp_up": "up", "mlp_down": "down"}
        yield of_one[linear], rows


def check(lora: Lora, model: Model) -> list[Problem]:
    """Return what is wrong with the adapters of a model."""
    known = [name for linear in model.block_linears for name, _ in parts_of(model, linear)]
    problems = []
    if not lora.targets:
        problems.append(Problem("lora.targets", f"nothing would train; choose from {', '.join(known)}", []))
    for index, name in enumerate(lora.targets):
        if name not in known:
            remedy = f"is of SwiGLU; a model with {model.activation} has {', '.join(known)}"
            problems.append(Problem(f"lora.targets.{index}", remedy, name))
        if name in lora.targets[:index]:
            problems.append(Problem(f"lora.targets.{index}", "is given twice; keep one", name))
    return problems
