"""Heads for tokens, and back: attention of fewer heads over whole sequences (DeepSpeed-Ulysses, Jacobs et al. 2023)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from runtime.parallel.ops import Place
from runtime.strategies.megatron.context import MegatronContext
from runtime.strategies.megatron.zigzag import in_order, of_ranks
from twin.schedule.kernels import Memory
from twin.schedule.ops import Phase
from twin.strategies.megatron.attention import CONTEXT


@dataclass(frozen=True)
class Trade:
    """One block's trades among context ranks: each comes with some heads of whole sequences, or all of some tokens."""

    context: MegatronContext
    place: Place
    sequences: int

    def to_heads(self, *parts: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Map parts (tokens here, width) to (all tokens, width / ranks)."""
        found: tuple[torch.Tensor, ...] = _ToHeads.apply(self, *parts)
        return found

    def to_tokens(self, part: torch.Tensor) -> torch.Tensor:
        """Map (all tokens, width / ranks) to (tokens here, width)."""
        (found,) = _ToTokens.apply(self, part)
        whole: torch.Tensor = found
        return whole

    @property
    def ranks(self) -> int:
        """Ranks that trade."""
        return self.context.ranks.size(CONTEXT)

    def gather(self, parts: tuple[torch.Tensor, ...], name: str, phase: Phase | None) -> tuple[torch.Tensor, ...]:
        """Give heads away for tokens."""
        ranks, widths = self.ranks, [part.shape[1] // self.ranks for part in parts]

        def order() -> torch.Tensor:
            by_rank = [part.reshape(len(part), ranks, -1) for part in parts]
            return torch.cat(by_rank, 2).transpose(0, 1).contiguous()

        def placed(came: torch.Tensor) -> torch.Tensor:
            by_rank = came.view(ranks, self.sequences, -1, came.shape[-1]).unbind()
            return in_order(by_rank, 1).flatten(0, 1)

        rows = self._moved(order, placed, name, parts, phase)
        return tuple(rows.split(widths, 1))

    def scatter(self, parts: tuple[torch.Tensor, ...], name: str, phase: Phase | None) -> tuple[torch.Tensor, ...]:
        """Give tokens away for heads."""
        ranks, widths = self.ranks, [part.shape[1] for part in parts]

        def order() -> torch.Tensor:
            together = torch.cat(parts, 1)
            return torch.stack(of_ranks(together.view(self.sequences, -1, together.shape[1]), ranks, 1)).flatten(1, 2)

        def placed(came: torch.Tensor) -> tuple[torch.Tensor, ...]:
            return tuple(each.transpose(0, 1).reshape(each.shape[1], -1) for each in came.split(widths, 2))

        found: tuple[torch.Tensor, ...] = self._moved(order, placed, name, parts, phase)
        return found

    def _moved(self, order: Any, placed: Any, name: str, parts: tuple[torch.Tensor, ...], phase: Phase | None) -> Any:
        """Put side by side what each rank gets, send it, and put what has come where it belongs."""
        ops, copied = self.context.ops, Memory(2.0 * sum(part.nbytes for part in parts), work="copy")
        sent = ops.compute(self.place, f"{name}_order", order, lambda: copied, phase=phase)
        trade = self.context.collectives.all_to_all
        came = trade(self.place, CONTEXT, sent.view(-1), name=name, phase=phase).wait().view(sent.shape)
        return ops.compute(self.place, f"{name}_placed", lambda: placed(came), lambda: copied, phase=phase)


class _ToHeads(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, of: Trade, *parts: torch.Tensor) -> tuple[torch.Tensor, ...]:
        ctx.of = of
        return of.gather(parts, "trade", None)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[Any, ...]:
        return (None, *ctx.of.scatter(gradients, "trade_back", "bwd"))


class _ToTokens(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, of: Trade, *parts: torch.Tensor) -> tuple[torch.Tensor, ...]:
        ctx.of = of
        return of.scatter(parts, "trade_back", None)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[Any, ...]:
        return (None, *ctx.of.gather(gradients, "trade", "bwd"))
