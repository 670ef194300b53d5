"""Passes of a pipeline: which micro-batch a stage works on, forward or backward, from the names of its ops.

An op of a pass is called `micro3/F1/...`: micro-batch, kind, and the number of the chunk where a rank has several. A
message between stages is `messages/micro3/F1/send` (or `receive`, or the `gather` of its parts). Names are all that
is needed, so a simulation and the table of its events say the same.

Letters: F forward pass, B backward pass, or its halves: I input gradients, W weight gradients.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Literal, NamedTuple, cast, overload

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
PassKind = Literal["F", "B", "I", "W"]
KINDS: tuple[PassKind, ...] = ("F", "B", "I", "W")
PASS_KINDS: dict[PassKind, str] = {
    "F": "forward",
    "B": "backward",
    "I": "backward, input gradients",
    "W": "backward, weight gradients",
}
"""What the letters mean."""

NANOSECONDS, ROUNDING = 2e-9, 2.0**-40
"""Passes at once are so for longer: tables of events have whole nanoseconds, and times are sums that are rounded, by no
more than such a part of them."""

NEITHER, MESSAGE = -1, -2
"""In place of a pass's number: an op of no pass, and one of a message."""

_PASS = re.compile(r"micro(\d+|\{(\w+)\})/([FBIW])(\d*)/")


class PassName(NamedTuple):
    """Which pass an op belongs to."""

    kind: PassKind
    chunk: int
    micro: int | None
    """None in a name whose micro-batch is left open."""


@lru_cache(maxsize=4096)
def pass_of(name: str) -> PassName | int:
    """Read the name of an op; a variable such as `{micro}` may stand for its micro-batch.

    >>> pass_of("micro3/F1/block7/norm1")
    PassName(kind='F', chunk=1, micro=3)
    >>> pass_of("messages/micro3/F1/send") == MESSAGE, pass_of("micro0/fwd/block3/norm1") == NEITHER
    (True, True)
    """
    return pass_and_variable_of(name)[0]


@dataclass(frozen=True)
class PassNames(Sequence[PassName]):
    """Passes by name, of which a long step has many and few that differ but for their micro-batches."""

    distinct: tuple[PassName, ...]
    which: Ints
    """Of each pass: which of the distinct names it has."""
    micro: Ints
    """Its micro-batch."""

    def __len__(self) -> int:
        return len(self.which)

    @overload
    def __getitem__(self, index: int) -> PassName: ...

    @overload
    def __getitem__(self, index: slice) -> list[PassName]: ...

    def __getitem__(self, index: int | slice) -> PassName | list[PassName]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        return self.distinct[int(self.which[index])]._replace(micro=int(self.micro[index]))


def pass_and_variable_of(name: str) -> tuple[PassName | int, str]:
    """Return the pass of an op, and which variable stands for its micro-batch in a name that leaves it open.

    >>> pass_and_variable_of("micro{behind}/B1/block7/norm1")[1], pass_and_variable_of("reduce/adamw")[1]
    ('behind', 'micro')
    """
    first, _, rest = name.partition("/")
    second, slash, _ = rest.partition("/")
    return _read_beginning(f"{first}/{second}{slash}" if first.startswith("micro") else f"{first}/")


@lru_cache(maxsize=4096)
def _read_beginning(beginning: str) -> tuple[PassName | int, str]:
    """Read what names begin with, by the dozen alike."""
    if beginning == "messages/":
        return MESSAGE, "micro"
    found = _PASS.match(beginning)
    if found is None:
        return NEITHER, "micro"
    micro, variable, kind, chunk = found.groups()
    return PassName(cast("PassKind", kind), int(chunk or 0), None if variable else int(micro)), variable or "micro"


@dataclass(frozen=True)
class Passes:
    """The passes of one rank in order, as columns. Times are seconds from the step's begin."""

    kind: tuple[PassKind, ...]
    chunk: Ints
    micro: Ints
    start: Floats
    """When the rank came to the pass's first op."""
    end: Floats
    """When it had done the last op that it waits for."""
    computing: Floats
    """Seconds of compute in it."""

    def __len__(self) -> int:
        """Return the number of passes."""
        return len(self.kind)

    @property
    def chunks(self) -> int:
        """Chunks of the model that the rank has."""
        return int(self.chunk.max()) + 1 if len(self) else 0

    @property
    def micro_batches(self) -> int:
        """Micro-batches that go through the rank."""
        return int(self.micro.max()) + 1 if len(self) else 0

    @cached_property
    def side(self) -> Ints:
        """Say of passes at once which is which: 1 of the one that began first, 2 of the other, 0 of a pass alone."""
        found = np.zeros(len(self), dtype=np.int64)
        shared = self.end[:-1] - self.start[1:]
        both = np.flatnonzero(shared > NANOSECONDS + ROUNDING * self.end[:-1])
        found[both], found[both + 1] = 1, 2
        return found

    @cached_property
    def forward(self) -> NDArray[np.bool_]:
        """Say of each pass whether it is a forward one."""
        return np.array([kind == "F" for kind in self.kind], dtype=bool)


@dataclass(frozen=True)
class RankOps:
    """What one rank did, op by op: columns in program order. Times are seconds from the step's begin."""

    names: PassNames
    """Passes, each once."""
    number: Ints
    """Of each op: which of them it belongs to; or NEITHER, or MESSAGE."""
    compute: NDArray[np.bool_]
    """Whether the op is compute."""
    collective: NDArray[np.bool_]
    """Whether it is a collective or a message, which a rank starts and goes on."""
    arrival: Floats
    start: Floats
    end: Floats

    @cached_property
    def passes(self) -> Passes:
        """Put the ops of each pass together, in order of time."""
        inside = self.number >= 0
        number, count = self.number[inside], len(self.names)
        left = np.where(self.collective, self.arrival, self.end)[inside]
        begin, end = np.full(count, np.inf), np.full(count, -np.inf)
        np.minimum.at(begin, number, self.arrival[inside])
        np.maximum.at(end, number, left)
        worked = inside & self.compute
        computing = np.zeros(count)
        np.add.at(computing, self.number[worked], (self.end - self.start)[worked])
        order = np.lexsort((end, begin))
        names = self.names.distinct
        which, chunks = self.names.which[order], np.array([name.chunk for name in names], dtype=np.int64)
        return Passes(
            tuple(np.array([name.kind for name in names], dtype=object)[which].tolist()),
            chunks[which],
            self.names.micro[order],
            begin[order],
            end[order],
            computing[order],
        )

    @cached_property
    def messages(self) -> tuple[Floats, Floats]:
        """When messages of the rank were under way: starts and ends."""
        of = (self.number == MESSAGE) & self.collective
        return self.start[of], self.end[of]


def numbered(names: Sequence[PassName | int], which: Ints, micro: Ints | None = None) -> tuple[PassNames, Ints]:
    """Return the passes in the order in which they begin, and to which of them each op belongs.

    `which` of the names is that of each op, in program order, and `micro` its micro-batch where the name leaves it
    open. What is no pass stays what it is. Ops of a pass follow each other, or take turns with those of one other pass:
    one that comes later waits for what the pass has left under way, such as a reduction of gradients, and is not part
    of it.

    >>> names, number = numbered([PassName("F", 0, None), MESSAGE], np.array([0, 1, 0]), np.array([2, -1, 3]))
    >>> [name.micro for name in names], number.tolist()
    ([2, 3], [0, -2, 1])
    """
    distinct: dict[PassName, int] = {}
    codes = [name if isinstance(name, int) else distinct.setdefault(name, len(distinct)) for name in names]
    templates = tuple(distinct)
    found = np.array(codes, dtype=np.int64)[which]
    own = np.array(
        [-1 if isinstance(name, int) or name.micro is None else name.micro for name in names], dtype=np.int64
    )
    own = own[which]
    if micro is not None:
        own = np.where(own < 0, micro, own)
    inside = found >= 0
    key = np.where(inside, found * (own.max(initial=0) + 1) + own, found)
    begins = np.flatnonzero(np.diff(key, prepend=-3))  # of stretches with one key
    keys, first = np.unique(key[begins], return_index=True)
    order = np.sort(first[keys >= 0])
    of_stretch = np.where(key[begins] >= 0, NEITHER, key[begins])
    of_stretch[order] = np.arange(len(order))
    stretches = key[begins]
    turns = 2 + np.flatnonzero((stretches[2:] >= 0) & (stretches[2:] == stretches[:-2]) & (stretches[1:-1] >= 0))
    for turn in turns.tolist():  # one after the other: each goes on from the one before
        of_stretch[turn] = of_stretch[turn - 2]
    number = np.repeat(of_stretch, np.diff(begins, append=len(key)))
    at = begins[order]
    return PassNames(templates, found[at], own[at]), number
