"""The rules of a job as a whole; the nearest valid choice against a search over all choices."""

from __future__ import annotations

import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.profiles import examples
from twin.description.job import Batch, Job
from twin.description.load import load_machine
from twin.description.model import Model
from twin.description.problems import DescriptionError, Problem, did_you_mean
from twin.strategies import check, check_grid, load_job
from twin.strategies.four_d.grid import Grid
from twin.strategies.four_d.job import FourDJob

moderate = examples(1.2, derandomize=True)
MACHINE = load_machine("frontier")


def job_of(grid: Grid, *, hidden: int = 64, heads: int = 8, sequences: int = 64, micro: int = 1) -> Job:
    model = Model(layers=2, hidden=hidden, heads=heads, sequence=16, vocabulary=64)
    return FourDJob(
        model=model,
        machine=MACHINE,
        ranks=grid.ranks,
        grid=grid,
        batch=Batch(sequences=sequences, micro_sequences=micro),
    )


def suggestion(problems: list[Problem], path: str) -> int | None:
    """The number after "nearest is" in the only problem of a key."""
    found = [p for p in problems if p.path == path]
    if not found:
        return None
    assert len(found) == 1
    return int(re.search(r"nearest is (\d+)", found[0].message)[1])


def no_closer(chosen: int, wrong: int, valid: list[int]) -> bool:
    """No valid choice is closer by ratio than the chosen one."""
    return all(abs(math.log(chosen / wrong)) <= abs(math.log(c / wrong)) + 1e-12 for c in valid)


@moderate
@given(st.integers(1, 40), st.integers(1, 12), st.integers(1, 8))
def test_nearest_x_divides_hidden_and_none_is_closer(x, unit, heads):
    hidden = unit * heads
    problems = check_grid(job_of(Grid(x=x), hidden=hidden, heads=heads))
    offered = suggestion(problems, "grid.x")
    valid = [d for d in range(1, hidden + 1) if hidden % d == 0]
    if x in valid:
        assert offered is None
    else:
        assert offered in valid
        assert no_closer(offered, x, valid)


@moderate
@given(st.integers(1, 24), st.integers(1, 12), st.integers(1, 8))
def test_nearest_y_satisfies_both_its_rules_and_none_is_closer(y, unit, heads):
    """y must divide hidden and heads; doing what the message says must end the refusals."""
    hidden = unit * heads
    problems = check_grid(job_of(Grid(y=y), hidden=hidden, heads=heads))
    valid = [d for d in range(1, heads + 1) if heads % d == 0 and hidden % d == 0]
    about_y = [p for p in problems if p.path == "grid.y"]
    assert bool(about_y) == (y not in valid)
    offered = {int(re.search(r"nearest is (\d+)", p.message)[1]) for p in about_y}
    if about_y:
        assert len(offered) == 1, "two different values are offered for one key"
        assert offered <= set(valid)
        assert no_closer(offered.pop(), y, valid)


@moderate
@given(st.integers(1, 300), st.integers(1, 6), st.integers(1, 6))
def test_nearest_number_of_sequences(sequences, data, z):
    """A positive multiple of data·z, and none is closer."""
    grid = Grid(data=data, z=z)
    offered = suggestion(check_grid(job_of(grid, sequences=sequences)), "batch.sequences")
    valid = [m for m in range(1, 700) if m % (data * z) == 0]
    if sequences in valid:
        assert offered is None
    else:
        assert offered in valid
        assert abs(offered - sequences) == min(abs(m - sequences) for m in valid)


@moderate
@given(st.integers(1, 30), st.integers(1, 20), st.integers(1, 4), st.integers(1, 4))
def test_nearest_micro_batch(micro, local, data, z):
    """Divides the sequences of a rank, and none is closer."""
    grid = Grid(data=data, z=z)
    job = job_of(grid, sequences=local * data * z, micro=micro)
    offered = suggestion(check_grid(job), "batch.micro_sequences")
    valid = [m for m in range(1, local + 1) if local % m == 0]
    if micro in valid:
        assert offered is None
        assert job.micro_steps * micro * data * z == job.batch.sequences
    else:
        assert offered in valid
        assert no_closer(offered, micro, valid)


@moderate
@given(st.integers(1, 64), st.integers(1, 4), st.integers(1, 4), st.integers(1, 4), st.integers(1, 4))
def test_remedy_for_a_grid_of_another_size(ranks, data, z, y, x):
    """If only data has to change, the message says to what; following it ends the problem."""
    grid = Grid(data=data, z=z, y=y, x=x)
    job = job_of(grid).model_copy(update={"ranks": ranks})
    found = [p.message for p in check_grid(job) if p.path == "grid"]
    assert bool(found) == (data * z * y * x != ranks)
    if found and ranks % (z * y * x) == 0:
        better = int(re.search(r"set data to (\d+)", found[0])[1])
        assert better * z * y * x == ranks
    elif found:
        assert "divisors" in found[0]


@moderate
@given(st.integers(1, 40), st.integers(1, 40))
def test_nearest_number_of_heads(hidden, heads):
    job = job_of(Grid(), hidden=hidden, heads=heads)
    offered = suggestion(check(job), "model.heads")
    valid = [h for h in range(1, hidden + 1) if hidden % h == 0]
    if heads in valid:
        assert offered is None
    else:
        assert offered in valid
        assert no_closer(offered, heads, valid)


@moderate
@given(st.integers(1, 40), st.integers(1, 40))
def test_heads_of_rotary_positions_have_an_even_size(hidden, heads):
    job = job_of(Grid(), hidden=hidden, heads=heads)
    turned = job.model_copy(update={"model": job.model.model_copy(update={"positions": "rotary"})})
    problems = check(turned)
    valid = [h for h in range(1, hidden + 1) if hidden % h == 0 and hidden // h % 2 == 0]
    if heads in valid:
        assert problems == []
    elif valid:
        offered = suggestion(problems, "model.heads")
        assert offered in valid
        assert no_closer(offered, heads, valid)
    else:
        assert [(p.path, p.value) for p in problems] == [("model.hidden", hidden)]
        assert "even" in problems[0].message


@moderate
@given(st.integers(1, 24), st.sampled_from([1, 2, 7, 12, 48, 90]))
def test_y_divides_the_width_of_the_mlp_too(y, width):
    """Hidden 48 and 24 heads allow many y; the nearest one also divides the MLP's width."""
    job = job_of(Grid(y=y), hidden=48, heads=24)
    job = job.model_copy(update={"model": job.model.model_copy(update={"mlp_width": width})})
    offered = suggestion(problems := check_grid(job), "grid.y")
    valid = [d for d in range(1, 25) if 24 % d == 0 and width % d == 0]
    if y in valid:
        assert offered is None
    else:
        assert offered in valid
        assert no_closer(offered, y, valid)
        assert f"MLP width {width}" in problems[0].message


@pytest.mark.parametrize(
    ("key", "value", "needles"),
    [
        ("model.activation", "swish", ["'gelu'", "'swiglu'"]),
        ("model.positions", "sine", ["'learned'", "'rotary'"]),
        ("model.mlp_width", 0, ["greater than 0"]),
        ("model.mlp_width", 2.5, ["2.5"]),
        ("gather_unit", "layer", ["'linear'", "'block'"]),
        ("attention", "flash3", ["no rate of it is known on cpu-core", "flash, fused_softmax, plain"]),
    ],
)
def test_unknown_variants_are_refused_by_name(key, value, needles):
    raw = {"model": "gpt2", "machine": "laptop", "ranks": 1, "batch": {"sequences": 1}}
    with pytest.raises(DescriptionError) as caught:
        load_job(raw, [f"{key}={value}"])
    (problem,) = caught.value.problems
    assert problem.path == key
    assert all(needle in str(problem) for needle in needles), str(problem)


def test_variants_reach_the_model_through_overrides():
    raw = {"model": "gpt2", "machine": "laptop", "ranks": 1, "batch": {"sequences": 1}}
    job = load_job(
        raw, ["model.activation=swiglu", "model.positions=rotary", "model.mlp_width=2048", "gather_unit=block"]
    )
    assert (job.model.activation, job.model.positions) == ("swiglu", "rotary")
    assert (job.model.mlp_hidden, job.gather_unit, job.model.layers) == (2048, "block", 12)
    assert load_job(job.model_dump(mode="json", by_alias=True)) == job


def test_a_valid_job_has_no_problems():
    assert check(job_of(Grid(data=2, z=2, y=2, x=2))) == []


@pytest.mark.parametrize("ranks", [9856 * 8, 9856 * 8 + 1])
def test_ranks_up_to_the_whole_machine(ranks):
    job = job_of(Grid()).model_copy(update={"ranks": ranks, "grid": "auto"})
    assert [p.path for p in check(job)] == (["ranks"] if ranks > 9856 * 8 else [])


def test_limits_that_are_still_allowed():
    """The last straggler, all layers cached: one more is refused in the table of bad input."""
    job = load_job(
        {
            "model": {"preset": "gpt2"},
            "machine": "perlmutter",
            "ranks": 8,
            "batch": {"sequences": 8},
            "cache_gathered_layers": 12,
            "stragglers": [{"rank": 7, "slowdown": 1}],
            "library": "pccl",
        }
    )
    assert (job.grid, job.batch.micro_sequences) == ("auto", "auto")
    for attribute in ("concrete_grid", "concrete_micro_sequences", "micro_steps"):
        with pytest.raises(ValueError, match="resolve the job first"):
            getattr(job, attribute)


def test_tokens_and_bytes():
    job = load_job({"model": "gpt-5b", "machine": "frontier", "ranks": 8, "batch": {"sequences": 8192}})
    assert job.tokens_per_step == 8192 * 2048 == 16_777_216
    assert job.element_bytes == 2
    assert job.model_copy(update={"precision": "fp16"}).element_bytes == 2
    assert job.model_copy(update={"precision": "fp32"}).element_bytes == 4


def test_suggested_values_lead_to_a_job_that_loads():
    raw = {
        "model": "gpt2",
        "machine": "perlmutter",
        "ranks": 20,
        "grid": {"data": 2, "z": 2, "x": 5},
        "batch": {"sequences": 17, "micro_sequences": 1},
    }
    with pytest.raises(DescriptionError) as caught:
        load_job(raw)
    x = suggestion(list(caught.value.problems), "grid.x")
    sequences = suggestion(list(caught.value.problems), "batch.sequences")
    load_job(raw, [f"grid.x={x}", f"ranks={4 * x}", f"batch.sequences={sequences}"])


def test_a_job_written_out_reads_back_equal():
    job = load_job(
        {
            "model": "gpt-5b",
            "machine": "frontier",
            "ranks": 16,
            "grid": {"z": 16},
            "batch": {"sequences": 32, "micro_sequences": 1},
            "data_reduction": {"bucket": "64 MiB"},
        }
    )
    assert load_job(job.model_dump(mode="json", by_alias=True)) == job
    assert job.data_reduction.bucket_bytes == 64 * 2**20


def test_a_mapping_given_to_the_loader_is_left_alone():
    raw = {"model": "gpt2", "machine": "laptop", "ranks": 1, "batch": {"sequences": 1}}
    load_job(raw, ["machine.nodes=2", "model.layers=1"])
    assert raw == {"model": "gpt2", "machine": "laptop", "ranks": 1, "batch": {"sequences": 1}}


def test_errors_are_values():
    """A program can read the problems without parsing the message."""
    with pytest.raises(DescriptionError) as caught:
        load_job(
            {
                "model": "gpt2",
                "machine": "laptop",
                "ranks": 8,
                "grid": {"x": 8},
                "batch": {"sequences": 8, "micro_sequences": 3},
                "library": "nccl",
            }
        )
    assert [p.path for p in caught.value.problems] == ["library", "batch.micro_sequences"]
    assert all(str(p) in str(caught.value) for p in caught.value.problems)


@pytest.mark.parametrize(
    ("word", "answer"), [("frontiere", "did you mean 'frontier'?"), ("zzz", "choose from alps, frontier")]
)
def test_suggestions(word, answer):
    assert did_you_mean(word, ["frontier", "alps"]) == answer
