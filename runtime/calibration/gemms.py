"""Matrix products of the shapes that cut linear layers have, in the layers' own storage modes, of normal numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch

from runtime.calibration.busy import busy_sets, joined, timed_on
from runtime.calibration.sample import chunk_of, copies_beyond_cache, in_turn, repeat
from runtime.calibration.team import Team
from runtime.strategies.four_d.gemm import NATURAL, Gemms, Pass, Signature, natural_operands

LINEARS = (
    (64, 16, 64),
    (64, 64, 256),
    (64, 512, 64),
    (128, 256, 256),
    (128, 1024, 256),
    (256, 32, 256),
    (256, 256, 32),
    (256, 128, 512),
    (512, 64, 64),
    (512, 384, 128),
    (512, 512, 512),
    (1024, 256, 256),
    (1024, 1024, 256),
    (2048, 64, 512),
    (4096, 16, 256),
    (4096, 256, 1024),
)
"""(tokens, out-features, in-features), for CPUs."""
WIDE_LINEARS = (
    (256, 8192, 8192),
    (512, 4096, 4096),
    (1024, 1024, 1024),
    (1024, 4096, 1024),
    (2048, 1024, 4096),
    (2048, 2048, 2048),
    (2048, 8192, 2048),
    (4096, 1024, 1024),
    (4096, 4096, 4096),
    (4096, 16384, 4096),
    (8192, 1024, 8192),
    (8192, 8192, 1024),
    (8192, 8192, 8192),
    (8192, 50304, 2048),
    (16384, 2048, 2048),
    (16384, 6144, 6144),
)
"""The same for GPUs, beside those for CPUs."""
PROBE = {"cpu": (256, 256, 256), "cuda": (4096, 4096, 4096)}
MAX_SHARE = 0.25
"""A product that is expected to fill more than this share of its time is left out."""


def measure_gemms(team: Team, seconds: float) -> list[dict[str, Any]]:
    """Time products on one rank and on all; entries on rank 0.

    Each entry is of C[m, n] = A[m, k] · B[k, n] in one pass of a layer and one storage mode.
    """
    kinds = dtypes(team.device)
    cases = [(signature, dtype) for dtype in kinds for signature in _cases(team.device)]
    each = 0.6 * seconds / (len(cases) * len(busy_sets(team)))
    rates = dict(zip(kinds, team.told([_flops_per_second(team.device, dtype) for dtype in kinds]), strict=True))
    entries = []
    for signature, dtype in cases:
        if 2.0 * signature.m * signature.n * signature.k / rates[dtype] > max(MAX_SHARE * each, 1e-3):
            continue
        run = product(signature, dtype, team.device)
        for busy in busy_sets(team):
            found = team.gather(timed_on(team, busy, run, each))
            sample = joined(found) if found else None
            if sample is not None:
                entries.append(
                    {
                        "pass": signature.pass_,
                        "mode": NATURAL[signature.pass_],
                        "m": signature.m,
                        "n": signature.n,
                        "k": signature.k,
                        "element_bytes": dtype.itemsize,
                        "busy": len(busy),
                        "seconds": sample.seconds,
                        "spread": sample.spread,
                        "repeats": sample.repeats,
                    }
                )
    return entries


def dtypes(device: torch.device) -> tuple[torch.dtype, ...]:
    """Number formats that a device trains in."""
    return (torch.float32,) if device.type == "cpu" else (torch.bfloat16, torch.float32)


def _cases(device: torch.device) -> Iterator[Signature]:
    linears = LINEARS if device.type == "cpu" else (*LINEARS, *WIDE_LINEARS)
    for linear in linears:
        yield from passes(*linear)


def passes(tokens: int, out: int, into: int) -> tuple[Signature, ...]:
    """The three products of a linear layer (algorithm, section 2).

    >>> [str(s) for s in passes(4, 3, 2)]
    ['forward 4×3×2', 'input_gradient 4×2×3', 'weight_gradient 3×2×4']
    """
    shapes: tuple[tuple[Pass, tuple[int, int, int]], ...] = (
        ("forward", (tokens, out, into)),
        ("input_gradient", (tokens, into, out)),
        ("weight_gradient", (out, into, tokens)),
    )
    return tuple(Signature(pass_, *shape) for pass_, shape in shapes)


def product(signature: Signature, dtype: torch.dtype, device: torch.device) -> Callable[[], object]:
    """A product to repeat, as the layers compute it, with operands that are not in the cache."""
    m, n, k = signature.m, signature.n, signature.k
    sets = copies_beyond_cache(dtype.itemsize * (m * k + k * n), device)
    gemms = Gemms.on(device)
    operands = [natural_operands(signature, dtype, device) for _ in range(sets)]
    return in_turn([_once(gemms, signature.pass_, a, b) for a, b in operands])


def _once(gemms: Gemms, pass_: Pass, a: torch.Tensor, b: torch.Tensor) -> Callable[[], object]:
    return lambda: gemms.product(pass_, a, b)


def _flops_per_second(device: torch.device, dtype: torch.dtype) -> float:
    """Roughly what this device reaches, to know what there is time for."""
    m, n, k = PROBE[device.type]
    run = product(Signature("forward", m, n, k), dtype, device)
    return 2.0 * m * n * k / repeat(run, chunk_of(run, device), 0.01, device).seconds
