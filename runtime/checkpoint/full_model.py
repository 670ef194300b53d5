"""One safetensors file with the whole model: written from a checkpoint, read into any grid.

Neither needs a process group, and neither holds more than one tensor of the model at a time.
"""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass
from math import prod
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import torch

from runtime.checkpoint import directory
from runtime.checkpoint.fit import check_full_model
from runtime.checkpoint.manifest import MANIFEST, SavedTensor, read_manifest
from runtime.checkpoint.pieces import MAX_CHUNK, Range, rectangles
from runtime.checkpoint.storage import check_chunk, read_chunk
from runtime.checkpoint.tensor_file import DTYPES, TensorFile, UnusableFileError, write_tensors
from runtime.step.context import Context
from twin.description.problems import fail

SINGLE = "model.safetensors"
"""What a full model's file is called in a directory of its own."""
CHECKPOINTS = "checkpoints"
"""Where a run has them."""
MAX_OPEN_FILES = 256
"""A checkpoint may have more files than a process may open."""


@dataclass(frozen=True)
class Exported:
    """What was written."""

    checkpoint: Path
    step: int
    parameters: int
    bytes: int


def find_checkpoint(path: Path) -> Path:
    """Return the checkpoint meant by a path: itself, or the newest of a root or of a run."""
    if (path / MANIFEST).is_file():
        return path
    for root in (path, path / CHECKPOINTS):
        if found := directory.newest_first(root):
            return found[0]
    if not path.exists():
        raise fail(str(path), "no such directory")
    raise fail(str(path), "is no checkpoint, and holds none; give a directory such as run/checkpoints")


def export_model(
    checkpoint: Path, out: Path, *, overwrite: bool = False, opened: Callable[[Path], Opened] | None = None
) -> Exported:
    """Write the full weights of a checkpoint into one file, which appears whole or not at all.

    `checkpoint` as in `find_checkpoint`; `opened` opens its weights, `open_weights` if absent. Weights keep names,
    shapes and dtype; the file's metadata has the step and, as JSON, the model's shape. Raises DescriptionError for a
    damaged checkpoint, naming the file, or if `out` exists and `overwrite` is not set.
    """
    checkpoint = find_checkpoint(checkpoint)
    if out.is_dir() or (out.exists() and not overwrite):
        remedy = "choose another file" if out.is_dir() else "choose another file or pass --force"
        raise fail(str(out), f"exists already; {remedy}")
    temporary = out.with_name(f".{out.name}.{os.getpid()}.{secrets.token_hex(4)}")
    try:
        manifest = read_manifest(checkpoint)
        metadata = {"format": "pt", "step": str(manifest.step), "model": json.dumps(manifest.model)}
        with (opened or open_weights)(checkpoint) as weights:
            whole = (weights.read(n, (0,) * len(shape), shape) for n, (_, shape) in weights.entries.items())
            write_tensors(temporary, weights.entries, whole, metadata)
            elements = sum(prod(shape) for _, shape in weights.entries.values())
        temporary.replace(out)
        directory.sync_directory(out.parent)
    except UnusableFileError as error:
        raise fail(str(error.path), f"{error.reason}; export an older checkpoint") from None
    except OSError as error:
        raise fail(str(out), f"cannot be written: {error.strerror}") from None
    finally:
        with suppress(OSError):  # it is gone if all went well
            temporary.unlink()
    return Exported(checkpoint, manifest.step, elements, out.stat().st_size)


class _Files:
    """The files of a checkpoint, opened when they are first needed."""

    def __init__(self, checkpoint: Path) -> None:
        self._checkpoint = checkpoint
        self._open: dict[str, TensorFile] = {}
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def _file(self, name: str) -> TensorFile:
        if name not in self._open:
            if len(self._open) >= MAX_OPEN_FILES:
                self._stack.close()
                self._open.clear()
            self._open[name] = self._stack.enter_context(TensorFile(self._checkpoint / name))
        return self._open[name]

    def full(self, saved: SavedTensor) -> torch.Tensor:
        """Put a full tensor together."""
        for chunk in saved.chunks:  # no size that a manifest claims makes us allocate it
            check_chunk(self._file(chunk.file), chunk, saved.dtype)
        values = torch.empty(saved.shape, dtype=DTYPES[saved.dtype])
        for chunk in saved.chunks:
            place = tuple(slice(o, o + n) for o, n in zip(chunk.offsets, chunk.sizes, strict=True))
            values[place] = read_chunk(self._file(chunk.file), chunk, saved.dtype)
        return values


@dataclass(frozen=True)
class Weights:
    """Weights at rest."""

    path: Path
    """The checkpoint, or the file."""
    model: Mapping[str, Any]
    """What is written beside them about their model."""
    entries: Mapping[str, tuple[str, tuple[int, ...]]]
    """Dtype and shape of every parameter."""
    read: Callable[[str, tuple[int, ...], tuple[int, ...]], torch.Tensor]
    """Reads a rectangle: name, offsets, sizes. One full tensor at most is held meanwhile."""


Opened = AbstractContextManager[Weights]


@contextmanager
def open_weights(path: Path) -> Iterator[Weights]:
    """Open the weights that a path means: a full model's file, a directory with one, or as in `find_checkpoint`.

    A run means its newest checkpoint, whatever was exported into its directory. Raises UnusableFileError, also from
    `read`.
    """
    trained = directory.newest_first(path / CHECKPOINTS)
    file = path / SINGLE if (path / SINGLE).is_file() and not trained else path
    if file.is_file():
        with TensorFile(file) as opened:
            entries = {name: (entry.dtype, entry.shape) for name, entry in opened.entries.items()}
            yield Weights(file, shape_of(opened), entries, opened.read_rectangle)
        return
    checkpoint = find_checkpoint(path)
    manifest = read_manifest(checkpoint)
    saved = manifest.weights
    with _Files(checkpoint) as files:
        last: dict[str, torch.Tensor] = {}

        def read(name: str, offsets: tuple[int, ...], sizes: tuple[int, ...]) -> torch.Tensor:
            if name not in last:
                last.clear()
                last[name] = files.full(saved[name])
            place = tuple(slice(o, o + n) for o, n in zip(offsets, sizes, strict=True))
            return last[name][place]

        yield Weights(checkpoint, manifest.model, {n: (t.dtype, t.shape) for n, t in saved.items()}, read)


def import_model(path: Path, context: Context) -> None:
    """Fill this rank's weights from a full model; every rank reads the file on its own.

    Takes fp32, bf16, fp16 and fp64. Raises DescriptionError, before a weight is changed, if names, shapes
    or dtypes are not those of the model, all at once; and if the file is damaged.
    """
    store = context.store
    try:
        with TensorFile(path) as file:
            found = {name: (entry.shape, entry.dtype) for name, entry in file.entries.items()}
            check_full_model(found, shape_of(file), context, path)
            for parameter in store.of_model:
                held = Range(parameter, 0, parameter.shard.stored)
                for begin, values in _values(file, held):
                    store.put(parameter.start + begin, values.reshape(-1).to(store.master_type))
    except UnusableFileError as error:
        raise fail(str(error.path), error.reason) from None


def shape_of(file: TensorFile) -> dict[str, Any]:
    """What the file says about its model; files from elsewhere say nothing."""
    try:
        model = json.loads(file.metadata.get("model", "{}"))
    except (ValueError, RecursionError):
        return {}
    return model if isinstance(model, dict) else {}


def _values(file: TensorFile, held: Range) -> Iterator[tuple[int, torch.Tensor]]:
    """Yield where values belong in a range, and the values, some rows at a time."""
    spec, most = held.parameter.spec, MAX_CHUNK
    if len(spec.shape) == 2:
        # whole rows are read, so memory is bounded by their width and not by this rank's part of it
        most = max(1, most * held.parameter.shard.local_shape[1] // spec.shape[1])
    for rectangle in rectangles(held, most):
        rows = file.read_rows(spec.name, rectangle.offsets[0], rectangle.sizes[0])
        if len(rectangle.sizes) == 2:
            rows = rows[:, rectangle.offsets[1] : rectangle.offsets[1] + rectangle.sizes[1]]
        yield rectangle.first, rows
