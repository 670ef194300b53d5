"""The schedule of a step of a user's own model under `auto_parallelize`.

Products and collectives of the layers that were cut have names. What the rest of the model does is taken from its
aten kernels (`runtime.recorder.aten`): matrix products, convolutions and attention one by one, all else between two
ops as one op bounded by memory, with what its kernels read and write.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from runtime.auto.parallel import Parallel
from runtime.parallel.mesh import Mesh
from runtime.parallel.ops import Op
from runtime.recorder.aten import bytes_of, kernels_of, unknown
from runtime.recorder.launches import Launches
from runtime.recorder.listener import ScheduleListener, T
from runtime.recorder.world import fake_world, without_numbers
from twin.description.problems import fail
from twin.schedule.kernels import Attention, Kernel, Memory
from twin.schedule.ops import Compute, Phase
from twin.schedule.recording import Recording, check
from twin.strategies.four_d.grid import Grid

LOG = logging.getLogger("fourfold")
Step = Callable[[], object]
Build = Callable[[Mesh], tuple[Parallel, Step]]
"""Makes the model under `auto_parallelize(mesh)`; returns what that gave and one training step."""


def record_step(grid: Grid, rank: int, build: Build, *, warm_up: int = 1) -> Recording:
    """Run a step of a model of the user's own on one rank of a grid and write down what it does.

    `build` and the step run without peers and without numbers: they must not look at values
    (`.item()`, printing a loss). The first `warm_up` steps are not recorded: the order in which
    weights are gathered is learnt in the first. Kernels that multiply in a way that is not known here are named
    in a warning of the logger `fourfold`. Raises DescriptionError if the step cannot be recorded.
    """
    with fake_world(grid, rank) as mesh, without_numbers():
        parallel, step = build(mesh)
        for _ in range(warm_up):
            step()
        launches = Launches()
        listener = OwnListener(launches)
        launches.watch = listener.saw
        parallel.context.ops.listener = listener
        try:
            with launches, listener.following_optimizers():
                step()
        finally:
            parallel.context.ops.listener = None
        listener.flush()
    if listener.unknown:
        LOG.warning(
            "record_step: %s: priced by the bytes that they read and write; their arithmetic is not known here",
            ", ".join(listener.unknown),
        )
    if not listener.ops:
        raise fail("step", "did nothing that could be recorded; it should train the model once")
    check(listener.schedule, grid.mesh)
    return Recording(grid.mesh, rank, listener.schedule)


@dataclass
class OwnListener(ScheduleListener):
    """Also writes down work that has no name, in the order in which it is launched."""

    unknown: dict[str, None] = field(default_factory=dict)
    """Kernels whose flops are not in the schedule."""
    _bytes: float = 0.0
    _flops: float = 0.0
    _kernels: int = 0
    _phase: Phase = "fwd"
    _updating: bool = False

    def compute(self, op: Op, run: Callable[[], T]) -> T:
        """Do device work that has a name."""
        self.flush()
        return super().compute(op, run)

    def start(self, op: Op, run: Callable[[], T]) -> T:
        """Start a collective."""
        self.flush()
        return super().start(op, run)

    def wait(self, op: Op, run: Callable[[], T]) -> T:
        """Wait for a collective."""
        self.flush()
        return super().wait(op, run)

    def saw(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any) -> None:
        """Take note of a kernel, if it belongs to no named op."""
        if self.inside:
            return
        if func.namespace in ("c10d", "_c10d_functional"):
            raise fail(
                "step",
                f"starts a collective of its own ({func}), whose axis is not known; use what auto_parallelize gives",
            )
        if (phase := self._current_phase()) != self._phase:
            self.flush()
            self._phase = phase
        kernels = kernels_of(func, args, kwargs, result)
        if not kernels:
            if unknown(func):
                self.unknown[str(func)] = None
            kernels = [Memory(bytes_of(func, args, kwargs, result))]
        for kernel in kernels:
            if isinstance(kernel, Memory):
                self._bytes += kernel.bytes
                self._flops += kernel.flops
                self._kernels += kernel.kernels
            else:
                self.flush()
                self._write("attention" if isinstance(kernel, Attention) else "gemm", kernel)

    def flush(self) -> None:
        """Write down as one op what was launched since the last one."""
        if self._kernels:
            self._write("elementwise", Memory(self._bytes, self._kernels, self._flops))
        self._bytes, self._flops, self._kernels = 0.0, 0.0, 0

    def _write(self, name: str, kernel: Kernel) -> None:
        full = self.unique(f"{self._phase}/serial/{name}")
        self.ops.append(Compute(full, self._phase, kernel))

    def _current_phase(self) -> Phase:
        if self._updating:
            return "optimizer"
        return "bwd" if torch._C._current_graph_task_id() != -1 else "fwd"

    @contextmanager
    def following_optimizers(self) -> Iterator[None]:
        """Tell optimizer steps from the rest, whichever optimizer it is."""

        def set_to(updating: bool) -> Callable[..., None]:
            def hook(*_: Any) -> None:
                self._updating = updating

            return hook

        hooks = (register_optimizer_step_pre_hook(set_to(True)), register_optimizer_step_post_hook(set_to(False)))
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()
