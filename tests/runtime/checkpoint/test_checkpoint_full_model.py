"""A checkpoint of any grid becomes one plain file, and the file fills any grid."""

from __future__ import annotations

import json
import os

import numpy as np
import pytest
import safetensors
import safetensors.torch
import torch
import typer
from typer.testing import CliRunner

from runtime.checkpoint import full_model
from runtime.checkpoint.full_model import export_model, import_model
from runtime.huggingface.command import export
from tests.runtime import parity
from tests.runtime.checkpoint import tasks
from tests.runtime.checkpoint.tasks import grid
from twin.description.problems import DescriptionError

ODD = {"model": {**parity.MODEL, "vocabulary": 37}}


def weights(full: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {n.removeprefix("model/"): v for n, v in full.items() if n.startswith("model/")}


@pytest.mark.parametrize(
    ("source", "target"),
    [("1x2x2x1", "2x1x1x2"), ("2x1x1x2", "1x1x1x1"), ("1x1x1x1", "1x2x2x2"), ("2x2x1x2", "1x1x4x1")],
)
def test_from_a_grid_through_one_file_to_another(pool, tmp_path, source, target):
    def ranks(text: str) -> int:
        return int(np.prod(list(grid(text).values())))

    root = tmp_path / "run" / "checkpoints"
    answers = pool.run(
        "tests.runtime.checkpoint.tasks:save", ranks(source), grid=grid(source), root=str(root), steps=[1], **ODD
    )
    shapes = {n: s for n, s in tasks.shapes(**ODD).items() if n.startswith("model/")}
    expected = weights(tasks.assemble([state for state, _ in answers], shapes))
    out = tmp_path / "model.safetensors"
    done = export_model(tmp_path / "run", out)
    assert done.checkpoint == root / "step-00000001"
    assert done.parameters == sum(v.size for v in expected.values())
    found = safetensors.torch.load_file(out)
    assert found.keys() == expected.keys()
    for name, values in expected.items():
        np.testing.assert_array_equal(found[name].numpy(), values, err_msg=name)
    filled = pool.run(
        "tests.runtime.checkpoint.tasks:fill", ranks(target), grid=grid(target), file=str(out), dtype="float64", **ODD
    )
    for name, values in weights(tasks.assemble(filled, shapes)).items():
        np.testing.assert_array_equal(values, expected[name], err_msg=name)


def plain(trainee) -> dict[str, torch.Tensor]:
    """Some full model for it, row by row numbers."""
    shapes = {name: p.spec.shape for name, p in trainee.context.store.parameters.items()}
    return {n: torch.arange(float(np.prod(s))).view(s) % 251 for n, s in shapes.items()}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
def test_other_precisions_can_be_imported(tmp_path, dtype, monkeypatch):
    """In pieces of a row or two, too."""
    monkeypatch.setattr(full_model, "MAX_CHUNK", 10)
    trainee = tasks.tiny()
    model = {name: values.to(dtype) for name, values in plain(trainee).items()}
    safetensors.torch.save_file(model, tmp_path / "a")
    import_model(tmp_path / "a", trainee.context)
    for name, parameter in trainee.context.store.parameters.items():
        local = trainee.context.store.master[parameter.start : parameter.stop]
        assert local.equal(model[name].float().reshape(-1))


def broken(model: dict[str, torch.Tensor], how: str) -> dict[str, str] | None:
    if how == "shape":
        model["head.weight"] = model["head.weight"].T.contiguous()
    elif how == "names":
        model["head.wait"] = model.pop("head.weight")
    elif how == "dtype":
        model["head.weight"] = model["head.weight"].to(torch.int32)
    elif how == "heads":
        return {"model": json.dumps({**tasks.TINY, "heads": 4})}
    return None


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("shape", "head.weight: has shape [8, 5]; the model needs [5, 8]"),
        ("names", "head.wait: is not a parameter of the model; did you mean 'head.weight'?"),
        ("names", "head.weight: is missing; the model has it, with shape [5, 8]"),
        ("dtype", "head.weight: has dtype I32; expected BF16 or F16 or F32 or F64"),
        ("heads", "model.heads: was 4 when it was saved; the job has 2"),
    ],
)
def test_another_model_is_refused_before_a_weight_is_changed(tmp_path, how, said):
    trainee = tasks.tiny()
    model = plain(trainee)
    metadata = broken(model, how)
    safetensors.torch.save_file(model, tmp_path / "a", metadata)
    before = trainee.context.store.master.clone()
    with pytest.raises(DescriptionError) as error:
        import_model(tmp_path / "a", trainee.context)
    assert said in str(error.value)
    assert before.equal(trainee.context.store.master)


@pytest.mark.parametrize("metadata", ["", "[]", "{", "[" * 10**5])
def test_what_others_write_into_metadata_does_no_harm(tmp_path, metadata):
    trainee = tasks.tiny()
    safetensors.torch.save_file(plain(trainee), tmp_path / "a", {"model": metadata})
    import_model(tmp_path / "a", trainee.context)


def test_a_missing_or_damaged_model_is_named(tmp_path):
    trainee = tasks.tiny()
    path = tmp_path / "a"
    with pytest.raises(DescriptionError, match="a: no such file"):
        import_model(path, trainee.context)
    safetensors.torch.save_file(plain(trainee), path)
    os.truncate(path, path.stat().st_size - 1)
    with pytest.raises(DescriptionError, match="a: is truncated"):
        import_model(path, trainee.context)


def test_the_file_says_what_model_it_is(root, tmp_path):
    export_model(root, tmp_path / "a")
    with safetensors.safe_open(tmp_path / "a", "pt") as file:
        metadata = file.metadata()
    assert metadata["step"] == "3"
    assert tasks.TINY.items() <= json.loads(metadata["model"]).items()
    export_model(root / "step-00000001", tmp_path / "a", overwrite=True)
    assert safetensors.torch.load_file(tmp_path / "a")["head.weight"].eq(1).all()


def test_many_files_need_not_be_open_at_once(pool, tmp_path, monkeypatch):
    monkeypatch.setattr(full_model, "MAX_OPEN_FILES", 1)
    pool.run("tests.runtime.checkpoint.tasks:save", 4, grid=grid("1x1x2x2"), root=str(tmp_path), steps=[1])
    assert export_model(tmp_path, tmp_path / "a").step == 1


def refused(*arguments, **options) -> str:
    with pytest.raises(DescriptionError) as error:
        export_model(*arguments, **options)
    return str(error.value)


def test_bad_input_to_an_export(root, tmp_path):
    out = tmp_path / "a"
    assert "no such directory" in refused(tmp_path / "none", out)
    (tmp_path / "empty").mkdir()
    assert "is no checkpoint" in refused(tmp_path / "empty", out)
    assert "cannot be written: No such file" in refused(root, tmp_path / "none" / "a")
    assert "choose another file" in refused(root, tmp_path / "empty", overwrite=True)
    out.write_text("mine")
    assert "exists already; choose another file or pass --force" in refused(root, out)
    assert "cannot be written: Not a directory" in refused(root, out / "a")
    damaged = root / "step-00000003" / "rank-00000.safetensors"
    raw = bytearray(damaged.read_bytes())
    first = safetensors.safe_open(damaged, "pt").keys()
    assert any(key.startswith("model/") for key in first)
    raw[8 + int.from_bytes(raw[:8], "little")] ^= 1
    damaged.write_bytes(raw)
    assert f"{damaged}: is corrupted" in refused(root, out, overwrite=True)
    assert out.read_text() == "mine"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a", "empty", "run"]


def test_the_command(root, tmp_path):
    app = typer.Typer()
    app.command()(export)
    out = tmp_path / "a.safetensors"
    done = CliRunner().invoke(app, [str(root), str(out)])
    assert done.exit_code == 0, done.output
    assert "parameters after step 3" in done.stdout
    done = CliRunner().invoke(app, [str(root), str(out), "--force", "--json"])
    told = json.loads(done.stdout)
    assert told["bytes"] == out.stat().st_size
    assert told["parameters"] == sum(v.numel() for v in safetensors.torch.load_file(out).values())
    refused_again = CliRunner().invoke(app, [str(root), str(out)])
    assert isinstance(refused_again.exception, DescriptionError)
