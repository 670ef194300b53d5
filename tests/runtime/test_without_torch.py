"""On a login node without PyTorch: scripts are printed, whatever the strategy; what trains says what is missing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.tiers import quick

pytestmark = pytest.mark.process

EXAMPLES = Path(__file__).parents[2] / "examples"
WITHOUT = """
import sys
from importlib.machinery import PathFinder

find = PathFinder.find_spec

def without(name, path=None, target=None):
    return None if name.split(".")[0] == "torch" else find(name, path, target)

PathFinder.find_spec = without

if __name__ == "__main__":
    from twin.cli import main

    sys.exit(main(sys.argv[1:]))
"""


@pytest.fixture
def fourfold(tmp_path: Path):
    program = tmp_path / "without.py"
    program.write_text(WITHOUT)

    def run(*arguments: object) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, str(program), *map(str, arguments)]
        return subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)

    return run


SCRIPTS = ["tiny-gpt", "tiny-gpt-ddp", "llama-3-8b-fsdp-h100-64", "llama-3.1-405b-torch-h100-512", "auto/tiny-gpt"]


@pytest.mark.parametrize("name", quick(SCRIPTS, "llama-3.1-405b-torch-h100-512", "auto/tiny-gpt"))
def test_scripts_are_printed(name, fourfold):
    done = fourfold("train", EXAMPLES / f"{name}.yaml", "--slurm")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("#!/bin/bash")
    assert f"{name.rpartition('/')[2]}.yaml" in done.stdout


@pytest.mark.quick
def test_what_is_simulated_only_is_refused(fourfold):
    done = fourfold("train", EXAMPLES / "llama-3-8b-fsdp-h100-64.yaml", "--slurm", "--set", "flavour=zero3")
    assert done.returncode == 2
    assert "flavour" in done.stderr


@pytest.mark.parametrize("strategy", ["four_d", "fsdp", "auto"])
def test_training_says_what_is_missing(strategy, fourfold):
    done = fourfold("train", EXAMPLES / "auto" / "tiny-gpt.yaml", "--strategy", strategy, "--ranks", 2)
    assert done.returncode == 2
    assert "fourfold[runtime]" in done.stderr
    assert "Traceback" not in done.stderr
