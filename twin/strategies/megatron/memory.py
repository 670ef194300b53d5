"""Memory of the ranks of one stage, by category.

Of a parameter: 2 bytes of the weight, its gradient's sum (4 in fp32), and 12 of optimizer states, which a distributed
optimizer divides: 6 + 12/data. DeepSpeed keeps 16-bit gradients beside the fp32 sums: 8 + 12/data
(arXiv 2205.05198 for activations; the logs of LUMI for DeepSpeed's bytes).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import lcm

from twin.description.attention import UNFUSED
from twin.strategies import work
from twin.strategies.activations import block_activation_bytes, score_bytes, score_gradient_bytes
from twin.strategies.held_weights import most_gathered
from twin.strategies.megatron.bodies import HEAD, recomputed
from twin.strategies.megatron.in_flight import Counts, InFlight, most_held, needing_most
from twin.strategies.megatron.job import SPLIT, MegatronJob
from twin.strategies.megatron.local import Local
from twin.strategies.megatron.orders.pytorch import MAX_ACTIVE_STAGES
from twin.strategies.megatron.place import Pipeline, Stage
from twin.strategies.megatron.reduction import Parameters
from twin.strategies.megatron.sharded import Units
from twin.strategies.sizes import FP32_BYTES, MOMENTS_BYTES, optimizer_bytes

OF_ONE_STAGE = ("gpipe", "1f1b")
"""Orders of ranks with one stage each, whose schedules in PyTorch wait for what they sent as they go on."""


def memory_by_category(job: MegatronJob, rank: int) -> dict[str, float]:
    """Count the peak bytes of a rank of a stage."""
    return Held(job).by_category(rank)


def every_memory(job: MegatronJob) -> list[dict[str, float]]:
    """Count those of stages one of which needs most: of equal ones those that hold most."""
    held = Held(job)
    layers = tuple(map(len, job.layers_by_stage))
    ranks = needing_most(held.pipeline.order, held.pipeline.ranks, held.enough, job.chunks, job.group, layers)
    return [held.by_category(rank) for rank in ranks]


@dataclass(frozen=True)
class Held:
    """What ranks of a job hold."""

    job: MegatronJob

    @cached_property
    def local(self) -> Local:
        """Sizes."""
        return Local(self.job)

    @cached_property
    def pipeline(self) -> Pipeline:
        """Stages."""
        return Pipeline(self.job)

    @cached_property
    def _parameters(self) -> Parameters:
        return Parameters(self.job, self.local)

    @cached_property
    def _equal(self) -> dict[tuple[object, ...], float]:
        """What is known of stages that are equal, of which there are few."""
        return {}

    def _elements(self, stage: Stage) -> int:
        """Elements of a stage's parameters."""
        key = "elements", len(stage.layers), stage.first, stage.last
        if key not in self._equal:
            self._equal[key] = self._parameters.stage(stage)
        return int(self._equal[key])

    def by_category(self, rank: int) -> dict[str, float]:
        """Count the peak bytes of a rank."""
        job, parameters = self.job, self._parameters
        total, e = sum(self._elements(stage) for stage in self.pipeline.stages(rank)), job.element_bytes
        if job.weight_parts > 1:
            return self._sharded(rank, total)
        parts = parameters.sharers if job.distributed_optimizer else 1
        # the runtime sums in fp32 whatever travels
        summed = FP32_BYTES if job.flavour == "torch" else job.main_gradient_bytes
        gradient = summed + (e if job.flavour == "deepspeed" and e < summed else 0)
        own = -(-total // parts)
        used = {
            "weights": float(e * total),
            "gradients": float(gradient * total),
            "optimizer": float(optimizer_bytes(e) * own),
            "activations": self._activations(rank),
            "messages": self._messages(rank),
        }
        if job.keeps_rounded:
            layers = sum(len(stage.layers) for stage in self.pipeline.stages(rank))
            used["weights in 8 bits"] = float(work.eight_bit_copies(job) * layers * self.local.linear_elements)
        # sums of 16 bits are made fp32 for the update, when activations are gone, and DeepSpeed's of whole gradients
        # (of two replicas ORNL's log has 10.6 bytes of a parameter at most)
        wider = float(FP32_BYTES * own) if summed < FP32_BYTES else 0.0
        gone = used["activations"] + used["messages"] + (used["gradients"] if job.flavour == "deepspeed" else 0.0)
        beyond = wider - gone
        return used | {"gradients of the update": beyond} if beyond > 0.0 else used

    def _sharded(self, rank: int, total: int) -> dict[str, float]:
        """Of fully_shard: fp32 weights, gradients and moments of the own part; what is gathered; whole gradients."""
        job, parameters, e = self.job, self._parameters, self.job.element_bytes
        own, wide = -(-total // job.weight_parts), job.main_gradient_bytes
        units = [Units(parameters, stage) for stage in self.pipeline.stages(rank)]
        largest = max(each.largest for each in units)
        whole = 0 if job.reduces_each else wide * total
        return {
            "weights": float(FP32_BYTES * own),
            "gradients": float(FP32_BYTES * own),
            "optimizer": float(MOMENTS_BYTES * own),
            "activations": self._activations(rank),
            "messages": self._messages(rank),
            "gathered weights": float(e * self._gathered(rank, units)),
            "buffers": float(largest * (e + wide) + whole),
        }

    def _messages(self, rank: int) -> float:
        """Where messages arrive. PyTorch keeps memory for each micro-batch of a step, and what a rank passes itself."""
        if self.pipeline.ranks == 1:
            return 0.0
        if self.job.flavour != "torch":
            return 2 * self.local.message_bytes
        kinds = sum((not stage.first) + (not stage.last) for stage in self.pipeline.stages(rank))
        # schedules of several stages wait for what was sent when a step ends; NCCL lets go of it before
        ways = 2 if self.job.order not in OF_ONE_STAGE and self.job.machine.device.type == "cpu" else 1
        return ways * kinds * self.job.micro_steps * self.local.message_bytes

    def _gathered(self, rank: int, units: Sequence[Units]) -> int:
        """Elements of weights that are whole at once; UNSHARD actions make them so a stage at a time."""
        if self.job.unshards:
            return sum(sorted(self._elements(stage) for stage in self.pipeline.stages(rank))[-MAX_ACTIVE_STAGES:])
        parts = [(size, part) for each in units for part, size in each.elements.items()]
        reshards = self.job.reshards
        forward = [(size, part == HEAD or not reshards) for size, part in parts]
        backward = [(size, False) for size, part in reversed(parts) if part != HEAD] if reshards else []
        return max(most_gathered(forward, 2), most_gathered(backward, 2))

    def _activations(self, rank: int) -> float:
        """What forward passes have left for backward passes to come, at the worst moment, and what one works with."""
        job, local, stages = self.job, self.local, self.pipeline.stages(rank)
        kept = [self._kept(stage) for stage in stages]
        sizes, counts = (*kept, *map(self._made_again, stages)), self._counts(rank)

        def most(moments: Counts) -> float:
            return max((sum(n * size for n, size in zip(each, sizes, strict=True)) for each in moments), default=0.0)

        e, of_heads = job.element_bytes, {"sequences": local.sequences, "heads": local.heads}
        scores = score_gradient_bytes(job, **of_heads) + (
            score_bytes(job, **of_heads) if job.recompute_attention else 0
        )
        inner = e * local.tokens * (local.mlp_up + local.mlp)
        # the MLP goes before attention
        gradients = e * 2 * local.residual_elements + max(inner, scores + self._exchanged - inner)
        working = gradients + max([0.0, *map(self._made_again, stages)])
        loss = max(self._loss(stage) for stage in stages)
        table = 0.0 if job.order in SPLIT else max(map(self._table_gradient, stages))
        passing = most(counts.at_backward) + max(working, loss, table)
        if not counts.at_weights:
            return passing
        return max(passing, most(counts.at_weights) + max(self._weights_alone(stage) for stage in stages))

    @property
    def _exchanged(self) -> float:
        """Bytes of one layer's keys and values of whole sequences and of their gradients, where ranks gather them.

        PyTorch's flavour, as it trains here, has the gradients twice more: in order, and by rank before they go.
        """
        local = self.local
        if local.grid.context == 1 or self.job.context_exchange != "all_gather":
            return 0.0
        whole = 2 * local.tokens * local.grid.context * local.kv_heads * self.job.model.head_size
        return (4.0 if self.job.flavour == "torch" else 2.0) * self.job.element_bytes * whole

    @property
    def _waiting_logits(self) -> float:
        """Bytes of logits and their gradient that a micro-batch has on the last stage until its backward pass.

        PyTorch's schedules work out the loss, and its gradient, right after the forward pass. All of `gpipe` wait with
        both, in `dualpipe_v` while other passes run. Elsewhere the one that comes next goes backward at once; where
        weights' gradients come later, logits' gradients wait for that.
        """
        job, local = self.job, self.local
        if job.flavour != "torch" or self.pipeline.ranks == 1:
            return 0.0
        tensors = 2 if job.order in ("gpipe", "dualpipe_v") and not self._gradient_in_logits else 1
        return float(tensors * job.element_bytes * local.tokens * local.vocabulary)

    @property
    def _gradient_in_logits(self) -> bool:
        """Whether the gradient lies where the logits lay."""
        in_place = self.job.element_bytes == FP32_BYTES and self.job.loss_in_place is not False
        return in_place or self.job.loss_rows is not None

    def _loss(self, stage: Stage) -> float:
        """Bytes that the loss of one micro-batch needs beside what is kept of it, or the head's weight gradient."""
        job, local = self.job, self.local
        if not stage.last:
            return 0.0
        if job.loss_fusion == "te":  # the gradient takes the logits' place
            return float(job.element_bytes * local.tokens * local.vocabulary)
        torch = job.flavour == "torch"
        in_place = torch and job.loss_in_place is not False
        peak = work.loss_bytes(job, local.tokens, local.vocabulary, in_place=in_place)
        if not torch:
            return peak
        logits = float(job.element_bytes * local.tokens * local.vocabulary)
        head = logits * (1 if self._gradient_in_logits else 2) + self._table_bytes
        return max(peak, head) - self._waiting_logits

    @property
    def _table_bytes(self) -> float:
        """Bytes of the gradient of the table, or the head, of one micro-batch; FSDP2's lie in its buffers."""
        job, local = self.job, self.local
        if job.flavour != "torch" or job.weight_parts > 1:
            return 0.0
        return float(job.element_bytes * local.vocabulary * job.model.hidden)

    def _table_gradient(self, stage: Stage) -> float:
        """Bytes of the table's beside what is kept of others, as the micro-batch ends that it is of."""
        return self._table_bytes - self._kept(stage) if stage.first else 0.0

    def _weights_alone(self, stage: Stage) -> float:
        """Bytes with which a stage makes weights' gradients, or has the table's, before they are in their sums."""
        return self._table_bytes if stage.first or stage.last else 0.0

    def _made_again(self, stage: Stage) -> float:
        """Bytes of a block that is computed again, beside what is kept of it.

        It finds the blocks behind it, which kept everything, gone. Where weight gradients are to come all that are
        computed again stay until then.
        """
        again, one = len(recomputed(self.job, stage)), self._whole_block - kept_of_block(self.job, self.local)
        if self.job.order in SPLIT:
            return again * one
        return one - (len(stage.layers) - again) * self._kept_block if again else 0.0

    def _kept(self, stage: Stage) -> float:
        """Bytes that a micro-batch's forward pass leaves on a stage."""
        again = len(recomputed(self.job, stage))
        key = "kept", len(stage.layers), again, stage.first, stage.last
        if key not in self._equal:
            self._equal[key] = self._left(stage, again)
        return self._equal[key]

    def _left(self, stage: Stage, again: int) -> float:
        """The same, with so many blocks that are computed again."""
        job = self.job
        residual = float(job.element_bytes * self.local.residual_elements)
        ends = float(self.local.residual_elements) if stage.first and job.dropout else 0.0
        # what came is among the messages, in place of what goes out; the first has its own input too
        if stage.first and not stage.last and job.flavour == "torch" and job.order in OF_ONE_STAGE:
            ends += residual
        if stage.last:  # inputs of the last norm and of the head
            ends += 2 * residual + self._waiting_logits
        kept = again * (residual + kept_results(job, self.local))
        return kept + (len(stage.layers) - again) * self._kept_block + ends

    @cached_property
    def _whole_block(self) -> float:
        """What one block's backward pass needs."""
        return _block(self.job, self.local, whole=True)

    @cached_property
    def _kept_block(self) -> float:
        """The same without scores that are computed again."""
        return _block(self.job, self.local, whole=False)

    @cached_property
    def enough(self) -> int:
        """So many micro-batches that more hold no more: a pipeline is full, and rules of divisibility are kept."""
        job, ranks = self.job, self.pipeline.ranks
        steps, group = job.micro_steps, job.group or ranks
        if job.order == "gpipe":
            return steps
        full, round_ = 4 * max(ranks, group), lcm(ranks, group, 2)
        return steps if steps <= full + round_ else full - full % round_ + round_ + steps % round_

    def _counts(self, rank: int) -> InFlight:
        ranks, job = self.pipeline.ranks, self.job
        return most_held(self.pipeline.order, rank, ranks, self.enough, job.chunks, job.group)


def kept_of_block(job: MegatronJob, local: Local) -> float:
    """Bytes of what a block's backward pass needs that are kept although it is computed again."""
    if job.recompute_keeps == "nothing":
        return 0.0
    e, size = job.element_bytes, job.model.head_size
    attended = float(local.tokens * local.heads * (e * size + FP32_BYTES))  # and the sums of its rows
    if job.recompute_keeps == "attention":
        return attended
    return attended + float(e * local.tokens * ((local.heads + local.kv_heads) * size + local.mlp))


def kept_results(job: MegatronJob, local: Local) -> float:
    """Bytes that a block keeps although it is computed again: those, and what ranks have summed or is only added."""
    kept = kept_of_block(job, local)
    if job.recompute_keeps != "half_products":
        return kept
    summed = 2 * local.residual_elements if local.grid.tensor > 1 else 0
    added = local.tokens * job.model.hidden if job.keeps_down else 0
    return kept + float(job.element_bytes * (added + summed))


def _block(job: MegatronJob, local: Local, *, whole: bool) -> float:
    """What one block's backward pass needs; without what attention computes again, unless `whole`."""
    again = job.recompute_attention and not whole
    form = "flash" if again and job.attention in UNFUSED else job.attention
    block = block_activation_bytes(
        job.model_copy(update={"attention": form}),
        tokens=local.tokens,
        sequences=local.sequences,
        heads=local.heads,
        kv_heads=local.kv_heads,
        residual_width=job.model.hidden // (local.grid.tensor if job.sequence_parallel else 1),
        mlp_up_width=local.mlp_up,
        mlp_width=local.mlp,
        copies=job.flavour == "torch",
    )
    if job.keeps_rounded:  # what linears read, a byte each; what attention gives it keeps itself, besides
        normed, attended = 2 * local.residual_elements, local.tokens * local.heads * job.model.head_size
        block += attended - (job.element_bytes - 1) * (normed + local.tokens * local.mlp)
    if job.flavour == "torch" and job.sequence_parallel:  # what linears gathered is kept
        block += 2.0 * job.element_bytes * job.model.hidden * (local.tokens - local.residual_tokens)
    if job.traders > 1:  # of more ranks than heads of keys each has its own
        copied = local.tokens * (max(local.kv_heads, job.traders) - local.kv_heads)
        block += 2.0 * job.element_bytes * job.model.head_size * copied
    if again:  # nor its rows' sums
        block -= FP32_BYTES * local.tokens * local.heads
    return block
