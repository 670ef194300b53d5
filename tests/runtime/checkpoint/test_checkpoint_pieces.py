"""Whatever the grid, the ranks together write every element of every full tensor exactly once."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from runtime.checkpoint import pieces
from runtime.checkpoint.cover import cover_problem
from runtime.checkpoint.pieces import Range, rectangles, to_write, within
from runtime.weights.shards import ParameterSpec
from runtime.weights.store import ParameterStore
from tests.profiles import examples
from twin.strategies.four_d.grid import Grid

SIZES = st.integers(1, 3)
GRIDS = st.builds(Grid, data=SIZES, z=SIZES, y=SIZES, x=SIZES)


@st.composite
def specs(draw: st.DrawFn, grid: Grid, name: str) -> ParameterSpec:
    """A parameter as layers declare them: columns divide, rows need not."""
    row_axis, column_axis = draw(st.sampled_from([(None, None), ("x", "y"), ("y", "x"), (None, "x"), ("y", None)]))
    parts = tuple(draw(st.lists(st.integers(1, 9), min_size=1, max_size=3)))
    rows = sum(parts)
    if draw(st.booleans()):
        return ParameterSpec(name, (rows,), (row_axis,), parts)
    columns = draw(st.integers(1, 4)) * (grid.size(column_axis) if column_axis else 1)
    sharded = draw(st.booleans())
    return ParameterSpec(name, (rows, columns), (row_axis, column_axis), parts, "z" if sharded else None, decay=True)


@st.composite
def worlds(draw: st.DrawFn) -> list[ParameterStore]:
    """The stores of all ranks of a grid, with the same few parameters."""
    grid = draw(GRIDS)
    declared = [draw(specs(grid, f"p{i}")) for i in range(draw(st.integers(1, 4)))]
    stores = []
    for rank in range(grid.ranks):
        cpu = torch.device("cpu")
        store = ParameterStore(grid, grid.coordinates(rank), 0, torch.float32, torch.float32, cpu)
        for spec in declared:
            store.declare(spec)
        store.allocate(grid.data)
        stores.append(store)
    return stores


def count(stores: list[ParameterStore], ranges: list[list[Range]], most: int) -> dict[str, np.ndarray]:
    """How often each element of each full parameter is in a rank's ranges."""
    counts = {n: np.zeros(p.spec.shape, int) for n, p in stores[0].parameters.items()}
    for of_rank in ranges:
        for held in of_rank:
            for r in rectangles(held, most):
                place = tuple(slice(o, o + n) for o, n in zip(r.offsets, r.sizes, strict=True))
                assert counts[held.parameter.spec.name][place].shape == r.sizes
                counts[held.parameter.spec.name][place] += 1
    return counts


@examples(1.2)
@given(worlds(), st.sampled_from([1, 4, 1 << 16]), st.sampled_from([1, 5, 1 << 24]), st.booleans())
def test_every_element_is_written_once(stores, least_share, most_chunk, sharded):
    grid = stores[0].grid

    def part(store: ParameterStore) -> slice:
        length = store.elements // grid.data if sharded else store.elements
        first = length * store.coordinates["data"] if sharded else 0
        return slice(first, first + length)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pieces, "MIN_SHARE", least_share)
        written = [list(to_write(s, part(s), over_data=not sharded)) for s in stores]
    counts = count(stores, written, most_chunk)
    assert all((of == 1).all() for of in counts.values())


@examples(0.8)
@given(worlds())
def test_a_rank_reads_what_it_holds_and_those_that_count_hold_all_once(stores):
    everything = [list(within(s, slice(0, s.elements))) for s in stores]
    assert all((of >= 1).all() for of in count(stores, everything, 1 << 24).values())
    once = [
        [held for held in of_rank if held.parameter.shard.counted_once]
        for store, of_rank in zip(stores, everything, strict=True)
        if store.coordinates["data"] == 0
    ]
    assert all((of == 1).all() for of in count(stores, once, 1 << 24).values())


@examples(0.4)
@given(worlds(), st.integers(1, 7))
def test_values_follow_their_rectangles_however_they_are_cut(stores, most):
    """An element's address in the full tensor, written into the flat buffer, is found in every cut."""
    for store in stores:
        for held in within(store, slice(0, store.elements)):
            spec, flat = held.parameter.spec, torch.zeros(held.elements)
            addresses = torch.arange(float(np.prod(spec.shape))).view(spec.shape)
            for r in held.parameter.shard.rectangles():
                place = tuple(slice(o, o + n) for o, n in zip(r.offsets, r.sizes, strict=True))
                flat[r.first : r.first + r.count] = addresses[place].reshape(-1)
            for r in rectangles(held, most):
                place = tuple(slice(o, o + n) for o, n in zip(r.offsets, r.sizes, strict=True))
                found = flat[r.first : r.first + r.count].view(r.sizes)
                assert found.equal(addresses[place])


BOXES = st.lists(st.tuples(st.tuples(*[st.integers(-1, 4)] * 2), st.tuples(*[st.integers(0, 4)] * 2)), max_size=6)


@st.composite
def cut_up(draw: st.DrawFn) -> list[tuple[tuple[int, int], tuple[int, int]]]:
    """A tensor of 6 × 5 cut again and again; now and then a box is lost, doubled or moved."""
    boxes = [((0, 0), (6, 5))]
    for _ in range(draw(st.integers(0, 8))):
        offsets, sizes = boxes.pop(draw(st.integers(0, len(boxes) - 1)))
        dim = draw(st.integers(0, 1))
        at = draw(st.integers(0, sizes[dim]))
        for begin, end in ((0, at), (at, sizes[dim])):
            if begin < end:
                o, n = list(offsets), list(sizes)
                o[dim], n[dim] = o[dim] + begin, end - begin
                boxes.append(((o[0], o[1]), (n[0], n[1])))
    fault = draw(st.sampled_from(["", "", "lost", "doubled", "moved"]))
    place = draw(st.integers(0, len(boxes) - 1))
    if fault:
        box = boxes.pop(place)
        if fault == "doubled":
            boxes += [box, box]
        if fault == "moved":
            boxes.append(((box[0][0], box[0][1] + 1), box[1]))
    return draw(st.permutations(boxes))


@examples(3)
@given(st.one_of(cut_up(), BOXES))
def test_covering_once_is_judged_as_by_counting(boxes):
    counts = np.zeros((6, 5), int)
    inside = True
    for (row, column), (height, width) in boxes:
        inside &= 0 <= row <= row + height <= 6 and 0 <= column <= column + width <= 5
        inside &= height > 0 and width > 0
        counts[max(0, row) : row + height, max(0, column) : column + width] += 1
    assert (cover_problem((6, 5), boxes) is None) == (inside and bool((counts == 1).all()))


def test_judging_many_boxes_takes_no_time_in_the_worst_order():
    """A hostile file may have a million of them side by side."""
    boxes = [((0, i), (5, 1)) for i in range(100_000)]
    assert cover_problem((5, 100_000), boxes[::-1]) is None
    assert cover_problem((5, 100_000), [*boxes, boxes[7]]) == "overlap at (0, 7)"
