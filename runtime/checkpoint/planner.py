"""What PyTorch's distributed checkpoint asks: which items to write, which to read.

Checks of the whole plan (chunks within bounds, no overlap, nothing left out) come with the base
class and, once more, with the manifest.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner, DefaultSavePlanner
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import LoadPlan, SavePlan, TensorWriteData, WriteItem, WriteItemType
from torch.distributed.checkpoint.planner_helpers import create_read_items_for_chunk_list

from runtime.checkpoint.host import State
from runtime.checkpoint.pieces import Piece


def _chunk(piece: Piece) -> ChunkStorageMetadata:
    return ChunkStorageMetadata(torch.Size(piece.offsets), piece.values.shape)


class SavePieces(DefaultSavePlanner):
    """Writes a rank's pieces as they are."""

    def __init__(self) -> None:
        super().__init__(flatten_state_dict=False, flatten_sharded_tensors=False)
        self._values: dict[MetadataIndex, torch.Tensor] = {}

    def create_local_plan(self) -> SavePlan:
        """One item for each piece."""
        state: State = self.state_dict
        items = []
        for piece in (piece for pieces in state.values() for piece in pieces):
            index = MetadataIndex(piece.tensor, piece.offsets)
            self._values[index] = piece.values
            data = TensorWriteData(_chunk(piece), TensorProperties(piece.values.dtype), torch.Size(piece.shape))
            items.append(WriteItem(index, WriteItemType.SHARD, tensor_data=data))
        self.plan = SavePlan(items)
        return self.plan

    def lookup_object(self, index: MetadataIndex) -> Any:
        """Return the values of a piece."""
        return self._values[dataclasses.replace(index, index=None)]


class LoadPieces(DefaultLoadPlanner):
    """Reads a rank's pieces from whatever chunks they lie in."""

    def __init__(self) -> None:
        super().__init__(flatten_state_dict=False, flatten_sharded_tensors=False)

    def set_up_planner(self, state_dict: State, metadata: Metadata | None = None, is_coordinator: bool = False) -> None:
        """Take the pieces as they are: there is nothing to flatten or to initialise."""
        self.state_dict, self.metadata, self.is_coordinator = state_dict, metadata, is_coordinator

    def create_local_plan(self) -> LoadPlan:
        """Cut the pieces along the chunks of the checkpoint."""
        assert self.metadata is not None
        plan = LoadPlan([])
        for tensor, pieces in self.state_dict.items():
            saved = self.metadata.state_dict_metadata[tensor]
            assert isinstance(saved, TensorStorageMetadata)
            plan.items += create_read_items_for_chunk_list(tensor, saved, [_chunk(p) for p in pieces])
        return plan

    def lookup_tensor(self, index: MetadataIndex) -> torch.Tensor:
        """Return the values of a piece, to be read into."""
        assert index.index is not None
        piece: Piece = self.state_dict[index.fqn][index.index]
        return piece.values
