"""Rotary positions: pairs (i, i + d/2) of each head's d features are turned, the further the later (Su et al. 2021).

Angles are made in float64, once, and rounded to the type that is computed in, in which queries and keys are turned.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeAlias

import torch

from runtime.parallel.ops import Describe, Ops, Place
from twin.description.model import Model

Tables: TypeAlias = tuple[torch.Tensor, torch.Tensor]
"""Cosines (s, 1, d), one where nothing turns, and sines (s, 1, planes) of rotary positions; (sequences, s, 1, …)
where each sequence has its own."""
Turning: TypeAlias = Callable[[torch.Tensor, Tables], torch.Tensor]


def rotary_speeds(model: Model) -> torch.Tensor:
    """Radians (d/2,) that each plane turns from a position to the next, float64 on the CPU."""
    size, scaling = model.rotary_size, model.rotary_scaling
    speeds = model.rotary_base ** (-torch.arange(0, size, 2, dtype=torch.float64) / size)
    if scaling is None:
        return speeds
    if scaling.kind == "linear":
        return speeds / scaling.factor
    # turns over the sequences first trained on: few of them are slowed, many are not, between is a ramp
    turns = scaling.original_sequence * speeds / (2 * math.pi)
    low, high = scaling.low_frequency_factor, scaling.high_frequency_factor
    kept = ((turns - low) / (high - low)).clamp(0, 1)
    return kept * speeds + (1 - kept) * speeds / scaling.factor


def rotary_tables(model: Model, length: int, device: torch.device, kind: torch.dtype) -> Tables:
    """Make the tables of a length, in float64, and round them to the type that is computed in."""
    angle = torch.arange(length, device=device, dtype=torch.float64)[:, None] * rotary_speeds(model).to(device)
    rest = torch.ones(length, model.head_size - model.rotary_size, device=device, dtype=torch.float64)
    cosines = torch.cat((angle.cos(), angle.cos(), rest), 1)
    return cosines[:, None].to(kind), angle.sin()[:, None].to(kind)


def turned(x: torch.Tensor, tables: Tables) -> torch.Tensor:
    """Turn (sequences, s, heads, d) by `rotary_tables`: of each head as many elements as have a sine."""
    cosines, sines = tables
    planes = sines.shape[-1]
    first, second = x[..., :planes], x[..., planes : 2 * planes]
    other = torch.cat((-second * sines, first * sines), -1)
    rest = x.shape[-1] - 2 * planes
    return x * cosines + (torch.nn.functional.pad(other, (0, rest)) if rest else other)


def turned_in_steps(x: torch.Tensor, tables: Tables, out: torch.Tensor | None = None) -> torch.Tensor:
    """`turned` in as few passes over memory as kernels that are not fused can do: three of them, without autograd."""
    cosines, sines = tables
    planes = sines.shape[-1]
    first, second = x[..., :planes], x[..., planes : 2 * planes]
    out = torch.mul(x, cosines, out=x.new_empty(x.shape) if out is None else out)
    out[..., :planes].addcmul_(second, sines, value=-1)
    out[..., planes : 2 * planes].addcmul_(first, sines)
    return out


def backwards(tables: Tables) -> Tables:
    """Return the tables that turn back what these turned, and so gradients."""
    cosines, sines = tables
    return cosines, -sines


def turn(
    parts: tuple[torch.Tensor, ...], tables: Tables, run: Turning, ops: Ops, place: Place, describe: Describe
) -> tuple[torch.Tensor, ...]:
    """Turn queries and keys, (m, heads · d) each, by `turned` or what does the same, as one named op.

    Their gradients are turned back as another, which `describe` describes too.
    """
    found: tuple[torch.Tensor, ...] = _Turn.apply(tables, run, ops, place, describe, *parts)
    return found


class _Turn(torch.autograd.Function):
    """Keeps nothing of what is turned."""

    @staticmethod
    def forward(
        ctx: Any, tables: Tables, run: Turning, ops: Ops, place: Place, describe: Describe, *parts: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        ctx.tables, ctx.run, ctx.ops, ctx.place, ctx.describe = tables, run, ops, place, describe
        return ops.compute(place, "rotary", lambda: _each(parts, tables, run), describe)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        back = ctx.ops.compute(
            ctx.place, "rotary", lambda: _each(gradients, backwards(ctx.tables), ctx.run), ctx.describe, phase="bwd"
        )
        return (None, None, None, None, None, *back)


def _each(parts: tuple[torch.Tensor, ...], tables: Tables, run: Turning) -> tuple[torch.Tensor, ...]:
    length, size = tables[0].shape[-3], tables[0].shape[-1]
    return tuple(run(part.view(-1, length, part.shape[1] // size, size), tables).view(part.shape) for part in parts)


def moved(parts: tuple[torch.Tensor, ...], tables: Tables, *, fused: bool) -> float:
    """Bytes that `turn` moves: fused it reads and writes, in steps the planes are read twice more and written again.

    Tables are read once for each of the parts, those of sines twice if in steps.
    """
    cosines, sines = tables
    size = float(sum(part.nbytes for part in parts))
    if fused:
        return 2 * size + len(parts) * (cosines.nbytes + sines.nbytes)
    again = 3 * size * 2 * sines.shape[-1] / cosines.shape[-1]
    return 2 * size + again + len(parts) * (cosines.nbytes + 2 * sines.nbytes)
