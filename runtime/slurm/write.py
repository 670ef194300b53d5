"""A job to a complete sbatch script.

Values of the job stand in the script quoted for the shell, each in one place, never in a comment
or a `#SBATCH` line: whatever a name contains, it stays a name.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from shlex import quote

from runtime.launch.environment import SLURM_PORTS
from runtime.plan.options import settled
from twin.description.job import Job
from twin.description.machine import Machine
from twin.description.problems import fail

JOB_NAME_LENGTH = 64
"""`squeue` shows less, but file names are made of it."""


@dataclass(frozen=True)
class Site:
    """What a script needs to know of a machine beyond its description."""

    template: str
    devices_per_node: int
    """Devices that the template's own numbers (cores, order of devices) are for."""
    words: Mapping[str, str] = field(default_factory=dict)
    """What the template leaves open."""


SITES: Mapping[str, Site] = {
    "perlmutter": Site("perlmutter", 4, {"CONSTRAINT": "gpu"}),
    "perlmutter-80gb": Site("perlmutter", 4, {"CONSTRAINT": "gpu&hbm80g"}),
    "frontier": Site("frontier", 8),
    "alps": Site("alps", 4),
}


def script(job: Job, path: Path, overrides: Sequence[str]) -> str:
    """Write the sbatch script that trains a job, whose grid must be concrete, on its machine.

    `path` and `overrides` are repeated as given, so relative paths start where the script is
    submitted. Raises DescriptionError if a value cannot stand on a command line.
    """
    machine = job.machine
    devices = machine.devices_per_node
    nodes = -(-job.ranks // devices)
    site = site_of(machine)
    # With a partly filled node SLURM would spread the tasks evenly, and tensor parallelism that fits into
    # a node would cross it. Packing is by cores, whose number is known on known machines only.
    distribution = "block" if site is None or job.ranks % devices == 0 else "block,Pack"
    words = {
        "JOB_NAME": _job_name(job.name),
        "NAME": _word("name", job.name),
        "JOB": _word("job", _as_operand(path)),
        "SETTINGS": _settings(job, overrides),
        "RANKS": str(job.ranks),
        "NODES": str(nodes),
        "TASKS": str(min(devices, job.ranks)),
        "GPUS": f" --gpus-per-node={devices}" if machine.device.type == "gpu" else "",
        "DISTRIBUTION": distribution,
        "FIRST_PORT": str(SLURM_PORTS[0]),
        "PORTS": str(SLURM_PORTS[1] - SLURM_PORTS[0]),
        **(site.words if site else {}),
    }
    text = _template(site.template if site else "generic") + _template("run")
    return re.sub(r"@([A-Z_]+)@", lambda found: words[found[1]], text)


def site_of(machine: Machine) -> Site | None:
    """Return what is known of a machine by its name, also if it was modified; None: nothing.

    A machine with another number of devices in a node is another machine.
    """
    base = re.sub(r"( \(modified\))+$", "", machine.name.strip()).casefold()
    site = SITES.get(base)
    return site if site is not None and site.devices_per_node == machine.devices_per_node else None


def _template(name: str) -> str:
    return (files("runtime.slurm") / "templates" / f"{name}.sh").read_text(encoding="ascii")


def _settings(job: Job, overrides: Sequence[str]) -> str:
    """Overrides as given, then what the job leaves to Fourfold, settled here once for all ranks."""
    texts = dict.fromkeys((*overrides, *settled(job)))
    return "\n".join(f"    --set {_word('--set', text)} \\" for text in texts)


def _as_operand(path: Path) -> str:
    """Keep a path from being taken for an option."""
    return f"./{path}" if str(path).startswith("-") else str(path)


def _word(key: str, text: str) -> str:
    """Quote one word for the shell."""
    if "\0" in text:
        raise fail(key, "contains a zero byte, which no command line can carry; leave it out", text)
    return quote(text)


def _job_name(name: str) -> str:
    """What is left of a name where nothing can be quoted: in `#SBATCH` lines and file names."""
    plain = re.sub(r"[^A-Za-z0-9._-]+", "_", name).strip("_.-")
    return plain[:JOB_NAME_LENGTH] or "fourfold"
