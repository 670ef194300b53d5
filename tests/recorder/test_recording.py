"""Recordings as files: what is written is read, and nothing else is."""

from __future__ import annotations

import gzip
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.profiles import examples
from tests.recorder.jobs import ALL, job
from twin.description.problems import DescriptionError
from twin.schedule import recording as module
from twin.schedule.kernels import Attention, Gemm, Memory
from twin.schedule.ops import Compute, Repeat, Schedule, Start, Wait
from twin.schedule.recording import Recording, check, fold, read_recording, write_recording
from twin.strategies import load_job
from twin.strategies.four_d.grid import Grid
from twin.strategies.four_d.step import generate

GRID = Grid(data=2, z=3, y=1, x=2)
OPS = (
    Compute("fwd/a", "fwd", Gemm(3, 4, 5, "NT", 2, 4), 0),
    Start("fwd/b", "fwd", "all_gather", "z_gather", 12.0, 1),
    Compute("fwd/c", "fwd", Attention(1, 2, 3, 4, "plain", dropout=True, backward=True), None),
    Wait("fwd/b", "fwd", 1),
    Compute("bwd/d", "bwd", Memory(0.5, 7, 3.0)),
    Compute("bwd/e", "bwd", Attention(1, 2, 3, 4, kv_heads=1, mask=True), None),
    Compute("bwd/f", "bwd", Attention(1, 2, 3, 4, causal=False, key_length=9), None),
)
KEPT = Recording(GRID.mesh, 7, Schedule(OPS))


def test_every_kind_of_op_comes_back(tmp_path) -> None:
    for name in ("a.json", "a.json.gz"):
        write_recording(tmp_path / name, KEPT)
        assert read_recording(tmp_path / name) == KEPT
    plain = json.loads((tmp_path / "a.json").read_text())
    assert json.loads(gzip.decompress((tmp_path / "a.json.gz").read_bytes())) == plain
    assert plain["grid"] == {"data": 2, "z": 3, "y": 1, "x": 2}
    *_, causal, cross = (op["kernel"] for op in plain["ops"] if op["op"] == "compute")
    assert cross.keys() - causal.keys() == {"causal", "key_length"}, "and causal attention is written as it always was"


def test_a_whole_schedule_and_its_job_come_back(tmp_path) -> None:
    described = job(ALL, per_rank=5)
    schedule = generate(described)
    path = tmp_path / "whole.json"
    dumped = described.model_dump(mode="json", by_alias=True)
    write_recording(path, Recording(described.concrete_grid.mesh, 0, schedule, dumped))
    back = read_recording(path)
    assert [n for n, _ in back.schedule.named()] == [n for n, _ in schedule.named()]
    assert load_job(back.job) == described


def test_equal_micro_steps_are_folded() -> None:
    """Of five, the first writes sums and the last starts buckets: three in the middle are equal."""
    described = job(ALL, per_rank=5, data_reduction={"mode": "overlapped"})
    flat = Schedule(tuple(_renamed(op, name) for name, op in generate(described).named()))
    folded = fold(flat)
    repeats = [op.values for op in folded if isinstance(op, Repeat)]
    assert repeats == [(0,), (1, 2, 3), (4,), (4,)]  # at last the waits for the buckets
    assert [n for n, _ in Schedule(folded).named()] == [n for n, _ in flat.named()]


def _renamed(op, name):
    from dataclasses import replace

    return replace(op, name=name)


def start(name: str) -> Start:
    return Start(name, "fwd", "all_reduce", "x", 4.0)


@pytest.mark.parametrize(
    ("ops", "reason"),
    [
        ((start("a"),), "a: is started and never waited for"),
        ((Wait("a", "fwd"),), "op 0 a: waits for what was not started before"),
        ((Wait("a", "fwd"), start("a")), "op 0 a: waits for what was not started before"),
        ((start("a"), Wait("a", "fwd"), Wait("a", "fwd")), "op 2 a: waits a second time"),
        ((start("a"), start("a"), Wait("a", "fwd")), "op 1 a: has the name of an earlier op"),
        ((OPS[0], OPS[0]), "op 1 fwd/a: has the name of an earlier op"),
        (
            (Start("a", "fwd", "all_reduce", "y", 4.0), Wait("a", "fwd")),
            "op 0 a: is a collective over y, which is one rank",
        ),
    ],
    ids=str,
)
def test_each_wait_has_its_start(ops, reason) -> None:
    with pytest.raises(DescriptionError, match=reason):
        check(Schedule(ops), GRID)


def written(tmp_path) -> dict:
    write_recording(tmp_path / "good.json", KEPT)
    return json.loads((tmp_path / "good.json").read_text())


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda d: d.update(schema_version=3), "schema_version"),
        (lambda d: d.update(rank=12), "ranks of the grid are 0 to 11"),
        (lambda d: d.update(rank=-1), "rank"),
        (lambda d: d.update(extra=1), "extra"),
        (lambda d: d.pop("grid"), "grid"),
        (lambda d: d["grid"].update(x=0), r"grid\.x"),
        (lambda d: d["ops"][0].update(name="{micro.__class__}"), r"ops\.0"),
        (lambda d: d["ops"][0].update(phase="sideways"), r"ops\.0\.compute\.phase"),
        (lambda d: d["ops"][0].update(op="guess"), r"ops\.0"),
        (lambda d: d["ops"][0]["kernel"].update(m="3"), r"ops\.0\.compute\.kernel\.gemm\.m"),
        (lambda d: d["ops"][0]["kernel"].update(m=-3), r"ops\.0\.compute\.kernel\.gemm\.m"),
        (lambda d: d["ops"][0]["kernel"].update(n=10**30), r"ops\.0\.compute\.kernel\.gemm\.n"),
        (lambda d: d["ops"][4]["kernel"].update(bytes=float("nan")), "bytes"),
        (lambda d: d["ops"][4]["kernel"].update(bytes=float("inf")), "bytes"),
        (lambda d: d["ops"][1].update(communicator="pipe"), "is over pipe, which is no axis of the grid"),
        (lambda d: d["ops"].pop(3), "never waited for"),
        (lambda d: d["ops"].pop(1), "not started before"),
        (lambda d: d.update(ops={}), "ops"),
    ],
)
def test_what_is_wrong_is_refused_and_named(tmp_path, change, reason) -> None:
    content = written(tmp_path)
    change(content)
    path = tmp_path / "bad.json"
    path.write_text(json.dumps(content))
    with pytest.raises(DescriptionError, match=reason):
        read_recording(path)


def test_foreign_files_are_refused(tmp_path) -> None:
    for name, content in (
        ("empty.json", b""),
        ("list.json", b"[1, 2]"),
        ("job.yaml", b"model: gpt2"),
        ("own.json", b'{"format": "another"}'),
        ("not.json.gz", b"plain"),
        ("deep.json", b"{" * 100_000),
        ("zeros.json", bytes(1000)),
    ):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(DescriptionError):
            read_recording(tmp_path / name)
    with pytest.raises(DescriptionError, match="no such file"):
        read_recording(tmp_path / "missing.json")


def test_a_small_file_that_unpacks_to_a_huge_one_is_refused(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(module, "MAX_FILE_BYTES", 1 << 20)
    path = tmp_path / "bomb.json.gz"
    path.write_bytes(gzip.compress(b'{"format": "fourfold-schedule"' + b" " * (4 << 20)))
    with pytest.raises(DescriptionError, match="larger than"):
        read_recording(path)


def test_few_lines_that_stand_for_too_many_ops_are_refused(tmp_path) -> None:
    content = written(tmp_path)
    body = [{**content["ops"][0], "name": "micro{micro}/a"}] * 10
    content["ops"] = [{"op": "repeat", "variable": "micro", "values": list(range(600_000)), "body": body}]
    (tmp_path / "many.json").write_text(json.dumps(content))
    with pytest.raises(DescriptionError, match="6,000,000"):
        read_recording(tmp_path / "many.json")


@given(data=st.data())
@examples(1.5, derandomize=True)
def test_damage_is_a_clear_error_or_a_valid_recording(tmp_path_factory, data) -> None:
    folder = tmp_path_factory.mktemp("damage")
    name = data.draw(st.sampled_from(["a.json", "a.json.gz"]))
    write_recording(folder / name, KEPT)
    content = bytearray((folder / name).read_bytes())
    if data.draw(st.booleans()):
        del content[data.draw(st.integers(0, len(content) - 1)) :]
    else:
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    (folder / name).write_bytes(content)
    try:
        back = read_recording(folder / name)
    except DescriptionError:
        return
    check(back.schedule, back.mesh)


def test_only_recordings_are_replaced(tmp_path) -> None:
    path = tmp_path / "a.json"
    write_recording(path, KEPT)
    with pytest.raises(DescriptionError, match="exists already"):
        write_recording(path, KEPT)
    write_recording(path, KEPT, overwrite=True)
    path.write_text("my notes")
    with pytest.raises(DescriptionError, match="will not be replaced"):
        write_recording(path, KEPT, overwrite=True)
    with pytest.raises(DescriptionError, match="cannot be written"):
        write_recording(tmp_path / "missing" / "a.json", KEPT)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.json"]
