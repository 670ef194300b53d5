"""What a step's energy is in a facility, in carbon and in money; what is not known stays unknown.

Boundaries are told apart: the job's devices alone; their nodes, if it is said what a node draws besides devices, with
those of its devices that the job leaves idle; the facility, if its PUE is said too. Carbon and money are of the widest
boundary that is known, and only if intensity or tariff is said. Of devices that do not say what they draw by kind of
work, which count at their power limit while they compute, no more is known than that.
"""

from __future__ import annotations

from typing import Any, Literal

from twin.description.job import Job

KWH_JOULES = 3.6e6
Boundary = Literal["devices", "nodes", "facility"]


def bill(job: Job, device_joules: float, seconds: float, tokens: float) -> dict[str, Any]:
    """Return joules by boundary, joules a token, carbon and cost of some seconds in which so many tokens are trained.

    Keys whose inputs are missing have the value None.
    """
    given = job.energy if job.machine.device.power is not None else None
    nodes = -(-job.ranks // job.machine.devices_per_node)
    unused = nodes * job.machine.devices_per_node - job.ranks
    idle_joules = unused * job.machine.device.idle_watts * seconds
    node_watts = None if given is None else given.node_watts
    pue = None if given is None else given.pue
    of_nodes = None if node_watts is None else device_joules + idle_joules + nodes * node_watts * seconds
    inside = device_joules if of_nodes is None else of_nodes
    of_facility = None if pue is None or of_nodes is None else of_nodes * pue
    boundary: Boundary = "facility" if of_facility is not None else "nodes" if of_nodes is not None else "devices"
    widest = inside if of_facility is None else of_facility
    grams = None if given is None else given.grams_per_kwh
    price = None if given is None else given.price_per_kwh
    return {
        "devices_joules": device_joules,
        "nodes_joules": of_nodes,
        "facility_joules": of_facility,
        "boundary": boundary,
        "joules": widest,
        "joules_per_token": widest / tokens if tokens else None,
        "carbon_kg": None if grams is None else widest / KWH_JOULES * grams / 1e3,
        "cost": None if price is None else widest / KWH_JOULES * price,
        "currency": None if given is None or price is None else given.currency,
    }


_FIELDS = {"energy.node": "node_watts"}


def missing(job: Job) -> list[str]:
    """Name the inputs that are not given, as a sentence can end with them."""
    given, device = job.energy, job.machine.device
    if device.power is None:
        of_device = f"what {device.name} draws by kind of work (machine.device.power)"
        return [f"{of_device}; it is counted at its power limit while it computes"]
    wanted = {
        "energy.node": "what a node draws besides its devices",
        "energy.pue": "the facility's PUE",
        "energy.grams_per_kwh": "the carbon intensity",
        "energy.price_per_kwh": "the tariff",
    }
    return [
        f"{words} ({path})"
        for path, words in wanted.items()
        if given is None or getattr(given, _FIELDS.get(path, path.partition(".")[2])) is None
    ]
