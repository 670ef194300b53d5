"""Collectives over the axes of the grid: the only module that calls torch.distributed for tensors.

* Every verb returns a `Handle`; nothing else waits.
* On gloo, where each ring step costs a wake-up of every process, direct exchanges (each member
  sends each other one its part) replace rings where that was measured to be faster: always for
  reduce-scatters and between two members, for all-gathers within a host, for all others and all-reduces up to
  `EXCHANGE_BYTES`. (PyTorch's all-gather on gloo gathers into memory that it allocates each time, and copies.)
  Sums are then taken in the order of ranks, so all members get the same bits.
* An exchange is gloo's all-to-all where that is cheaper: within a host, and for few bytes. Else its messages are posted
  here, every receive before the first send: gloo says "ready" to a peer on the connection that carries the data, so
  that between hosts a member that came late would otherwise tell its peer only after it has sent everything, and the
  two directions would run one after the other (as gloo's all-to-all lets them). But posting may cost more of a core: a
  thread that has just computed is put off while it holds a connection, and gloo's own thread spins meanwhile. Measured
  as `EXCHANGE_BYTES` on 2026-11-28, four ranks that compute in between: two exchange 64 KiB for 1.2 ms of a core posted
  and 0.4 ms by all-to-all, 2 MiB for 1.6 and 0.9 ms; four gather 2 MiB for 0.9 ms posted and 1.2 by copies.
* A collective that fails names rank, op and peers.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
import torch.distributed as dist

from runtime.parallel.buffers import Buffers
from runtime.parallel.mesh import Communicator, Mesh
from runtime.parallel.ops import Op, Ops, Place
from twin.description.library import CollectiveKind
from twin.schedule.ops import Phase, axis_of

EXCHANGE_BYTES = 256 * 2**10
"""Largest all-reduce (buffer) and all-gather (gathered) of more than two members on gloo that is one direct exchange;
up to it gloo's all-to-all does exchanges between hosts too, and of more than two in a host who are all sent one part.
Measured with torch 2.13.0 on two cores, 2026-11-20: all-reduce of four ranks, 256 KiB 3.4 ms against 6.1 ms by the
ring, 512 KiB and 1 MiB equal; all-gather of 3 MiB of four ranks on one host, 4.0 ms against 4.4 ms (2026-11-25), and
no 3 MiB allocated and copied; of 8 MiB over four hosts of two ranks on 400 Mbit/s links, 268 ms against 152 ms."""

EXCHANGES = "all-to-all within a host"
"""How exchanges go, in files of measurements: what one takes of a core depends on it."""
MAX_OPEN = 256
"""Exchanges under way that nobody has waited for yet."""

Reduction = Literal["sum", "max"]


class CollectiveError(RuntimeError):
    """A collective failed: a peer died, or did not come in time."""


@dataclass
class Handle:
    """A collective in flight, or done."""

    op: Op
    _ops: Ops
    _mesh: Mesh
    _work: Any
    """torch.distributed's own handle; its functions are not typed."""
    _finish: Callable[[], torch.Tensor] | None
    _launch: Callable[[], Any] | None
    """Keeps what is being sent alive until it has been."""

    def wait(self) -> torch.Tensor:
        """Wait for the collective and return its result; call it once."""
        finish, self._finish = self._finish, None
        if finish is None:
            raise RuntimeError(f"{self.op.name} was waited for twice")
        if self._ops.pause is not None and self.op.communicator is not None:
            self._ops.pause(self.op.communicator)
        if self._ops.listener is None:
            return self._complete(finish)
        return self._ops.listener.wait(self.op, lambda: self._complete(finish))

    def arrive(self) -> None:
        """Let the stream at hand wait, which is one beside the compute stream, for which `wait` is called later."""
        if self._work is not None:
            self._work.wait()

    def _complete(self, finish: Callable[[], torch.Tensor]) -> torch.Tensor:
        if self._work is not None:
            try:
                self._work.wait()
            except torch.OutOfMemoryError:
                raise
            except RuntimeError as error:
                raise _explained(error, self.op, self._mesh) from error
            self._work = None
        self._launch = None
        return finish()


@dataclass
class Together:
    """The sends and receives of one exchange, as one thing to wait for.

    gloo makes no future for them: only who waits learns that they are done.
    """

    works: list[Any]
    """Of torch.distributed, whose functions are not typed."""

    def wait(self) -> None:
        """Wait for all of them."""
        for work in self.works:
            work.wait()
        self.works.clear()


@dataclass(frozen=True)
class Collectives:
    """The verbs, for one rank of a mesh."""

    mesh: Mesh
    ops: Ops
    direct: bool
    """Use direct exchanges, as gloo likes them."""
    buffers: Buffers = field(default_factory=lambda: Buffers(kept=False))
    """Memory for what is on its way."""
    _open: deque[Together] = field(default_factory=deque)
    """Exchanges that may be under way."""

    def all_gather(
        self,
        place: Place,
        communicator: Communicator,
        shard: torch.Tensor,
        *,
        into: torch.Tensor | None = None,
        phase: Phase | None = None,
    ) -> Handle:
        """Gather equal flat shards (n,) of all members into (size · n,), in order: `into`, where the shard may lie."""
        size = self.mesh.size(communicator)
        full = self.buffers.take(size * shard.numel(), shard) if into is None else into

        def launch() -> Any:
            if self.direct and (size == 2 or full.nbytes <= EXCHANGE_BYTES or communicator in self.mesh.on_host):
                return self._spread(communicator, shard, full.view(size, -1))
            group = self.mesh.groups[communicator]
            return dist.all_gather_single(full, shard, group=group, async_op=True)

        op = self._op(place, "all_gather", communicator, phase, full)
        return self._start(op, launch, lambda: full)

    def reduce_scatter(
        self,
        place: Place,
        communicator: Communicator,
        full: torch.Tensor,
        *,
        into: torch.Tensor | None = None,
        phase: Phase | None = None,
    ) -> Handle:
        """Sum flat (size · n,) over members; each keeps its part (n,): `into`, where that has a place."""
        size = self.mesh.size(communicator)
        part = self.buffers.take(full.numel() // size, full) if into is None else into
        received = self.buffers.take(full.numel(), full) if self.direct else part

        def launch() -> Any:
            if self.direct:
                return self._trade(communicator, full.view(size, -1), received.view(size, -1))
            group = self.mesh.groups[communicator]
            return dist.reduce_scatter_single(received, full, group=group, async_op=True)

        op = self._op(place, "reduce_scatter", communicator, phase, full)
        return self._start(op, launch, lambda: torch.sum(received.view(size, -1), 0, out=part) if self.direct else part)

    def all_reduce(
        self,
        place: Place,
        communicator: Communicator,
        buffer: torch.Tensor,
        *,
        reduction: Reduction = "sum",
        name: str = "",
        phase: Phase | None = None,
    ) -> Handle:
        """Reduce a contiguous tensor over members, in place."""
        size = self.mesh.size(communicator)
        exchange = self.direct and size > 2 and buffer.nbytes <= EXCHANGE_BYTES
        received = self.buffers.take(size * buffer.numel(), buffer) if exchange else buffer

        def launch() -> Any:
            if exchange:
                return self._spread(communicator, buffer.reshape(-1), received.view(size, -1))
            group = self.mesh.groups[communicator]
            kind = dist.ReduceOp.SUM if reduction == "sum" else dist.ReduceOp.MAX
            return dist.all_reduce(buffer, kind, group=group, async_op=True)

        def finish() -> torch.Tensor:
            if exchange:
                parts = received.view(size, *buffer.shape)
                if reduction == "sum":
                    torch.sum(parts, 0, out=buffer)
                else:
                    torch.amax(parts, 0, out=buffer)
            return buffer

        op = self._op(place, "all_reduce", communicator, phase, buffer, name)
        return self._start(op, launch, finish)

    def shift(
        self,
        place: Place,
        communicator: Communicator,
        buffer: torch.Tensor,
        *,
        by: int,
        name: str,
        phase: Phase | None = None,
    ) -> Handle:
        """Send a contiguous tensor so many places on, round the ring of members, and receive one of equal shape."""
        size, mine, group = self.mesh.size(communicator), self.mesh.place(communicator), self.mesh.groups[communicator]
        received, target, source = torch.empty_like(buffer), (mine + by) % size, (mine - by) % size

        def launch() -> Any:
            if self.direct and size == 2 and self._by_library(communicator, buffer):
                return self._swap(communicator, buffer.view(-1), received.view(-1))
            if self.direct:
                works = [dist.irecv(received, group=group, group_src=source)]
                return self._kept(Together([*works, dist.isend(buffer, group=group, group_dst=target)]))
            both = [
                dist.P2POp(dist.irecv, received, group=group, group_peer=source),
                dist.P2POp(dist.isend, buffer, group=group, group_peer=target),
            ]
            return Together(dist.batch_isend_irecv(both))

        op = self.ops.op(place, name, phase, sent_bytes=float(buffer.nbytes), kind="shift", communicator=communicator)
        return self._start(op, launch, lambda: received)

    def all_to_all(
        self, place: Place, communicator: Communicator, buffer: torch.Tensor, *, name: str, phase: Phase | None = None
    ) -> Handle:
        """Send each member its part of a flat buffer (size · n,), and receive one of each, in order."""
        size, received = self.mesh.size(communicator), torch.empty_like(buffer)

        def launch() -> Any:
            if self.direct:
                return self._trade(communicator, buffer.view(size, -1), received.view(size, -1))
            return dist.all_to_all_single(received, buffer, group=self.mesh.groups[communicator], async_op=True)

        op = self.ops.op(
            place, name, phase, sent_bytes=float(buffer.nbytes), kind="all_to_all", communicator=communicator
        )
        return self._start(op, launch, lambda: received)

    def foreign(self, op: Op, launch: Callable[[], Any], finish: Callable[[], torch.Tensor]) -> Handle:
        """Start what a library sends: `launch` returns its work, and `finish` what came when that is done."""
        return self._start(op, launch, finish)

    def described(
        self, place: Place, kind: CollectiveKind, communicator: Communicator, size_bytes: float, phase: Phase | None
    ) -> Op:
        """Name a collective that a library runs."""
        verb = f"{kind}_{axis_of(communicator)}"
        return self.ops.op(place, verb, phase, sent_bytes=float(size_bytes), kind=kind, communicator=communicator)

    def _op(
        self,
        place: Place,
        kind: CollectiveKind,
        communicator: Communicator,
        phase: Phase | None,
        buffer: torch.Tensor,
        name: str = "",
    ) -> Op:
        verb = f"{kind}_{axis_of(communicator)}"
        return self.ops.op(
            place,
            f"{name}/{verb}" if name else verb,
            phase,
            sent_bytes=float(buffer.nbytes),
            kind=kind,
            communicator=communicator,
        )

    def _trade(self, communicator: Communicator, parts: torch.Tensor, received: torch.Tensor) -> Any:
        """Send each member its part and receive one of each: both are contiguous (size, n)."""
        if self._by_library(communicator, received):
            group = self.mesh.groups[communicator]
            return dist.all_to_all_single(received.view(-1), parts.view(-1), group=group, async_op=True)
        return self._posted(communicator, parts.__getitem__, received)

    def _spread(self, communicator: Communicator, shard: torch.Tensor, received: torch.Tensor) -> Any:
        """Send each member the same (n,) and receive one of each: `received` is contiguous (size, n)."""
        size, mine = self.mesh.size(communicator), self.mesh.place(communicator)
        if size == 2 and self._by_library(communicator, received):
            received[mine].copy_(shard)
            return self._swap(communicator, shard, received[1 - mine])
        few = shard.nbytes if communicator in self.mesh.on_host else received.nbytes
        if few <= EXCHANGE_BYTES:
            copies = self.buffers.take(received.numel(), received).view(size, -1)
            return self._trade(communicator, copies.copy_(shard.expand(size, -1)), received)
        return self._posted(communicator, lambda _: shard, received)

    def _by_library(self, communicator: Communicator, received: torch.Tensor) -> bool:
        """Tell whether gloo's all-to-all shall do an exchange."""
        return communicator in self.mesh.on_host or received.nbytes <= EXCHANGE_BYTES

    def _swap(self, communicator: Communicator, sent: torch.Tensor, received: torch.Tensor) -> Any:
        """Swap flat (n,) with the other of two members, by an all-to-all that leaves out one's own part."""
        counts = [sent.numel() if member != self.mesh.place(communicator) else 0 for member in range(2)]
        group = self.mesh.groups[communicator]
        return dist.all_to_all_single(received, sent, counts, counts, group=group, async_op=True)

    def _posted(
        self, communicator: Communicator, part_for: Callable[[int], torch.Tensor], received: torch.Tensor
    ) -> Together:
        """Exchange by messages that are posted one by one."""
        group, size, mine = self.mesh.groups[communicator], len(received), self.mesh.place(communicator)
        received[mine].copy_(part_for(mine))
        # in an order that spreads the load: each member begins with its next neighbour
        others = [(mine + step) % size for step in range(1, size)]
        works = [dist.irecv(received[o], group=group, group_src=o) for o in reversed(others)]
        works += [dist.isend(part_for(o), group=group, group_dst=o) for o in others]
        return self._kept(Together(works))

    def _kept(self, exchange: Together) -> Together:
        """Hold on to an exchange until it is done, even if nobody waits for it: gloo would cancel it."""
        while self._open and not self._open[0].works:
            self._open.popleft()
        if len(self._open) == MAX_OPEN:
            self._open.popleft().wait()  # long done, if it was thrown away
        self._open.append(exchange)
        return exchange

    def _start(self, op: Op, launch: Callable[[], Any], finish: Callable[[], torch.Tensor]) -> Handle:
        listener = self.ops.listener
        try:
            work = launch() if listener is None else listener.start(op, launch)
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            raise _explained(error, op, self.mesh) from error
        return Handle(op, self.ops, self.mesh, work, finish, launch)


def _explained(error: RuntimeError, op: Op, mesh: Mesh) -> CollectiveError:
    assert op.communicator is not None
    peers = [rank for rank in mesh.members(op.communicator) if rank != mesh.rank]
    shown = ", ".join(map(str, peers[:8])) + (", …" if len(peers) > 8 else "")
    reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    late = "timed out" in reason.lower() or "timeout" in reason.lower()
    guess = "a peer hangs or is too slow" if late else "a peer has probably died"
    return CollectiveError(
        f"{mesh.where()}: {op.name} with rank{'s' if len(peers) > 1 else ''} {shown} failed: {guess} ({reason})"
    )
