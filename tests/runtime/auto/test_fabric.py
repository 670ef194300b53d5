"""A Lightning Fabric program on a grid gives the losses and the weights that it gives on one rank."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch

from tests.runtime.auto import fabric_tasks
from tests.runtime.runs import environment
from twin.description.problems import DescriptionError

if TYPE_CHECKING:
    from lightning_fabric import Fabric

# it is imported, for a second, where a test of these runs
pytestmark = [
    pytest.mark.skipif(find_spec("lightning_fabric") is None, reason="lightning-fabric is not installed"),
    # Lightning says so wherever SLURM is installed, as it is for the tests of SLURM
    pytest.mark.filterwarnings("ignore:The `srun` command is available"),
]
PROGRAM = Path(__file__).parents[3] / "examples" / "fabric_model.py"


def run(ranks: int, out: Path) -> tuple[list[str], dict[str, torch.Tensor]]:
    launch = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"] if ranks > 1 else []
    command = [sys.executable, *launch, str(PROGRAM), str(out)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, env=environment())
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines(), torch.load(out, weights_only=True)["model"]


@pytest.mark.process
def test_a_grid_gives_what_one_rank_gives(tmp_path: Path) -> None:
    losses, weights = run(1, tmp_path / "1.ckpt")
    assert len(losses) == 3
    for ranks in (2, 4):
        found, others = run(ranks, tmp_path / f"{ranks}.ckpt")
        assert found == losses
        assert others.keys() == weights.keys()
        for name, weight in weights.items():
            torch.testing.assert_close(others[name], weight, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("sizes", [{"data": 2}, {"z": 2}, {"x": 2}], ids=str)
def test_programs_give_what_lightning_gives_on_one_rank(pool, sizes: dict[str, int]) -> None:
    """Clipped by value, one model of two, models of two blocks, optimizers that step at other times, closures."""
    from lightning_fabric import Fabric

    grid = {"data": 1, "z": 1, "y": 1, "x": 1, **sizes}
    one_rank = Fabric(accelerator="cpu", devices=1)
    one_rank.launch()
    expected = fabric_tasks.outcomes(one_rank)
    assert expected["not_finite, 2"]["raised"]
    for found in pool.run("tests.runtime.auto.fabric_tasks:on_a_grid", 2, grid=grid):
        assert found.keys() == expected.keys()
        for program, values in expected.items():
            assert found[program].keys() == values.keys()
            for name, value in values.items():
                np.testing.assert_allclose(found[program][name], value, rtol=1e-9, atol=1e-12, err_msg=program + name)


@pytest.fixture
def fabric() -> Fabric:
    from lightning_fabric import Fabric

    from runtime.auto.fabric import FabricStrategy

    made = Fabric(accelerator="cpu", devices=1, strategy=FabricStrategy({}))
    made.launch()
    return made


def test_a_model_made_elsewhere_is_refused(fabric: Fabric) -> None:
    with pytest.raises(DescriptionError, match=r"make the model in `with fabric\.init_module\(\):`"):
        fabric.setup(torch.nn.Linear(4, 4))
    with fabric.init_module():
        model = torch.nn.Linear(4, 4)
    fabric.setup(model)
    with pytest.raises(DescriptionError, match=r"\b1\.weight: make the model in"):
        fabric.setup(torch.nn.Sequential(model, torch.nn.Linear(4, 4)))


def test_what_cannot_be_cut_is_refused(fabric: Fabric, tmp_path: Path) -> None:
    with fabric.init_module():
        model = torch.nn.Linear(4, 4)
    module, optimizer = fabric.setup(model, torch.optim.SGD(model.parameters(), lr=0.1))
    with pytest.raises(DescriptionError, match="SGD: its states are cut over the ranks"):
        fabric.save(tmp_path / "all.ckpt", {"model": module, "optimizer": optimizer})
    fabric.backward(module(torch.ones(1, 4)).sum())
    with pytest.raises(DescriptionError, match=r"norm_type = 1\.0: only the 2-norm"):
        fabric.clip_gradients(module, optimizer, max_norm=1.0, norm_type=1.0)
    with pytest.raises(DescriptionError, match="strict = False: a part of a state cannot be cut"):
        fabric.strategy.load_module_state_dict(model, model.state_dict(), strict=False)


def test_the_sum_of_several_backward_passes_is_reduced_once(fabric: Fabric) -> None:
    with fabric.init_module():
        model = torch.nn.Linear(2, 1, bias=False)
    module, optimizer = fabric.setup(model, torch.optim.SGD(model.parameters(), lr=1.0))
    before = model.weight.detach().clone()
    for _ in range(3):
        fabric.backward(module(torch.ones(1, 2)).sum())
    optimizer.step()
    torch.testing.assert_close(model.weight.detach(), before - 3)
