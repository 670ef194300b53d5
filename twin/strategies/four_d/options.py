"""What a search varies besides a 4D grid, and which variants differ on a grid.

An option that changes nothing on a grid (caching gathered weights where z is 1, sharding over data
where data is 1) is not varied there: every candidate is another job.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import product
from typing import Any, Literal, TypeVar, get_args

from twin.description.attention import UNFUSED
from twin.description.job import Job
from twin.description.offload import Offload
from twin.strategies import offload_choices
from twin.strategies.four_d.job import FourDJob, Keeps, Tensor
from twin.strategies.four_d.levels import cache_levels, recompute_levels
from twin.strategies.four_d.rules import check, may_shard
from twin.strategies.strategy import Variant

T = TypeVar("T")
VARIED = (
    "recompute",
    "cache",
    "sharding",
    "sharded_overlapped",
    "overlap",
    "recompute_layers",
    "recompute_keeps",
    "recompute_stops_early",
    "halves",
    "across_blocks",
    "divide",
    "tensor",
    "offload",
)
ReductionMode = Literal["one_bucket", "overlapped", "sharded", "sharded_overlapped"]
SWITCHES = ("all_reduce", "reduce_scatter", "all_gather")
BEYOND = ("halves", "across_blocks")
"""Switches of overlap that go beyond the published algorithm."""
DIVIDED = ("attention", "mlp")
"""What `divide` has, which goes beyond it too."""


@dataclass(frozen=True, slots=True)
class Options(Variant):
    """The options of a job that a search may vary; the micro-batch comes with the grid."""

    recompute: bool
    cache_gathered_layers: int
    data_reduction: ReductionMode
    all_reduce: bool
    reduce_scatter: bool
    all_gather: bool
    recompute_layers: int | None = None
    halves: bool = False
    across_blocks: bool = False
    attention: bool = False
    """Whether attention is divided over x."""
    mlp: bool = False
    """Whether the MLP's activation is."""
    tensor: Tensor = "2d"
    recompute_keeps: Keeps = "nothing"
    offload: Offload | None = None
    stops_early: bool = False
    """Whether blocks that run again leave out what only their output needs."""

    @classmethod
    def of(cls, job: FourDJob) -> Options:
        """Read them from a job."""
        overlap = job.overlap
        return cls(
            job.recompute,
            job.cache_gathered_layers,
            job.data_reduction.mode,
            overlap.all_reduce,
            overlap.reduce_scatter,
            overlap.all_gather,
            job.recompute_layers,
            overlap.halves,
            overlap.across_blocks,
            job.divide.attention,
            job.divide.mlp,
            job.tensor,
            job.recompute_keeps,
            job.offload,
            job.recompute_stops_early,
        )

    def but_recomputation(self) -> tuple[Hashable, int]:
        """Nothing computed again, norms and activations, what attention does not keep, or whole blocks.

        What is kept may have to travel where it lies beyond the device: those are not compared.
        """
        if self.offload is not None:
            return self, 0
        kinds: tuple[Keeps, ...] = get_args(Keeps)
        level = len(kinds) - kinds.index(self.recompute_keeps) if self.recompute else 0
        return replace(self, recompute=False, recompute_keeps="nothing", stops_early=False), level

    def as_json(self) -> dict[str, Any]:
        """Return the options as they stand in what a search prints."""
        return {
            "recompute": self.recompute,
            **({} if self.recompute_layers is None else {"recompute_layers": self.recompute_layers}),
            **({} if self.recompute_keeps == "nothing" else {"recompute_keeps": self.recompute_keeps}),
            **({"recompute_stops_early": True} if self.stops_early else {}),
            "cache_gathered_layers": self.cache_gathered_layers,
            "data_reduction": self.data_reduction,
            "overlap": self.overlap,
            **({"divide": self.divide} if any(self.divide.values()) else {}),
            **({} if self.tensor == "2d" else {"tensor": self.tensor}),
            **({} if self.offload is None else {"offload": offload_choices.written(self.offload)}),
        }

    @classmethod
    def read(cls, raw: Mapping[str, Any]) -> Options:
        """Read what `as_json` wrote; raises ValueError naming the key that is wrong."""
        overlap = raw.get("overlap")
        switches = overlap if isinstance(overlap, Mapping) else {}
        divide = raw.get("divide", {})
        parts = divide if isinstance(divide, Mapping) else dict.fromkeys(DIVIDED)
        mode = next((m for m in get_args(ReductionMode) if m == raw.get("data_reduction")), None)
        layers = raw.get("cache_gathered_layers")
        if mode is None:
            raise ValueError("options.data_reduction: is none that Fourfold knows")
        if type(layers) is not int or layers < 0:
            raise ValueError("options.cache_gathered_layers: expected a whole number from 0")
        again = raw.get("recompute_layers")
        if again is not None and (type(again) is not int or again < 1):
            raise ValueError("options.recompute_layers: expected a whole number from 1")
        truths: dict[str, Any] = {"recompute": raw.get("recompute"), **{name: switches.get(name) for name in SWITCHES}}
        truths |= {name: switches.get(name, False) for name in BEYOND}
        truths |= {name: parts.get(name, False) for name in DIVIDED}
        truths |= {"stops_early": raw.get("recompute_stops_early", False)}
        tensor = next((way for way in get_args(Tensor) if way == raw.get("tensor", "2d")), None)
        if tensor is None:
            raise ValueError(f"options.tensor: expected one of {', '.join(get_args(Tensor))}")
        keeps = next((what for what in get_args(Keeps) if what == raw.get("recompute_keeps", "nothing")), None)
        if keeps is None:
            raise ValueError(f"options.recompute_keeps: expected one of {', '.join(get_args(Keeps))}")
        if wrong := [name for name, value in truths.items() if type(value) is not bool]:
            raise ValueError(f"options.{wrong[0]}: expected true or false")
        return cls(
            cache_gathered_layers=layers,
            data_reduction=mode,
            recompute_layers=again,
            recompute_keeps=keeps,
            tensor=tensor,
            offload=offload_choices.read(raw),
            **truths,
        )

    def words(self) -> dict[str, str]:
        """Say the value of each option in a word or two, by name."""
        return {
            "recompute": self._recomputed(),
            "cache_gathered_layers": f"{self.cache_gathered_layers} layers cached",
            "data_reduction": self.data_reduction.replace("_", " "),
            "all_reduce": f"OAR {_switch(self.all_reduce)}",
            "reduce_scatter": f"ORS {_switch(self.reduce_scatter)}",
            "all_gather": f"OAG {_switch(self.all_gather)}",
            **({"halves": "two halves"} if self.halves else {}),
            **({"across_blocks": "gathers across blocks"} if self.across_blocks else {}),
            **({"attention": "attention divided"} if self.attention else {}),
            **({"mlp": "activation divided"} if self.mlp else {}),
            **({} if self.tensor == "2d" else {"tensor": f"tensor {self.tensor}"}),
            **({} if self.offload is None else {"offload": offload_choices.in_words(self.offload)}),
        }

    def _recomputed(self) -> str:
        if not self.recompute:
            return "no recomputation"
        what = "recomputed" if self.recompute_keeps == "nothing" else f"with {self.recompute_keeps} kept"
        what += " but MLP down" if self.stops_early and self.recompute_keeps == "nothing" else ""
        layers = "" if self.recompute_layers is None else f"{self.recompute_layers} layers "
        return f"{layers}{what}" if layers or self.recompute_keeps == "nothing" else f"{self.recompute_keeps} kept"

    def columns(self) -> dict[str, str | int]:
        """Return the options as columns of a table: titles and values."""
        return {
            "recompute": _switch(self.recompute),
            "layers recomputed": "all" if self.recompute_layers is None else self.recompute_layers,
            "recomputation keeps": self.recompute_keeps,
            "recomputation stops early": _switch(self.stops_early),
            "layers cached": self.cache_gathered_layers,
            "data reduction": self.data_reduction,
            **{name.replace("_", " "): _switch(getattr(self, name)) for name in (*SWITCHES, *BEYOND)},
            **{f"{name} divided": _switch(getattr(self, name)) for name in DIVIDED},
            "tensor": self.tensor,
            "offload": offload_choices.in_words(self.offload),
        }

    def settle(self, raw: dict[str, Any]) -> None:
        """Put the options into the keys of a job file, where it has them or where they are not the default."""
        plain = plain_options()
        _put(raw, "recompute", self.recompute, plain.recompute)
        _put(raw, "recompute_layers", self.recompute_layers, plain.recompute_layers)
        _put(raw, "recompute_keeps", self.recompute_keeps, plain.recompute_keeps)
        _put(raw, "recompute_stops_early", self.stops_early, plain.stops_early)
        if not self.recompute:
            raw.pop("recompute_inputs", None)
        _put(raw, "cache_gathered_layers", self.cache_gathered_layers, plain.cache_gathered_layers)
        _put_below(raw, "data_reduction", {"mode": self.data_reduction}, {"mode": plain.data_reduction})
        _put_below(raw, "overlap", self.overlap, {name: getattr(plain, name) for name in (*SWITCHES, *BEYOND)})
        _put(raw, "tensor", self.tensor, plain.tensor)
        offload_choices.settle(self.offload, raw)
        _put_below(raw, "divide", self.divide, {name: getattr(plain, name) for name in DIVIDED})

    @property
    def divide(self) -> dict[str, bool]:
        """What is divided over x, as a job has it."""
        return {name: getattr(self, name) for name in DIVIDED}

    @property
    def overlap(self) -> dict[str, bool]:
        """The overlap switches, as a job has them."""
        beyond = {name: True for name in BEYOND if getattr(self, name)}
        return {name: getattr(self, name) for name in SWITCHES} | beyond

    def on(self, job: Job) -> FourDJob:
        """Return the job with these options."""
        assert isinstance(job, FourDJob)
        reduction = job.data_reduction.model_copy(update={"mode": self.data_reduction})
        # the inputs of what is not computed again do not leave the device
        inputs = job.recompute_inputs if self.recompute else "device"
        return job.model_copy(
            update={
                "recompute_inputs": inputs,
                "recompute": self.recompute,
                "recompute_layers": self.recompute_layers if self.recompute else None,
                "recompute_keeps": self.recompute_keeps if self.recompute else "nothing",
                "recompute_stops_early": self.stops_early and self.recompute,
                "cache_gathered_layers": self.cache_gathered_layers,
                "data_reduction": reduction,
                "overlap": job.overlap.model_copy(update={name: getattr(self, name) for name in (*SWITCHES, *BEYOND)}),
                "divide": job.divide.model_copy(update=self.divide),
                "tensor": self.tensor,
                "offload": self.offload,
            }
        )


def variants(job: FourDJob, over: frozenset[str]) -> Iterator[Options]:
    """Yield the job's own options and, as far as they differ on this grid, those to vary."""
    own, grid = Options.of(job), job.concrete_grid
    split = grid.z > 1
    recompute = _first(own.recompute, (True, False), "recompute" in over)
    cache = _first(own.cache_gathered_layers, cache_levels(job), "cache" in over and split)
    modes = _modes(job, own.data_reduction, over) if grid.data > 1 else [own.data_reduction]
    switches = "overlap" in over
    all_reduce = _first(own.all_reduce, (True, False), switches and (grid.x > 1 or grid.y > 1))
    scatter = _first(own.reduce_scatter, (True, False), switches and split)
    gather = _first(own.all_gather, (True, False), switches and split)
    beyond = frozenset() if job.published else over
    reduced = (grid.x > 1 or grid.y > 1) and job.lora is None
    layers = _first(own.recompute_layers, recompute_levels(job), "recompute_layers" in beyond)
    keeps = _first(own.recompute_keeps, may_keep(job), "recompute_keeps" in beyond)
    halves = _first(own.halves, (True, False), "halves" in beyond and reduced)
    # never slower than without, at the price of the gathers under way
    across = [True] if "across_blocks" in beyond and split else [own.across_blocks]
    attention = _first(own.attention, (True, False), "divide" in beyond and may_divide(job, "attention"))
    mlp = _first(own.mlp, (True, False), "divide" in beyond and may_divide(job, "mlp"))
    published = product(recompute, cache, modes, all_reduce, scatter, gather)
    ways: tuple[Tensor, ...] = get_args(Tensor)
    tensor = _first(own.tensor, ways, "tensor" in beyond and may_divide(job, "attention"))
    further = product(layers, halves, across, attention, mlp, tensor)
    offloads = offload_choices.choices(job) if "offload" in over else [own.offload]
    # never slower than without, in the same memory
    early = "recompute_stops_early" in beyond
    seen: set[Options] = set()
    for choice, more, kept, offload in product(published, further, keeps, offloads):
        found = Options(*choice, *more, kept, offload, own.stops_early)
        if early:
            found = replace(found, stops_early=found.recompute and kept == "nothing")
        if not found.recompute and found != own:
            found = replace(found, recompute_layers=None, recompute_keeps="nothing", stops_early=False)
        divides_nothing = found.tensor == "1d" and any(found.divide.values())
        if divides_nothing or found in seen:
            continue
        seen.add(found)
        if offload is None or found == own or not check(found.on(job)):
            yield found


def _modes(job: FourDJob, own: ReductionMode, over: frozenset[str]) -> list[ReductionMode]:
    """Return the job's own way to sum gradients over data, and those to vary.

    With `sharded_overlapped` that one takes the place of `sharded`, whose collectives are as many bytes beside nothing:
    so that no more candidates are simulated.
    """
    found: list[ReductionMode] = ["one_bucket", "overlapped"] if "sharding" in over else []
    ahead = "sharded_overlapped" in over and not job.published and job.lora is None
    if may_shard(job) and (ahead or "sharding" in over):
        found.append("sharded_overlapped" if ahead else "sharded")
    return [own, *(mode for mode in found if mode != own)]


def may_divide(job: FourDJob, what: str) -> bool:
    """Tell whether something of a block may be divided over x, of which there is more than one rank."""
    return job.concrete_grid.x > 1 and job.lora is None and not (what == "attention" and job.model.qk_norm)


def may_keep(job: FourDJob) -> tuple[Keeps, ...]:
    """Return what recomputed blocks may keep, the least first; something if no input leaves the device."""
    moves = job.recompute_inputs == "host" or (job.offload is not None and job.offload.activations is not None)
    kinds: tuple[Keeps, ...] = get_args(Keeps) if not moves else ()
    return tuple(kind for kind in kinds if kind != "attention" or job.attention not in UNFUSED)


def _first(own: T, others: tuple[T, ...], varied: bool) -> list[T]:
    """Own value first, then the others if they are wanted."""
    return [own, *(o for o in others if o != own)] if varied else [own]


def plain_options() -> Options:
    """Options of a job that says nothing about them."""
    default = {name: field.default for name, field in FourDJob.model_fields.items()}
    overlap, divide = default["overlap"], default["divide"]
    return Options(
        recompute=default["recompute"],
        cache_gathered_layers=default["cache_gathered_layers"],
        data_reduction=default["data_reduction"].mode,
        recompute_layers=default["recompute_layers"],
        tensor=default["tensor"],
        recompute_keeps=default["recompute_keeps"],
        offload=default["offload"],
        stops_early=default["recompute_stops_early"],
        **{name: getattr(overlap, name) for name in (*SWITCHES, *BEYOND)},
        **{name: getattr(divide, name) for name in DIVIDED},
    )


def _switch(on: bool) -> str:
    return "on" if on else "off"


def _put(raw: dict[str, Any], key: str, value: Any, plain: Any) -> None:
    if key in raw or value != plain:
        raw[key] = value


def _put_below(raw: dict[str, Any], key: str, values: Mapping[str, Any], plain: Mapping[str, Any]) -> None:
    below = dict(raw.get(key) or {})
    for name, value in values.items():
        _put(below, name, value, plain[name])
    if below:
        raw[key] = below
