"""A damaged checkpoint is named and passed over; nothing of it reaches the model."""

from __future__ import annotations

import copy
import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from runtime.checkpoint.checkpoints import Checkpoints
from runtime.checkpoint.manifest import parse, sign
from runtime.checkpoint.tensor_file import UnusableFileError
from tests.profiles import examples
from tests.runtime.checkpoint import tasks
from tests.tiers import few
from twin.description.problems import DescriptionError

NEWEST, BEFORE = "step-00000003", "step-00000002"
TENSORS, MANIFEST = "rank-00000.safetensors", "checkpoint.json"


def flip(path: Path, place: int) -> None:
    raw = bytearray(path.read_bytes())
    raw[place] ^= 1
    path.write_bytes(raw)


def change(path: Path, edit: Any) -> None:
    """Edit the manifest as somebody would who knows about its checksum."""
    data = json.loads(path.read_text())
    del data["crc32"]
    edit(data)
    path.write_bytes(sign(json.dumps(data).encode()))


def first_chunk(manifest: dict[str, Any]) -> dict[str, Any]:
    return manifest["tensors"]["model/head.weight"]["chunks"][0]


DAMAGE: dict[str, tuple[str, Any]] = {
    "last byte flipped": (TENSORS, lambda p: flip(p, -1)),
    "a byte in the middle flipped": (TENSORS, lambda p: flip(p, p.stat().st_size // 2)),
    "header flipped": (TENSORS, lambda p: flip(p, 20)),
    "length of header flipped": (TENSORS, lambda p: flip(p, 7)),
    "truncated by a byte": (TENSORS, lambda p: os.truncate(p, p.stat().st_size - 1)),
    "truncated to a few bytes": (TENSORS, lambda p: os.truncate(p, 5)),
    "empty": (TENSORS, lambda p: os.truncate(p, 0)),
    "a byte too many": (TENSORS, lambda p: os.truncate(p, p.stat().st_size + 1)),
    "tensors deleted": (TENSORS, Path.unlink),
    "manifest deleted": (MANIFEST, Path.unlink),
    "manifest truncated": (MANIFEST, lambda p: os.truncate(p, p.stat().st_size // 2)),
    "manifest no text": (MANIFEST, lambda p: p.write_bytes(sign(b'{"\xff\xfe\x00": 1}'))),
    "manifest no mapping": (MANIFEST, lambda p: p.write_bytes(sign(b"[]"))),
    "manifest unsigned": (MANIFEST, lambda p: p.write_text('{"schema_version": 1}')),
    "manifest too deep": (MANIFEST, lambda p: p.write_bytes(sign(b'{"a":' + b"[" * 10**5 + b"}"))),
    "manifest from the future": (MANIFEST, lambda p: change(p, lambda m: m.update(schema_version=2))),
    "unknown key": (MANIFEST, lambda p: change(p, lambda m: m.update(more=1))),
    "step no integer": (MANIFEST, lambda p: change(p, lambda m: m.update(step="3"))),
    "step negative": (MANIFEST, lambda p: change(p, lambda m: m.update(step=-3))),
    "NaN": (MANIFEST, lambda p: change(p, lambda m: m["extra"].update(a=float("nan")))),
    "file elsewhere": (MANIFEST, lambda p: change(p, lambda m: first_chunk(m).update(file=f"../{BEFORE}/{TENSORS}"))),
    "file hidden": (MANIFEST, lambda p: change(p, lambda m: first_chunk(m).update(file=".safetensors"))),
    "file is a line": (MANIFEST, lambda p: change(p, lambda m: first_chunk(m).update(file=f"{TENSORS}\n"))),
    "offset outside": (MANIFEST, lambda p: change(p, lambda m: first_chunk(m).update(offsets=[1, 0]))),
    "negative offset": (MANIFEST, lambda p: change(p, lambda m: first_chunk(m).update(offsets=[-1, 0]))),
    "no dimensions": (MANIFEST, lambda p: change(p, lambda m: first_chunk(m).update(sizes=[], offsets=[]))),
    "hole": (MANIFEST, lambda p: change(p, lambda m: first_chunk(m).update(sizes=[4, 8]))),
    "written twice": (
        MANIFEST,
        lambda p: change(p, lambda m: m["tensors"]["model/head.weight"]["chunks"].append(first_chunk(m))),
    ),
    "another tensor's data": (
        MANIFEST,
        lambda p: change(
            p, lambda m: first_chunk(m).update(key=m["tensors"]["exp_avg/head.weight"]["chunks"][0]["key"])
        ),
    ),
    "key not in the file": (MANIFEST, lambda p: change(p, lambda m: first_chunk(m).update(key="a"))),
    "checksum": (MANIFEST, lambda p: change(p, lambda m: first_chunk(m).update(crc32=0))),
}


@pytest.mark.parametrize("kind", few(DAMAGE, *list(DAMAGE)[::4]))
def test_the_one_before_is_used_and_the_file_named(root, load, kind):
    name, harm = DAMAGE[kind]
    harm(root / NEWEST / name)
    loaded, value = load(root)
    assert (loaded.step, value) == (2, 2)
    assert loaded.path == root / BEFORE
    assert len(loaded.rejected) == 1
    named = {"key not in the file": TENSORS, "checksum": TENSORS}.get(kind, name)
    assert str(root / NEWEST / named) in loaded.rejected[0]
    assert "\n" not in loaded.rejected[0]


@pytest.mark.parametrize("name", [TENSORS, MANIFEST])
@pytest.mark.parametrize("other", ["link", "pipe", "directory"])
def test_only_files_are_opened(root, load, name, other):
    """A link could lead anywhere, and opening a pipe would wait for ever."""
    path = root / NEWEST / name
    elsewhere = path.rename(root / "elsewhere")
    if other == "link":
        path.symlink_to(elsewhere)
    elif other == "pipe":
        os.mkfifo(path)
    else:
        path.mkdir()
    loaded, value = load(root)
    assert (loaded.step, value) == (2, 2)
    assert str(path) in loaded.rejected[0]


def test_a_link_to_a_checkpoint_is_none(root, load, tmp_path):
    (root / NEWEST).rename(tmp_path / NEWEST)
    (root / NEWEST).symlink_to(tmp_path / NEWEST)
    assert load(root)[0].step == 2


def test_if_none_is_whole_each_is_named_with_its_reason(root, load):
    flip(root / NEWEST / TENSORS, -1)
    (root / BEFORE / TENSORS).unlink()
    (root / "step-00000001" / MANIFEST).write_bytes(sign(b'{"step": }'))
    with pytest.raises(DescriptionError) as error:
        load(root)
    text = str(error.value)
    assert "corrupted" in text.split(NEWEST)[2]
    assert "no such file" in text.split(BEFORE)[2]
    assert "not JSON" in text


def test_no_checkpoint_is_no_error(tmp_path, load):
    assert load(tmp_path / "none") == (None, -1)


@pytest.mark.parametrize(
    ("changes", "parameter", "found", "expected"),
    [
        ({"hidden": 16}, "blocks.0.qkv.weight", "[24, 8]", "[48, 16]"),
        ({"layers": 2}, "model/blocks.1.qkv.weight", "missing", "[24, 8]"),
        ({"biases": False}, "model/final_norm.bias", "not a parameter", ""),
        ({"heads": 4}, "model.heads", "was 2", "the job has 4"),
    ],
)
def test_another_model_is_refused_by_parameter(root, changes, parameter, found, expected):
    """Not passed over: an older one of the same run would not fit either."""
    trainee = tasks.tiny(**changes)
    before = trainee.context.store.master.clone()
    with pytest.raises(DescriptionError) as error:
        Checkpoints(root, trainee.context.mesh).load_latest(trainee.context, trainee.optimizer)
    line = next(text for text in str(error.value).splitlines() if parameter in text)
    assert found in line
    assert expected in line
    assert before.equal(trainee.context.store.master)


def test_another_precision_is_refused(root):
    trainee = tasks.alone(model=tasks.TINY)
    with pytest.raises(DescriptionError, match="dtype F32; expected F64"):
        Checkpoints(root, trainee.context.mesh).load_latest(trainee.context)


@pytest.mark.quick
def test_ranks_agree_though_only_one_reads_the_damage(pool, tmp_path):
    """Rank 3 wrote and reads its own file; the others never open it."""
    grid = tasks.grid("1x1x2x2")
    pool.run("tests.runtime.checkpoint.tasks:save", 4, grid=grid, root=str(tmp_path), steps=[1, 2])
    damaged = tmp_path / BEFORE / "rank-00003.safetensors"
    flip(damaged, -1)
    answers = pool.run("tests.runtime.checkpoint.tasks:resume", 4, grid=grid, root=str(tmp_path))
    assert [loaded.step for loaded, *_ in answers] == [1] * 4
    assert all(str(damaged) in loaded.rejected[0] for loaded, *_ in answers)


def test_ranks_agree_that_none_is_whole_and_keep_what_they_have(pool, tmp_path):
    grid = tasks.grid("1x1x2x2")
    pool.run("tests.runtime.checkpoint.tasks:save", 4, grid=grid, root=str(tmp_path), steps=[1])
    flip(tmp_path / "step-00000001" / "rank-00003.safetensors", -1)
    for error, state, _, _ in pool.run("tests.runtime.checkpoint.tasks:resume", 4, grid=grid, root=str(tmp_path)):
        assert "corrupted" in error
        weights = [piece for name, pieces in state.items() if "model/" in name for _, piece in pieces]
        assert all((piece == 7).all() for piece in weights)


PLACES = st.lists(st.integers(0, 10**6), min_size=1, max_size=6)
VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.floats(),
    st.text(max_size=5),
    st.just([]),
    st.just({}),
    st.lists(st.integers(-2, 9), max_size=3),
)


@examples(1.5, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(path=PLACES, value=VALUES)
def test_no_change_of_the_manifest_gets_through_unnoticed(root, path, value):
    """Replace a value anywhere: it is refused in words, or read as it stands there."""
    text = (root / NEWEST / MANIFEST).read_bytes()
    before = json.loads(text)
    del before["crc32"]
    changed = copy.deepcopy(before)
    place, key = changed, None
    for step in path:
        inner = place[key] if key is not None else place
        if not isinstance(inner, dict | list) or not inner:
            break
        place = inner
        key = sorted(place)[step % len(place)] if isinstance(place, dict) else step % len(place)
    place[key] = value
    try:
        manifest = parse(sign(json.dumps(changed).encode()), root / NEWEST)
    except UnusableFileError:
        return
    found = json.loads(manifest.model_dump_json())
    assert {**found, "grid": None} == {**changed, "grid": None}


def test_no_flipped_bit_of_the_manifest_gets_through(root):
    text = (root / NEWEST / MANIFEST).read_bytes()
    assert parse(text, root).step == 3
    for place in range(len(text)):
        flipped = bytearray(text)
        flipped[place] ^= 1 << place % 8
        with pytest.raises(UnusableFileError):
            parse(bytes(flipped), root)
