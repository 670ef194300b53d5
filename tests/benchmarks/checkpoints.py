"""What asynchronous checkpoints cost a training step, and how long recovery takes, against PyTorch's own `async_save`.

    python -m tests.benchmarks.checkpoints [rounds [steps]]

Two gloo ranks train a GPT of 31.7 M parameters over z. Intervals of so many steps take turns in the same
processes: without a checkpoint, with one of Fourfold's after the first step, with one of PyTorch's
`torch.distributed.checkpoint.async_save`, used plainly on the same weights and moments as DTensors. Each round
gives ratios of neighbours in time; medians of them are printed, as JSON, with the time that the call
itself takes, the processor time that it costs a rank (which other work on the machine disturbs less), the time
until the checkpoint is whole on the disk, and the time to load it. Then a run of `fourfold train` is killed with
SIGKILL after its first checkpoint and started again.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

RANKS = 2
GRID = {"data": 1, "z": 2, "y": 1, "x": 1}
MODEL = {"layers": 10, "hidden": 512, "heads": 8, "sequence": 128, "vocabulary": 256, "biases": False}
SEQUENCES = 4
NAMES = ("none", "fourfold", "torch")
ORDERS = (
    ("none", "fourfold", "torch"),
    ("torch", "fourfold", "none"),
    ("fourfold", "none", "torch"),
    ("torch", "none", "fourfold"),
)
"""So that no one always comes after the same other."""
MAX_SECONDS = 300.0


class Trained:
    """One rank's model in training."""

    def __init__(self, worker: Any) -> None:
        import torch

        from runtime.step.optimizer import Optimizer
        from runtime.strategies.four_d.context import FourDContext
        from runtime.strategies.four_d.model import GPT
        from runtime.strategies.four_d.trainee import FourDTrainee
        from twin.description.train import Adam
        from twin.strategies import load_job
        from twin.strategies.four_d.grid import Grid

        self.mesh = worker.mesh(Grid(**GRID))
        job = load_job(
            {
                "model": MODEL,
                "machine": "laptop",
                "ranks": RANKS,
                "grid": GRID,
                "precision": "fp32",
                "recompute": False,
                "gather_unit": "block",
                "batch": {"sequences": SEQUENCES, "micro_sequences": SEQUENCES // 2},
            }
        )
        self.context = FourDContext.of_job(job, self.mesh, torch.device("cpu"))
        model = GPT(self.context)  # which makes the buffers that the optimizer works on
        self.optimizer = Optimizer(self.context, Adam())
        self.trainee = FourDTrainee(self.context, model, self.optimizer)
        generator = torch.Generator().manual_seed(1 + worker.rank)
        shape = (SEQUENCES // 2, MODEL["sequence"] + 1)
        self.window = torch.randint(0, MODEL["vocabulary"], shape, generator=generator)
        self.done = 0

    def step(self) -> None:
        import torch

        from runtime.step.trainee import MicroBatch

        weight = 1.0 / (SEQUENCES * MODEL["sequence"])
        weights = torch.full_like(self.window[:, 1:], weight, dtype=torch.float32)
        self.trainee.step([MicroBatch(0, self.window[:, :-1], self.window[:, 1:], weights)], 3e-4)
        self.done += 1

    def state(self, device_mesh: Any) -> dict[str, Any]:
        """Weights and moments as three flat DTensors that share this rank's memory.

        By parameter they would be views of one storage, which PyTorch 2.13's stager cannot copy; and a few large
        tensors are what it does fastest.
        """
        from torch.distributed.tensor import DTensor, Shard

        flats = {"model": self.context.store.master, **self.optimizer.states()}
        return {kind: DTensor.from_local(flat, device_mesh, [Shard(0)]) for kind, flat in flats.items()}


class Saver:
    """Both ways to save, each in a directory of its own: the newest only is kept."""

    def __init__(self, trained: Trained, root: Path) -> None:
        import torch.distributed as dist
        from torch.distributed.device_mesh import init_device_mesh

        from runtime.checkpoint.checkpoints import Checkpoints

        self.trained, self.root = trained, root
        self.ours = Checkpoints(root / "fourfold", trained.mesh, keep=1)
        self.state = trained.state(init_device_mesh("cpu", (RANKS,)))
        self.group = dist.new_group(backend="gloo")
        self.first = dist.get_rank() == 0

    def save(self, name: str) -> Callable[[], Any]:
        """Begin to save; return what waits until it is whole."""
        from torch.distributed.checkpoint import async_save

        if name == "fourfold":
            done = self.trained.done
            self.ours.save(self.trained.context, self.trained.optimizer, step=done, samples=done)
            return self.ours.wait
        future: Any = async_save(
            self.state, checkpoint_id=self.root / "torch" / str(self.trained.done), process_group=self.group
        )
        return future.result

    def clear(self) -> None:
        """Delete PyTorch's checkpoints; Fourfold deletes its own."""
        if self.first:
            shutil.rmtree(self.root / "torch", ignore_errors=True)


def overhead(worker: Any, root: str, rounds: int, steps: int, **_grid: Any) -> dict[str, Any]:
    """Seconds of intervals and calls, in turn. Runs on every rank."""
    import torch.distributed as dist

    trained = Trained(worker)
    saver = Saver(trained, Path(root))
    for name in ("fourfold", "torch"):  # buffers and threads are made once
        trained.step()
        saver.save(name)()
    seconds: dict[str, list[float]] = {name: [] for name in NAMES}
    work: dict[str, list[float]] = {name: [] for name in NAMES}
    calls: dict[str, list[float]] = {name: [] for name in NAMES}
    late: dict[str, int] = dict.fromkeys(NAMES, 0)
    for number in range(rounds):
        for name in ORDERS[number % len(ORDERS)]:
            dist.barrier()
            begin, worked = time.perf_counter(), time.process_time()
            trained.step()
            called = time.perf_counter()
            wait = saver.save(name) if name != "none" else lambda: None
            calls[name].append(time.perf_counter() - called)
            for _ in range(steps - 1):
                trained.step()
            dist.barrier()
            seconds[name].append(time.perf_counter() - begin)
            waited = time.perf_counter()
            wait()
            late[name] += time.perf_counter() - waited > 0.1
            work[name].append(time.process_time() - worked)
            saver.clear()
    return {"seconds": seconds, "work": work, "calls": calls, "late": late}


def alone(worker: Any, root: str, rounds: int, **_grid: Any) -> dict[str, list[float]]:
    """Seconds to save until all is on the disk, and to load, with nothing else to do."""
    import torch.distributed as dist
    from torch.distributed.checkpoint import load

    trained = Trained(worker)
    saver = Saver(trained, Path(root) / "alone")
    trained.step()
    found: dict[str, list[float]] = {}

    def timed(key: str, call: Callable[[], Any]) -> None:
        dist.barrier()
        begin = time.perf_counter()
        call()
        dist.barrier()
        found.setdefault(key, []).append(time.perf_counter() - begin)

    for _ in range(rounds + 1):
        for name in NAMES[1:]:
            timed(f"{name} save", lambda name=name: saver.save(name)())
        place = saver.root / "torch" / str(trained.done)
        timed("fourfold load", partial(saver.ours.load_latest, trained.context, trained.optimizer))
        timed("torch load", partial(load, saver.state, checkpoint_id=place, process_group=saver.group))
        saver.clear()
    return {key: values[1:] for key, values in found.items()}


JOB = f"""name: recovered
model: {json.dumps(MODEL)}
machine: laptop
ranks: {RANKS}
grid: {json.dumps(GRID)}
batch: {{sequences: {SEQUENCES}, micro_sequences: {SEQUENCES // 2}}}
precision: fp32
recompute: false
gather_unit: block
train:
  data: standard-library
  steps: 100000
  log_every: 1
  checkpoints: {{every: 5}}
"""


def recovery(folder: Path) -> dict[str, float]:
    """Seconds from the start of a killed run's second process to the end of its first step."""
    job, out = folder / "job.yaml", folder / "run"
    job.write_text(JOB, encoding="utf-8")
    command = [sys.executable, "-m", "twin", "train", str(job), "--ranks", str(RANKS), "--out", str(out)]

    def steps() -> list[int]:
        path = out / "metrics.jsonl"
        lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
        return [json.loads(line)["step"] for line in lines if line.endswith("}") and '"step"' in line]

    def until(fine: Callable[[], bool]) -> float:
        begin = time.perf_counter()
        while not fine():
            if time.perf_counter() - begin > MAX_SECONDS:
                raise TimeoutError("the run does not go on")
            time.sleep(0.02)
        return time.perf_counter() - begin

    def killed(fine: Callable[[], bool]) -> float:
        process = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
        )
        try:
            return until(fine)
        finally:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    first = killed(lambda: bool(steps()))
    shutil.rmtree(out)
    killed(lambda: any((out / "checkpoints").glob("step-*")) and len(steps()) > 8)
    before = steps()
    # the resumed run cuts off what was logged after its checkpoint: its first line is the next step
    again = killed(lambda: bool(steps()) and steps() != before and len(steps()) % 5 == 1)
    return {"first start, seconds to the first step": first, "start after a kill, seconds to the first step": again}


def main() -> None:
    """Print everything as JSON."""
    from tests.benchmarks.processes import machine
    from tests.runtime.pool import Pool

    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 8
    steps = int(sys.argv[2]) if len(sys.argv) > 2 else 20
    with tempfile.TemporaryDirectory() as folder:
        pool = Pool(RANKS, most_seconds=7200.0)
        found = pool.run(
            "tests.benchmarks.checkpoints:overhead", RANKS, grid=GRID, root=folder, rounds=rounds, steps=steps
        )[0]
        both = pool.run("tests.benchmarks.checkpoints:alone", RANKS, grid=GRID, root=folder, rounds=5)[0]
        pool.close()
        recovered = recovery(Path(folder))
    middle = statistics.median
    plain = found["seconds"]["none"]

    def ratios(kind: dict[str, list[float]], name: str) -> list[float]:
        return [a / b for a, b in zip(kind[name], kind["none"], strict=True)]

    answer: dict[str, Any] = {
        "machine": machine(),
        "ranks": RANKS,
        "steps an interval": steps,
        "rounds": rounds,
        "seconds a step, without": middle(plain) / steps,
    }
    for name in ("fourfold", "torch"):
        pairs = list(zip(found["seconds"][name], plain, strict=True))
        answer[name] = {
            "interval with a checkpoint to one without, median of ratios": middle([a / b for a, b in pairs]),
            "ratios": [round(a / b, 4) for a, b in pairs],
            "processor seconds of a rank, median of ratios": middle(ratios(found["work"], name)),
            "processor seconds of a rank, more a checkpoint": middle(
                [a - b for a, b in zip(found["work"][name], found["work"]["none"], strict=True)]
            ),
            "seconds lost a checkpoint, median": middle([a - b for a, b in pairs]),
            "seconds of the call, median": middle(found["calls"][name]),
            "not finished when the interval was": found["late"][name],
            "seconds to save, alone": middle(both[f"{name} save"]),
            "seconds to load, alone": middle(both[f"{name} load"]),
        }
    answer |= recovered
    print(json.dumps(answer, indent=1))


if __name__ == "__main__":
    main()
