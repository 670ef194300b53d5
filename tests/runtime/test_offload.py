"""State beyond the device: the same training to the bit wherever it lies, killed or not; told where it cannot lie."""

from __future__ import annotations

import errno
import os
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from runtime.model.recompute import Recompute
from runtime.parallel.mesh import Mesh
from runtime.step import tiers
from runtime.step.activations import ActivationTier, Kept
from runtime.step.copies import Copies
from runtime.step.host_memory import available_bytes
from runtime.step.landings import Landings
from runtime.step.lanes import Lanes
from runtime.step.offloaded import OffloadedOptimizer
from runtime.step.optimizer import MOMENTS
from runtime.step.tiers import Room, check_room
from runtime.strategies import ranks_of, trains
from tests.runtime import fsdp_tasks, runs
from tests.runtime.equal import assemble
from tests.runtime.fsdp_tasks import as_four_d
from tests.runtime.test_kill import killed_and_continued
from twin.description.problems import DescriptionError
from twin.description.train import Adam
from twin.strategies import load_job, strategy_of

SMALL = {"sub_group_elements": 1024}
OFFLOADS: dict[str, dict[str, Any]] = {
    "host": {"optimizer": SMALL},
    "file": {"optimizer": {"to": "disk", **SMALL}},
    "on the device": {"optimizer": {"stride": 1, **SMALL}},
    "interleaved, activations": {"optimizer": {"stride": 2, **SMALL}, "activations": "host"},
    "everything in files": {"optimizer": {"to": "disk", "stride": 3, **SMALL}, "activations": "disk"},
}
GRIDS: list[tuple[dict[str, int], dict[str, Any]]] = [
    ({"data": 1, "z": 1, "y": 1, "x": 1}, {}),
    ({"data": 2, "z": 2, "y": 1, "x": 1}, {"data_reduction": {"mode": "sharded"}}),
    ({"data": 1, "z": 1, "y": 2, "x": 2}, {"data_reduction": {"mode": "one_bucket"}}),
]


def placed(offload: dict[str, Any], folder: Path) -> dict[str, Any]:
    return {**offload, "directory": str(folder)} if "disk" in str(offload) else offload


def same(first: list[Any], second: list[Any]) -> None:
    for (loss, norm, pieces), (other_loss, other_norm, other_pieces) in zip(first, second, strict=True):
        assert loss == other_loss
        assert norm == other_norm
        for name, of in pieces.items():
            for (place, values), (other_place, other_values) in zip(of, other_pieces[name], strict=True):
                assert place == other_place
                np.testing.assert_array_equal(values, other_values)


@pytest.mark.process
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize(("grid", "options"), GRIDS, ids=str)
def test_four_d_trains_the_same_to_the_bit(pool: Any, tmp_path: Path, grid, options, dtype) -> None:
    def trained(**more: Any) -> list[Any]:
        ranks = int(np.prod(list(grid.values())))
        task = "tests.runtime.parity:run"
        return pool.run(task, ranks, grid=grid, dtype=dtype, recompute=True, **options, **more)

    plain = trained()
    for offload in OFFLOADS.values():
        same(plain, trained(offload=placed(offload, tmp_path)))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.process
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_parts_of_buckets_lie_beyond_the_device_too(pool: Any, dtype: str) -> None:
    """Each replica's of several buckets, which share the buffers beyond the device."""
    ahead = {"data_reduction": {"mode": "sharded_overlapped", "bucket": "16 KiB"}}
    run = {"grid": GRIDS[1][0], "dtype": dtype, "recompute": True, **ahead}
    task = "tests.runtime.parity:run"
    same(pool.run(task, 4, **run), pool.run(task, 4, offload=OFFLOADS["interleaved, activations"], **run))


@pytest.mark.process
@pytest.mark.parametrize("grid", [{"weights": 1}, {"weights": 4}, {"data": 2, "weights": 2}], ids=str)
def test_fsdp_trains_the_same_to_the_bit(pool: Any, tmp_path: Path, grid) -> None:
    def trained(**more: Any) -> list[Any]:
        shared = fsdp_tasks.Shared(**grid)
        kwargs = {"grid": as_four_d(grid), "shared": grid, "dtype": "float32", "recompute": True}
        return pool.run("tests.runtime.fsdp_tasks:run", shared.ranks, **kwargs, **more)

    plain = trained()
    assert assemble([pieces for _, _, pieces in plain])
    for offload in OFFLOADS.values():
        same(plain, trained(offload=placed(offload, tmp_path)))


@pytest.mark.process
@pytest.mark.parametrize("where", ["host", "disk"])
def test_a_killed_run_goes_on_as_if_nothing_had_been_offloaded_or_killed(undisturbed, tmp_path, where) -> None:
    whole = undisturbed(12)
    offload = placed({"optimizer": {"to": where, "sub_group_elements": 2048}}, tmp_path / "drives")
    job = runs.write_job(tmp_path, offload=offload)
    assert killed_and_continued(job, tmp_path / "run", 3, kills=1) == whole.losses
    if where == "disk":
        assert list((tmp_path / "drives").iterdir()) == []


@pytest.mark.process
def test_a_directory_that_cannot_be_written_is_told_before_anything_is(tmp_path) -> None:
    (tmp_path / "file").write_text("not a directory", encoding="utf-8")
    offload = {"optimizer": {"to": "disk"}, "directory": str(tmp_path / "file")}
    done = runs.train(runs.write_job(tmp_path, offload=offload), "--ranks", "2", "--out", str(tmp_path / "run"))
    assert done.returncode == 2, done.stderr
    assert "offload.directory" in done.stderr
    assert "name another directory, or use host" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "run" / "run.json").exists()


def described(**offload: Any) -> Any:
    return load_job({**runs.SMALL, "ranks": 1, "grid": {"data": 1}, "offload": offload})


def test_files_need_a_directory() -> None:
    from runtime.strategies import refuse

    with pytest.raises(DescriptionError, match=r"offload\.directory: is missing"):
        refuse(described(optimizer={"to": "disk"}))


def test_a_full_disk_is_told_and_leaves_nothing(tmp_path, monkeypatch) -> None:
    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", full)
    room = Room("disk", torch.device("cpu"), tmp_path)
    with pytest.raises(DescriptionError, match=r"offload\.directory .*No space left on device"):
        room.zeros(1000, torch.float32)
    assert list(tmp_path.iterdir()) == []


def test_a_disk_with_too_little_room_is_told_before_training(tmp_path, monkeypatch) -> None:
    usage = tiers.shutil.disk_usage(tmp_path)._replace(free=1000)
    monkeypatch.setattr(tiers.shutil, "disk_usage", lambda _: usage)
    with pytest.raises(DescriptionError, match=r"of which 1 kB are free; name another directory"):
        check_room(described(optimizer={"to": "disk"}, directory=str(tmp_path)), 2)


def test_too_little_memory_is_told_before_training(tmp_path, monkeypatch) -> None:
    info = tmp_path / "meminfo"
    info.write_text("MemTotal: 100 kB\nMemAvailable: 2 kB\n", encoding="utf-8")
    assert available_bytes(info, tmp_path / "none", tmp_path) == 2048
    monkeypatch.setattr(tiers, "available_bytes", lambda: 2048)
    with pytest.raises(DescriptionError, match=r"memory \(.*\), of which 2.05 kB are free; use disk, or fewer ranks"):
        check_room(described(optimizer={}), 2)
    with pytest.raises(DescriptionError, match=r"of which 2.05 kB are free; use fewer ranks"):
        check_room(described(optimizer={"to": "disk", **SMALL}, directory=str(tmp_path)), 2)
    with pytest.raises(DescriptionError, match="use disk"):
        Room("host", torch.device("cpu")).zeros(1000, torch.float32)


def test_the_copy_that_checkpoints_are_written_from_counts_once_for_replicas(monkeypatch) -> None:
    """Moments of what a rank holds take 8 bytes an element, in fp32; two replicas write half of them each."""
    job = load_job({**runs.SMALL, "ranks": 2, "grid": {"data": 2}, "offload": {"optimizer": {}}})
    strategy = strategy_of(job)
    lies = sum(strategy.tiers(job, strategy.roles(job)[0])["host"].values())
    monkeypatch.setattr(tiers, "available_bytes", lambda: int(3 * lies))
    check_room(job, 2)
    monkeypatch.setattr(tiers, "available_bytes", lambda: int(3 * lies) - 2)
    with pytest.raises(DescriptionError, match="to write checkpoints from"):
        check_room(job, 2)


def test_pinned_memory_is_counted_as_pytorch_takes_it(monkeypatch) -> None:
    """In powers of two: of 4,100 bytes 8,192."""
    monkeypatch.setattr(tiers, "available_bytes", lambda: 8000)
    Room("host", torch.device("cpu")).zeros(1025, torch.float32)
    with pytest.raises(DescriptionError, match=r"needs 8.19 kB of the host.s memory, of which 8 kB are free"):
        Room("host", torch.device("cuda")).zeros(1025, torch.float32)


GROUP_FILES = {
    "unified": ("0::/slurm/job_7", "slurm/job_7", ("memory.max", "memory.current", ("inactive_file", "active_file"))),
    "in a container": ("0::/", "", ("memory.max", "memory.current", ("inactive_file", "active_file"))),
    "beyond a container": ("0::/../other", "", ("memory.max", "memory.current", ("inactive_file", "active_file"))),
    "separate": (
        "9:cpu,memory:/slurm/job_7",
        "memory/slurm/job_7",
        ("memory.limit_in_bytes", "memory.usage_in_bytes", ("total_inactive_file", "total_active_file")),
    ),
}


@pytest.mark.parametrize("kind", GROUP_FILES)
def test_a_limit_of_slurm_or_of_a_container_is_what_is_left(tmp_path, kind) -> None:
    """Of 1,000 bytes 700 are used, 50 of them by pages that go first; the machine has more."""
    line, where, (limit, usage, reclaimable) = GROUP_FILES[kind]
    info, own, group = tmp_path / "meminfo", tmp_path / "own", tmp_path / "groups" / where
    info.write_text("MemAvailable: 64 kB\n", encoding="utf-8")
    own.write_text(f"5:cpuset:/elsewhere\n{line}\n", encoding="utf-8")
    group.mkdir(parents=True, exist_ok=True)
    (group / limit).write_text("1000\n", encoding="utf-8")
    (group / usage).write_text("700\n", encoding="utf-8")
    (group / "memory.stat").write_text(f"anon 650\n{reclaimable[0]} 30\n{reclaimable[1]} 20\n", encoding="utf-8")
    assert available_bytes(info, own, tmp_path / "groups") == 350
    (group / limit).write_text("max\n", encoding="utf-8")
    assert available_bytes(info, own, tmp_path / "groups") == 64 * 1024
    (group / limit).write_text("100\n", encoding="utf-8")
    assert available_bytes(info, own, tmp_path / "groups") == 0


def test_where_memory_is_not_told_it_is_tried(tmp_path) -> None:
    assert available_bytes(tmp_path / "none", tmp_path / "none", tmp_path) is None


@pytest.mark.parametrize("where", ["host", "disk"])
def test_activations_come_back_in_the_opposite_order_from_the_same_buffers(tmp_path, where) -> None:
    tier = ActivationTier(Room(where, torch.device("cpu"), tmp_path), torch.device("cpu"))
    buffers: set[int] = set()
    for step in range(3):
        tensors = [torch.randn(4, 6) + step for _ in range(5)]
        kept = [tier.leave(tensor) for tensor in tensors]
        buffers |= {each.buffer.data_ptr() for each in kept}
        for tensor, each in zip(reversed(tensors), reversed(kept), strict=True):
            assert torch.equal(each.back(), tensor)
    assert len(buffers) == 5


def test_changes_to_what_left_do_not_change_what_comes_back() -> None:
    tier = ActivationTier(Room("host", torch.device("cpu")), torch.device("cpu"))
    tensor = torch.ones(8)
    kept = tier.leave(tensor)
    tensor.zero_()
    assert torch.equal(kept.back(), torch.ones(8))


def alone(precision: str, offload: dict[str, Any] | None) -> Any:
    """A trainee of one rank on a CPU."""
    more = {"precision": precision, **({} if offload is None else {"offload": offload})}
    job = load_job({**runs.SMALL, "ranks": 1, "grid": {"data": 1}, **more})
    return trains(job)(job, Mesh.create(ranks_of(job), timeout_seconds=60.0), torch.device("cpu"), Adam())


@pytest.mark.parametrize("precision", ["bf16", "fp32"])
@pytest.mark.parametrize("stride", [None, 2, 3])
@pytest.mark.parametrize("to", ["host", "disk"])
def test_what_the_host_of_a_gpu_updates_is_updated_the_same(
    precision: str, stride: int | None, to: str, tmp_path: Path
) -> None:
    """The way through landings, which only GPUs take, against all at once: the same numbers to the bit."""
    found = []
    for offload in (None, placed({"optimizer": {"to": to, "stride": stride, **SMALL}}, tmp_path)):
        trainee = alone(precision, offload)
        context, optimizer = trainee.context, trainee.optimizer
        if offload is not None:
            context.copies = Copies(context.ops, named=True)
        generator = torch.Generator().manual_seed(5)
        for update in range(4):
            context.store.gradient.copy_(torch.randn(context.store.gradient.shape, generator=generator))
            optimizer.stopped.fill_(update == 3)  # a gradient that was not finite: nothing is updated any more
            optimizer._update(1e-3)
        moments = [optimizer._moments[name].clone() for name in MOMENTS]
        found.append([context.store.compute.clone(), context.store.master.clone(), *moments])
    assert len(optimizer._landings._buffers) == 3
    assert float(found[0][-1].abs().sum()) > 0.0
    for one, other in zip(*found, strict=True):
        assert torch.equal(one, other)


def test_landings_take_turns() -> None:
    """A fourth sub-group lands where the first did."""
    lanes = Lanes(torch.device("cpu"), 0, torch.float32)
    landings = Landings(Room("host", torch.device("cpu")), lanes, 2, 8, torch.float32)
    found = [landings.of(turn, 5) for turn in range(5)]
    assert {rows.shape for rows in found} == {(2, 5)}
    assert len({rows.data_ptr() for rows in found[:3]}) == 3
    assert [rows.data_ptr() for rows in found[3:]] == [rows.data_ptr() for rows in found[:2]]


def test_lanes_take_turns() -> None:
    """What comes for the next sub-group must not lie where the one lies that is about to be updated."""
    lanes = Lanes(torch.device("cpu"), 8, torch.float32)
    places = [lanes.staging(5).buffer.data_ptr() for _ in range(6)]
    assert places[0] != places[1]
    assert places == places[:2] * 3


def test_what_came_back_goes_when_its_block_is_done(monkeypatch) -> None:
    """Autograd keeps the graph until the whole backward pass is over; inputs that were away must not lie in it."""
    tier = ActivationTier(Room("host", torch.device("cpu")), torch.device("cpu"))
    came: list[weakref.ref[torch.Tensor]] = []
    bring, here = tier.copy_back, list[int]()

    def copy_back(kept: Kept) -> Any:
        copy, found = bring(kept)
        came.append(weakref.ref(found))
        return copy, found

    monkeypatch.setattr(tier, "copy_back", copy_back)

    def block(inputs: torch.Tensor) -> torch.Tensor:
        if torch.is_grad_enabled():
            here.append(sum(each() is not None for each in came))
        return torch.tanh(inputs)

    passing: Any = torch.randn(4, 6, requires_grad=True)
    for _ in range(6):
        passing = Recompute.apply(passing, block, lambda again: again, tier.leave)
    tier.begin()
    passing.sum().backward()
    assert len(came) == 6
    assert max(here) == 2  # the block's own, and the one that is on its way
    assert not any(each() is not None for each in came)


def test_master_weights_beyond_the_device_never_stand_on_it(monkeypatch) -> None:
    made: list[torch.Tensor] = []
    before: list[int] = []
    zeros, begin = Room.zeros, OffloadedOptimizer.__init__

    def counted(room: Room, elements: int, kind: torch.dtype) -> torch.Tensor:
        made.append(zeros(room, elements, kind))
        return made[-1]

    def begun(optimizer: OffloadedOptimizer, *given: Any) -> None:
        before.append(len(made))
        begin(optimizer, *given)

    monkeypatch.setattr(Room, "zeros", counted)
    monkeypatch.setattr(OffloadedOptimizer, "__init__", begun)
    job = load_job(
        {**runs.SMALL, "ranks": 1, "grid": {"data": 1}, "precision": "bf16", "offload": {"optimizer": {"to": "host"}}}
    )
    trainee = trains(job)(job, Mesh.alone(job.concrete_grid), torch.device("cpu"), Adam())
    store = trainee.context.store
    assert store.rounds
    assert before == [1]  # they were made with the model, the moments with the optimizer
    assert store.master is made[0]
    assert len(made) == 3
    assert torch.equal(store.master.to(store.compute_type), store.compute[: store.master.numel()])
