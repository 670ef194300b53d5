"""The job as a form: fields from the schema, and what an address makes of a job."""

from __future__ import annotations

import math

import pytest
import yaml

from dashboards.whatif.base import EXAMPLE, base_of, job_file
from dashboards.whatif.controls import as_it_is, control, select_choices, times
from dashboards.whatif.form import FIELDS, KEYS, LEFT_OUT, LEVERS, changed, fields_of, grid_choices, said
from tests.dashboards.serving import EVIL
from tests.dashboards.test_pages import text_of
from twin.description.job import Job
from twin.description.load import load_machine
from twin.description.problems import DescriptionError
from twin.description.strangers import refuse_paths
from twin.strategies import load_job, named, names
from twin.strategies.schema import job_schema


@pytest.fixture(scope="module")
def base() -> Job:
    return load_job(EXAMPLE)


@pytest.mark.parametrize("strategy", names())
def test_every_plain_key_of_the_schema_has_a_field(strategy):
    keys = {field.path for field in fields_of(strategy)}
    schema = job_schema(strategy)
    for key, said_of in schema["properties"].items():
        if key in LEFT_OUT or key == "batch":
            continue
        inside = schema["$defs"][said_of["$ref"].rpartition("/")[2]]["properties"] if "$ref" in said_of else {}
        assert {f"{key}.{name}" for name in inside} <= keys if inside else key in keys
    of_grid = {f"grid.{axis}" for axis in named(strategy).axes}
    assert {"batch.sequences", "batch.micro_sequences", *of_grid, "stragglers.0.slowdown", "library"} <= keys
    assert {key.replace(".", "-") for key in keys} <= set(KEYS)
    assert len(set(KEYS)) == len(KEYS)
    assert not any("." in key for key in KEYS)  # Dash cannot have them in names of controls


def test_an_address_that_says_nothing_leaves_the_job_as_it_is(base):
    assert load_job(changed(base, {})) == base
    assert load_job(changed(base, {"run": "a", "unknown": "b", "scale-nic": "0"})) == base


@pytest.mark.parametrize("field", [f for f in FIELDS if f.kind != "lever"], ids=lambda f: f.key)
def test_saying_what_the_job_has_changes_nothing(base, field):
    own = said(base, field.key)
    if not own:
        return
    again = load_job(changed(base, {field.key: own}))
    assert again.model_copy(update={"library": base.library}) == base


@pytest.mark.parametrize(
    ("key", "text", "path", "value"),
    [
        ("recompute", "off", ("recompute",), False),
        ("overlap-all_reduce", "off", ("overlap", "all_reduce"), False),
        ("batch-micro_sequences", "4", ("batch", "micro_sequences"), 4),
        ("library", "pccl", ("library",), "pccl"),
        ("batch-micro_sequences", "auto", ("batch", "micro_sequences"), "auto"),
        ("dropout", "0.5", ("dropout",), 0.5),
        ("data_reduction-mode", "sharded", ("data_reduction", "mode"), "sharded"),
        ("model", "gpt-160b", ("model", "name"), "gpt-160b"),
    ],
)
def test_a_field_changes_its_key_and_no_other(base, key, text, path, value):
    raw, before = changed(base, {key: text}), changed(base, {})
    node = raw
    for part in path:
        node = node[part]
    assert node == value
    assert {k for k in raw if raw[k] != before[k]} <= {path[0]}


@pytest.mark.parametrize("octaves", [-3.0, -0.5, 1.0, 2.5])
@pytest.mark.parametrize("key", sorted(LEVERS))
def test_a_lever_multiplies_its_parameter(base, key, octaves):
    job = load_job(changed(base, {key: str(octaves)}))

    def parameter(of: Job) -> float:
        machine = of.machine
        return float(
            {
                "scale-nic": machine.nic.bandwidth_bytes_per_second,
                "scale-latency": machine.nic.latency_seconds,
                "scale-peak": machine.device.peak_flops_per_second,
            }[key]
        )

    assert math.isclose(parameter(job) / parameter(base), 2.0**octaves)


def test_data_becomes_what_the_ranks_need(base):
    halved = load_job(changed(base, {"scale-ranks": "-1"}))
    assert (halved.ranks, halved.concrete_grid.sizes) == (16384, (16, 32, 4, 8))
    other = load_job(changed(base, {"grid-z": "64", "grid-y": "8"}))
    assert other.concrete_grid.sizes == (8, 64, 8, 8)
    with pytest.raises(DescriptionError, match="ranks"):
        load_job(changed(base, {"grid-data": "64"}))
    with pytest.raises(DescriptionError, match="cannot be divided"):
        changed(base, {"ranks": "3", "scale-ranks": "-1"})


OTHERS = {
    "megatron": {"grid": {"pipeline": 2, "data": 2, "tensor": 2}, "schedule": "1f1b"},
    "fsdp": {"grid": {"data": 2, "weights": 4}},
    "ddp": {"grid": {"data": 8}},
}


@pytest.mark.parametrize("strategy", OTHERS)
def test_jobs_of_every_strategy_can_be_changed(strategy):
    """The form was that of 4D for all: a pipeline's job ended in an error of the server."""
    raw = {"model": "gpt2", "machine": "perlmutter", "ranks": 8, "batch": {"sequences": 64, "micro_sequences": 2}}
    base = load_job({**raw, "strategy": strategy, **OTHERS[strategy]})
    assert load_job(changed(base, {"grid-z": "4", "gather_unit": "block"})) == base  # of another strategy: passed over
    for field in fields_of(strategy):
        own = said(base, field.key)
        if own and field.kind != "lever":
            again = load_job(changed(base, {field.key: own}))
            assert again.model_copy(update={"library": base.library}) == base
    doubled = load_job(changed(base, {"scale-ranks": "1"})).concrete_grid.by_axis()
    assert doubled == {**base.concrete_grid.by_axis(), "data": 2 * base.concrete_grid.by_axis()["data"]}
    assert load_job(changed(base, {"machine": "alps"})).machine == load_machine("alps")
    choices = select_choices(base, {})
    assert {key for key in choices if key.startswith("grid-")} == {f"grid-{axis}" for axis in named(strategy).axes}


def test_a_slow_device_is_added(base):
    job = load_job(changed(base, {"stragglers-0-rank": "5", "stragglers-0-slowdown": "1.5"}))
    assert [(s.rank, s.slowdown) for s in job.stragglers] == [(5, 1.5)]


def test_a_device_that_nobody_names_is_not_slow(base):
    """An empty field is as it was: rank 0 was slow where *slow rank* said none."""
    with pytest.raises(DescriptionError, match="no device is said to be slow"):
        changed(base, {"stragglers-0-slowdown": "1.2"})
    assert load_job(changed(base, {"stragglers-0-rank": "5"})).stragglers[0].slowdown == 1.0
    slow = load_job(changed(base, {"stragglers-0-rank": "5", "stragglers-0-slowdown": "2"}))
    slower = load_job(changed(slow, {"stragglers-0-slowdown": "3"}))
    assert [(s.rank, s.slowdown) for s in slower.stragglers] == [(5, 3.0)]


def test_ranks_are_multiplied_by_whole_powers_of_two(base):
    """The box offers these and no others; an address that has another is told in these words."""
    field = next(f for f in FIELDS if f.key == "scale-ranks")
    parts = list(control(field, base, {"scale-ranks": "-5"}, {})._traverse())
    box = next(p for p in parts if getattr(p, "id", None) == {"type": "times", "key": "scale-ranks"})
    assert [float(one["value"]) for one in box.data] == [2.0**n for n in range(-6, 7)]
    assert box.value == "0.03125"
    assert getattr(box, "aria-label") == "ranks, times"
    assert [changed(base, {"scale-ranks": str(n)})["ranks"] for n in range(-6, 7)] == [2**n for n in range(9, 22)]
    with pytest.raises(DescriptionError, match=r"ranks, times = '1.1': expected a whole power of 2"):
        changed(base, {"scale-ranks": "0.137504"})
    with pytest.raises(DescriptionError, match=r"NIC rate: expected 1/64 to 64 times"):
        changed(base, {"scale-nic": "nan"})


def test_another_machine_has_its_own_library(base):
    job = load_job(changed(base, {"machine": "alps", "ranks": "8192", "library": "nccl"}))
    assert (job.machine, job.library) == (load_machine("alps"), "nccl")


@pytest.mark.parametrize(
    ("key", "text"),
    [
        ("machine", "/etc/passwd"),
        ("machine", "./frontier.yaml"),
        ("model", EVIL),
        ("library", "../x"),
        ("ranks", "1e999"),
        ("ranks", "nan"),
        ("ranks", "1.5"),
        ("grid-z", EVIL),
        ("scale-nic", "99"),
        ("scale-nic", "x"),
        ("recompute", "maybe"),
        ("batch-micro_sequences", "1.5"),
        ("batch-sequences", "9" * 50),
        ("stragglers-0-rank", "1;2"),
        ("dropout", "²"),
    ],
)
def test_nonsense_is_refused_by_name(base, key, text):
    with pytest.raises(DescriptionError) as refused:
        changed(base, {key: text})
    name = {"scale-nic": "NIC rate"}.get(key, key.replace("-", "."))  # a lever is no key of a job
    assert [p.path for p in refused.value.problems] == [name]


@pytest.mark.parametrize(
    ("key", "text"),
    [
        ("ranks", "-5"),
        ("grid-z", "0"),
        ("dropout", "2"),
        ("batch-sequences", "0"),
        ("stragglers-0-rank", "99999999"),
        ("overlap-prefetch_depth", "99"),
        ("grid-x", "3"),
        ("library", "gloo"),
        ("ranks", "1000000000"),
    ],
)
def test_what_the_rules_forbid_is_refused_with_a_remedy(base, key, text):
    with pytest.raises(DescriptionError):
        load_job(changed(base, {key: text}))


def test_choices_of_the_grid_divide_what_they_must(base):
    choices = grid_choices(base)
    for axis, total in (("x", base.model.hidden), ("y", base.model.heads), ("z", base.batch.sequences)):
        assert choices[axis]
        assert all(total % int(size) == 0 and base.ranks % int(size) == 0 for size in choices[axis])
    fewer = select_choices(base, {"scale-ranks": "-6"})
    assert max(map(int, fewer["grid-x"])) == base.ranks // 64
    assert select_choices(base, {"ranks": EVIL})["library"] == tuple(base.machine.libraries)


def test_controls_show_what_an_address_says_as_text(base):
    for text in ("", "7", EVIL, "1e999", "on"):
        for field in FIELDS:
            assert "fourfold" not in text_of(control(field, base, {field.key: text}, select_choices(base, {})))


def test_levers_say_what_they_multiply(base):
    said_of = {key: as_it_is(key, base) for key in ("scale-ranks", "scale-nic", "scale-latency")}
    assert said_of == {"scale-ranks": "32,768", "scale-nic": "25 GB/s", "scale-latency": "3.7 µs"}


def test_a_lever_of_nics_says_where_nothing_crosses_them():
    job = load_job({"model": "gpt-5b", "machine": "frontier", "ranks": 8, "batch": {"sequences": 8}})
    assert "one node" in as_it_is("scale-nic", job)
    assert "one node" in as_it_is("scale-latency", job)
    assert "one node" not in as_it_is("scale-peak", job)


def test_times_are_powers_of_two():
    assert [times(n) for n in (-3, -1, 0, 1, 6)] == ["⅛", "½", "1", "2", "64"]


def test_a_job_file_names_what_comes_with_fourfold(base):
    raw = yaml.safe_load(job_file(changed(base, {})))
    assert (raw["machine"], raw["model"]) == ("frontier", "gpt-320b")
    assert load_job(raw) == base
    slower = changed(base, {"scale-nic": "-1", "recompute": "off"})
    assert load_job(yaml.safe_load(job_file(slower))) == load_job(slower)


def test_a_machine_that_a_lever_changes_is_called_modified(base):
    """As `--set` calls it; a lever at 1, and ranks, change no machine."""
    changes = changed(base, {"scale-nic": "1"})
    by_hand = load_job(EXAMPLE, ("machine.nic.bandwidth=50 GB/s",)).machine
    for machine in (load_job(changes).machine, load_job(yaml.safe_load(job_file(changes))).machine):
        assert (machine.name, machine.caveats) == (by_hand.name, by_hand.caveats)
        assert machine.name == "frontier (modified)"
        assert machine.nic.bandwidth_bytes_per_second == by_hand.nic.bandwidth_bytes_per_second
    again = changed(load_job(changes), {"scale-peak": "1", "scale-nic": "-1"})
    assert load_job(again).machine.name == "frontier (modified)"
    assert changed(base, {"machine": "alps", "scale-peak": "1"})["machine"]["name"] == "alps (modified)"
    for query in ({"scale-nic": "0"}, {"scale-ranks": "1"}):
        assert changed(base, query)["machine"] == changed(base, {})["machine"]


def test_without_a_run_there_is_an_example(context, names):
    job, label = base_of(context.catalog, None)
    assert job.ranks == 32_768
    assert "example" in label
    with pytest.raises(DescriptionError, match="holds no job"):
        base_of(context.catalog, names["weak-scaling"])


@pytest.mark.parametrize("machine", ["/etc/passwd", "x.yaml", {"extends": "/etc/passwd"}, 7, None, {"extends": {}}])
def test_a_run_of_a_stranger_opens_no_file(machine):
    with pytest.raises(DescriptionError, match="comes with Fourfold"):
        refuse_paths("run", {"machine": machine})
