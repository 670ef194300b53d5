"""Copies to and from drives beside each other: more of a rate is never slower."""

from __future__ import annotations

from itertools import pairwise

import pytest

from twin.engine.simulate import simulate
from twin.strategies import load_job


@pytest.mark.parametrize("key", ["read", "write"])
def test_faster_drives_are_never_slower(key: str) -> None:
    """What is written counts as what could be read meanwhile, which took its share of the host's memory from writes."""
    steps = []
    for rate in (3, 6.5, 13, 26, 100, 1000):
        job = load_job(
            {
                "strategy": "fsdp",
                "flavour": "deepspeed",
                "model": {"layers": 4, "hidden": 2048, "heads": 16, "sequence": 1024, "vocabulary": 8192},
                "machine": {"extends": "rtx-4090-ssd", "disk": {key: f"{rate} GB/s"}},
                "ranks": 1,
                "grid": {"weights": 1},
                "batch": {"sequences": 1, "micro_sequences": 1},
                "clip_gradients": False,
                "offload": {
                    "optimizer": {"to": "disk", "sub_group_elements": 10**8},
                    "parameters": "disk",
                    "activations": "host",
                },
            }
        )
        steps.append(simulate(job).step_seconds)
    assert all(faster <= slower * (1 + 1e-9) for slower, faster in pairwise(steps))
    assert steps[-1] < steps[0]
