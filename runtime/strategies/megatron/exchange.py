"""Attention over sequences that context ranks share: what moves between them, and the kernels on what has come.

* ring: keys and values go round beside compute. Backward they go the other way, beginning where the forward pass left
  them, so that what has gathered of their gradients comes home with the last hop (as Transformer Engine does it).
* all_gather: all keys and values come first; backward again, and their gradients are scattered behind.
* all_to_all: heads are traded for tokens before, and back behind.

Of a block that has come of earlier tokens the first half is seen, by all queries; of later ones all, by the second half
of queries. Merges and sums of a half are described as those of a whole, which some rank has in every step.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from runtime.model.attention import Attention
from runtime.model.partial_attention import Part, attend, attend_backward, merged
from runtime.parallel.collectives import Handle
from runtime.parallel.ops import Place
from runtime.strategies.megatron.context import MegatronContext
from runtime.strategies.megatron.trade import Trade
from runtime.strategies.megatron.zigzag import in_order, of_ranks
from twin.schedule import kernels
from twin.schedule.kernels import Memory
from twin.schedule.ops import Phase
from twin.strategies.megatron.attention import CONTEXT, merge_bytes, sum_bytes

WHOLE = slice(None)
Chunk = tuple[torch.Tensor, torch.Tensor, int]
"""Queries, all keys until the last of them, and how many of these come before the first."""


class ContextAttention(Attention):
    """Attention of a rank's queries to the keys of all ranks that share its sequences."""

    context: MegatronContext

    def attend(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, sequences: int) -> torch.Tensor:
        """Map queries, keys and values (m, width) of this rank's tokens to (m, queries)."""
        if not self.context.shares_sequences:
            return super().attend(q, k, v, sequences)
        if self.context.job.context_exchange == "all_to_all":
            trade = Trade(self.context, self.place, sequences)
            q, k, v = trade.to_heads(q, k, v)
            return trade.to_tokens(super().attend(q, k, v, sequences))
        exchange = Exchange(self.context, self.place, sequences, self.head_size, self.heads, self.kv_heads)
        how = _Ring if self.context.job.context_exchange == "ring" else _Gathered
        found: torch.Tensor = how.apply(q, k, v, exchange)
        return found


@dataclass(frozen=True)
class Exchange:
    """One block's attention among context ranks."""

    context: MegatronContext
    place: Place
    sequences: int
    head_size: int
    heads: int
    kv_heads: int

    @property
    def ranks(self) -> int:
        """Ranks that share a sequence."""
        return self.context.ranks.size("context")

    @property
    def rank(self) -> int:
        """This one's number."""
        return self.context.mesh.place(CONTEXT)

    def by_head(self, rows: torch.Tensor) -> torch.Tensor:
        """View (…, tokens, width) as (…, sequences, heads, length, head size)."""
        shape = (*rows.shape[:-2], self.sequences, -1, rows.shape[-1] // self.head_size, self.head_size)
        return rows.view(shape).transpose(-3, -2)

    def by_token(self, heads: torch.Tensor, kind: torch.dtype) -> torch.Tensor:
        """Write (…, sequences, heads, length, head size) as (…, tokens, width)."""
        turned = heads.to(kind).transpose(-3, -2)
        return turned.reshape(*heads.shape[:-4], -1, heads.shape[-3] * self.head_size)

    def block(self, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """Copy keys and values side by side, to be sent: (2, m, width)."""
        moved = Memory(2.0 * (k.nbytes + v.nbytes), work="copy")
        both: torch.Tensor = self.compute("keys_and_values", lambda: torch.stack((k, v)), moved)
        return both

    def compute(self, name: str, run: Callable[[], Any], what: kernels.Kernel, *, backward: bool = False) -> Any:
        """Do device work under a name."""
        return self.context.ops.compute(self.place, name, run, lambda: what, phase=_phase(backward))

    def kernel(self, tokens: int, e: int, *, whole: bool = False, backward: bool = False) -> kernels.Attention:
        """Describe causal attention over this rank's share, or as much of it as all of a rank's queries see."""
        sequences = self.sequences * (self.ranks if whole else 1)
        fewer = self.kv_heads if self.kv_heads < self.heads else None
        heads, form = (self.heads, self.head_size), self.context.job.attention_of_parts
        return kernels.Attention(sequences, tokens // self.sequences, *heads, form, False, backward, e, fewer)

    def shift(self, buffer: torch.Tensor, by: int, name: str, *, backward: bool = False) -> Handle:
        """Send a buffer on, and receive another."""
        shift = self.context.collectives.shift
        return shift(self.place, CONTEXT, buffer, by=by, name=name, phase=_phase(backward))

    def seen(self, source: int, length: int) -> tuple[slice, slice, bool]:
        """Say which queries see which keys of a rank's block, and whether each only those until its own."""
        if source == self.rank:
            return WHOLE, WHOLE, True
        half = length // 2
        return (WHOLE, slice(half), False) if source < self.rank else (slice(half, None), WHOLE, False)


class _Ring(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, of: Exchange) -> torch.Tensor:
        queries, block, whole = of.by_head(q), of.block(k, v), None
        last, kernel = of.ranks - 1, of.kernel(q.shape[0], q.element_size())
        for step in range(of.ranks):
            coming = of.shift(block, 1, f"ring{step}") if step < last else None
            seen = of.seen((of.rank - step) % of.ranks, queries.shape[2])
            part = of.compute(f"attention{step}", partial(_part, of, queries, block, seen), kernel)
            if whole is None:
                whole = part
            else:
                moved = Memory(merge_bytes(q.numel(), q.element_size(), step, last), work="merge")
                whole = of.compute(f"merge{step}", partial(_into, whole, part, seen[0]), moved)
            if coming is not None:
                block = coming.wait()
        assert whole is not None
        out = of.by_token(whole.out, q.dtype)
        ctx.of, ctx.facts = of, whole.facts
        ctx.save_for_backward(q, block, out, whole.sums)
        return out

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        of, q, block, whole = _kept(ctx)
        e, last = q.element_size(), of.ranks - 1
        queries, back = of.by_head(q), of.by_head(gradient.contiguous())
        kernel = of.kernel(q.shape[0], e, backward=True)
        of_q = torch.zeros_like(queries, dtype=whole.sums.dtype)
        summed, given = Memory(sum_bytes(q.numel(), block.numel(), e), work="sum"), block
        for step in range(of.ranks):
            coming = of.shift(block, -1, f"ring{step}", backward=True) if step < last else None
            home = of.shift(given, -1, f"ring{step}_gradients", backward=True) if step else None
            seen = of.seen((of.rank + 1 + step) % of.ranks, queries.shape[2])
            run = partial(_part_backward, of, back, queries, block, whole, seen)
            found, own = of.compute(f"attention{step}", run, kernel, backward=True)
            before = home.wait() if home is not None else None
            add = partial(_add, of_q[:, :, seen[0]], found, before, own)
            given = of.compute(f"sum{step}", add, summed, backward=True)
            if coming is not None:
                block = coming.wait()
        return of.by_token(of_q, q.dtype), given[0], given[1], None


class _Gathered(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, of: Exchange) -> torch.Tensor:
        block = of.block(k, v)
        keys = _all(of, block, backward=False)
        queries, e = of.by_head(q), q.element_size()
        kernel = of.kernel(q.shape[0], e, whole=True)
        halves = of.compute("attention", lambda: [_halves(*each) for each in _chunks(of, queries, keys)], kernel)

        def merge() -> Part:
            joined = [merged(*each) if len(each) > 1 else each[0] for each in halves]
            kind = joined[0].sums.dtype
            out = torch.cat([each.out.to(kind) for each in joined], 2)
            return Part(out, torch.cat([each.sums for each in joined], 2), joined[-1].facts)

        whole: Part = of.compute("merge", merge, Memory(merge_bytes(q.numel(), e, 1, 1), work="merge"))
        out = of.by_token(whole.out, q.dtype)
        ctx.of, ctx.facts = of, whole.facts
        ctx.save_for_backward(q, block, out, whole.sums)
        return out

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        of, q, block, whole = _kept(ctx)
        keys = _all(of, block, backward=True)
        queries, back = of.by_head(q), of.by_head(gradient.contiguous())

        def run() -> tuple[torch.Tensor, torch.Tensor]:
            of_keys, of_q = torch.zeros_like(keys), torch.zeros_like(queries)
            part = queries.shape[2] // 2
            for number, (mine, seen, before) in enumerate(_chunks(of, queries, keys)):
                at = slice(number * part, (number + 1) * part)
                for some, causal in _pieces(before, part):
                    k, v = seen[:, :, :, some]
                    found = attend_backward(back[:, :, at], mine, k, v, whole.of(at), causal=causal)
                    of_q[:, :, at] += found[0]
                    of_keys[0, :, :, some] += found[1]
                    of_keys[1, :, :, some] += found[2]
            return of_q, of_keys

        kernel = of.kernel(q.shape[0], q.element_size(), whole=True, backward=True)
        of_q, of_keys = of.compute("attention", run, kernel, backward=True)
        given = _scattered(of, of_keys, block)
        return of.by_token(of_q, q.dtype), given[0], given[1], None


def _kept(ctx: Any) -> tuple[Exchange, torch.Tensor, torch.Tensor, Part]:
    """Return what a forward pass has kept: the exchange, queries, a block, and attention over all keys."""
    q, block, out, sums = ctx.saved_tensors
    of: Exchange = ctx.of
    return of, q, block, Part(of.by_head(out), sums, ctx.facts)


def _part(of: Exchange, queries: torch.Tensor, block: torch.Tensor, seen: tuple[slice, slice, bool]) -> Part:
    some, keys, causal = seen
    k, v = of.by_head(block)[:, :, :, keys]
    return attend(queries[:, :, some], k, v, causal=causal)


def _into(whole: Part, part: Part, queries: slice) -> Part:
    """Merge what some of the queries have seen more."""
    kind = whole.sums.dtype
    out, sums = whole.out.to(kind), whole.sums
    if queries == WHOLE:
        return merged(whole, part)
    found = merged(whole.of(queries), part)
    before = slice(queries.start)
    return Part(
        torch.cat((out[:, :, before], found.out), 2), torch.cat((sums[:, :, before], found.sums), 2), whole.facts
    )


def _part_backward(
    of: Exchange,
    back: torch.Tensor,
    queries: torch.Tensor,
    block: torch.Tensor,
    whole: Part,
    seen: tuple[slice, slice, bool],
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return gradients of those queries that see the block, and of the block (2, m, width)."""
    some, keys, causal = seen
    k, v = of.by_head(block)[:, :, :, keys]
    of_q, of_k, of_v = attend_backward(back[:, :, some], queries[:, :, some], k, v, whole.of(some), causal=causal)
    own = torch.zeros_like(block)
    of.by_head(own)[:, :, :, keys] = torch.stack((of_k, of_v))
    return of_q, own


def _add(of_q: torch.Tensor, found: torch.Tensor, before: torch.Tensor | None, own: torch.Tensor) -> torch.Tensor:
    """Add gradients to those of queries, and to those of a block that come with it, which are returned."""
    of_q += found
    return own if before is None else before.add_(own)


def _phase(backward: bool) -> Phase | None:
    return "bwd" if backward else None


def _all(of: Exchange, block: torch.Tensor, *, backward: bool) -> torch.Tensor:
    """Gather the keys and values of whole sequences: (2, sequences, heads, s, head size)."""
    gather = of.context.collectives.all_gather
    flat = gather(of.place, CONTEXT, block.view(-1), phase=_phase(backward)).wait()
    by_rank = of.by_head(flat.view(of.ranks, *block.shape))
    moved = Memory(2.0 * flat.nbytes, work="copy")
    ordered: torch.Tensor = of.compute("order", lambda: in_order(by_rank.unbind(), 3), moved, backward=backward)
    return ordered


def _scattered(of: Exchange, of_keys: torch.Tensor, block: torch.Tensor) -> torch.Tensor:
    """Sum the gradients of keys and values over ranks; each keeps its tokens': (2, m, width)."""

    def order() -> torch.Tensor:
        by_rank = torch.stack(of_ranks(of_keys, of.ranks, 3))
        return of.by_token(by_rank, of_keys.dtype).reshape(-1)

    full = of.compute("scatter_order", order, Memory(2.0 * of_keys.nbytes, work="copy"), backward=True)
    part = of.context.collectives.reduce_scatter(of.place, CONTEXT, full, phase="bwd").wait()
    return part.view(block.shape)


def _chunks(of: Exchange, queries: torch.Tensor, keys: torch.Tensor) -> list[Chunk]:
    """Return each half of the queries, with all keys until its last one, and how many of these come before it."""
    part = queries.shape[2] // 2
    found = []
    for half, number in enumerate((of.rank, 2 * of.ranks - 1 - of.rank)):
        mine = queries[:, :, half * part : (half + 1) * part]
        found.append((mine, keys[:, :, :, : (number + 1) * part], number * part))
    return found


def _pieces(before: int, part: int) -> list[tuple[slice, bool]]:
    """Say which keys queries see all of, and which each until its own."""
    own = (slice(before, before + part), True)
    return [own, (slice(before), False)] if before else [own]


def _halves(queries: torch.Tensor, keys: torch.Tensor, before: int) -> list[Part]:
    """Attend to the keys before these queries, and to their own."""
    found = []
    for some, causal in _pieces(before, queries.shape[2]):
        k, v = keys[:, :, :, some]
        found.append(attend(queries, k, v, causal=causal))
    return found
