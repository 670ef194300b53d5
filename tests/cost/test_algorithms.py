"""Collective algorithms register themselves: one from outside the packages is priced like the built-in ones."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from twin.cost import algorithms
from twin.cost.collective import collective_cost, options
from twin.cost.collective_group import Group, look
from twin.cost.collective_options import Option
from twin.cost.placement import Placement
from twin.description.library import CollectiveKind, Library
from twin.description.load import load_machine
from twin.description.parameter import Parameter
from twin.description.problems import DescriptionError
from twin.description.spec import Spec
from twin.engine.simulate import simulate
from twin.strategies import load_job

PLACEMENT = Placement(((0, 1, 2, 3),) * 2, (0, 0))


class Carrier(Spec):
    """Constants of the toy."""

    flight_seconds: Parameter


def pigeons(_group: Group, library: Library, kind: CollectiveKind, _bytes: float) -> list[Option]:
    """A carrier pigeon for each rank: any number of bytes in one flight."""
    constants = library.constants("pigeons", Carrier)
    if constants is None or kind != "all_gather":
        return []
    seconds = float(constants.flight_seconds)
    return [Option("pigeons", "Simple", seconds, seconds, 0.0, 0.0, 0.0)]


@pytest.fixture
def toy() -> Iterator[None]:
    algorithms.register("pigeons")(pigeons)
    yield
    algorithms.unregister("pigeons")


def flight(text: str) -> dict[str, Any]:
    return {"flight": {"value": text, "kind": "assumed", "source": "Fourfold: this test"}}


def machine(**given: Any) -> dict[str, Any]:
    return {"extends": "perlmutter", "library": "nccl", "libraries": {"nccl": {"algorithms": given}}}


def job(**given: Any) -> dict[str, Any]:
    model = {"layers": 2, "hidden": 8192, "heads": 64, "sequence": 128, "vocabulary": 512}
    batch = {"sequences": 16, "micro_sequences": 2}
    overlap = {"all_gather": False}  # else it hides behind compute, as that of a small model behind launches
    described = {"model": model, "machine": machine(**given), "batch": batch, "overlap": overlap}
    return {**described, "ranks": 8, "grid": {"z": 8}}


def priced(kind: CollectiveKind, **given: Any) -> Any:
    described = load_job(job(**given)).machine
    return collective_cost(described, described.libraries["nccl"], kind, 2.0**20, PLACEMENT)


@pytest.mark.usefixtures("toy")
def test_an_algorithm_from_outside_prices_a_collective():
    found = priced("all_gather", pigeons=flight("1 ns"))
    assert (found.algorithm, found.seconds) == ("pigeons", 1e-9)
    slow = priced("all_gather", pigeons=flight("10 s"))
    assert (slow.algorithm, slow.seconds) == ("ring", priced("all_gather").seconds)
    assert priced("all_reduce", pigeons=flight("1 ns")).algorithm != "pigeons"


@pytest.mark.usefixtures("toy")
def test_a_step_is_simulated_with_it():
    faster = simulate(load_job(job(pigeons=flight("1 ns")))).step_seconds
    assert faster < simulate(load_job(job())).step_seconds


def test_without_it_all_is_as_before():
    assert "pigeons" not in {a.name for a in algorithms.registered()}
    assert priced("all_gather").algorithm == "ring"


def test_constants_of_an_unknown_algorithm_are_refused():
    with pytest.raises(DescriptionError, match=r"machine\.libraries\.nccl\.algorithms\.pigeons") as refused:
        priced("all_gather", pigeons=flight("1 ns"))
    assert "two-level" in str(refused.value)


@pytest.mark.usefixtures("toy")
def test_wrong_constants_are_refused_with_their_key():
    with pytest.raises(DescriptionError, match=r"algorithms\.pigeons\.flihgt") as refused:
        priced("all_gather", pigeons={"flihgt": flight("1 ns")["flight"]})
    assert "did you mean 'flight'" in str(refused.value)


@pytest.mark.usefixtures("toy")
def test_a_name_is_taken_once():
    with pytest.raises(ValueError, match="'pigeons' is registered already"):
        algorithms.register("pigeons")(pigeons)


def test_every_module_of_the_package_is_found():
    assert [a.name for a in algorithms.registered()] == [
        "direct",
        "in-switch",
        "pairwise",
        "point-to-point",
        "ring",
        "shift",
        "tree",
        "two-level",
    ]
    assert [a.name for a in algorithms.registered() if a.alone] == ["direct"]


def test_what_stands_alone_leaves_no_choice():
    """On gloo the runtime exchanges directly, and nothing else is offered then."""
    laptop = load_machine("laptop")
    library = laptop.libraries[laptop.library]
    found = options(look(laptop, Placement.contiguous(4, laptop.devices_per_node)), library, "reduce_scatter", 1e6)
    assert {option.algorithm for option in found} == {"direct"}
