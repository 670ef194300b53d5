"""Weight gradients on their way: how many are in flight, when they are waited for and added up."""

from hypothesis import given
from hypothesis import strategies as st

from tests.profiles import examples
from twin.schedule.ops import Start, Wait
from twin.strategies.four_d.step import generate

MODEL = {"layers": 3, "hidden": 240, "heads": 60, "sequence": 32, "vocabulary": 960}
sizes = st.sampled_from([1, 2])
options = st.fixed_dictionaries(
    {
        "grid": st.fixed_dictionaries(dict.fromkeys(("data", "y", "x"), sizes)),
        "per_rank": st.integers(1, 3),
        "recompute": st.booleans(),
        "overlap": st.fixed_dictionaries(
            {"reduce_scatter": st.booleans(), "scatters_in_flight": st.sampled_from([None, 1, 2, 5, 99])}
        ),
        "data_reduction": st.fixed_dictionaries(
            {
                "mode": st.sampled_from(["one_bucket", "overlapped", "sharded", "sharded_overlapped"]),
                "bucket_bytes": st.sampled_from(["1 KiB", "1 GiB"]),
            }
        ),
    }
)
repeatable = examples(0.3, derandomize=True)


def issued(job) -> list[str]:
    """Names in order; starts are marked with > and waits with <."""
    mark = {Start: ">", Wait: "<"}
    return [mark.get(type(op), "") + name for name, op in generate(job).named()]


@given(chosen=options)
@repeatable
def test_reduce_scatters_in_flight(make_job, chosen) -> None:
    """ORS: first in first out; one is waited for only because too many are in flight, because a data
    bucket takes the blocks before the last, or because the backward pass is over."""
    chosen["grid"]["z"] = 2
    job = make_job(model=MODEL, **chosen)
    text, last = issued(job), job.micro_steps - 1
    overlap = job.overlap
    most = (overlap.scatters_in_flight or 8) if overlap.reduce_scatter else 0
    buckets = job.data_reduction.mode in ("overlapped", "sharded_overlapped") and job.concrete_grid.data > 1
    flight: list[str] = []
    late = False
    for i, t in enumerate(text):
        if t.startswith(">") and t.endswith("/reduce_scatter_z"):
            flight.append(t[1:])
            late = len(flight) > most
            assert not late or text[i + 1] == f"<{flight[0]}", "the oldest is waited for at once"
        elif t.startswith("<") and t.endswith("/reduce_scatter_z"):
            assert t[1:] == flight.pop(0)
            micro = int(t[6:].split("/")[0])
            place = t[1:].removesuffix("/reduce_scatter_z")
            assert text[i + 1] == f"{place}/accumulate"
            ended = f"micro{micro}/bwd/embedding/gradient" in text[:i]
            before = text[i - 1].split("/")
            settled = (
                buckets and micro == last and (before[-1] in {"residual1", "accumulate"} or before[-2] == "final_norm")
            )
            assert late or ended or settled
            late = False
        assert len(flight) <= most + late
    assert not flight


@given(chosen=options)
@repeatable
def test_buckets_take_what_arrived_one_block_later(make_job, chosen) -> None:
    chosen["grid"] |= {"z": 2, "data": 2}
    if chosen["data_reduction"]["mode"] != "sharded_overlapped":
        chosen["data_reduction"]["mode"] = "overlapped"
    job = make_job(model=MODEL, **chosen)
    text, bwd = issued(job), f"micro{job.micro_steps - 1}/bwd"
    for block in (2, 1, 0):
        after = [i for i, t in enumerate(text) if t.startswith(f"{bwd}/block{block - 2}/")]
        waits = [
            i for i, t in enumerate(text) if t.startswith(f"<{bwd}/block{block}/") and t.endswith("reduce_scatter_z")
        ]
        assert len(waits) == 4
        assert max(waits) < min(after, default=len(text))


@given(
    shape=st.fixed_dictionaries({"z": st.sampled_from([1, 2]), "x": st.sampled_from([1, 2])}),
    micros=st.integers(1, 4),
    precision=st.sampled_from(["bf16", "fp32"]),
)
@repeatable
def test_gradients_are_added_up(make_job, shape, micros, precision) -> None:
    """The first micro-step writes a sum of 4 bytes an element, later ones read and write it."""
    job = make_job(shape, model=MODEL, per_rank=micros, precision=precision)
    e = 4 if precision == "fp32" else 2
    added = {name: op.kernel.bytes for name, op in generate(job).named() if name.endswith("/accumulate")}
    if shape["z"] == 1 and precision == "fp32":
        assert not added, "the product itself adds to the sum"
        return
    wide = {"qkv": 3, "projection": 1, "mlp_up": 4, "mlp_down": 4}
    for micro in range(micros):
        each = e + 4 if micro == 0 else e + 8
        for layer in range(3):
            for name, h_squared in wide.items():
                found = added.pop(f"micro{micro}/bwd/block{layer}/{name}/accumulate")
                assert found == each * h_squared * 240**2 / shape["z"] / shape["x"]
        assert added.pop(f"micro{micro}/bwd/head/accumulate") == each * 960 * 240 / shape["z"] / shape["x"]
    assert not added
