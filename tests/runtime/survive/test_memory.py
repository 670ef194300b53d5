"""Copies in memory: whatever is lost, a checkpoint is put together from the rest, and training goes on from there."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest

from runtime.checkpoint.manifest import MANIFEST, read_manifest
from runtime.checkpoint.tensor_file import UnusableFileError
from runtime.survive.history import History
from runtime.survive.memory.neighbours import keepers
from runtime.survive.memory.part import manifest_of, read_part
from runtime.survive.memory.place import Place, data_file, part_file
from runtime.survive.memory.recovery import Assembly, carry_out, holdings
from tests.runtime import runs
from tests.runtime.survive.agents import memory_of
from tests.tiers import makes
from twin.description.problems import DescriptionError

STEPS = 40


def write_job(folder: Path, **train) -> Path:
    memory = folder / "memory"
    memory.mkdir(exist_ok=True)
    checkpoints = {"every": 100, "memory_every": 3, "memory_directory": str(memory)}
    options = {"steps": STEPS, "threads": 1, "timeout": "20 s", "checkpoints": checkpoints}
    return runs.write_job(folder, train={**options, **train})


@pytest.fixture(scope="module")
@makes("process")
def undisturbed(tmp_path_factory) -> dict[int, float]:
    """Losses of the run that nothing happens to."""
    folder = tmp_path_factory.mktemp("undisturbed")
    done = runs.train(write_job(folder), "--ranks", "2", "--out", str(folder / "run"))
    assert done.returncode == 0, done.stderr
    assert list((folder / "memory").iterdir()) == []  # a finished run leaves nothing
    return runs.losses(folder / "run")


def steps_held(root: Path) -> list[int]:
    """Steps of which something is there."""
    return sorted(int(path.name[:8]) for path in root.iterdir())


@pytest.mark.slow
def test_killed_processes_leave_their_copies(undisturbed, tmp_path):
    """On one host: at most `memory_every` steps and what was under way are done again."""
    job, out = write_job(tmp_path), tmp_path / "run"
    process = runs.start(job, "--ranks", "2", "--restarts", "1", "--out", str(out), FOURFOLD_HOST="a")
    runs.wait_for_step(process, out, 20)
    for rank in runs.ranks_of(process):
        os.kill(rank, signal.SIGKILL)
    shown, errors = process.communicate(timeout=90)
    assert process.returncode == 0, errors
    killed = int(errors.count("was killed"))
    assert killed
    assert "in the memory of the hosts is put together" in shown
    step = int(shown.partition("continuing small after step ")[2].split()[0])
    assert step % 3 == 0
    assert step >= 20 - 2 * 3
    assert runs.losses(out) == undisturbed
    assert list((tmp_path / "memory").iterdir()) == []


@pytest.fixture(scope="module")
@makes("process")
def two_hosts(tmp_path_factory) -> Path:
    """What two hosts of a rank each hold after all processes of a run are killed: run, memory."""
    folder = tmp_path_factory.mktemp("two")
    job, out = write_job(folder), folder / "run"
    shared = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    ranks = [runs.start(job, "--out", str(out), RANK=str(r), FOURFOLD_HOST=f"host{r}", **shared) for r in (0, 1)]
    try:
        runs.wait_for_step(ranks[0], out, 14)
    finally:
        for rank in ranks:
            rank.send_signal(signal.SIGKILL)
        for rank in ranks:
            rank.communicate(timeout=30)
    return folder


def free_port() -> int:
    import socket

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def places(folder: Path) -> list[Place]:
    return [Place(memory_of(f"host{r}", folder / "run", folder / "memory")) for r in (0, 1)]


def assembled(folder: Path, root: Path, found: list[Place]) -> Assembly:
    """What rank 0 makes of these hosts, without ranks."""
    import json

    run = json.loads((folder / "run" / "run.json").read_text())["id"]
    assembly = Assembly(root, [holdings(place, run, History()) for place in found])
    while (order := assembly.order()) is not None:
        assembly.take([carry_out(order, rank, place, root) for rank, place in enumerate(found)])
    return assembly


def copied(folder: Path, target: Path) -> list[Place]:
    """The same two hosts, to be damaged."""
    subprocess.run(["cp", "-rp", str(folder / "memory"), str(target / "memory")], check=True)
    return [Place(target / "memory" / place.root.name) for place in places(folder)]


def test_each_host_holds_all_parts_of_two_steps_at_most(two_hosts):
    for place in places(two_hosts):
        assert place.root.stat().st_mode & 0o777 == 0o700
        held = {(folder.name, rank) for folder, rank in place.parts()}
        newest = max(name for name, _ in held)
        assert 1 <= len({name for name, _ in held}) <= 2
        assert steps_held(place.root)[-1] >= 9
        if len({name for name, _ in held}) == 1:
            assert held == {(newest, 0), (newest, 1)}


@pytest.mark.parametrize("lost", [(), (0,), (1,)])
def test_a_checkpoint_is_put_together_from_any_one_host(two_hosts, tmp_path, lost):
    found = [Place(tmp_path / "none") if r in lost else p for r, p in enumerate(places(two_hosts))]
    assembly = assembled(two_hosts, tmp_path / "checkpoints", found)
    assert "is put together" in assembly.news
    names = [path.name for path in (tmp_path / "checkpoints").iterdir()]
    assert len(names) == 1
    manifest = read_manifest(tmp_path / "checkpoints" / names[0])
    assert names == [f"step-{manifest.step:08d}"]
    assert manifest.step % 3 == 0
    assert manifest.samples == 8 * manifest.step


def numbers(place: Place) -> list[Path]:
    """Numbers of the parts that a host holds; of one that was being written there may be none, and it is no part."""
    found = [data_file(folder, rank) for folder, rank in place.parts()]
    assert found
    return found


def test_a_damaged_part_is_taken_from_the_other_host(two_hosts, tmp_path):
    hosts = copied(two_hosts, tmp_path)
    for damaged in numbers(hosts[0]):
        raw = bytearray(damaged.read_bytes())
        raw[-9] ^= 1
        damaged.write_bytes(raw)
    assembly = assembled(two_hosts, tmp_path / "checkpoints", hosts)
    assert "is put together" in assembly.news
    for damaged in numbers(hosts[1]):
        damaged.write_bytes(damaged.read_bytes()[:-4])
    assembly = assembled(two_hosts, tmp_path / "others", hosts)
    assert "a copy in memory is not used" in assembly.news
    assert list((tmp_path / "others").iterdir()) == []


def test_older_than_the_disk_or_of_another_run_is_not_used(two_hosts, tmp_path):
    root = tmp_path / "checkpoints"
    for step in (98, 99):  # one alone may be unreadable: see below
        (root / f"step-{step:08d}").mkdir(parents=True)
    assert assembled(two_hosts, root, places(two_hosts)).news == ""
    for place in places(two_hosts):
        assert holdings(place, "another", History()) == []
        assert holdings(place, "", History()) == []


def test_parts_of_different_starts_are_never_mixed(two_hosts, tmp_path):
    one, two = copied(two_hosts, tmp_path)
    # killed while the next copy was made, one may have begun another than the other
    both = {f.name for f, r in one.parts() if r == 0} & {f.name for f, r in two.parts() if r == 1}
    parts = {rank: read_part(part_file(place.root / max(both), rank))[0] for place, rank in ((one, 0), (two, 1))}
    assert manifest_of([parts[0], parts[1]]).step == parts[0].step
    other = parts[1].model_copy(update={"session": "00000000"})
    with pytest.raises(UnusableFileError, match="do not belong together"):
        manifest_of([parts[0], other])
    with pytest.raises(UnusableFileError, match="do not belong together"):
        manifest_of([parts[0]])
    some = dict(list(parts[1].tensors.items())[1:])
    with pytest.raises(UnusableFileError, match="is not whole"):
        manifest_of([parts[0], parts[1].model_copy(update={"tensors": some})])


def test_both_hosts_back_and_on(two_hosts, undisturbed):
    """Last, for it cleans up: the run goes on from memory, for the only checkpoint is newer, but damaged."""
    out = two_hosts / "run"
    assert list((out / "checkpoints").iterdir()) == []
    damaged = out / "checkpoints" / f"step-{STEPS - 1:08d}"
    damaged.mkdir()
    (damaged / MANIFEST).write_text("{")
    shared = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    ranks = [
        runs.start(two_hosts / "job.yaml", "--out", str(out), RANK=str(r), FOURFOLD_HOST=f"host{r}", **shared)
        for r in (0, 1)
    ]
    shown = [rank.communicate(timeout=60) for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0], shown
    assert "in the memory of the hosts is put together" in shown[0][0]
    assert f"{damaged.name} is passed over" in shown[0][1]
    assert runs.losses(out) == undisturbed
    assert list((two_hosts / "memory").iterdir()) == []


def test_a_place_that_is_not_ours_is_refused(tmp_path):
    place = Place.of(str(tmp_path), tmp_path / "run", "here")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir(mode=0o700)
    place.root.symlink_to(elsewhere)
    with pytest.raises(DescriptionError, match="is a link"):
        place.make()
    place.root.unlink()
    place.root.mkdir(mode=0o755)
    with pytest.raises(DescriptionError, match="others may"):
        place.make()
    place.root.chmod(0o700)
    place.make()
    if os.geteuid() == 0:
        os.chown(place.root, 1, 1)
        with pytest.raises(DescriptionError, match="somebody else"):
            place.make()
    with pytest.raises(DescriptionError, match="no such directory"):
        Place(tmp_path / "nowhere" / "x").make()


def test_every_part_is_kept_on_another_host():
    for hosts in (["a"] * 3 + ["b"] * 2 + ["c"], ["a", "b"] * 3, [str(i) for i in range(7)]):
        kept = keepers(hosts)
        assert all(hosts[keeper] != hosts[rank] for rank, keeper in enumerate(kept) if keeper is not None)
        assert None not in kept
        # a ring: each host keeps those of exactly one other
        pairs = {(hosts[rank], hosts[keeper]) for rank, keeper in enumerate(kept) if keeper is not None}
        assert len(pairs) == len(set(hosts)) == len({b for _, b in pairs})
    assert keepers(["a"]) == [None]
