"""Published figures that are no iteration's time: against closed forms, and files that say them wrongly."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from twin.description.problems import DescriptionError
from twin.validate.groups import by_kind
from twin.validate.measurements import validate_file
from twin.validate.published_pieces import compare_pieces

GPT = {"layers": 48, "hidden": 6144, "heads": 64, "ffn": 24576, "mlp": "gelu", "seq": 2048, "vocab": 51200}
ACTIVATIONS: dict[str, Any] = {
    "id": "kept",
    "kind": "activation_memory",
    "tp": 8,
    "percent_of_tp_baseline": {"sp": 50.0, "selective": 50.0, "selective_sp": 50.0, "full": 50.0},
    "source": "a figure",
}
LAYER: dict[str, Any] = {
    "id": "layer",
    "kind": "per_layer_time",
    "machine": "selene_a100_80g",
    "gpus": 8,
    "tp": 8,
    "micro_batch": 4,
    "precision": "fp16",
    "recompute": "none",
    "flash_attention": False,
    "layer_forward_ms": 8.0,
    "layer_backward_ms": 12.0,
    "source": "a table",
}


def test_activations_are_those_of_the_paper_s_formulas() -> None:
    """arXiv 2205.05198: sbh(10 + 24/t + 5as/ht), split along the sequence sbh/t(34 + 5as/h); selective has no 5as/h."""
    pieces, left_out = compare_pieces([(ACTIVATIONS, GPT)])
    a, s, h, t = 64, 2048, 6144, 8
    scores = 5 * a * s / h
    alone = 10 + 24 / t + scores / t
    expected = {"sp": (34 + scores) / t, "selective": 10 + 24 / t, "selective_sp": 34 / t, "full": 2.0}
    assert not left_out
    for piece in pieces:
        option = piece.what.split()[2].rstrip(",")
        assert piece.predicted == pytest.approx(100 * expected[option] / alone, rel=0.01), option


def test_a_layer_s_time_is_what_a_step_of_many_has_between() -> None:
    """Twice the micro-batch takes about twice as long; computing scores again makes the backward pass alone longer."""
    forward, backward = compare_pieces([(LAYER, GPT)])[0]
    assert (forward.what, backward.what) == ("block forward, ms", "block backward, ms")
    assert forward.measured == 8.0
    doubled, _ = compare_pieces([(LAYER | {"micro_batch": 8}, GPT)])[0]
    assert 1.8 < doubled.predicted / forward.predicted < 2.1
    again = compare_pieces([(LAYER | {"recompute": "selective"}, GPT)])[0]
    assert again[0].predicted == pytest.approx(forward.predicted, rel=1e-9)
    assert again[1].predicted > backward.predicted


def test_pieces_are_summed_up_by_kind_and_source() -> None:
    pieces, _ = compare_pieces([(LAYER, GPT), (ACTIVATIONS, GPT)])
    groups = {group.name: group.count for group in by_kind(pieces)}
    assert groups == {"per_layer_time: a table": 2, "activation_memory: a figure": 4}


def test_a_machine_that_is_not_known_is_left_out_with_a_reason() -> None:
    pieces, left_out = compare_pieces([(LAYER | {"machine": "elsewhere"}, GPT)])
    assert not pieces
    assert "elsewhere" in next(iter(left_out))


BAD = [
    (LAYER | {"tp": "eight"}, "tp"),
    (LAYER | {"layer_forward_ms": "fast"}, "layer_forward_ms"),
    ({key: value for key, value in LAYER.items() if key != "layer_backward_ms"}, "layer_backward_ms"),
    (ACTIVATIONS | {"percent_of_tp_baseline": 50}, "percent_of_tp_baseline"),
    ({"source": "a log", "profiled_first_middle_last_stage": {"encoder_fwd_ms": [1, 2]}}, "profiled_first_middle"),
]


@pytest.mark.parametrize(("row", "key"), BAD)
def test_what_is_no_figure_is_named(row: dict[str, Any], key: str, tmp_path: Path) -> None:
    file = tmp_path / "rows.yaml"
    file.write_text(yaml.safe_dump({"models": {"gpt": GPT}, "rows": [row | {"model": "gpt"}]}))
    with pytest.raises(DescriptionError, match=key):
        validate_file(file)
