"""The `train:` part of a job: what only real training needs.

The twin checks it, so that one job file serves both halves and a misspelt key is found before the
first rank starts; no prediction depends on it, but for what `PREDICTED` names.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal

from pydantic import Field, StrictBool

from twin.description.mixture import Data, check_data
from twin.description.problems import Problem
from twin.description.spec import Spec

STANDARD_LIBRARY = "standard-library"
"""As `train.data`: the sources of Python's own library."""
Count = Annotated[int, Field(ge=0, le=10**12, strict=True)]
Positive = Annotated[int, Field(gt=0, le=10**12, strict=True)]
GemmLibrary = Literal["auto", "pytorch", "onednn"]
Mask = Literal["hash", "hash_table", "static", "random"]
"""How targets are chosen that the Goldfish loss drops; see `runtime.data.goldfish`."""


PREDICTED = ("gemm_library", "gemm_modes", "deterministic")
"""Keys on which predictions depend: on CPUs each library has rates of its own; products are tuned or not; and not every
kernel of attention is deterministic."""


def without_training(raw: Mapping[str, Any]) -> dict[str, Any]:
    """Return a job as a run or a recording keeps it, of its `train:` what decides predictions.

    Other keys there may be those of an older version.
    """
    found, train = {key: value for key, value in raw.items() if key != "train"}, raw.get("train")
    kept = {key: train[key] for key in PREDICTED if key in train} if isinstance(train, Mapping) else {}
    return {**found, "train": kept} if kept else found


Shape = Literal["cosine", "linear", "constant", "wsd"]


class LearningRate(Spec):
    """Linear warm-up to the peak, then what `schedule` says, down to `least`."""

    schedule: Shape = "cosine"
    """cosine, linear: down from the warm-up's end on; constant: never down; wsd: the peak until the last `decay_steps`,
    then linearly down (warm-up, stable, decay)."""
    peak: Annotated[float, Field(gt=0, le=10)] = 3e-4
    """The rate after warm-up."""
    least: Annotated[float, Field(ge=0)] | None = None
    """At the end; by default a tenth of the peak. A constant rate has none."""
    warmup_steps: Count | None = None
    """By default a tenth of the steps, at most 100."""
    decay_steps: Count | None = None
    """Of wsd; by default a tenth of the steps."""


class Adam(Spec):
    """Constants of AdamW (Loshchilov, Hutter 2019); weight decay is for matrices only."""

    beta1: Annotated[float, Field(ge=0, lt=1)] = 0.9
    """Decay of the mean of gradients."""
    beta2: Annotated[float, Field(ge=0, lt=1)] = 0.95
    """Decay of the mean of their squares."""
    epsilon: Annotated[float, Field(gt=0)] = 1e-8
    """Added to the root of that mean."""
    weight_decay: Annotated[float, Field(ge=0)] = 0.1
    """Of matrices."""
    clip_norm: Annotated[float, Field(gt=0)] = 1.0
    """Largest norm of the gradient, if the job clips (`clip_gradients`)."""


class Evaluation(Spec):
    """Loss on held-out text."""

    every: Count = 100
    """Steps between evaluations; 0: only at the start and at the end."""
    sequences: Count = 64
    """Held-out sequences of one evaluation, of each set; 0: none."""
    sets: dict[str, str] = Field(default_factory=dict)
    """More data sets by name, such as {code: DIR, prose: DIR}: the loss on the held-out part of each is written down as
    validation_loss/NAME, beside that of `data`, which alone decides what is best."""


class Checkpointing(Spec):
    """When training is saved."""

    every: Count = 100
    """Steps between checkpoints; 0: only at the end."""
    keep: Positive = 3
    """So many of the newest are kept."""
    best: StrictBool = False
    """Keep the checkpoint with the least validation loss too, whatever its age; one is saved after every evaluation
    that is better than all before."""
    timeout_seconds: Annotated[float, Field(gt=0, le=86_400)] = 1800.0
    """Time that ranks wait for the slowest disk among them."""
    memory_every: Count = 0
    """Steps between copies in the memory of two hosts; 0: none."""
    memory_directory: str = "/dev/shm"
    """A file system in memory, on every host."""


class Rollback(Spec):
    """When training goes back to a checkpoint, and on without the batches that did it."""

    spike: Annotated[float, Field(gt=0, le=1000)] = 3.0
    """A loss is a spike if it exceeds the median of those before by more than so many deviations."""
    window: Annotated[int, Field(ge=4, le=10_000, strict=True)] = 50
    """So many losses are looked back at."""
    most: Annotated[int, Field(ge=1, le=1000, strict=True)] = 3
    """Times that a run goes back before a checkpoint gets past what made it; then it is an error."""


class GoldfishLoss(Spec):
    """Drops one of k targets, by default by a hash of the h tokens before it (arXiv 2406.10209)."""

    k: Annotated[int, Field(ge=2, le=10**9, strict=True)] = 4
    """One of so many targets is dropped."""
    h: Annotated[int, Field(ge=1, le=10**6, strict=True)] = 13
    """So many tokens before it decide."""
    mask: Mask = "hash"
    """hash: of the h tokens before the target; hash_table: as the paper's published code does it, by the product of h
    tokens of which the target is the last; static: every k-th target; random: others whenever a sequence comes."""


class Sample(Spec):
    """Text generated at the end of training."""

    prompt: str = "def "
    """What the text begins with."""
    tokens: Count = 200
    """0: none."""
    temperature: Annotated[float, Field(ge=0, le=1e6)] = 0.8
    """0: always the likeliest token."""


class Train(Spec):
    """Everything below `train:`."""

    data: Data = STANDARD_LIBRARY
    """A data set made by `fourfold data`, or standard-library: the sources of Python's own; or several in a mixture,
    such as [{path: DIR, weight: 3}, {path: DIR}]."""
    steps: Positive = 1000
    """Optimizer steps; the learning rate has its least value after the last of them."""
    learning_rate: LearningRate = LearningRate()
    optimizer: Adam = Adam()
    evaluation: Evaluation = Evaluation()
    checkpoints: Checkpointing = Checkpointing()
    elastic: StrictBool = False
    """Train on another grid if another number of ranks is there than the job has."""
    rollback: Rollback | None = None
    """Go back if the loss is NaN or infinite, or leaps; otherwise the former is an error."""
    goldfish: GoldfishLoss | None = None
    """Goldfish loss instead of counting every target."""
    sample: Sample = Sample()
    initial_weights: str | None = None
    """A full model to start from: safetensors, such as `fourfold export` writes, or hf:DIR, of Hugging Face."""
    other_tokenizer: StrictBool = False
    """Train on data in other tokens than those of the tokenizer that came with initial_weights, which is refused
    otherwise: the same number is another word to them."""
    initial_adapters: str | None = None
    """With `lora`: a directory of PEFT's, whose adapters training starts from."""
    compile: StrictBool = False
    """Let torch.compile fuse element-wise kernels, as the job's `fused_elementwise` does too."""
    gemm_modes: Literal["auto", "natural", "tuned"] = "auto"
    """tuned: time NN, NT and TN for every product before the first step and keep the fastest;
    auto: tuned on GPUs if the job has `kernel_tuning` and is not `deterministic`, natural on CPUs."""
    gemm_library: GemmLibrary = "auto"
    """Of linear layers' fp32 products on CPUs. onednn: oneDNN for those large enough; pytorch: PyTorch's choice, on x86
    MKL; auto: onednn where a processor has AVX-512 and is not Intel's, for there MKL keeps to AVX2."""
    deterministic: StrictBool = False
    """Use PyTorch's deterministic kernels, so that equal runs on GPUs are equal bit for bit too: slower."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """auto: the GPUs of the hosts if they have any, one a rank; else their CPUs."""
    threads: Annotated[int, Field(ge=1, le=1024, strict=True)] | None = None
    """CPU threads of a rank; by default the cores divided among the ranks of a host."""
    log_every: Positive = 1
    """Steps between lines of metrics."""
    timeout_seconds: Annotated[float, Field(gt=0, le=86_400)] = 600.0
    """A collective that takes longer is an error."""
    tensorboard: StrictBool = False
    """Also write metrics for TensorBoard."""


def with_paths(train: Train, change: Callable[[str], str]) -> Train:
    """Return it with every path changed, which start from the job file; standard-library is none."""

    def changed(value: str) -> str:
        return value if value == STANDARD_LIBRARY else change(value)

    changes: dict[str, Any] = {}
    if isinstance(train.data, tuple):
        changes["data"] = tuple(part.model_copy(update={"path": changed(part.path)}) for part in train.data)
    elif train.data != STANDARD_LIBRARY:  # what nobody gave is not written down
        changes["data"] = change(train.data)
    for key in ("initial_weights", "initial_adapters"):
        if value := getattr(train, key):
            changes[key] = change(value)
    if sets := train.evaluation.sets:
        found = {name: changed(value) for name, value in sets.items()}
        changes["evaluation"] = train.evaluation.model_copy(update={"sets": found})
    return train.model_copy(update=changes)


def check_train(train: Train) -> list[Problem]:
    """Return the rules that hold between keys of `train:` and are broken."""
    problems = check_data(train.data)
    rate = train.learning_rate
    if rate.least is not None and rate.least > rate.peak:
        problems.append(Problem("train.learning_rate.least", f"must not exceed peak {rate.peak}", rate.least))
    if rate.schedule == "constant" and rate.least is not None:
        problems.append(Problem("train.learning_rate.least", "a constant rate never falls; leave it out", rate.least))
    if rate.schedule != "wsd" and rate.decay_steps is not None:
        remedy = f"is of schedule wsd; a {rate.schedule} rate has none: leave it out"
        problems.append(Problem("train.learning_rate.decay_steps", remedy, rate.decay_steps))
    if train.checkpoints.best and not train.evaluation.sequences:
        remedy = "needs evaluations; set train.evaluation.sequences"
        problems.append(Problem("train.checkpoints.best", remedy, True))
    problems += _check_sets(train.evaluation)
    if train.rollback is not None and train.checkpoints.keep < 2:
        problems.append(
            Problem(
                "train.checkpoints.keep",
                "must be at least 2 with train.rollback: the newest checkpoint may be one to go back from",
                train.checkpoints.keep,
            )
        )
    return problems


def _check_sets(evaluation: Evaluation) -> list[Problem]:
    """Names are parts of names of metrics; without evaluations there is nothing to name."""
    if not evaluation.sets:
        return []
    remedy = "is no name: take up to 32 lower-case letters, digits and _, a letter first"
    bad = [name for name in evaluation.sets if not re.fullmatch("[a-z][a-z0-9_]{0,31}", name)]
    problems = [Problem("train.evaluation.sets", remedy, name) for name in bad]
    problems += [
        Problem(f"train.evaluation.sets.{name}", "is empty; give the directory of a data set", path)
        for name, path in evaluation.sets.items()
        if not path
    ]
    if not evaluation.sequences:
        problems.append(Problem("train.evaluation.sequences", "is 0, so that no set is evaluated; set it above", 0))
    return problems
