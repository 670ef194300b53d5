"""A grid's training against that of the serial model, which starts from the same weights."""

from __future__ import annotations

import itertools
import json
from functools import cache
from typing import Any

import numpy as np
import torch

from runtime.parallel.mesh import Mesh
from tests.profiles import part
from tests.runtime import parity, reference
from twin.strategies.four_d.grid import AXES, Grid

TOLERANCE = {"float64": 1e-9, "float32": 1e-5}
STEPS = len(part(range(parity.STEPS), 3))
"""That a case trains: moments, their correction and kept gathers are carried on."""

Trained = tuple[list[float], list[float], dict[str, np.ndarray]]
"""Losses, gradient norms, parameters."""


@cache
def serial(case: str, dtype: str, steps: int, slower: tuple[float, ...] | None) -> Trained:
    """Train the serial model, for options as JSON, from the weights that the runtime starts with on one rank."""
    options = json.loads(case)
    goldfish = options.pop("goldfish", False)
    options.pop("micro_steps", None)
    for place in ("divide", "tensor", "loss_rows"):
        options.pop(place, None)
    options.pop("overlap", None)  # what hides behind what is no matter of numbers, and one rank hides nothing
    job = parity.describe(dict.fromkeys(AXES, 1), **options)
    kind, model = getattr(torch, dtype), job.model
    shape = reference.Shape.of(model, slower)
    serial_model = reference.SerialGPT(shape)
    if job.lora is not None:
        reference.adapt(serial_model, model, job.lora)
    serial_model = serial_model.to(kind)
    start = assemble([parity.pieces(parity.build(job, Mesh.alone(Grid()), kind))])
    serial_model.load_state_dict({name: torch.from_numpy(full) for name, full in start.items()})
    losses, norms = reference.train(
        serial_model,
        parity.windows(model.vocabulary)[:steps],
        [mask.to(kind) for mask in parity.masks(goldfish)][:steps],
        parity.RATES[:steps],
        clip=1.0 if job.clip_gradients else None,
        begins=parity.begins() if job.document_mask else None,
    )
    return losses, norms, {n: p.detach().numpy() for n, p in serial_model.state_dict().items()}


def serial_of(
    options: dict[str, Any], dtype: str, steps: int = parity.STEPS, slower: tuple[float, ...] | None = None
) -> Trained:
    """Train the serial model, once for equal options."""
    return serial(json.dumps(options, sort_keys=True), dtype, steps, slower)


def assemble(ranks: list[parity.Pieces]) -> dict[str, np.ndarray]:
    """Put the ranks' pieces together; copies must agree bit for bit, and nothing be missing."""
    full: dict[str, np.ndarray] = {}
    for name in ranks[0]:
        found: dict[tuple[int, ...], np.ndarray] = {}
        for offsets, piece in itertools.chain.from_iterable(pieces[name] for pieces in ranks):
            if offsets in found:
                np.testing.assert_array_equal(found[offsets], piece, err_msg=name)
            found[offsets] = piece
        corner = np.max([np.add(o, p.shape) for o, p in found.items()], axis=0)
        whole = np.full(corner, np.nan, next(iter(found.values())).dtype)
        for offsets, piece in found.items():
            whole[tuple(slice(o, o + n) for o, n in zip(offsets, piece.shape, strict=True))] = piece
        assert not np.isnan(whole).any(), f"{name} has holes"
        full[name] = whole
    return full


def check(
    pool: Any,
    grid: dict[str, int],
    options: dict[str, Any],
    dtype: str,
    steps: int = STEPS,
    slower: tuple[float, ...] | None = None,
) -> None:
    """Train on a grid and serially; losses, gradient norms and every parameter must be equal."""
    ranks = int(np.prod(list(grid.values())))
    answers = pool.run("tests.runtime.parity:run", ranks, grid=grid, dtype=dtype, steps=steps, **options)
    losses, norms, parameters = serial_of(options, dtype, steps, slower)
    assert len(losses) == steps
    tolerance = TOLERANCE[dtype]
    for loss, norm, _ in answers:
        np.testing.assert_allclose(loss, losses, rtol=tolerance)
        np.testing.assert_allclose(norm, norms, rtol=tolerance)
    full = assemble([pieces for _, _, pieces in answers])
    assert full.keys() == parameters.keys()
    for name, expected in parameters.items():
        if dtype == "float64":
            # gradients that are zero but for rounding (biases of keys) move by as little
            np.testing.assert_allclose(full[name], expected, rtol=1e-9, atol=1e-12, err_msg=name)
        elif expected.ndim == 2:
            # AdamW makes a step of an element whose gradient is zero but for rounding: one of a matrix may be such
            *others, largest = np.sort(np.abs(full[name] - expected), axis=None)
            assert largest < sum(parity.RATES[:steps]), name
            assert np.linalg.norm(others) < tolerance * np.linalg.norm(expected), name
    # In float32 vectors are not compared one by one: they start at zero, and AdamW turns the
    # rounding of gradients near zero into steps as large as any.
    names = sorted(parameters)
    everything, expected = (np.concatenate([of[n].ravel() for n in names]) for of in (full, parameters))
    assert relative_error(everything, expected) < tolerance


def relative_error(found: np.ndarray, expected: np.ndarray) -> float:
    return float(np.linalg.norm(found - expected) / np.linalg.norm(expected))
