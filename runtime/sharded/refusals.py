"""What a job may ask of the twin and no strategy that divides weights with `fully_shard` does here."""

from __future__ import annotations

from twin.description.problems import Problem


def of_others(separate_reduction_group: bool | None, loss_in_place: bool | None) -> list[Problem]:
    """Refuse what other programs have: one communicator for gathers and reductions, a loss that copies logits."""
    trained = {
        "separate_reduction_group": (separate_reduction_group, "reduces gradients by a communicator of their own"),
        "loss_in_place": (loss_in_place, "has a loss of its own"),
    }
    return [
        Problem(key, f"is for simulation; the runtime {does}: leave it out", False)
        for key, (asked, does) in trained.items()
        if asked is False
    ]
