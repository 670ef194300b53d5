"""Runs that are asked, by `fourfold sample` and `fourfold eval`, and the serial model with a run's weights."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
from torch.nn import functional

from runtime.checkpoint.full_model import export_model
from tests.runtime import reference, runs
from twin.cli import main
from twin.strategies import load_job

SEQUENCE = runs.SMALL["model"]["sequence"]
SEPARATOR = 0


def ask(*arguments: object) -> subprocess.CompletedProcess[str]:
    """Type a command in a process of its own, which may start ranks."""
    command = [sys.executable, "-m", "twin", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, env=runs.environment())


def ask_here(capsys: pytest.CaptureFixture[str], *arguments: object, code: int = 0) -> tuple[str, str]:
    """Type a command in this process; return what it says on both outputs."""
    with pytest.raises(SystemExit) as ended:
        main([str(argument) for argument in arguments])
    out, err = capsys.readouterr()
    assert (ended.value.code or 0) == code, err
    return out, err


def make_run(folder: Path, **changes: Any) -> Path:
    """Make the directory of a run by hand, with a checkpoint in which there is nothing."""
    job = load_job(runs.write_job(folder, **changes)).model_dump(mode="json", by_alias=True)
    run = folder / "run"
    (run / "checkpoints" / "step-00000004").mkdir(parents=True)
    data = {"tokenizer": "bytes", "vocabulary": 256, "separator": SEPARATOR}
    (run / "run.json").write_text(json.dumps({"name": "small", "data": data, "job": job}))
    return run


def files(folder: Path) -> dict[str, str]:
    """Everything below a folder, by digest."""
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in paths}


def serial_model(checkpoint: Path, file: Path) -> reference.SerialGPT:
    """Make the serial model with the weights of a checkpoint of the small job."""
    export_model(checkpoint, file)
    model = runs.SMALL["model"]
    shape = reference.Shape(
        model["layers"], model["hidden"], model["heads"], SEQUENCE, model["vocabulary"], 4 * model["hidden"]
    )
    found = reference.SerialGPT(shape)
    found.load_state_dict(safetensors.torch.load_file(file))
    return found.double()


@torch.no_grad()
def losses_of(model: reference.SerialGPT, tokens: np.ndarray) -> list[float]:
    """Loss of each token of a text but its first, from the tokens before it in its window; nothing is padded."""
    found: list[float] = []
    text = torch.from_numpy(tokens.astype(np.int64))
    for begin in range(0, len(text) - 1, SEQUENCE):
        window = text[begin : begin + SEQUENCE + 1]
        each = functional.cross_entropy(model(window[None, :-1])[0], window[1:], reduction="none")
        found += each.tolist()
    return found


@torch.no_grad()
def greedy(model: reference.SerialGPT, prompt: bytes, count: int) -> list[int]:
    """Continue a prompt with the likeliest token, again and again."""
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(int(model(torch.tensor([tokens[-SEQUENCE:]]))[0, -1].argmax()))
    return tokens[len(prompt) :]
