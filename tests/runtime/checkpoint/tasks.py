"""What the worker processes do in tests of checkpoints, and how their answers are put together."""

from __future__ import annotations

import os
import resource
import signal
import threading
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
import torch.distributed as dist

from runtime.checkpoint.checkpoints import Checkpoints
from runtime.checkpoint.full_model import import_model
from runtime.checkpoint.storage import Writer
from runtime.checkpoint.team import Team
from runtime.parallel.collectives import CollectiveError
from runtime.parallel.mesh import Mesh
from runtime.step.trainee import MicroBatch
from runtime.strategies.four_d.trainee import FourDTrainee
from tests.runtime import parity
from twin.description.problems import DescriptionError
from twin.strategies.four_d.grid import AXES, Grid

ALONE = dict.fromkeys(AXES, 1)
TINY = {"layers": 1, "hidden": 8, "heads": 2, "sequence": 4, "vocabulary": 5}
State = dict[str, list[tuple[tuple[int, ...], np.ndarray]]]


def grid(text: str) -> dict[str, int]:
    """Read data × z × y × x."""
    return dict(zip(AXES, map(int, text.split("x")), strict=True))


def open_checkpoints(root: str, mesh: Mesh, keep: int = 3) -> Checkpoints:
    """Checkpoints on a group of their own if the mesh is the world, else on one that is there.

    Worlds of these tests have more ranks than most meshes, and torch wants new groups made by all.
    """
    whole = mesh.everyone is dist.group.WORLD
    return Checkpoints(Path(root), mesh, keep=keep, group=None if whole else mesh.everyone)


def state(trainee: FourDTrainee) -> State:
    """Rectangles of every parameter and both moments, as this rank holds them in its live buffers."""
    store, optimizer = trainee.context.store, trainee.optimizer
    flats = [("model", *of) for of in parity.weights_of(store)]
    for kind, moment in optimizer.states().items():
        owned = optimizer.owned
        flats += [(kind, place.start, place.stop, moment[owned.inside(place)]) for place in owned.ranges]
    found: State = {}
    for kind, first, last, flat in flats:
        for name, parameter in store.parameters.items():
            begin = max(0, first - parameter.start)
            end = min(parameter.shard.stored, last - parameter.start)
            if begin < end:
                place = parameter.start + begin - first
                found.setdefault(f"{kind}/{name}", []).extend(
                    (r.offsets, flat[place + r.first :][: r.count].view(r.sizes).numpy().copy())
                    for r in parameter.shard.rectangles(begin, end)
                )
    return found


def assemble(ranks: list[State], shapes: dict[str, tuple[int, ...]]) -> dict[str, np.ndarray]:
    """Put the ranks' rectangles together; copies must agree bit for bit, and nothing be missing."""
    full = {}
    for name, shape in shapes.items():
        pieces = [piece for state in ranks for piece in state.get(name, [])]
        whole = np.full(shape, np.nan, pieces[0][1].dtype)
        for offsets, piece in pieces:
            place = tuple(slice(o, o + n) for o, n in zip(offsets, piece.shape, strict=True))
            there = whole[place]
            assert ((there == piece) | np.isnan(there)).all(), f"copies of {name} differ"
            whole[place] = piece
        assert not np.isnan(whole).any(), f"{name} has holes"
        full[name] = whole
    return full


def shapes(**options: Any) -> dict[str, tuple[int, ...]]:
    """Full shape of every tensor of the tests' model."""
    trainee = alone(**options)
    return {
        f"{kind}/{name}": parameter.spec.shape
        for kind in ("model", "exp_avg", "exp_avg_sq")
        for name, parameter in trainee.context.store.parameters.items()
    }


def alone(dtype: torch.dtype = torch.float64, **options: Any) -> FourDTrainee:
    """A model on one rank, in this process."""
    return parity.build(parity.describe(ALONE, **options), Mesh.alone(Grid()), dtype)


def tiny(**changes: object) -> FourDTrainee:
    """The smallest model, in float32, on one rank."""
    return alone(torch.float32, model={**TINY, **changes})


def train(trainee: FourDTrainee, first: int, stop: int) -> list[float]:
    """Train on the batches of these steps; return their losses."""
    context = trainee.context
    job, mesh = context.job, context.mesh
    local = parity.SEQUENCES // (mesh.grid.data * mesh.grid.z)
    size, begin = job.concrete_micro_sequences, mesh.replica * local
    losses = []
    for step in range(first, stop):
        window = parity.windows(job.model.vocabulary)[step]
        weight = 1.0 / (parity.SEQUENCES * job.model.sequence)
        weights = torch.full(window[:, 1:].shape, weight, dtype=context.master_type)
        batch = [
            MicroBatch(
                step * parity.SEQUENCES + i, window[i : i + size, :-1], window[i : i + size, 1:], weights[i : i + size]
            )
            for i in range(begin, begin + local, size)
        ]
        losses.append(trainee.step(batch, parity.RATES[step]).loss.item())
    return losses


def scramble(trainee: FourDTrainee) -> None:
    """Overwrite everything that a checkpoint must restore."""
    store = trainee.context.store
    store.master.fill_(7.0)
    store.compute.fill_(7.0)
    wrong = torch.full((trainee.optimizer.owned.elements,), 5.0, dtype=store.master_type)
    trainee.optimizer.load_states({"exp_avg": wrong, "exp_avg_sq": wrong}, 99)


def build(worker: Any, grid: dict[str, int], dtype: str, options: dict[str, Any]) -> FourDTrainee:
    """The model of a case on this worker's rank."""
    job = parity.describe(grid, **options)
    return parity.build(job, worker.mesh(Grid(**grid)), getattr(torch, dtype))


def save(
    worker: Any,
    grid: dict[str, int],
    root: str,
    steps: list[int],
    dtype: str = "float64",
    keep: int = 3,
    **options: Any,
) -> tuple[State, list[float]]:
    """Save at each of these steps, training in between; then train to the end. State of the last save."""
    trainee = build(worker, grid, dtype, options)
    checkpoints = open_checkpoints(root, trainee.context.mesh, keep)
    losses, done, saved = [], 0, {}
    for step in steps:
        losses += train(trainee, done, step)
        saved, done = state(trainee), step
        checkpoints.save(
            trainee.context,
            trainee.optimizer,
            step=step,
            samples=step * parity.SEQUENCES,
            extra={"note": f"step {step}"},
        )
    losses += train(trainee, done, parity.STEPS)  # while the last one is being written
    checkpoints.close()
    return saved, losses


def resume(
    worker: Any, grid: dict[str, int], root: str, dtype: str = "float64", go_on: bool = False, **options: Any
) -> tuple[Any, State, list[float], State]:
    """Load the latest; return what was loaded (None, or the error), state then, losses, state at the end."""
    trainee = build(worker, grid, dtype, options)
    scramble(trainee)
    checkpoints = open_checkpoints(root, trainee.context.mesh)
    try:
        loaded = checkpoints.load_latest(trainee.context, trainee.optimizer)
    except DescriptionError as error:
        return str(error), state(trainee), [], {}
    found = state(trainee)
    losses = train(trainee, loaded.step, parity.STEPS) if loaded and go_on else []
    checkpoints.close()
    return loaded, found, losses, state(trainee)


@contextmanager
def file_size_limit(limit: int) -> Any:
    """Let no file of this process grow beyond so many bytes."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def fail_to_save(worker: Any, grid: dict[str, int], root: str, full: list[int]) -> tuple[str, str]:
    """Save while the disks of some ranks are full: the error, and of another save after it."""
    trainee = build(worker, grid, "float64", {})
    checkpoints = open_checkpoints(root, trainee.context.mesh)
    errors = []
    for step, limit in ((1, 100_000 if worker.rank in full else None), (2, None)):
        before = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
        with file_size_limit(limit or before):
            checkpoints.save(trainee.context, trainee.optimizer, step=step, samples=0)
            try:
                checkpoints.wait()
                errors.append("")
            except DescriptionError as error:
                errors.append(str(error))
    checkpoints.close()
    return errors[0], errors[1]


def fill(worker: Any, grid: dict[str, int], file: str, dtype: str, **options: Any) -> State:
    """Import a full model; return the weights."""
    trainee = build(worker, grid, dtype, options)
    scramble(trainee)
    import_model(Path(file), trainee.context)
    return {name: pieces for name, pieces in state(trainee).items() if name.startswith("model/")}


def die(worker: Any, grid: dict[str, int], root: str) -> str:
    """Save, but rank 1 dies when it is about to write its file; return the error of the others."""
    trainee = build(worker, grid, "float64", {})
    checkpoints = open_checkpoints(root, trainee.context.mesh)
    if worker.rank == 1:
        Writer.write_data = lambda *_: os.kill(os.getpid(), signal.SIGKILL)  # type: ignore[assignment,return-value]  # dies
    checkpoints.save(trainee.context, trainee.optimizer, step=2, samples=0)
    try:
        checkpoints.close()
    except CollectiveError as error:
        return str(error)
    return ""


def agree_meanwhile(worker: Any, grid: dict[str, int], root: str) -> tuple[list[int], str, int]:
    """Agree on many things while a slow rank writes; return them, the error of asking checkpoints, and what was saved.

    Only for a mesh that is the world: else checkpoints have no group of their own here.
    """
    trainee = build(worker, grid, "float64", {})
    mesh = trainee.context.mesh
    checkpoints = open_checkpoints(root, mesh)
    written, write = threading.Event(), Writer.write_data

    def late(*arguments: Any) -> Any:
        written.wait(60 if worker.rank == 1 else 0)
        return write(*arguments)

    with mock.patch.object(Writer, "write_data", late):
        checkpoints.save(trainee.context, trainee.optimizer, step=2, samples=0)
        agreed = [Team(mesh.rank, mesh.everyone).from_first(lambda i=i: i) for i in range(50)]  # type: ignore[misc]
        try:
            checkpoints.steps()
            refused = ""
        except RuntimeError as error:
            refused = str(error)
        written.set()
        checkpoints.close()
    return agreed, refused, checkpoints.steps()[0]
