"""Telling weights at rest apart without reading them whole: names, shapes, and both ends of every tensor."""

from __future__ import annotations

import hashlib
from pathlib import Path

from runtime.checkpoint.tensor_file import TensorFile, UnusableFileError
from twin.description.huggingface import is_directory_of, located
from twin.description.problems import fail

ENDS_BYTES = 4096


def fingerprint(weights: str) -> str:
    """Return what tells one base from another: 64 hexadecimal digits.

    `weights` as in `train.initial_weights`: a file, or hf:DIR. A model that was trained on has other bytes nearly
    everywhere, so it is enough to read both ends of its tensors. Raises DescriptionError if files are not sound.
    """
    path = located(weights, Path()) if is_directory_of(weights) else Path(weights)
    found: dict[str, bytes] = {}
    try:
        for each in sorted(path.glob("*.safetensors")) if path.is_dir() else [path]:
            with TensorFile(each.resolve() if each.exists() else each) as file:
                for name, entry in file.entries.items():
                    described = f"{name} {entry.dtype} {entry.shape}".encode()
                    found[name] = described + file.ends(name, ENDS_BYTES)
    except UnusableFileError as error:
        raise fail(str(error.path), error.reason) from None
    digest = hashlib.sha256()
    for name in sorted(found):
        digest.update(hashlib.sha256(found[name]).digest())
    return digest.hexdigest()
