"""The trainings of a study: every model with every mask and k, for every seed."""

from __future__ import annotations

from dataclasses import dataclass

from runtime.memorize.study import EVERY_TARGET, LoadedStudy
from twin.description.job import Job
from twin.description.train import GoldfishLoss, Mask


@dataclass(frozen=True)
class Setting:
    """What is compared: a model, and how its targets are dropped."""

    model: str
    """Name of the model; empty if the study has one only."""
    mask: Mask | None
    """None where every target counts."""
    k: int | None

    @property
    def k_name(self) -> str:
        """The value of k, for people."""
        return EVERY_TARGET if self.k is None else str(self.k)

    @property
    def mask_name(self) -> str:
        """The mask, for people."""
        return self.mask or "none"


@dataclass(frozen=True)
class Cell:
    """One training."""

    number: int
    setting: Setting
    seed: int
    """Of weights, order and the choice of texts."""

    def job(self, job: Job, h: int) -> Job:
        """Return the job of this training, of its model's."""
        k, mask = self.setting.k, self.setting.mask
        loss = None if k is None or mask is None else GoldfishLoss(k=k, h=h, mask=mask)
        train = job.train.model_copy(update={"goldfish": loss})
        return job.model_copy(update={"train": train, "seed": self.seed})


def cells_of(loaded: LoadedStudy) -> list[Cell]:
    """Return all trainings, seed by seed, so that the first results cover the whole study.

    Without dropped targets all masks are the same, so they are trained once.
    """
    study = loaded.study
    settings = [
        Setting(model, None if k is None else mask, k)
        for model in loaded.jobs
        for mask, values in study.masks.items()
        for k in values
    ]
    found = [
        (setting, loaded.jobs[setting.model].seed + number)
        for number in range(study.seeds)
        for setting in dict.fromkeys(settings)
    ]
    return [Cell(number, setting, seed) for number, (setting, seed) in enumerate(found)]
