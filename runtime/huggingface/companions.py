"""Small files that go with a model's weights: its `config.json`, its tokenizer. A run keeps them for the way out."""

from __future__ import annotations

import os
import shutil
from collections.abc import Collection
from pathlib import Path

from runtime.checkpoint.directory import sync_directory
from runtime.checkpoint.tensor_file import UnusableFileError, open_regular
from runtime.records.run_directory import COMPANIONS
from twin.description.huggingface import CONFIG, is_directory_of, located

TOKENIZER = (
    *("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "tokenizer.model"),
    *("vocab.json", "merges.txt", "vocab.txt", "chat_template.jinja", "chat_template.json"),
)
OTHERS = (*TOKENIZER, "generation_config.json")
"""All but `config.json`."""
MAX_BYTES = 256 << 20


def copy_companions(source: Path, target: Path, names: Collection[str] = (CONFIG, *OTHERS)) -> list[str]:
    """Copy those of these files that are there into a new or existing directory; return their names."""
    target.mkdir(exist_ok=True)
    copied = []
    for name in names:
        path = source / name
        if not path.is_file() or path.stat().st_size > MAX_BYTES:
            continue
        with open_regular(path.resolve()) as file, (target / name).open("wb") as new:
            shutil.copyfileobj(file, new)
            new.flush()
            os.fsync(new.fileno())
        copied.append(name)
    sync_directory(target)
    return copied


def find_companions(path: Path) -> Path | None:
    """Return the directory of the files that go with a run, a checkpoint of one, or a full model, if there is one."""
    for folder in (path, *path.absolute().parents[:3]):
        if (folder / COMPANIONS / CONFIG).is_file():
            return folder / COMPANIONS
    return None


def companions_of(weights: str) -> Path | None:
    """Return the directory of the files that came with the weights that a run starts from, if there is one."""
    return located(weights, Path()) if is_directory_of(weights) else find_companions(Path(weights))


def keep_companions(weights: str, run: Path, *, tokenizer: bool = True) -> str | None:
    """Copy what goes with the weights that a run starts from into its directory; return what prevented it.

    `tokenizer`: with that, which is not the run's if its data are in other words. Training goes on without them.
    """
    source = companions_of(weights)
    if source is None:
        return None
    try:
        copy_companions(source, run / COMPANIONS, (CONFIG, *OTHERS) if tokenizer else (CONFIG,))
    except (OSError, UnusableFileError) as error:
        return f"config and tokenizer of {weights} are not kept with the run: {error}"
    return None
