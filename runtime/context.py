"""What the layers of one model share: mesh, named ops, collectives, gathered weights, parameters."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from runtime.collectives import Collectives
from runtime.gathers import WeightGathers
from runtime.gemm import Gemms
from runtime.mesh import Mesh
from runtime.ops import Ops
from runtime.store import ParameterStore
from twin.description.job import Job

PRECISIONS = {"bf16": torch.bfloat16, "fp32": torch.float32}


@dataclass
class Context:
    """Made once for a model on a rank, and handed to every layer."""

    job: Job
    mesh: Mesh
    device: torch.device
    compute_type: torch.dtype
    master_type: torch.dtype
    ops: Ops = field(default_factory=Ops)
    gemms: Gemms = field(default_factory=Gemms)
    compile: bool = False
    """Let torch.compile fuse element-wise work."""
    step: int = 0
    """Counts optimizer steps; dropout masks depend on it."""
    first_sequence: int = 0
    """Place in the global order of the first sequence of the micro-step."""
    training: bool = True
    initialised: bool = True
    """Whether parameters get the numbers they start from."""
    collectives: Collectives = field(init=False)
    gathers: WeightGathers = field(init=False)
    store: ParameterStore = field(init=False)

    def __post_init__(self) -> None:
        overlap = self.job.overlap
        # direct exchanges are what gloo is fast at; see runtime.collectives
        self.collectives = Collectives(self.mesh, self.ops, direct=self.device.type == "cpu")
        self.gathers = WeightGathers(
            self.collectives,
            depth=overlap.prefetch_depth if overlap.all_gather else None,
            most_in_flight=self.job.scatters_in_flight,
        )
        self.store = ParameterStore(
            self.mesh.grid,
            dict(self.mesh.coordinates),
            self.job.seed,
            self.master_type,
            self.compute_type,
            self.device,
            self.initialised,
        )

    @classmethod
    def of_job(
        cls, job: Job, mesh: Mesh, device: torch.device, *, compile_: bool = False, initialised: bool = True
    ) -> Context:
        """Make the context of a job: compute in its precision, master weights in fp32."""
        return cls(
            job, mesh, device, PRECISIONS[job.precision], torch.float32, compile=compile_, initialised=initialised
        )
