"""Small data sets, written by hand rather than by the code under test."""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest

MakeDataset = Callable[..., Path]


@pytest.fixture
def make_dataset(tmp_path: Path) -> MakeDataset:
    """Write a data set of given tokens; `changes` replace keys of `dataset.json`."""

    def make(
        train: Sequence[int] = range(100),
        validation: Sequence[int] = range(40),
        dtype: str = "uint16",
        changes: Mapping[str, object] | None = None,
    ) -> Path:
        folder = tmp_path / "set"
        folder.mkdir(exist_ok=True)
        manifest: dict[str, object] = {
            "schema_version": 1,
            "dtype": dtype,
            "vocabulary": 256,
            "tokenizer": "bytes",
            "separator": 0,
        }
        for name, tokens in (("train", train), ("validation", validation)):
            raw = np.asarray(tokens, dtype=f"<u{2 if dtype == 'uint16' else 4}").tobytes()
            (folder / f"{name}.bin").write_bytes(raw)
            manifest[name] = {
                "tokens": len(tokens),
                "documents": 1,
                "largest_token": int(max(tokens)),
                "sha256": hashlib.sha256(raw).hexdigest(),
            }
        (folder / "dataset.json").write_text(json.dumps(manifest | dict(changes or {})))
        return folder

    return make
