"""The safetensors files of a Hugging Face directory, or one of them, opened and checked against a model.

Whatever is wrong is said at once, by key, before a weight is read. Pickles run code when they are read: they are never
opened.
"""

from __future__ import annotations

import json
import re
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import torch

from runtime.checkpoint.fit import refuse
from runtime.checkpoint.full_model import SINGLE
from runtime.checkpoint.tensor_file import TensorFile, UnusableFileError
from runtime.huggingface.bands import Bands
from runtime.huggingface.families import FAMILIES, HEAD, TOKENS, Family, Layout, layout
from twin.description.huggingface import CONFIG, read_config, read_model
from twin.description.model import Model
from twin.description.problems import Problem, did_you_mean, fail

INDEX = "model.safetensors.index.json"
MAX_INDEX_BYTES = 100_000_000
MAX_OPEN_FILES = 1024
FILE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*\.safetensors\Z", re.ASCII)
"""Of a file that an index may name: none outside its directory."""
PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")
OTHERS = (".gguf", ".h5", ".msgpack", ".onnx")
READABLE = ("F32", "F16", "BF16")
MAX_COMPARED = 1 << 22
"""Elements compared at once."""


def split(path: Path) -> tuple[Path, Path | None]:
    """Return the directory that is meant, and the file if one is; raises DescriptionError for neither."""
    if path.is_dir():
        return path, None
    if not path.exists():
        raise fail(str(path), "no such directory or file")
    if problem := _unreadable(path):
        raise fail(str(path), problem)
    return path.parent, path


def _unreadable(path: Path) -> str | None:
    """Say why a file of another kind is not read."""
    advice = f"read it with transformers and call `save_pretrained`, which writes {SINGLE}"
    if path.suffix in PICKLES:
        return f"is a pickle, which runs code when it is read; only safetensors are read here: {advice}"
    if path.suffix in OTHERS:
        return f"is no safetensors file: {advice}"
    return None


class Source:
    """Weights of a model as rectangles of our parameters."""

    def __init__(self, path: Path, model: Model) -> None:
        """Open and check; raises DescriptionError with everything that does not fit."""
        self.directory, single = split(path)
        self.model, self.family = model, str(read_config(self.directory)["model_type"])
        self.layout: Layout = layout(model, self.family)
        self.bands = Bands(self.layout.bands)
        self._stack = ExitStack()
        try:
            self.files = self._open(single)
            self._at, problems = self._found(FAMILIES[self.family])
            refuse(problems, self.directory, REMEDY.format(CONFIG))
            if model.tied_embeddings:
                self._check_tied()
        except UnusableFileError as error:
            self._stack.close()
            raise fail(str(error.path), error.reason) from None
        except BaseException:
            self._stack.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    @property
    def bytes_read(self) -> int:
        """Of tensors, so far."""
        return sum(file.bytes_read for file in self.files.values())

    def dtype(self, name: str) -> str:
        """Return the dtype of a parameter, by its name in the files; all it is made of have the same."""
        return self._entry(self.bands.sources(name)[0])

    def read(self, name: str, offsets: tuple[int, ...], sizes: tuple[int, ...]) -> torch.Tensor:
        """Read a rectangle of one of our parameters; raises UnusableFileError."""
        return self.bands.ours(name, offsets, sizes, self._rectangle)

    def _entry(self, key: str) -> str:
        file, name = self._at[key]
        return file.entries[name].dtype

    def _rectangle(self, key: str, offsets: tuple[int, ...], sizes: tuple[int, ...]) -> torch.Tensor:
        file, name = self._at[key]
        return file.read_rectangle(name, offsets, sizes)

    def _open(self, single: Path | None) -> dict[str, TensorFile]:
        """Open the file, or all that the index names."""
        folder = self.directory
        if single is not None:
            self._index: dict[str, str] | None = None
            return {single.name: self._opened(single)}
        # with both the one file counts, as Hugging Face's loaders take it: an index may be left over from before
        if (folder / INDEX).exists() and not (folder / SINGLE).exists():
            self._index = _read_index(folder / INDEX)
            names = sorted(set(self._index.values()))
            return {name: self._opened(folder / name) for name in names}
        self._index = None
        if not (folder / SINGLE).exists():
            other = next((p for p in sorted(folder.iterdir()) if _unreadable(p) is not None), None)
            if other is not None:
                raise fail(str(other), str(_unreadable(other)))
            raise fail(str(folder), f"holds neither {SINGLE} nor {INDEX}")
        return {SINGLE: self._opened(folder / SINGLE)}

    def _opened(self, path: Path) -> TensorFile:
        # a file of a hub's cache is a link to its content
        file = self._stack.enter_context(TensorFile(path.resolve() if path.exists() else path))
        file.expect_places()
        return file

    def _found(self, family: Family) -> tuple[dict[str, tuple[TensorFile, str]], list[Problem]]:
        """Find every tensor that is needed; return the problems with what is there, too."""
        at: dict[str, tuple[TensorFile, str]] = {}
        problems: list[Problem] = []
        strange: list[str] = []
        needed, index = self.layout.theirs, self._index
        spare = _spare(family, self.model)
        for label, file in self.files.items():
            for name, entry in file.entries.items():
                key = _canonical(name, family, needed)
                if index is not None and index.get(name) != label:
                    problems.append(Problem(name, f"is in {label}, where {INDEX} has it not"))
                elif key in at:
                    problems.append(Problem(name, "is there twice, by two names"))
                elif key in needed or key == spare:
                    at[key] = (file, name)
                    problems += _mismatch(name, entry.shape, entry.dtype, needed.get(key))
                elif not (name.endswith(family.ignored) and _is_buffer(name, entry.shape)):
                    strange.append(name)
        for name, label in (index or {}).items():
            if name not in self.files[label].entries:
                problems.append(Problem(name, f"is not in {label}, where {INDEX} has it"))
        missing = [key for key in needed if key not in at]
        problems += map(self._missing, missing)
        for name in strange:
            hint = f"; {did_you_mean(name, missing)}" if 0 < len(missing) <= MAX_HINTS else ""
            problems.append(Problem(name, f"is not a tensor of this model{hint}"))
        return at, problems or self._mixed(at)

    def _missing(self, key: str) -> Problem:
        shape = list(self.layout.theirs[key])
        tie = ""
        if any(band.theirs == key and band.ours == HEAD for band in self.layout.bands):
            tie = "; a model whose head is the table of tokens has tied_embeddings: true"
        return Problem(key, f"is missing; the model needs it, with shape {shape}{tie}")

    def _mixed(self, at: dict[str, tuple[TensorFile, str]]) -> list[Problem]:
        """Refuse parts of one parameter that differ in dtype."""
        found = []
        for name in self.layout.ours:
            dtypes = {key: at[key][0].entries[at[key][1]].dtype for key in self.bands.sources(name)}
            if len(set(dtypes.values())) > 1:
                said = ", ".join(f"{key} {dtype}" for key, dtype in dtypes.items())
                found.append(Problem(name, f"is made of different dtypes: {said}"))
        return found

    def _check_tied(self) -> None:
        """Refuse a head that the files hold beside the table it is tied to, unless it is the same."""
        head, table = _spare(FAMILIES[self.family], self.model), self.bands.sources(TOKENS)[0]
        if head not in self._at:
            return
        rows, columns = self.layout.theirs[table]
        step = max(1, MAX_COMPARED // columns)
        for row in range(0, rows, step):
            place = ((row, 0), (min(step, rows - row), columns))
            if not torch.equal(self._rectangle(head, *place), self._rectangle(table, *place)):
                remedy = f"differs from {table}, and {CONFIG} ties them; set model.tied_embeddings: false"
                raise fail(self._at[head][1], remedy)


MAX_HINTS = 12
REMEDY = "give the files of the model that the job and {} describe"


def open_source(path: Path, model: Model | None = None) -> Source:
    """Open weights, of the model that lies beside them if none is given."""
    folder, _ = split(path)
    return Source(path, model or read_model(folder))


def _spare(family: Family, model: Model) -> str:
    """Return the key of a head that tied files need not hold."""
    return family.maps[HEAD].keys[0] if model.tied_embeddings else ""


def _canonical(name: str, family: Family, needed: dict[str, Any]) -> str:
    """Return the key that a name in a file is, with the family's prefix."""
    name = family.also.get(name, name)
    return family.prefix + name if name not in needed and family.prefix + name in needed else name


def _is_buffer(name: str, shape: tuple[int, ...]) -> bool:
    """Tell a mask from a bias: GPT-2's `attn.bias` has four axes."""
    return not name.endswith(".attn.bias") or len(shape) == 4


def _mismatch(name: str, shape: tuple[int, ...], dtype: str, needed: tuple[int, ...] | None) -> list[Problem]:
    if needed is not None and shape != needed:
        return [Problem(name, f"has shape {list(shape)}; the model needs {list(needed)}")]
    if dtype not in READABLE:
        return [Problem(name, f"has dtype {dtype}; {', '.join(READABLE)} are read, quantized weights are not")]
    return []


def _read_index(path: Path) -> dict[str, str]:
    """Read which tensor lies in which file; no name may lead out of the directory."""
    try:
        if path.stat().st_size > MAX_INDEX_BYTES:
            raise UnusableFileError(path, "is too large for an index")
        raw = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UnusableFileError(path, f"cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError):
        raise UnusableFileError(path, "is not JSON") from None
    found = raw.get("weight_map") if isinstance(raw, dict) else None
    if not isinstance(found, dict) or not found:
        raise UnusableFileError(path, "has no weight_map")
    for key, name in found.items():
        if not isinstance(name, str) or not FILE_NAME.match(name):
            raise UnusableFileError(path, f"weight_map: {key!r} is in {name!r}, no safetensors file beside it")
    if len(set(found.values())) > MAX_OPEN_FILES:
        raise UnusableFileError(path, f"names more than {MAX_OPEN_FILES} files")
    return found
