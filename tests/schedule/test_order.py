"""Order of the schedule: the rules of sections 2 to 5 of the algorithm."""

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.profiles import examples
from twin.description.job import Job
from twin.schedule.ops import Compute, Start, Wait
from twin.strategies.four_d.step import generate

FORWARD = ("qkv", "projection", "mlp_up", "mlp_down")
MODEL = {"layers": 3, "hidden": 240, "heads": 60, "sequence": 32, "vocabulary": 960}
LETTER = {Compute: "", Start: ">", Wait: "<"}

sizes = st.sampled_from([1, 2, 3])
options = st.fixed_dictionaries(
    {
        "grid": st.fixed_dictionaries(dict.fromkeys(("data", "z", "y", "x"), sizes)),
        "per_rank": st.integers(1, 3),
        "recompute": st.booleans(),
        "cache_gathered_layers": st.integers(0, 3),
        "clip_gradients": st.booleans(),
        "overlap": st.fixed_dictionaries(
            {
                "all_reduce": st.booleans(),
                "reduce_scatter": st.booleans(),
                "all_gather": st.booleans(),
                "prefetch_depth": st.integers(1, 5),
                "scatters_in_flight": st.sampled_from([None, 1, 2, 5, 99]),
            }
        ),
        "data_reduction": st.fixed_dictionaries(
            {
                "mode": st.sampled_from(["one_bucket", "overlapped", "sharded"]),
                "bucket_bytes": st.sampled_from(["1 KiB", "1 MiB", "1 GiB"]),
            }
        ),
    }
)
repeatable = examples(0.3, derandomize=True)


@dataclass
class Issued:
    """A schedule written out; `text` marks starts with > and waits with <."""

    text: list[str]

    @classmethod
    def of(cls, job: Job) -> "Issued":
        return cls([LETTER[type(op)] + name for name, op in generate(job).named()])

    def at(self, text: str) -> int:
        return self.text.index(text)

    def under(self, prefix: str) -> list[str]:
        """Ops whose name starts so, with the prefix removed."""
        return [t.replace(prefix, "", 1) for t in self.text if t.lstrip("<>").startswith(prefix)]

    def indices(self, *parts: str) -> list[int]:
        return [i for i, t in enumerate(self.text) if all(part in t for part in parts)]


@given(chosen=options)
@repeatable
def test_every_start_is_waited_for_once_and_names_are_unique(make_job, chosen) -> None:
    text = Issued.of(make_job(model=MODEL, **chosen)).text
    assert len(set(text)) == len(text)
    assert len({t for t in text if t[0] != "<"}) == len({t.lstrip(">") for t in text if t[0] != "<"})
    starts = {t[1:]: i for i, t in enumerate(text) if t[0] == ">"}
    waits = {t[1:]: i for i, t in enumerate(text) if t[0] == "<"}
    assert starts.keys() == waits.keys()
    assert all(starts[name] < waits[name] for name in starts)


@given(chosen=options)
@repeatable
def test_backward_of_a_linear(make_job, chosen) -> None:
    """Section 2: the all-reduce hides behind the weight gradient; G_o = 1 scatters first."""
    job = make_job(model=MODEL, **chosen)
    issued, grid, overlap = Issued.of(job), job.concrete_grid, job.overlap
    prefix = "micro0/bwd/block1/"
    for linear in FORWARD:
        axis = "x" if linear in {"projection", "mlp_down"} else "y"
        found = [
            t
            for t in issued.under(f"{prefix}{linear}/")
            if "all_gather" not in t and t not in {"bias_gradient", "accumulate"}
        ]
        late = grid.z > 1 and overlap.reduce_scatter
        if late:  # waited for elsewhere
            found.remove("<reduce_scatter_z")
        scatter = [] if grid.z == 1 else [">reduce_scatter_z"]
        scatter += ["<reduce_scatter_z"] if scatter and not late else []
        if grid.size(axis) == 1:
            assert found == ["weight_gradient", *scatter, "input_gradient"]
        elif overlap.all_reduce:
            assert found == [
                "input_gradient",
                f">all_reduce_{axis}",
                "weight_gradient",
                *scatter,
                f"<all_reduce_{axis}",
            ]
        else:
            assert found == [
                "input_gradient",
                f">all_reduce_{axis}",
                f"<all_reduce_{axis}",
                "weight_gradient",
                *scatter,
            ]


@given(chosen=options)
@repeatable
def test_forward_gathers_run_the_prefetch_depth_ahead(make_job, chosen) -> None:
    """OAG: while linear i waits for its weight, those of i + depth and no others are started."""
    chosen["grid"]["z"] = 3
    job = make_job(model=MODEL, **chosen)
    issued = Issued.of(job)
    order = [f"block{layer}/{linear}" for layer in range(3) for linear in FORWARD] + ["head"]
    names = [f"micro0/fwd/{place}/all_gather_z" for place in order]
    starts = [issued.at(">" + name) for name in names]
    waits = [issued.at("<" + name) for name in names]
    assert starts == sorted(starts)
    assert waits == sorted(waits)
    depth = job.overlap.prefetch_depth
    for i, wait in enumerate(waits):
        if job.overlap.all_gather:
            assert sum(s < wait for s in starts) == min(i + 1 + depth, len(names))
        else:
            assert starts[i] == wait - 1
        assert issued.at(f"micro0/fwd/{order[i]}/gemm") == wait + 1


@given(chosen=options)
@repeatable
def test_gathers_of_the_backward_pass_stay_in_their_block(make_job, chosen) -> None:
    """Recomputation prefetches within the block only, so its first gather is exposed."""
    chosen["grid"]["z"] = 2
    job = make_job(model=MODEL, **chosen)
    issued, depth = Issued.of(job), job.overlap.prefetch_depth
    phase, order = ("recompute", FORWARD) if job.recompute else ("bwd", FORWARD[::-1])
    for layer in range(3):
        names = [f"micro0/{phase}/block{layer}/{linear}/all_gather_z" for linear in order]
        if layer < job.cache_gathered_layers:
            assert not {">" + name for name in names} & set(issued.text)
            continue
        starts = [issued.at(">" + name) for name in names]
        waits = [issued.at("<" + name) for name in names]
        assert starts == sorted(starts)
        assert waits == sorted(waits)
        before = f"micro0/bwd/block{layer + 1}/" if layer < 2 else "micro0/bwd/head/"
        assert starts[0] > max(issued.indices(before, "_gradient"))
        for i, wait in enumerate(waits):
            most = i + 1 + depth if job.overlap.all_gather else i + 1
            assert sum(s < wait for s in starts) == min(most, 4)


@given(chosen=options)
@repeatable
def test_blocks_and_phases_follow_each_other(make_job, chosen) -> None:
    job = make_job(model=MODEL, **chosen)
    issued = Issued.of(job)
    for micro in range(job.micro_steps):
        forward = [issued.at(f"micro{micro}/fwd/block{b}/{x}/gemm") for b in range(3) for x in FORWARD]
        assert forward == sorted(forward)
        backward = [
            issued.at(f"micro{micro}/bwd/block{b}/{x}/weight_gradient") for b in (2, 1, 0) for x in FORWARD[::-1]
        ]
        assert backward == sorted(backward)
        assert max(issued.indices(f"micro{micro}/fwd/")) < min(issued.indices(f"micro{micro}/loss/"))
        assert max(issued.indices(f"micro{micro}/loss/")) < min(issued.indices(f"micro{micro}/bwd/"))
        if micro:
            before = max(issued.indices(f"micro{micro - 1}/bwd/embedding/gradient"))
            assert before < min(issued.indices(f"micro{micro}/"))
        for block in range(3):
            again = issued.indices(f"micro{micro}/recompute/block{block}/")
            assert bool(again) == job.recompute
            if again:
                gradients = issued.indices(f"micro{micro}/bwd/block{block}/", "_gradient")
                assert max(again) < min(gradients)
    step = issued.at("optimizer/adamw")
    assert max(issued.indices("/bwd/")) < step
    assert all(i > step for i in issued.indices("optimizer/all_gather_data"))
    clip = issued.indices("optimizer/clip/")
    assert clip, "the norm is a figure of every step"
    assert bool(issued.indices("optimizer/clip/scale")) == job.clip_gradients
    assert all(max(issued.indices("/bwd/")) < i < step for i in clip)


@given(chosen=options)
@repeatable
def test_data_buckets(make_job, chosen) -> None:
    """One bucket comes after everything; overlapped ones start within the last backward pass."""
    chosen["grid"]["data"] = 2
    job = make_job(model=MODEL, **chosen)
    issued, last = Issued.of(job), job.micro_steps - 1
    buckets = [
        (i, op)
        for i, (name, op) in enumerate(generate(job).named())
        if isinstance(op, Start) and op.axis == "data" and "/bucket" in name
    ]
    if job.data_reduction.mode != "overlapped":
        assert not buckets
        kind = "all_reduce" if job.data_reduction.mode == "one_bucket" else "reduce_scatter"
        assert issued.at(f">reduce/{kind}_data") > max(issued.indices("/bwd/"))
        return
    assert all(issued.text[i].startswith(f">micro{last}/bwd/") for i, _ in buckets)
    assert all(op.bytes >= job.data_reduction.bucket_bytes for _, op in buckets[:-1])
    if job.data_reduction.bucket_bytes < 2**11:
        assert buckets[0][0] < issued.at(f"micro{last}/bwd/block1/qkv/weight_gradient")


def test_forward_of_a_block_is_the_table_of_section_3(make_job) -> None:
    job = make_job({"z": 2, "y": 2, "x": 2}, model={**MODEL, "biases": False}, overlap={"all_gather": False})
    assert Issued.of(job).under("micro0/fwd/block1/") == [
        "norm1/statistics",
        ">norm1/all_reduce_x",
        "<norm1/all_reduce_x",
        "norm1/normalize",
        ">qkv/all_gather_z",
        "<qkv/all_gather_z",
        "qkv/gemm",
        ">qkv/all_reduce_x",
        "<qkv/all_reduce_x",
        "attention",
        ">projection/all_gather_z",
        "<projection/all_gather_z",
        "projection/gemm",
        ">projection/all_reduce_y",
        "<projection/all_reduce_y",
        "residual1",
        "norm2/statistics",
        ">norm2/all_reduce_x",
        "<norm2/all_reduce_x",
        "norm2/normalize",
        ">mlp_up/all_gather_z",
        "<mlp_up/all_gather_z",
        "mlp_up/gemm",
        ">mlp_up/all_reduce_x",
        "<mlp_up/all_reduce_x",
        "gelu",
        ">mlp_down/all_gather_z",
        "<mlp_down/all_gather_z",
        "mlp_down/gemm",
        ">mlp_down/all_reduce_y",
        "<mlp_down/all_reduce_y",
        "residual2",
    ]


@pytest.mark.parametrize("sharded", [False, True])
def test_clipping_sums_over_every_axis_that_splits_parameters(make_job, sharded) -> None:
    mode = {"mode": "sharded" if sharded else "one_bucket"}
    job = make_job({"data": 2, "z": 2, "y": 2, "x": 2}, data_reduction=mode)
    scalars = [op.axis for name, op in generate(job).named() if isinstance(op, Start) and "clip" in name]
    assert sorted(scalars) == sorted(["x", "y", "z", *(["data"] if sharded else [])])
