"""The way of chunks to the disk and back: storage for PyTorch's distributed checkpoint.

Every rank writes one file, the first rank writes the manifest and gives the directory its name when
all are done.
"""

from __future__ import annotations

import dataclasses
import os
from collections import defaultdict
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import LoadPlan, LoadPlanner, ReadItem, SavePlan, SavePlanner
from torch.distributed.checkpoint.storage import StorageReader, StorageWriter, WriteResult
from torch.futures import Future

from runtime.checkpoint import directory
from runtime.checkpoint.manifest import MANIFEST, Chunk, Manifest, SavedTensor, to_text
from runtime.checkpoint.tensor_file import DTYPE_NAMES, DTYPES, TensorFile, UnusableFileError, write_tensors


class Writer(StorageWriter):
    """Writes one checkpoint; `facts` is its manifest without tensors."""

    def __init__(self, root: Path, facts: Manifest) -> None:
        self.root, self.facts = root, facts
        self.temporary: Path | None = None
        """Where it is written; known to the first rank from the plan on."""
        self.final: Path | None = None
        """Where it lies once it is complete; known to the first rank."""

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        """Directories come from the constructor."""
        return not checkpoint_id

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """Nothing is kept between checkpoints."""

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        """Nothing to set up."""

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        """Write what is planned."""
        return plan

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        """Make the directory and tell every rank its file."""
        self.temporary = directory.begin(self.root, self.facts.step)
        return [
            dataclasses.replace(plan, storage_data=self.temporary / f"rank-{rank:05d}.safetensors")
            for rank, plan in enumerate(plans)
        ]

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        """Write this rank's file, if it has anything to write."""
        path: Path = plan.storage_data
        header = {}
        for item in plan.items:
            data = item.tensor_data
            assert data is not None
            header[_key(item.index)] = (DTYPE_NAMES[data.properties.dtype], tuple(data.chunk.sizes))
        # what the planner resolves are contiguous tensors in host memory already
        values = (planner.resolve_data(item) for item in plan.items)
        sums = write_tensors(path, header, values, {}) if header else []  # type: ignore[arg-type]  # tensors only
        results = [WriteResult(item.index, 0, (path.name, crc32)) for item, crc32 in zip(plan.items, sums, strict=True)]
        future: Future[list[WriteResult]] = Future()
        future.set_result(results)
        return future

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        """Write the manifest and give the directory its final name."""
        assert self.temporary is not None
        written = {result.index: result.storage_data for of_rank in results for result in of_rank}
        tensors = {}
        for name, saved in metadata.state_dict_metadata.items():
            assert isinstance(saved, TensorStorageMetadata)
            chunks = []
            for chunk in saved.chunks:
                index = MetadataIndex(name, chunk.offsets)
                file, crc32 = written[index]
                chunks.append(
                    Chunk(
                        offsets=tuple(chunk.offsets), sizes=tuple(chunk.sizes), file=file, key=_key(index), crc32=crc32
                    )
                )
            dtype: Any = DTYPE_NAMES[saved.properties.dtype]  # checked by pydantic
            tensors[name] = SavedTensor(shape=tuple(saved.size), chunks=tuple(chunks), dtype=dtype)
        manifest = Manifest.model_validate(dict(self.facts) | {"tensors": tensors})
        with (self.temporary / MANIFEST).open("xb") as file:
            file.write(to_text(manifest))
            file.flush()
            os.fsync(file.fileno())
        self.final = directory.commit(self.temporary)


def _key(index: MetadataIndex) -> str:
    """Name a chunk in its file: `model/head.weight[128,0]`."""
    assert index.offset is not None
    return f"{index.fqn}[{','.join(map(str, index.offset))}]"


class Reader(StorageReader):
    """Reads one checkpoint whose manifest is read and checked already."""

    def __init__(self, path: Path, manifest: Manifest) -> None:
        self.path, self.manifest = path, manifest

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        """Directories come from the constructor."""
        return not checkpoint_id

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """Nothing is kept between checkpoints."""

    def read_metadata(self) -> Metadata:
        """Say what the checkpoint holds, in PyTorch's words."""
        return Metadata(
            {
                name: TensorStorageMetadata(
                    TensorProperties(DTYPES[saved.dtype]),
                    torch.Size(saved.shape),
                    [ChunkStorageMetadata(torch.Size(c.offsets), torch.Size(c.sizes)) for c in saved.chunks],
                )
                for name, saved in self.manifest.tensors.items()
            }
        )

    def set_up_storage_reader(self, metadata: Metadata, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        """Nothing to set up."""

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        """Read what is planned."""
        return plan

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        """Ranks read on their own."""
        return plans

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        """Read and verify every chunk once, and copy out of it what is wanted."""
        files: dict[str, dict[str, tuple[Chunk, str, list[ReadItem]]]] = defaultdict(dict)
        for item in plan.items:
            saved, place = self.manifest.tensors[item.storage_index.fqn], item.storage_index.index
            assert place is not None
            chunk = saved.chunks[place]
            files[chunk.file].setdefault(chunk.key, (chunk, saved.dtype, []))[2].append(item)
        for name, chunks in files.items():
            with TensorFile(self.path / name) as file:
                for chunk, dtype, items in chunks.values():
                    values = read_chunk(file, chunk, dtype)
                    for item in items:
                        target = planner.resolve_tensor(item)
                        target.copy_(narrow(values, item.storage_offsets, item.lengths))
                        planner.commit_tensor(item, target)
        future: Future[None] = Future()
        future.set_result(None)
        return future


def check_chunk(file: TensorFile, chunk: Chunk, dtype: str) -> None:
    """Raise UnusableFileError if a file does not hold a chunk as the manifest says."""
    entry = file.entries.get(chunk.key)
    if entry is None or (entry.dtype, entry.shape) != (dtype, chunk.sizes):
        raise UnusableFileError(file.path, f"does not hold {chunk.key} as {dtype} {list(chunk.sizes)}")


def read_chunk(file: TensorFile, chunk: Chunk, dtype: str) -> torch.Tensor:
    """Read a chunk; raises UnusableFileError if it is not what the manifest says."""
    check_chunk(file, chunk, dtype)
    values, crc32 = file.read(chunk.key)
    if crc32 != chunk.crc32:
        raise UnusableFileError(file.path, f"is corrupted: checksum of {chunk.key} does not fit")
    return values


def narrow(values: torch.Tensor, offsets: torch.Size, lengths: torch.Size) -> torch.Tensor:
    """View a rectangle of a tensor."""
    for dim, (offset, length) in enumerate(zip(offsets, lengths, strict=True)):
        values = values.narrow(dim, offset, length)
    return values
