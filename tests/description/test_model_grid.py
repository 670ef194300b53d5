"""Grid arithmetic against enumeration; parameter counts against a list of every tensor."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from tests.profiles import examples
from twin.description.grid import divisors, nearest
from twin.description.model import Model
from twin.description.presets import presets
from twin.strategies.four_d.grid import AXES, Grid, factorizations

moderate = examples(1.5, derandomize=True)
sizes = st.integers(1, 6)
grids = st.builds(Grid, data=sizes, z=sizes, y=sizes, x=sizes)


@moderate
@given(grids)
def test_ranks_are_numbered_in_nested_loops_x_innermost(grid):
    loops = itertools.product(range(grid.data), range(grid.z), range(grid.y), range(grid.x))
    for rank, at in enumerate(loops):
        assert grid.coordinates(rank) == dict(zip(("data", "z", "y", "x"), at, strict=True))
    assert grid.ranks == rank + 1


@moderate
@given(grids, st.sampled_from(AXES))
def test_inner_is_the_distance_between_neighbours(grid, axis):
    """Two ranks that differ by one step of an axis are `inner` apart."""
    group = [r for r in range(grid.ranks) if all(v == 0 for a, v in grid.coordinates(r).items() if a != axis)]
    assert len(group) == grid.size(axis)
    assert group == [i * grid.inner(axis) for i in range(grid.size(axis))]


@given(st.integers(1, 5000))
@moderate
def test_divisors_by_trial(number):
    assert divisors(number) == [d for d in range(1, number + 1) if number % d == 0]


@pytest.mark.parametrize("ranks", [1, 2, 6, 7, 12, 36, 64])
def test_factorizations_are_all_grids_once(ranks):
    truth = (
        {s for s in itertools.product(range(1, ranks + 1), repeat=4) if math.prod(s) == ranks} if ranks <= 12 else None
    )
    found = [g.sizes for g in factorizations(ranks)]
    assert len(found) == len(set(found))
    assert all(math.prod(s) == ranks for s in found)
    if truth is not None:
        assert set(found) == truth


@pytest.mark.parametrize(
    ("ranks", "count"), [(2**15, math.comb(18, 3)), (2**12, math.comb(15, 3)), (6144, math.comb(14, 3) * 4)]
)
def test_number_of_factorizations(ranks, count):
    """2^n into four factors: C(n+3, 3); a further prime can go to any of the four axes."""
    assert sum(1 for _ in factorizations(ranks)) == count


@moderate
@given(st.integers(1, 200), st.sets(st.integers(1, 200), min_size=1))
def test_nearest_is_the_closest_by_ratio(target, choices):
    found = nearest(target, sorted(choices))
    assert found in choices
    assert abs(math.log(found / target)) <= min(abs(math.log(c / target)) for c in choices) + 1e-12


@pytest.mark.parametrize("size", [0, -1, 2.5, 2.0, "2", True, None, 10**30, float("nan")])
def test_sizes_of_axes_are_positive_whole_numbers(size):
    with pytest.raises(ValidationError):
        Grid(x=size)


def test_descriptions_are_frozen_and_hashable():
    grid = Grid(x=2)
    with pytest.raises(ValidationError):
        grid.x = 3
    assert hash(grid) == hash(Grid(x=2))
    assert str(grid) == "data 1 × z 1 × y 1 × x 2"


def every_tensor(model: Model) -> list[tuple[int, ...]]:
    """Shapes of all trainable tensors of a pre-norm GPT, written down one by one."""
    h, wide = model.hidden, model.mlp_width or model.mlp_ratio * model.hidden
    gate = [(wide, h)] if model.activation == "swiglu" else []
    linears = [(h, h), (h, h), (h, h), (h, h), (wide, h), *gate, (h, wide)]  # q, k, v, projection
    block: list[tuple[int, ...]] = [*linears, (h,), (h,)]
    last: list[tuple[int, ...]] = [(h,)]
    if model.biases:
        block += [(out,) for out, _ in linears] + [(h,), (h,)]
        last += [(h,)]
    outside: list[tuple[int, ...]] = [(model.vocabulary, h), (model.vocabulary, h)]
    if model.positions == "learned":
        outside += [(model.sequence, h)]
    return block * model.layers + last + outside


@moderate
@given(
    st.builds(
        Model,
        layers=st.integers(1, 5),
        hidden=st.integers(1, 64),
        heads=st.just(1),
        sequence=st.integers(1, 64),
        vocabulary=st.integers(1, 99),
        mlp_ratio=st.integers(1, 5),
        mlp_width=st.none() | st.integers(1, 99),
        activation=st.sampled_from(["gelu", "swiglu"]),
        biases=st.booleans(),
        positions=st.sampled_from(["learned", "rotary"]),
    )
)
def test_parameters_are_the_elements_of_all_tensors(model):
    assert model.parameters == sum(math.prod(shape) for shape in every_tensor(model))
    one_block = every_tensor(model.model_copy(update={"layers": 1}))
    outside = 2 + (model.positions == "learned") + 1 + model.biases
    matrices = [shape for shape in one_block[:-outside] if len(shape) == 2]
    assert model.block_weights == sum(map(math.prod, matrices))


def test_llama_7b_has_its_known_size():
    """arXiv 2302.13971: 6.7 B; RMS norms and no biases are one vector a norm."""
    llama = Model(
        layers=32,
        hidden=4096,
        heads=32,
        sequence=2048,
        vocabulary=32000,
        mlp_width=11008,
        activation="swiglu",
        positions="rotary",
        biases=False,
    )
    assert llama.mlp_hidden == 11008
    assert llama.parameters == 6_738_415_616


# Table II of arXiv 2502.08145: name, layers, hidden, heads, and billions in the name.
PAPER = [
    (5, 24, 4096, 32),
    (10, 32, 5120, 40),
    (20, 32, 7168, 56),
    (40, 38, 9216, 72),
    (60, 56, 9216, 72),
    (80, 42, 12288, 96),
    (160, 84, 12288, 96),
    (320, 96, 16384, 128),
    (640, 192, 16384, 128),
]


@pytest.mark.parametrize(("billions", "layers", "hidden", "heads"), PAPER)
def test_presets_of_the_paper(billions, layers, hidden, heads):
    model = presets()[f"gpt-{billions}b"]
    assert (model.layers, model.hidden, model.heads) == (layers, hidden, heads)
    assert (model.sequence, model.head_size) == (2048, 128)
    assert model.parameters / 1e9 == pytest.approx(billions, rel=0.06)
    assert model.vocabulary >= 50257
    assert model.vocabulary % 128 == 0


@pytest.mark.parametrize(
    ("name", "millions"), [("gpt2", 124), ("gpt2-medium", 355), ("gpt2-large", 774), ("gpt2-xl", 1558)]
)
def test_gpt2_has_its_known_size(name, millions):
    """Known counts tie the head to the embedding; the twin keeps them apart and pads the table."""
    model = presets()[name]
    tied = model.parameters - (2 * model.vocabulary - 50257) * model.hidden
    assert tied / 1e6 == pytest.approx(millions, abs=0.6)


def test_every_preset_carries_its_own_name():
    assert all(name == model.name for name, model in presets().items())
    assert all(model.hidden % model.heads == 0 for model in presets().values())
