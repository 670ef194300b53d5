"""Who talks with whom: the groups over which weights, gradients and optimizer states are cut.

A communicator's time is booked under the outermost axis that its groups spread over. Gathers and reductions have
streams of their own, or are one communicator's, which then runs one after the other in the order of their starts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from twin.description.grid import Mesh
from twin.schedule.communicator import Communicator
from twin.strategies.fsdp.job import FsdpJob, Grid
from twin.strategies.offload import streams


@dataclass(frozen=True)
class Groups:
    """Names of the communicators of a grid."""

    grid: Grid
    together: bool = False
    """Weights are gathered and their gradients reduced by one communicator."""
    secondary: str = "weights_secondary"
    """Those that share a second copy."""
    optimizer: str = "optimizer_scatter"
    """Ranks that share optimizer states and nothing else."""
    data: str = "data"
    """Ranks that share nothing."""

    @classmethod
    def of(cls, job: FsdpJob) -> Groups:
        """Return those of a job."""
        return cls(job.concrete_grid, job.reduces_where_it_gathers)

    @property
    def gather(self) -> str:
        """Ranks that share weights."""
        return "weights" if self.together else "weights_gather"

    @property
    def scatter(self) -> str:
        """Ranks that share gradients: the same ones where one communicator does both."""
        outermost = self._outermost("gradients", "weights")
        return self.gather if self.together and outermost == "weights" else f"{outermost}_scatter"

    @property
    def inside(self) -> str:
        """The first of two hops among them: inside nodes."""
        return f"{self._outermost('gradients', 'weights')}_inside"

    @property
    def between(self) -> str:
        """The second: ranks of equal place in their nodes."""
        return f"{self._outermost('gradients', 'weights')}_between"

    @property
    def update(self) -> str:
        """Ranks that hold equal weights after a step, and update parts of them."""
        return f"{self._outermost('optimizer', 'gradients')}_gather"

    @property
    def replicas(self) -> str:
        """All ranks that work on different sequences."""
        return f"{self._outermost(*self.grid.batch_axes)}_everyone"

    def _outermost(self, *axes: str) -> str:
        return next((axis for axis in axes if self.grid.size(axis) > 1), axes[-1])


def communicators(job: FsdpJob, mesh: Mesh) -> tuple[Communicator, ...]:
    """Return all of them; those of one rank do no harm. Ranks that share layers are neighbours."""
    names, node = Groups.of(job), job.machine.devices_per_node
    grid = job.concrete_grid
    sizes = (*(grid.size(axis) for axis in grid.batch_axes), grid.tensor)
    ranks = np.arange(mesh.ranks, dtype=np.int64).reshape(sizes)

    def over(name: str, axes: Sequence[int]) -> Communicator:
        rest = [axis for axis in range(ranks.ndim) if axis not in axes]
        size = int(np.prod([sizes[axis] for axis in axes]))
        return Communicator.of(name, ranks.transpose([*rest, *axes]).reshape(-1, size))

    data, optimizer, gradients, weights, tensor = range(5)
    found = [
        over(names.data, [data]),
        over(names.optimizer, [optimizer]),
        over(names.gather, [weights]),
        *([over(names.scatter, [gradients, weights])] if names.scatter != names.gather else []),
        over(names.update, [optimizer, gradients]),
        over(names.replicas, [data, optimizer, gradients, weights]),
    ]
    if grid.tensor > 1:
        found.append(over("tensor", [tensor]))
    if job.secondary is not None:
        found.append(Communicator.of(names.secondary, ranks.reshape(-1, job.secondary)))
    if job.quantized_gradients:
        nodes = ranks.reshape(-1, grid.gradient_parts // node, node)
        found.append(Communicator.of(names.inside, nodes.reshape(-1, node)))
        found.append(Communicator.of(names.between, nodes.transpose(0, 2, 1).reshape(-1, nodes.shape[1])))
    if job.offload is not None:
        found += streams(mesh.ranks)
    return tuple(found)
