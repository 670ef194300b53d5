"""Where a rank's parameters, gradients and optimizer input live: a few flat buffers.

Layers declare parameters; `allocate` lays them out, so that reduction, clipping and the
optimizer are a few large operations instead of many small ones:

    [head, block L-1, …, block 0 | embeddings | vectors over the innermost axis | other vectors]
     cut over an axis, decay       whole: decay   no decay

What does not train, where adapters do, follows in the same order, and has a place in `compute` alone. Parameters with
equal `partial` lie together.

* `compute`: what layers compute with. `master`: the fp32 (or fp64) weights that the optimizer updates, of all or,
  where replicas share its states among them, of this rank's parts; `compute` itself if the precision is the same.
* `gradient`: sums over micro-steps, and one more element at the end: this rank's part of the
  loss, which so is summed over z and data by the gradients' own collectives.
* Where replicas share states, each owns a part of every bucket (`runtime.weights.owned`), behind which lies padding.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import torch

from runtime.parallel import random
from runtime.weights.owned import Bucket, Owned
from runtime.weights.shards import ParameterSpec, Shard
from twin.description.grid import Axis, GridSpec

LOSS_ELEMENTS = 1


@dataclass
class Parameter:
    """One declared parameter of this rank. Views are of shape (stored,) and valid once allocated."""

    shard: Shard
    start: int = -1
    """First element in the flat buffers."""
    weight: torch.nn.Parameter = field(init=False)
    """What layers compute with; its `.grad` stays None, gradients go to `gradient`."""
    gradient: torch.Tensor = field(init=False)
    seen: bool = False
    """True if this step has written the gradient already (else it is stale)."""

    frozen: bool = False
    """It does not train: it has no gradient."""

    @property
    def spec(self) -> ParameterSpec:
        """What it is in the full model."""
        return self.shard.spec

    @property
    def stop(self) -> int:
        """One past the last element in the flat buffers."""
        return self.start + self.shard.stored

    @cached_property
    def local(self) -> torch.Tensor:
        """The weight in its local shape, if it is not cut over z: a view, made once."""
        return self.weight.detach().view(self.shard.local_shape)

    @cached_property
    def local_gradient(self) -> torch.Tensor:
        """The gradient in the weight's local shape, if it is not cut over z: a view, made once."""
        return self.gradient.view(self.shard.local_shape)

    def accumulation(self, gradient: torch.Tensor) -> float:
        """Bytes that `accumulate` reads and writes: the sum is only written the first time."""
        passes = 2 if self.seen else 1
        each = gradient.element_size() + passes * self.gradient.element_size()
        return float(gradient.numel() * each)

    def accumulate(self, gradient: torch.Tensor) -> None:
        """Add this micro-step's gradient (any shape of `stored` elements, or of those that are no padding)."""
        flat = gradient.reshape(-1)
        total = self.gradient if flat.numel() == self.gradient.numel() else self.gradient[: flat.numel()]
        if self.seen:
            total += flat
        else:
            total.copy_(flat)
            self.seen = True


@dataclass
class ParameterStore:
    """All parameters of one rank."""

    grid: GridSpec
    coordinates: dict[Axis, int]
    seed: int
    master_type: torch.dtype
    compute_type: torch.dtype
    device: torch.device
    initialised: bool = True
    """Fill weights with the numbers they start from; not where shapes alone matter."""
    adapters_only: bool = False
    """Nothing trains but adapters."""
    masters_in: Callable[[int, torch.dtype], torch.Tensor] | None = None
    """Makes zeros where master weights lie that are not the layers' own; None: on the device."""
    parameters: dict[str, Parameter] = field(default_factory=dict)
    compute: torch.Tensor = field(init=False)
    gradient: torch.Tensor = field(init=False)
    buckets: tuple[Bucket, ...] = field(init=False)
    """What the flat buffers of what trains are made of."""
    owned: Owned = field(init=False)
    """What this rank updates of them: its part of every bucket."""
    master: torch.Tensor = field(init=False)
    """Of what is owned alone, if layers compute with rounded copies; else `compute`."""
    replicated: int = field(init=False)
    """Where what is replicated over z begins."""
    used: int = field(init=False)
    """Elements up to the end of the last parameter; the next one is the loss."""
    _parts: int = field(init=False, default=1)

    def declare(self, spec: ParameterSpec) -> Parameter:
        """Announce a parameter; its memory comes with `allocate`."""
        if spec.name in self.parameters:
            raise ValueError(f"parameter {spec.name} is declared twice")
        self.__dict__.pop("trained", None)  # which are known from now on are others
        frozen = self.adapters_only and not spec.adapter
        parameter = Parameter(Shard(spec, self.grid, self.coordinates), frozen=frozen)
        self.parameters[spec.name] = parameter
        return parameter

    @property
    def elements(self) -> int:
        """Elements of the flat buffers of what trains, padding included."""
        return self.gradient.numel()

    @cached_property
    def trained(self) -> list[Parameter]:
        """Parameters that train, in the order of the flat buffers."""
        return [parameter for parameter in self.in_order() if not parameter.frozen]

    @property
    def of_model(self) -> list[Parameter]:
        """The model's own parameters, without adapters, in the order of the flat buffers."""
        return [parameter for parameter in self.in_order() if not parameter.spec.adapter]

    @property
    def rounds(self) -> bool:
        """True if layers compute with rounded copies of the master weights."""
        return self.compute_type != self.master_type

    def allocate(self, parts: int = 1, last: Sequence[Parameter] = ()) -> None:
        """Lay out and initialise everything; replicas share the master weights among them in so many equal parts.

        A bucket ends behind each parameter of `last`, and behind all.
        """
        self._parts, ends = parts, {id(parameter) for parameter in last}
        buckets: list[Bucket] = []
        begin = end = 0
        for parameter in self.trained:
            parameter.start = end
            end = parameter.stop
            if id(parameter) in ends:
                buckets.append(Bucket.padded(begin, end, parts))
                begin = end = buckets[-1].stop
        self.replicated = next((p.start for p in self.trained if not p.spec.cut), end)
        self.used = end
        # the loss lies behind the last parameter, and padding behind it
        buckets.append(Bucket.padded(begin, end + LOSS_ELEMENTS, parts))
        self.buckets = tuple(buckets)
        self.owned = Owned(tuple(self.part_of(bucket) for bucket in buckets))
        stop = elements = buckets[-1].stop
        for parameter in self.in_order():
            if parameter.frozen:
                parameter.start = stop
                stop = parameter.stop
        self.compute = torch.zeros(stop, dtype=self.compute_type, device=self.device)
        self.gradient = torch.zeros(elements, dtype=self.master_type, device=self.device)
        self.master = self.compute
        if self.rounds:
            owned = self.owned.elements
            if self.masters_in is None:
                self.master = torch.zeros(owned, dtype=self.master_type, device=self.device)
            else:
                self.master = self.masters_in(owned, self.master_type)
        for parameter in self.in_order():
            place = slice(parameter.start, parameter.stop)
            if self.initialised:
                self._initialise(parameter)
            parameter.weight = torch.nn.Parameter(self.compute[place], requires_grad=not parameter.frozen)
            if not parameter.frozen:
                parameter.gradient = self.gradient[place]

    def part_of(self, bucket: Bucket) -> slice:
        """Return this rank's part of a bucket."""
        place = self.coordinates[self.grid.replicated_over] if self._parts > 1 else 0
        return bucket.part(place, self._parts)

    def master_of(self, place: slice) -> torch.Tensor:
        """Return the master weights of elements that are owned, and lie together: a view."""
        return self.master[self.owned.inside(place)] if self.rounds else self.compute[place]

    def in_order(self) -> list[Parameter]:
        """Parameters in the order of the flat buffers."""
        declared = list(self.parameters.values())

        def rank(item: tuple[int, Parameter]) -> tuple[bool, int, str, int]:
            index, parameter = item
            spec = parameter.spec
            if spec.cut and not spec.cut_rows:
                kind = 0
            elif spec.decay:
                kind = 1
            else:
                kind = 2 if spec.axes[0] in (None, self.grid.axes[-1]) else 3
            return parameter.frozen, kind, spec.partial or "", index

        return [parameter for _, parameter in sorted(enumerate(declared), key=rank)]

    def _initialise(self, parameter: Parameter) -> None:
        spec = parameter.spec
        flat = torch.zeros(parameter.shard.stored, dtype=self.master_type, device=self.device)
        stream = random.key(self.seed, spec.alike or spec.also or spec.name)
        for rectangle in parameter.shard.rectangles():
            rows, columns = rectangle.sizes[0], rectangle.count // rectangle.sizes[0]
            target = flat[rectangle.first : rectangle.first + rectangle.count].view(rows, columns)
            if spec.init is None:
                target.fill_(spec.constant)
                continue
            full_columns = spec.shape[1] if len(spec.shape) == 2 else 1
            column = rectangle.offsets[1] if len(rectangle.offsets) == 2 else 0
            at_once = max(1, random.MAX_ELEMENTS // columns)
            across = torch.arange(column, column + columns, device=self.device)
            for begin in range(0, rows, at_once):
                end = min(rows, begin + at_once)
                down = torch.arange(rectangle.offsets[0] + begin, rectangle.offsets[0] + end, device=self.device)
                indices = down[:, None] * full_columns + across
                draw = random.uniform if spec.uniform else random.normal
                target[begin:end] = draw(indices, stream) * spec.init
        self.put(parameter.start, flat)

    def put(self, start: int, weights: torch.Tensor) -> None:
        """Set the weights from a place in the flat buffers on: what layers compute with, and the master's own part."""
        stop = start + weights.numel()
        self.compute[start:stop].copy_(weights)
        if self.rounds:
            for place in self.owned.within(start, stop):
                own, master = weights[place.start - start : place.stop - start], self.master_of(place)
                if master.device != own.device:  # a copy to the host that converts goes by pageable memory
                    own = own.to(self.master_type)
                master.copy_(own)

    def publish(self) -> None:
        """Round this rank's master weights to what layers compute with."""
        if self.rounds:
            for place in self.owned.ranges:
                self.compute[place].copy_(self.master_of(place))

    @property
    def loss(self) -> torch.Tensor:
        """The element (1,) that carries the loss through the gradients' reductions."""
        return self.gradient[self.used : self.used + LOSS_ELEMENTS]

    def begin_step(self) -> None:
        """Forget the gradients of the step before."""
        for parameter in self.parameters.values():
            parameter.seen = False
        self.loss.zero_()

    def ranges_counted_once(self) -> Iterator[tuple[int, int]]:
        """Flat ranges whose elements are this rank's to count: each element once over x, y and z."""
        begin = end = 0
        for parameter in self.trained:
            if not parameter.shard.counted_once:
                continue
            if parameter.start != end:
                if end > begin:
                    yield begin, end
                begin = parameter.start
            end = parameter.stop
        if end > begin:
            yield begin, end

    @property
    def decayed(self) -> int:
        """Elements that take part in weight decay: the first so many."""
        return max((p.stop for p in self.trained if p.spec.decay), default=0)

    def partial_runs(self, axis: Axis) -> Iterator[torch.Tensor]:
        """Gradients of which each rank of an axis has a part: flat views, of what lies together one each."""
        begin = end = 0
        for parameter in self.trained:
            if parameter.spec.partial != axis:
                continue
            if parameter.start != end:
                if end > begin:
                    yield self.gradient[begin:end]
                begin = parameter.start
            end = parameter.stop
        if end > begin:
            yield self.gradient[begin:end]

    def partial_over(self, axis: Axis) -> torch.Tensor | None:
        """Gradients of which each rank of an axis has a part: one flat view; None if there are none."""
        found = [p for p in self.trained if p.spec.partial == axis]
        return self.gradient[found[0].start : found[-1].stop] if found else None
