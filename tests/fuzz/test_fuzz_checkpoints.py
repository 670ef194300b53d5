"""Checkpoints and full models of strangers: `checkpoint.json`, safetensors headers, bytes, places."""

from __future__ import annotations

import json
import shutil
import struct
from pathlib import Path
from typing import Any

import pytest
from hypothesis import strategies as st

from runtime.checkpoint.checkpoints import Checkpoints
from runtime.checkpoint.full_model import export_model, import_model
from runtime.checkpoint.manifest import MANIFEST, read_manifest, sign
from runtime.checkpoint.tensor_file import TensorFile, UnusableFileError
from tests.fuzz.harness import cases, fuzz, survives, tree
from tests.fuzz.mutations import as_json, damaged, mutated, texts
from tests.fuzz.test_fuzz_runs import STRANGE, put_strange
from tests.runtime.checkpoint.tasks import tiny
from twin.description.problems import DescriptionError

NEWEST = "step-00000003"
FILE = "rank-00000.safetensors"


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with one checkpoint of the smallest model."""
    root = tmp_path_factory.mktemp("fuzz") / "saved"
    trainee = tiny()
    checkpoints = Checkpoints(root, trainee.context.mesh)
    checkpoints.save(trainee.context, trainee.optimizer, step=3, samples=3, extra={"note": "x"})
    checkpoints.close()
    return root


class Used:
    """Everything that is done with a checkpoint, on a copy of it that may be damaged."""

    def __init__(self, saved: Path, folder: Path) -> None:
        self.saved, self.root, self.out = saved, folder / "root", folder / "out"
        self.out.mkdir()
        self.trainee = tiny()
        self.context, self.optimizer = self.trainee.context, self.trainee.optimizer

    def fresh(self) -> Path:
        """Put the checkpoint back as it was; return its directory."""
        shutil.rmtree(self.root, ignore_errors=True)
        shutil.copytree(self.saved, self.root)
        return self.root / NEWEST

    def __call__(self) -> None:
        before = tree(self.root)
        refusals = (DescriptionError, UnusableFileError)
        survives(lambda: read_manifest(self.root / NEWEST), refusals=refusals)
        model = self.out / "model.safetensors"
        exported = survives(lambda: export_model(self.root, model, overwrite=True), self.out)
        if exported is not None:
            survives(lambda: import_model(model, self.context), self.out)
        assert tree(self.root) == before, "an export changed the checkpoint"
        # makes a hidden directory for a moment, to see whether the root can be written
        survives(lambda: Checkpoints(self.root, self.context.mesh).load_latest(self.context, self.optimizer), self.root)
        assert tree(self.root) == before, "loading changed the checkpoint"


@pytest.fixture
def used(saved: Path, tmp_path: Path) -> Used:
    return Used(saved, tmp_path)


def body_of(text: bytes) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(text)
    del found["crc32"]
    return found


@cases(30, 900)
def test_manifests(count: int, used: Used) -> None:
    """With a checksum that fits, as one would write it who wants to be read."""
    whole = body_of((used.fresh() / MANIFEST).read_bytes())
    some = {**whole, "tensors": dict(list(whole["tensors"].items())[:2])}

    def check(text: bytes) -> None:
        (used.fresh() / MANIFEST).write_bytes(text)
        used()

    documents = st.one_of(texts(some, as_json), texts(whole, as_json))
    fuzz(count, st.one_of(documents.map(sign), documents.map(sign), documents), check)


HUGE = st.sampled_from([1 << 20, 1 << 31, 1 << 40, (1 << 48) - 1])


@cases(10, 150)
def test_sizes_in_manifests_do_not_make_us_allocate(count: int, used: Used) -> None:
    """A tensor of any size whose chunks cover it, and a file that does not hold it."""
    whole = body_of((used.fresh() / MANIFEST).read_bytes())

    def check(case: tuple[int, int, bool]) -> None:
        rows, columns, flat = case
        shape = [rows] if flat else [rows, columns]
        chunk = {"offsets": [0] * len(shape), "sizes": shape, "file": FILE, "key": "k", "crc32": 0}
        tensors = {"model/a": {"shape": shape, "dtype": "F64", "chunks": [chunk]}}
        for found in ({**whole, "tensors": tensors}, {**whole, "tensors": {**whole["tensors"], **tensors}}):
            (used.fresh() / MANIFEST).write_bytes(sign(json.dumps(found).encode()))
            used()

    fuzz(count, st.tuples(HUGE, HUGE, st.booleans()), check)


def with_header(content: bytes, header: bytes) -> bytes:
    """Put another header before the tensors of a file."""
    length = struct.unpack("<Q", content[:8])[0]
    return struct.pack("<Q", len(header)) + header + content[8 + length :]


@cases(30, 900)
def test_headers_of_tensor_files(count: int, used: Used) -> None:
    whole = (used.fresh() / FILE).read_bytes()
    length = struct.unpack("<Q", whole[:8])[0]
    header = json.loads(whole[8 : 8 + length])
    lengths = st.sampled_from([0, 1, 7, 100, 2**31, 2**63, 2**64 - 1]).map(lambda n: struct.pack("<Q", n) + whole[8:])
    files = st.one_of(texts(header, as_json).map(lambda text: with_header(whole, text)), damaged(whole), lengths)

    def check(content: bytes) -> None:
        (used.fresh() / FILE).write_bytes(content)
        used()

    fuzz(count, files, check)


@cases(20, 600)
def test_full_models_of_strangers(count: int, used: Used) -> None:
    used.fresh()
    path = used.out / "model.safetensors"
    export_model(used.root, path)
    whole = path.read_bytes()
    length = struct.unpack("<Q", whole[:8])[0]
    header = json.loads(whole[8 : 8 + length])
    files = st.one_of(
        texts(header, as_json).map(lambda text: with_header(whole, text)),
        damaged(whole),
        mutated(header, 1).map(as_json).map(lambda text: with_header(whole, text)),
    )

    def check(content: bytes) -> None:
        path.write_bytes(content)
        survives(lambda: import_model(path, used.context))
        survives(lambda: read_all(path), refusals=(UnusableFileError,))

    fuzz(count, files, check)


def read_all(path: Path) -> None:
    with TensorFile(path) as file:
        for name, entry in file.entries.items():
            if entry.dtype == "F32":
                file.read(name)


@pytest.mark.parametrize("strange", STRANGE)
@pytest.mark.parametrize("name", [MANIFEST, FILE])
def test_what_is_no_file(used: Used, name: str, strange: str) -> None:
    put_strange(used.fresh() / name, strange)
    used()


NAMES = st.one_of(
    st.sampled_from(
        [
            "../rank-00000.safetensors",
            "/etc/passwd",
            "a/b.safetensors",
            "..",
            "a\0.safetensors",
            ".hidden.safetensors",
            "x" * 300 + ".safetensors",
            "é.safetensors",
            "none.safetensors",
            MANIFEST,
            "rank-00000.safetensors\n",
        ]
    ),
    st.text(max_size=20).map(lambda name: name + ".safetensors"),
)


@cases(20, 300)
def test_names_lead_nowhere_else(count: int, used: Used) -> None:
    whole = body_of((used.fresh() / MANIFEST).read_bytes())

    def check(name: str) -> None:
        found = json.loads(json.dumps(whole))
        next(iter(found["tensors"].values()))["chunks"][0]["file"] = name
        folder = used.fresh()
        (folder / MANIFEST).write_bytes(sign(json.dumps(found).encode()))
        survives(
            lambda: export_model(used.root, used.out / "m", overwrite=True), used.out, readable=(used.root, used.out)
        )

    fuzz(count, NAMES, check)
