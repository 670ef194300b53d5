"""What the parts of a training step share on a rank: mesh, named ops, collectives, parameters."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import Self

import torch

from runtime.parallel.buffers import Buffers
from runtime.parallel.collectives import Collectives
from runtime.parallel.mesh import Mesh
from runtime.parallel.ops import Ops, Place
from runtime.step.activations import ActivationTier, Leave, activations_of
from runtime.step.copies import Copies
from runtime.step.products import MatrixProducts, products_on
from runtime.weights.store import ParameterStore
from twin.description.grid import Axis
from twin.description.job import Job

PRECISIONS = {"bf16": torch.bfloat16, "fp32": torch.float32}


@dataclass
class Context:
    """Made once for a model on a rank, and handed to every layer. Strategies add what is theirs."""

    job: Job
    mesh: Mesh
    device: torch.device
    compute_type: torch.dtype
    master_type: torch.dtype
    ops: Ops = field(default_factory=Ops)
    compile: bool = False
    """Let torch.compile fuse element-wise work."""
    step: int = 0
    """Counts optimizer steps; dropout masks depend on it."""
    first_sequence: int = 0
    """Place in the global order of the first sequence of the micro-step."""
    training: bool = True
    initialised: bool = True
    """True if parameters get the numbers they start from."""
    layers_over: Axis | None = None
    """The axis whose ranks divide the layers of a plain model among them; None: each has all."""
    products: MatrixProducts = field(init=False)
    """How linear layers multiply."""
    collectives: Collectives = field(init=False)
    store: ParameterStore = field(init=False)
    copies: Copies = field(init=False)
    activations: ActivationTier | None = field(init=False, default=None)
    """Where inputs of recomputed blocks lie, if not on the device."""

    def __post_init__(self) -> None:
        # direct exchanges are what gloo is fast at; see runtime.parallel.collectives. What is recorded talks to nobody
        on_cpu = self.device.type == "cpu" and self.initialised
        self.products = products_on(self.device, self.job.train.gemm_library)
        self.collectives = Collectives(self.mesh, self.ops, direct=on_cpu, buffers=Buffers(kept=on_cpu))
        self.store = ParameterStore(
            self.mesh.grid,
            dict(self.mesh.coordinates),
            self.job.seed,
            self.master_type,
            self.stored_type,
            self.device,
            self.initialised,
            adapters_only=self.job.lora is not None,
        )
        self.copies = Copies(self.ops, named=self.device_kind != "cpu")
        self.activations = activations_of(self.job, self.device, self.copies)

    def leave_of(self, layer: int) -> Leave | None:
        """Return what lets a recomputed block's input go until its backward pass; None: it stays on the device.

        The last block's stays: it is wanted at once.
        """
        if self.activations is None or layer == self.job.model.layers - 1:
            return None
        return partial(self.activations.leave, place=Place(f"block{layer}", layer))

    def inputs_gone(self) -> None:
        """Let the device's work wait, at the end of a forward pass, until inputs that leave it are gone."""
        if self.activations is not None:
            self.activations.all_gone()

    def inputs_back(self) -> None:
        """Let the first of them come back: a backward pass begins."""
        if self.activations is not None:
            self.activations.begin()

    @classmethod
    def of_job(
        cls, job: Job, mesh: Mesh, device: torch.device, *, compile_: bool = False, initialised: bool = True
    ) -> Self:
        """Make the context of a job: compute in its precision, master weights in fp32."""
        return cls(
            job, mesh, device, PRECISIONS[job.precision], torch.float32, compile=compile_, initialised=initialised
        )

    @property
    def device_kind(self) -> str:
        """What computes; what is only recorded stands for the devices of the job, wherever its tensors lie."""
        return self.device.type if self.initialised else self.job.machine.device.type

    @property
    def stored_type(self) -> torch.dtype:
        """Of the weights that the store has for layers to compute with."""
        return self.compute_type

    @property
    def optimizer_parts(self) -> int:
        """Ranks along the outermost axis that share the optimizer's states among them; 1: each has all."""
        return 1

    @property
    def shares_at_once(self) -> bool:
        """Whether those ranks gather what each has updated as soon as it has; else the strategy does, in its time."""
        return True

    @property
    def counted_copies(self) -> int:
        """Ranks of those along `sharded_over` that count the same numbers."""
        return 1

    @property
    def sharded_over(self) -> tuple[str, ...]:
        """Communicators over which ranks hold different parameters, in the order in which norms are summed."""
        return ()
