"""Looking at held-out text while training: the data set's own, and each set of `train.evaluation.sets`."""

from __future__ import annotations

from collections.abc import Mapping

from runtime.inference.loss import validation_loss
from runtime.plan.sources import Sources, batches_of
from runtime.step.trainee import Trainee

LOSS = "validation_loss"
"""Name of the metric; that of a set with a name is `validation_loss/NAME`, which TensorBoard shows in one group."""


class Evaluation:
    """Losses on the first so many held-out sequences of every set."""

    def __init__(self, trainee: Trainee, sources: Sources, sequences: int) -> None:
        self.trainee, self.sequences = trainee, sequences
        job = trainee.context.job
        self.held_out = {LOSS: sources.held_out(job)}
        for name, data in sources.evaluated.items():
            self.held_out[f"{LOSS}/{name}"] = batches_of(data.validation, job, shuffle=False)

    def look(self) -> dict[str, float]:
        """Return losses in nats per token by the names of their metrics; every rank must call it, and gets the same."""
        return {name: validation_loss(self.trainee, found, self.sequences) for name, found in self.held_out.items()}


def told(losses: Mapping[str, float]) -> str:
    """Write an evaluation down for people.

    >>> told({"validation_loss": 1.5, "validation_loss/code": 0.25})
    'validation loss 1.5000 nats per token; code 0.2500'
    """
    others = [f"{name.removeprefix(LOSS + '/')} {loss:.4f}" for name, loss in losses.items() if name != LOSS]
    return "; ".join([f"validation loss {losses[LOSS]:.4f} nats per token", *others])
