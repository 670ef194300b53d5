"""The directory of a run, or of an import, opened to be asked: its job for the ranks that are there, its weights.

Nothing is written: the run may be training meanwhile, or lie where nobody may write. No torch here, so that what is
wrong is said before any rank starts.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runtime.checkpoint.directory import newest_first, step_of
from runtime.data.manifest import MANIFEST, OF_TOKENIZER, TOKENIZER
from runtime.data.tokenizer import ByteTokenizer, JsonTokenizer, Tokenizer, load_tokenizer
from runtime.data.words import has_words, words_of
from runtime.plan.options import located
from runtime.records.run_directory import CHECKPOINTS, COMPANIONS, IMPORTED, JOB, RUN, examine_run
from twin.description.job import Job
from twin.description.load import apply_override
from twin.description.mixture import parts_of
from twin.description.problems import DescriptionError, fail
from twin.strategies import load_job

NOT_ASKED: Mapping[str, Any] = {"stragglers": [], "degraded": [], "placement": "contiguous"}
"""Keys of a job that name ranks and nodes it was trained on, or simulated with."""
DATA = "data"
"""Key of `run.json`: what the data set says about itself."""
MAX_NAMED = 8
"""Checkpoints that a message names one by one."""


@dataclass(frozen=True)
class TrainedRun:
    """A run, and how it is to be asked."""

    folder: Path
    job: Job
    """As it was trained, but on the ranks that ask."""
    data: Mapping[str, Any]
    """What the data set that it was trained on says about itself."""
    checkpoints: tuple[Path, ...]
    """Those that may be loaded, the wanted one first; none of an import."""
    left_out: tuple[str, ...] = ()
    """Keys of the job that the grid it is asked on cannot have."""

    @property
    def imported(self) -> bool:
        """Whether it is what `fourfold import` has written, and nothing has been trained."""
        return not self.checkpoints

    def tokenizer(self) -> Tokenizer:
        """Return the tokenizer of the data set that the run was trained on."""
        if self.imported:
            return JsonTokenizer(self.folder / COMPANIONS / TOKENIZER)
        if self.data.get("tokenizer") == "bytes":
            return ByteTokenizer()
        directory = self.check_there(Path(parts_of(self.job.train.data)[0].path))
        found = load_tokenizer(directory)
        self.check_tokenizer({"vocabulary": found.vocabulary, "separator": found.separator}, directory)
        return found

    def check_there(self, directory: Path) -> Path:
        """Return the directory of the run's data set, if there is one."""
        if not directory.is_dir():
            raise fail(
                str(directory),
                "the data set of the run is not there any more; say where it is now: --set train.data=DIR",
            )
        return directory

    def check_tokenizer(self, manifest: Mapping[str, Any], directory: Path) -> None:
        """Refuse a data set of another tokenizer: its tokens would be other words to the model."""
        self._check_words(manifest, directory)
        if self.imported:
            return  # it has no data set to compare with
        for key in OF_TOKENIZER:
            if key in manifest and manifest[key] != self.data.get(key):
                raise fail(
                    str(directory),
                    f"has {key} {manifest[key]}, but the run was trained with {self.data.get(key)}; give a data set "
                    "made with the tokenizer of the run, or text",
                )

    def _check_words(self, manifest: Mapping[str, Any], directory: Path) -> None:
        """Compare word by word with the tokenizer that is known of the model: equal sizes are no equal words."""
        known, where = self._words()
        if known is None or where.parent == directory:
            return
        used = None if manifest.get("tokenizer") == "bytes" else words_of(directory / TOKENIZER)
        if not has_words(used, known):
            what = "bytes" if used is None else f"tokens of {directory / TOKENIZER}"
            raise fail(
                str(directory),
                f"is in {what}, which are other words to a model that knows those of {where}; build it with that one "
                f"(`fourfold data DIR --tokenizer {where}`), or give text",
            )

    def _words(self) -> tuple[Mapping[str, int] | None, Path]:
        """Return the words that the model knows, and where that is said: beside its weights, or beside its data."""
        beside = self.folder / COMPANIONS / TOKENIZER
        if self.imported or beside.is_file():
            return words_of(beside), beside
        if self.data.get("tokenizer") == "bytes":
            return None, beside
        trained = Path(parts_of(self.job.train.data)[0].path) / TOKENIZER
        return (words_of(trained) if self._was_trained_on(trained.parent) else None), trained

    def _was_trained_on(self, directory: Path) -> bool:
        """Tell whether a data set is still what the run was trained on first, and no other that lies there now."""
        first: Any = self.data
        if isinstance(mixture := self.data.get("mixture"), list) and mixture and isinstance(mixture[0], Mapping):
            first = mixture[0].get("data")
        try:
            written = json.loads((directory / MANIFEST).read_text(encoding="utf-8"))
            return bool(written["train"]["sha256"] == first["train"]["sha256"])
        except (OSError, ValueError, RecursionError, KeyError, TypeError):
            return False


def open_run(path: Path, overrides: Sequence[str], ranks: int, step: int | None) -> TrainedRun:
    """Open a run, or one of its checkpoints, for so many ranks; raises DescriptionError."""
    if path.parent.name == CHECKPOINTS and (path.parent.parent / RUN).is_file() and step is None:
        path, step = path.parent.parent, _step_named(path)
    if not path.is_dir():
        raise fail(str(path), "no such run; name the directory that `fourfold train --out` has written")
    if (path / IMPORTED).is_file() and not (path / RUN).exists():
        return _imported(path, overrides, ranks, step)
    if not (path / RUN).is_file():
        raise fail(str(path), f"is not a run: {RUN} is missing; name the directory that `fourfold train` has written")
    described = examine_run(path, "restore it from a copy")
    if JOB not in described:
        raise fail(
            f"{path / RUN}: {JOB}",
            "is missing, as in runs of earlier versions; give the command that trained the run once more, which adds "
            "it (a run that is finished is not trained on)",
        )
    job = _job(described[JOB], overrides, ranks, f"{path / RUN}: {JOB}")
    data = described.get(DATA)
    return TrainedRun(path, job, data if isinstance(data, dict) else {}, _checkpoints(path / CHECKPOINTS, step))


def _imported(path: Path, overrides: Sequence[str], ranks: int, step: int | None) -> TrainedRun:
    """Open what `fourfold import` has written."""
    if step is not None:
        raise fail("--step", f"{path} is an import: nothing has been trained; leave it out", step)
    job = load_job(path / IMPORTED)
    kept = job.model_copy(update={"train": located(job.train, path)}).model_dump(mode="json", by_alias=True)
    return TrainedRun(path, _job(kept, overrides, ranks, str(path / IMPORTED)), {}, ())


def _step_named(path: Path) -> int:
    try:
        return step_of(path)
    except ValueError:
        raise fail(str(path), "is no checkpoint; name one such as checkpoints/step-00000100, or the run") from None


def _checkpoints(root: Path, step: int | None) -> tuple[Path, ...]:
    found = newest_first(root)
    if not found:
        raise fail(
            str(root), "holds no complete checkpoint; wait for the first (train.checkpoints.every), or train the run"
        )
    if step is None:
        return tuple(found)
    wanted = [path for path in found if step_of(path) == step]
    if not wanted:
        steps = [str(step_of(path)) for path in found]
        shown = ", ".join(steps[:MAX_NAMED]) + (", …" if len(steps) > MAX_NAMED else "")
        raise fail("--step", f"there is no checkpoint of it; choose from {shown} (train.checkpoints.keep)", step)
    return tuple(wanted)


def _job(kept: Any, overrides: Sequence[str], ranks: int, origin: str) -> Job:
    """Put the job of a run on so many ranks: on its own grid if that has as many, else on what is given, or auto."""
    if not isinstance(kept, dict):
        raise fail(origin, "is damaged; restore it from a copy")
    try:
        trained = load_job(kept)
    except DescriptionError as error:
        raise DescriptionError(error.problems, origin) from None
    raw = {**kept, **{key: value for key, value in NOT_ASKED.items() if key in kept}, "ranks": ranks}
    if trained.ranks != ranks:
        raw["grid"] = {} if any(override.startswith("grid.") for override in overrides) else "auto"
    for override in overrides:
        raw = apply_override(raw, override)
    if raw.get("ranks") != ranks:
        raise fail("ranks", f"start them with torchrun or srun, or here with --ranks {raw['ranks']}", raw.get("ranks"))
    # one micro-step of every replica, however many there are: nothing is trained
    batch = raw.get("batch")
    micro = batch.get("micro_sequences") if isinstance(batch, dict) else None
    sequences = ranks * (micro if isinstance(micro, int) and micro > 0 else 1)
    return load_job(apply_override(raw, f"batch.sequences={sequences}"))
