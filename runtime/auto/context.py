"""What the parallel linears of one `auto_parallelize` share."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist

from runtime.auto.arrivals import Arrivals
from runtime.auto.gathers import BlockGathers
from runtime.parallel.collectives import Collectives
from runtime.parallel.mesh import Mesh
from runtime.parallel.ops import Ops
from runtime.strategies.four_d.gemm import Gemms
from twin.description.train import GemmLibrary


@dataclass
class AutoContext:
    """Mesh, named ops, collectives, and weights and gradients on their way."""

    mesh: Mesh
    overlap: bool
    """OAR, ORS and OAG, all or none."""
    prefetch_depth: int
    gemm_library: GemmLibrary = "auto"
    ops: Ops = field(default_factory=Ops)
    gemms: Gemms = field(init=False)
    collectives: Collectives = field(init=False)
    gathers: BlockGathers = field(init=False)
    arrivals: Arrivals = field(init=False)

    def __post_init__(self) -> None:
        self.gemms = Gemms.on(torch.device("cpu"), self.gemm_library)
        self.collectives = Collectives(self.mesh, self.ops, direct=self.gloo)
        self.gathers = BlockGathers(self.collectives, depth=self.prefetch_depth if self.overlap else 0)
        self.arrivals = Arrivals(self.overlap and self.mesh.grid.size("z") > 1)

    @property
    def gloo(self) -> bool:
        """True if collectives run on gloo, which takes tensors of the host."""
        return self.mesh.everyone is None or dist.get_backend(self.mesh.everyone) == "gloo"

    @property
    def recorded(self) -> bool:
        """True if the ranks are not there and tensors have no numbers (`runtime.recorder`)."""
        return self.mesh.everyone is not None and dist.get_backend(self.mesh.everyone) == "fake"

    def __deepcopy__(self, _memo: dict[int, Any]) -> AutoContext:
        """Share it: a copied model (an average of weights, say) runs on the same ranks."""
        return self
