"""The published communication model: it ranks grids, it does not predict times.

Section 7 of the algorithm (arXiv 2502.08145, section V-B), with the factors that the authors
coded (github axonn-ai/Megatron-AxoNN, branch gordon-bell-perlmutter, examples/comm_model.py):
ring collectives, no latency, compute ignored; three passes over z (gather, gather again for
the recomputation, reduce-scatter; in the types of `communication_precision`), the forward
all-reduce counted twice, fp32 gradients over data.

The sizes of the linears are those of section 7. The authors' script counts the transposed MLP
layer as h → 4h, though it is 4h → h; that prefers x 8 and y 2 over x 8 and y 4 for GPT-320B,
little else.
"""

from __future__ import annotations

from twin.description.machine import Machine
from twin.strategies.four_d.grid import Axis, Grid
from twin.strategies.four_d.job import FourDJob
from twin.strategies.sizes import FP32_BYTES


def axis_bandwidth(machine: Machine, grid: Grid, axis: Axis) -> float:
    """Bytes per second of one group of an axis while all groups of that axis communicate.

    Inside a node the table that the authors measured if the machine has it, else what the
    fabric gives; across nodes the node's rate divided by the groups that share it.
    """
    inner, size = grid.inner(axis), grid.size(axis)
    node = machine.devices_per_node
    ranking = machine.ranking
    if inner * size <= node:
        if ranking is not None:
            for entry in ranking.inside:
                if (entry.inner, entry.size) == (inner, size):
                    return float(entry.bandwidth_bytes_per_second)
        return _fabric_rate(machine)
    if ranking is not None:
        outside = float(ranking.between_bytes_per_second)
    else:
        outside = len(machine.nic.devices) * machine.nic.rate_bytes_per_second
    return outside / min(node, inner)


def _fabric_rate(machine: Machine) -> float:
    fabric = machine.fabric
    if fabric.port_bandwidth_bytes_per_second is not None:
        return fabric.port_bandwidth_bytes_per_second * fabric.efficiency
    out: dict[int, float] = {}
    for link in fabric.links:
        for device in link.devices:
            out[device] = out.get(device, 0.0) + link.bandwidth_bytes_per_second
    return min(out.values(), default=float("inf")) * fabric.efficiency


def communication_seconds(job: FourDJob, grid: Grid) -> float:
    """Seconds of communication that the published model gives a grid: a rank key, not a time."""
    model, e = job.model, job.element_bytes
    # over z: a weight is gathered, and again for a recomputation, and its gradient scattered
    trains = job.lora is None  # adapters are too small to count
    over_z = (2 if job.recompute else 1) * job.gather_element_bytes + trains * job.scatter_element_bytes
    passes = over_z / e
    machine = job.machine
    beta = {axis: axis_bandwidth(machine, grid, axis) for axis in grid_axes()}
    rows = job.batch.sequences / (grid.data * grid.z) * model.sequence
    inside = grid.x * grid.y
    micro_steps = (
        1.0
        if job.batch.micro_sequences == "auto"
        else (job.batch.sequences / (grid.data * grid.z * job.batch.micro_sequences))
    )
    total = 0.0
    for index, (n, k) in enumerate(model.block_linears.values()):
        transposed = index % 2 == 1
        c, o = (grid.y, grid.x) if transposed else (grid.x, grid.y)
        beta_c, beta_o = (beta["y"], beta["x"]) if transposed else (beta["x"], beta["y"])
        total += micro_steps * passes * _ring(grid.z) * k * n / inside * e / beta["z"]
        total += (2 if job.recompute else 1) * 2 * _ring(c) * rows * n / o * e / beta_c
        total += 2 * _ring(o) * rows * k / c * e / beta_o
        total += trains * 2 * _ring(grid.data) * k * n / (inside * grid.z) * FP32_BYTES / beta["data"]
    return total * model.layers


def grid_axes() -> tuple[Axis, ...]:
    """Return the axes, innermost first."""
    return ("x", "y", "z", "data")


def _ring(size: int) -> float:
    return (size - 1) / size
