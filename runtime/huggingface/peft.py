"""The files of PEFT: which of its modules adapts what, and what `adapter_config.json` says.

A module of PEFT stands beside one tensor of the family's files. Where that tensor is several targets of ours (queries,
keys and values in one), one module carries all their adapters: A below A, and B in blocks.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from math import isclose, sqrt
from pathlib import Path
from typing import Any

from runtime.checkpoint.tensor_file import UnusableFileError
from runtime.huggingface.families import layout
from twin.description.lora import Lora, parts_of
from twin.description.model import Model
from twin.description.problems import DescriptionError, Problem, fail

CONFIG = "adapter_config.json"
WEIGHTS = "adapter_model.safetensors"
PREFIX = "base_model.model."
MAX_CONFIG_BYTES = 1 << 20
NAME = re.compile(r"[A-Za-z0-9_]+(\.[A-Za-z0-9_]+)*\Z", re.ASCII)
MEANT = {
    *("peft_type", "peft_version", "task_type", "base_model_name_or_path", "revision"),
    *("inference_mode", "auto_mapping"),
    *("r", "rank_pattern", "lora_alpha", "alpha_pattern", "use_rslora", "fan_in_fan_out", "lora_dropout"),
    *("target_modules", "exclude_modules", "layers_pattern", "megatron_core", "qalora_group_size", "runtime_config"),
}
"""Keys that say what the tensors say too, or nothing about them; any other must be empty."""
USUAL: dict[str, tuple[Any, ...]] = {"bias": ("none",), "init_lora_weights": (True, "gaussian")}
"""Other keys that need not be empty. Some ways to begin with change the model's own weights: not these."""


@dataclass(frozen=True)
class Part:
    """A target of ours in a module of theirs."""

    layer: int
    linear: str
    target: str
    rows: int
    """Of the target."""
    places: tuple[tuple[int, int, int], ...]
    """Where rows lie: in the module, in the target, and how many."""

    @property
    def name(self) -> str:
        """The adapter's name here, without `_a` or `_b`."""
        return f"blocks.{self.layer}.{self.linear}.adapters.{self.target}"


@dataclass(frozen=True)
class Module:
    """A module of theirs."""

    name: str
    """Such as `model.layers.0.self_attn.q_proj`."""
    rows: int
    """Out-features."""
    columns: int
    """In-features."""
    parts: tuple[Part, ...]
    """Targets of ours in it, whether adapted or not, in our order."""

    @property
    def keys(self) -> tuple[str, str]:
        """Names of A and B in the file."""
        return f"{PREFIX}{self.name}.lora_A.weight", f"{PREFIX}{self.name}.lora_B.weight"

    @property
    def short(self) -> str:
        """What `target_modules` calls it; GPT-2 has two that end alike."""
        words = self.name.split(".")
        return ".".join(words[-2:]) if words[-1] == "c_proj" else words[-1]


def modules(model: Model, family: str) -> list[Module]:
    """Return the modules beside which adapters may stand."""
    arranged = layout(model, family)
    found: list[Module] = []
    for layer in range(model.layers):
        for linear, (_, columns) in model.block_linears.items():
            bands = [band for band in arranged.bands if band.ours == f"blocks.{layer}.{linear}.weight"]
            for key in dict.fromkeys(band.theirs for band in bands):
                parts, first = [], 0
                for target, rows in parts_of(model, linear):
                    places = []
                    for band in bands:
                        begin, end = max(first, band.our_row), min(first + rows, band.our_row + band.rows)
                        if band.theirs == key and begin < end:
                            places.append((band.their_row + begin - band.our_row, begin - first, end - begin))
                    if places:
                        parts.append(Part(layer, linear, target, rows, tuple(places)))
                    first += rows
                total = sum(count for part in parts for _, _, count in part.places)
                found.append(Module(key.removesuffix(".weight"), total, columns, tuple(parts)))
    return found


def config_of(lora: Lora, adapted: list[Module], family: str, base: str | None) -> dict[str, Any]:
    """Write `adapter_config.json`; a module of several adapters has as many times the rank, and alpha."""
    several = {each.short: _adapted(each, lora) for each in adapted if _adapted(each, lora) > 1}
    return {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base,
        "r": lora.rank,
        "lora_alpha": _whole(lora.alpha),
        "lora_dropout": 0.0,
        "target_modules": sorted({each.short for each in adapted}),
        "rank_pattern": {name: count * lora.rank for name, count in several.items()},
        "alpha_pattern": {name: _whole(count * lora.alpha) for name, count in several.items()},
        "bias": "none",
        "fan_in_fan_out": family == "gpt2",
        "use_rslora": False,
        "use_dora": False,
        "modules_to_save": None,
        "layers_to_transform": None,
        "init_lora_weights": True,
        "inference_mode": True,
    }


def _adapted(module: Module, lora: Lora) -> int:
    return sum(part.target in lora.targets for part in module.parts)


def _whole(number: float) -> float:
    return int(number) if number == int(number) else number


@dataclass(frozen=True)
class Scales:
    """What modules are multiplied by, as a file says."""

    alpha: float
    patterns: Mapping[str, float]
    root: bool
    """Divided by the root of the rank (rsLoRA) instead of the rank."""

    def of(self, module: Module, rank: int) -> float:
        """Return the scale of a module of a rank: the first pattern that it ends in decides, as in PEFT."""
        alpha = next((value for name, value in self.patterns.items() if _ends_in(module.name, name)), self.alpha)
        return alpha / (sqrt(rank) if self.root else rank)


def _ends_in(module: str, name: str) -> bool:
    return module == name or module.endswith(f".{name}")


def read_config(directory: Path) -> Scales:
    """Read what scales adapters; raises DescriptionError for what is not known here."""
    path = directory / CONFIG
    try:
        if path.stat().st_size > MAX_CONFIG_BYTES:
            raise UnusableFileError(path, "is too large for a description of adapters")
        raw = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise fail(str(path), f"cannot be read: {error.strerror}; give a directory of PEFT's") from None
    except (ValueError, RecursionError):
        raise fail(str(path), "is not JSON") from None
    if not isinstance(raw, dict) or raw.get("peft_type") != "LORA":
        found = raw.get("peft_type") if isinstance(raw, dict) else None
        raise fail(f"{path}: peft_type", "only LORA is read here", found)
    problems = [
        Problem(f"{path}: {key}", "is not known here; merge such adapters into their model with PEFT", value)
        for key, value in raw.items()
        if value and key not in MEANT and value not in USUAL.get(key, ())
    ]
    alpha, patterns = raw.get("lora_alpha", 8), raw.get("alpha_pattern") or {}
    if not isinstance(patterns, dict) or not all(_is_scale(v) for v in (alpha, *patterns.values())):
        problems.append(Problem(f"{path}: lora_alpha", "expected positive numbers, also in alpha_pattern", alpha))
    else:  # a regular expression there; only names are read here
        strange = [name for name in patterns if not NAME.match(name)]
        remedy = "is no name of a module; regular expressions are not read here"
        problems += [Problem(f"{path}: alpha_pattern", remedy, name) for name in strange]
    if not isinstance(raw.get("use_rslora", False), bool):
        problems.append(Problem(f"{path}: use_rslora", "expected true or false", raw["use_rslora"]))
    if problems:
        raise DescriptionError(problems)
    return Scales(float(alpha), {str(k): float(v) for k, v in patterns.items()}, raw.get("use_rslora") is True)


def _is_scale(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < 1e9


def ratio(theirs: float, ours: float) -> float:
    """Return what B is multiplied by where adapters are scaled otherwise; exactly 1 where they are scaled alike."""
    return 1.0 if isclose(theirs, ours, rel_tol=1e-12) else theirs / ours
