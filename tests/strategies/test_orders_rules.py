"""What a pipeline schedule asks of the numbers it is given, and DeepSpeed's clock."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.profiles import examples
from tests.strategies.test_orders import NAMES, RANKS
from twin.strategies.megatron.orders import Instruction, order, problems, stage_of, ticks

MICRO = "batch.micro_sequences"


@pytest.mark.parametrize(
    ("numbers", "keys"),
    [
        (("interleaved", 4, 8, 1), ["chunks"]),
        (("interleaved", 4, 10, 2), [MICRO]),
        (("interleaved", 4, 3, 2), [MICRO]),
        (("interleaved", 4, 3, 2, 8), [MICRO]),
        (("interleaved", 4, 8, 2, 3), ["micro_group"]),
        (("interleaved", 4, 8, 2, 9), ["micro_group"]),
        (("interleaved", 4, 15, 2, 6), ["micro_group"]),
        (("interleaved", 1, 8, 2), ["grid.pipeline"]),
        (("1f1b", 4, 8, 2), ["chunks"]),
        (("gpipe", 4, 8, 1, 4), ["micro_group"]),
        (("deepspeed", 1, 8), ["grid.pipeline"]),
        (("zb_h1", 1, 8, 2), ["grid.pipeline", "chunks"]),
        (("zb_v", 4, 8, 1), ["chunks"]),
        (("dualpipe_v", 4, 7, 3), ["chunks", MICRO]),
        (("dualpipe", 3, 6), ["grid.pipeline"]),
        (("dualpipe", 4, 9), [MICRO]),
        (("dualpipe", 4, 5), [MICRO, MICRO]),
        (("dualpipe", 4, 8, 2), ["chunks"]),
        (("1f1bb", 4, 8), ["schedule"]),
        (("interleaved", 4, 14, 2, 5), []),
        (("interleaved", 4, 14, 2, 14), []),
        (("1f1b", 1, 1), []),
        (("gpipe", 1, 3), []),
        (("zb_h2", 8, 1), []),
        (("dualpipe", 4, 8), []),
        (("dualpipe_v", 3, 7, 2), []),
    ],
)
def test_rules_name_key_and_value(numbers, keys):
    found = problems(*numbers)
    assert [key for key, _, _ in found] == keys
    name, ranks, _, chunks, group = (*numbers, 1, None)[:5] if len(numbers) == 3 else (*numbers, None)[:5]
    values = {"schedule": name, "grid.pipeline": ranks, "chunks": chunks, "micro_group": group, MICRO: None}
    assert [value for _, _, value in found] == [values[key] for key in keys]


def test_remedies_say_what_to_do():
    ((_, remedy, _),) = problems("interleaved", 4, 10, 2)
    left = "groups of 4 leave 2 of the 10 micro-batches in a step, fewer than the 4 pipeline ranks"
    assert remedy == f"{left}; use micro_group 5, 6, 10"
    ((_, remedy, _),) = problems("1f1bb", 4, 10)
    assert remedy == "did you mean '1f1b'?"


@given(
    name=st.sampled_from(NAMES),
    ranks=st.integers(1, 8),
    micro_steps=st.integers(1, 32),
    chunks=st.integers(1, 4),
    group=st.none() | st.integers(1, 16),
)
@examples(2)
def test_only_what_breaks_a_rule_has_no_order(name, ranks, micro_steps, chunks, group):
    broken = problems(name, ranks, micro_steps, chunks, group)
    if broken:
        with pytest.raises(ValueError, match=broken[0][0]):
            order(name, 0, ranks, micro_steps, chunks, group)
    else:
        assert order(name, ranks - 1, ranks, micro_steps, chunks, group)


def test_a_rank_that_there_is_not():
    with pytest.raises(ValueError, match="rank=4: choose one from 0 to 3"):
        order("1f1b", 4, 4, 8)
    with pytest.raises(ValueError, match="chunk=1"):
        stage_of("1f1b", 0, 1, 4, 1)


def test_stages():
    def held(name, chunks, parts=None):
        return [[stage_of(name, rank, c, 4, chunks) for c in range(parts or chunks)] for rank in range(4)]

    assert held("interleaved", 3) == [[0, 4, 8], [1, 5, 9], [2, 6, 10], [3, 7, 11]]
    assert held("zb_v", 2) == held("dualpipe_v", 2) == [[0, 7], [1, 6], [2, 5], [3, 4]]
    assert held("dualpipe", 1, parts=2) == [[0, 3], [1, 2], [2, 1], [3, 0]]
    assert held("zb_h1", 1) == [[0], [1], [2], [3]]


# DeepSpeed


@given(ranks=RANKS, micro_steps=st.integers(1, 32))
@examples()
def test_deepspeed_computes_in_the_order_of_1f1b(ranks, micro_steps):
    for rank in range(ranks):
        assert order("deepspeed", rank, ranks, micro_steps) == order("1f1b", rank, ranks, micro_steps)


@given(ranks=RANKS, micro_steps=st.integers(1, 32))
@examples()
def test_sends_of_a_tick_meet_receives_of_the_same_tick(ranks, micro_steps):
    """In one order too, so that blocking sends never wait for each other."""
    clock = [ticks(rank, ranks, micro_steps) for rank in range(ranks)]
    assert {len(each) for each in clock} == {2 * (micro_steps + ranks - 1)}
    down = {"SendActivation": "activation", "RecvGrad": "gradient"}
    up = {"RecvActivation": "activation", "SendGrad": "gradient"}
    for above, below in pairwise(clock):
        for one, other in zip(above, below, strict=True):
            theirs = [(up[i.kind], i.micro) for i in other if i.kind in up]
            assert [(down[i.kind], i.micro) for i in one if i.kind in down] == theirs


@given(ranks=RANKS, micro_steps=st.integers(1, 32))
@examples()
def test_what_a_tick_computes_is_sent_in_the_next(ranks, micro_steps):
    for rank in range(ranks):
        for now, then in pairwise([*ticks(rank, ranks, micro_steps), ()]):
            sent = {"ForwardPass": "SendActivation" * (rank < ranks - 1), "BackwardPass": "SendGrad" * (rank > 0)}
            wanted = [Instruction(sent[i.kind], i.micro) for i in now if sent.get(i.kind)]
            assert [i for i in then if i.kind.startswith("Send")] == wanted


def test_order_of_instructions_in_ticks():
    """Rank 1 of 2 passes forward in odd ticks: gradient first; it loads labels."""
    words = [[f"{i.kind} {i.micro}" for i in tick] for tick in ticks(1, 2, 2)]
    assert words == [
        [],
        ["RecvActivation 0", "LoadMicroBatch 0", "ForwardPass 0"],
        ["BackwardPass 0"],
        ["SendGrad 0", "RecvActivation 1", "LoadMicroBatch 1", "ForwardPass 1"],
        ["BackwardPass 1"],
        ["SendGrad 1"],
    ]
    words = [[f"{i.kind} {i.micro}" for i in tick] for tick in ticks(0, 2, 2)]
    assert words == [
        ["LoadMicroBatch 0", "ForwardPass 0"],
        ["SendActivation 0"],
        ["LoadMicroBatch 1", "ForwardPass 1"],
        ["RecvGrad 0", "SendActivation 1", "BackwardPass 0"],
        [],
        ["RecvGrad 1", "BackwardPass 1"],
    ]
