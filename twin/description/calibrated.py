"""What `fourfold calibrate` can make a machine of, known before it measures."""

from __future__ import annotations

from twin.description.problems import fail


def check_alone(device_type: str, ranks: int) -> None:
    """Refuse GPUs that were measured together: what a library of theirs does is not fitted, and would be too slow."""
    if device_type != "cpu" and ranks > 1:
        raise fail(
            "ranks",
            "links between GPUs are not fitted: messages of a few MiB tell nothing of what collectives reach. Measure "
            "one GPU with one rank, and give its `device` to a machine that describes its node (`extends: dgx-h100`)",
            ranks,
        )
