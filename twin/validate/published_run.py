"""One row of a file of published training runs, together with its model: what it says, and what it leaves open."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from twin.validate.megatron import MEGATRON

Row = Mapping[str, Any]
NOT_STATED = "not stated"
BEFORE_CUDNN = ("(24.03.01)",)
"""Releases of NeMo in sources, of before its pages named cuDNN's attention."""
BEFORE_FLASH2 = ("commit 285068c8",)
"""Releases of Megatron-LM in sources, taken to be of before FlashAttention 2: MegaScale's paper counts that among what
it adds to this one (section 3.3), and Megatron-LM had the first (github, pull request 267, of December 2022)."""

CUDNN_MACHINES = {"dgx_h100", "eos_dgx_h100", "dgx-h100", "eos", "hgx-h200", "dgx-b200", "gb200-nvl72"}
"""Machines, by the names of sources and by our own, on which Transformer Engine prefers cuDNN's attention."""
HOPPER = CUDNN_MACHINES - {"dgx-b200", "gb200-nvl72"} | {
    "h200_8x",
    "meta_h100_roce",
    "meta-24k",
    "vista_gh200",
    "alps",
    "vista",
    "titan_h100_96g",
    "hgx-h100-500w",
}
"""Those where the usual kernel is cuDNN's for PyTorch 2.11 and later alone, which no published run had yet."""


@dataclass(frozen=True)
class Run:
    """One row together with its model; what the row says itself wins."""

    row: Row
    model: Row

    def degree(self, key: str) -> int | None:
        """Return a size that is 1 where the row has none, and None where it is not a number there."""
        value = self.row.get(key, 1)
        return value if isinstance(value, int) else None

    def shape(self, *keys: str) -> Any:
        """Return the first of some keys that the row, or else the model has."""
        return next((part[key] for part in (self.row, self.model) for key in keys if key in part), None)

    def says(self, key: str) -> str:
        """Return a key's value as lower-case text."""
        return str(self.row.get(key, NOT_STATED)).lower()

    @property
    def ranks(self) -> int:
        """Devices; only asked for where it is stated."""
        return int(self.row["gpus"])

    @property
    def replicas(self) -> int:
        """Streams of micro-batches."""
        return self.ranks // self.parts

    @property
    def parts(self) -> int:
        """Ranks that work on the same sequences."""
        return int(self.row.get("tp", 1) * self.row.get("pp", 1) * self.row.get("cp", 1))

    @cached_property
    def micro_batch(self) -> int | None:
        """Sequences at a time; None where neither they nor their number are stated."""
        if self.is_torch and int(self.row.get("pp", 1)) > 1:
            return int(self.row.get("pp_microbatch_size", 1))
        for key in ("micro_batch", "local_batch"):
            if isinstance(value := self.row.get(key), int):
                return value
        for key in ("num_microbatches", "grad_accumulation"):
            if isinstance(value := self.row.get(key), int):
                return max(1, int(self.row["global_batch"]) // (self.replicas * value))
        alone = self.row["global_batch"] == self.replicas
        return 1 if alone or (self.is_megatron and "micro_batch" in self.row) else None

    @property
    def flash(self) -> bool | None:
        """Whether attention keeps no scores; None where that is not known.

        The zero-bubble paper counts them in its formula of memory (`34sbh + 5abs²`, its table 1).
        """
        value = self.row.get("flash_attention")
        if value is None and "2401.10241" in str(self.row["source"]):
            return False
        return value if isinstance(value, bool) else None

    @property
    def attention(self) -> str:
        """The kernel: NVIDIA's own programs take cuDNN's on Hopper and newer.

        Transformer Engine prefers it there (github NVIDIA/NeMo, pull request 9188, of after release 24.03; until then
        the same page named FlashAttention 2 alone). Others take FlashAttention 2 on Hopper.
        """
        if not self.flash:
            return str(MEGATRON["attention"])
        if any(release in str(self.row["source"]) for release in BEFORE_CUDNN):
            return "flash2"
        if any(release in str(self.row["source"]) for release in BEFORE_FLASH2):
            return "flash1"
        nvidia = ("nemo", "dgxc", "megatron-bridge", "megatron-lm repository")
        machine = self.row.get("machine")
        if machine in CUDNN_MACHINES and any(name in self.says("source") for name in nvidia):
            return "cudnn"
        return "flash2" if machine in HOPPER else "flash"

    @property
    def is_megascale(self) -> bool:
        """Whether MegaScale's changes of model and communication are on."""
        return "megascale" in self.says("source") and "model_changes" in self.row

    @property
    def parallel_block(self) -> bool:
        """Whether attention and MLP read the same."""
        notes = f"{self.model.get('note', '')} {self.row.get('model_changes', '')}"
        return "parallel residual" in notes or "parallel transformer block" in notes

    @property
    def is_torch(self) -> bool:
        """Whether PyTorch's `fully_shard` cut the weights, below axes of tensor, pipeline or context parallelism."""
        return (self.stage == "fsdp" and "torchtitan" in self.says("source")) or self.is_sequence_parallel_alone

    @property
    def is_sequence_parallel_alone(self) -> bool:
        """Whether ranks shared nothing but sequences: DistFlashAttn's own runs, and Ulysses' beside them."""
        return "2310.03294" in self.says("source") and not self.says("strategy").startswith("megatron")

    @property
    def is_megatron(self) -> bool:
        """Whether weights are whole on the ranks that compute with them, tensor ranks together."""
        return self.stage not in {"3", "fsdp"} and self.row.get("zeropp") is not True and not self.is_torch

    @property
    def stage(self) -> str:
        """Return what is sharded over data: 0 to 3, `fsdp`, `overlapped`, or another word of the row."""
        said = self.says("zero_stage")
        if said.startswith("fsdp"):
            return "fsdp"
        return "overlapped" if said.startswith("distributed optimizer") else "0" if said == NOT_STATED else said
