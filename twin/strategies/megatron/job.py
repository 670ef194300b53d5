"""The keys of a job that is cut as Megatron-LM cuts it."""

from __future__ import annotations

from itertools import accumulate
from math import gcd
from typing import Literal

from pydantic import StrictBool

from twin.description.attention import AttentionForm
from twin.description.grid import Mesh
from twin.description.job import Job
from twin.description.model import Positive
from twin.strategies.megatron.grid import Grid
from twin.strategies.megatron.orders import V_SHAPES, group_of
from twin.strategies.megatron.orders import Name as Order
from twin.strategies.sizes import FP32_BYTES

Exchange = Literal["ring", "all_gather", "all_to_all", "hierarchical", "balanced"]
Schedule = Literal["gpipe", "1f1b", "interleaved", "zb_h1", "zb_h2", "zb_v", "dualpipe_v", "dualpipe"]
"""Orders that a job may ask for; DeepSpeed's comes with its flavour."""
SPLIT: tuple[Order, ...] = ("zb_h1", "zb_h2", "zb_v", "dualpipe_v", "dualpipe")
"""Orders in which the backward pass comes in two halves."""
BLOCKING: tuple[Order, ...] = ("gpipe", "1f1b")
"""Orders whose messages are waited for where they are sent, unless told otherwise."""


class MegatronJob(Job):
    """A job on a grid of pipeline, data, context and tensor parallelism."""

    strategy: Literal["megatron"] = "megatron"
    """Megatron-LM's: tensor × pipeline × context × data. Trains with flavour torch; others are for simulation."""
    grid: Grid | Literal["auto"] = "auto"
    flavour: Literal["megatron", "deepspeed", "torch"] = "megatron"
    """Whose implementation: Megatron-LM's; DeepSpeed's pipeline below Megatron-DeepSpeed and GPT-NeoX: its blocking
    messages are sent a tick late, cut over tensor ranks, and no gradient is reduced beside compute; or PyTorch's own
    pieces as torchtitan composes them: `fully_shard` over data and context ranks, DTensor, `pipelining`."""
    weight_shards: Positive | None = None
    """Of flavour torch: ranks of data × context among which weights are cut, the others hold replicas (HSDP); all of
    them if absent."""
    reshard_after_forward: StrictBool | None = None
    """Of flavour torch: drop gathered weights after each pass; if absent as torchtitan does, without a pipeline."""
    rank_order: Literal["pipeline_outermost", "data_outermost"] = "pipeline_outermost"
    """Which ranks are neighbours: Megatron's `tp-cp-dp-pp`, or `tp-cp-pp-dp` as of Llama 3."""
    schedule: Schedule = "1f1b"
    """The order of micro-batches in a pipeline."""
    chunks: Positive = 1
    """Model chunks of a pipeline rank (virtual stages): several with interleaved, two with zb_v and dualpipe_v."""
    micro_group: Positive | None = None
    """Of interleaved: micro-batches of a chunk in a row (`microbatch_group_size_per_vp_stage`); pipeline ranks if
    absent, with flavour torch as many as its rounds leave."""
    stage_layers: tuple[int, ...] | None = None
    """Layers of each model stage from first to last, pipeline × chunks of them; equal ones if absent."""
    overlap_messages: StrictBool | None = None
    """Send and receive between stages beside compute; if absent as the schedule's reference does: gpipe and 1f1b wait
    (`batch_isend_irecv` and a wait), the others do not. Not of flavour torch, whose schedules leave no choice."""
    split_messages: StrictBool = False
    """Each tensor rank sends its part and the receivers gather it: DeepSpeed's default, and Megatron's
    scatter/gather of 2021. With sequence_parallel a rank has but a part anyway."""
    sequence_parallel: StrictBool = False
    """Norms, dropout and the residual stream are split over tensor ranks along the sequence: all-gathers and
    reduce-scatters in place of all-reduces."""
    tensor_overlap: StrictBool = False
    """All-gathers and reduce-scatters of sequence parallelism in parts beside the product that they serve
    (`--tp-comm-overlap`)."""
    context_exchange: Exchange = "ring"
    """How attention sees other ranks' parts of a sequence (`--cp-comm-type`): keys and values go round beside compute,
    are gathered before it, heads are traded for sequence (Ulysses), or both: traded among neighbours, and round
    among those of equal place (`a2a+p2p`); or sequences are cut into parts in order, and ranks that are done help
    others (DistFlashAttn's balanced schedule)."""
    context_traders: Positive | None = None
    """Of hierarchical: neighbouring context ranks that trade heads; those of a node if absent, as far as they divide
    context ranks and heads of keys (`--hierarchical-context-parallel-sizes`)."""
    separate_reduction_group: StrictBool | None = None
    """Of flavour torch: gradients are reduced by a communicator of their own, beside gathers, as they train here (true,
    and if absent); false: by that which gathers weights, one collective at a time, as in PyTorch unless
    `set_separate_reduce_scatter_group` is called (github pytorch, issue 65299 and pull request 186335)."""
    loss_in_place: StrictBool | None = None
    """Of flavour torch: gradients take the place of exponentials of logits, in fp32 of logits, as they train here, and
    if absent; false: as in programs with PyTorch's own `cross_entropy`, 12 bytes a logit in 16 bits, not 8, and 16 in
    fp32, not 4."""
    reduces_before_sending: StrictBool = False
    """Of flavour torch with a pipeline: a stage's gradients are reduced inside its last backward pass, before that
    pass's message leaves, as in PyTorch of 2024 (recalled; 2.13 sends first), whose passes gather weights under all
    schedules."""
    recompute_attention: StrictBool = False
    """With recompute: false, compute attention again in the backward pass (Megatron Core's selective, whatever the
    kernel; Megatron-LM's own path of flash attention left it out)."""
    recompute_layers: Positive | None = None
    """With recompute: true, only the first so many layers of each stage (`--recompute-method block`); all if absent."""
    recompute_keeps: Literal["nothing", "attention", "half_products"] = "nothing"
    """With recompute: true, what is kept all the same: the output of attention, or that, every other product and what
    tensor ranks have summed (torchtitan's selective recomputation per operation)."""
    distributed_optimizer: StrictBool = False
    """Optimizer states are divided over data and context ranks (ZeRO-1): gradients are reduce-scattered, weights
    gathered after the update."""
    overlap_gradients: StrictBool = False
    """Reduce gradients beside the last backward pass (`--overlap-grad-reduce`): in buckets on the first stage, as one
    bucket on the others."""
    overlap_parameters: StrictBool = False
    """Gather weights of distributed_optimizer beside the next forward pass (`--overlap-param-gather`)."""
    fp8_linears: StrictBool = False
    """Products of blocks' linears in 8 bits (Transformer Engine): inputs and gradients are rounded before, attention,
    head and messages stay in compute precision."""
    fp8_recipe: Literal["delayed", "tensorwise"] | None = None
    """Where the scale of a tensor of 8 bits comes from (`--fp8-recipe`): from steps before, or from what it holds,
    which is read once more. Absent: tensorwise with flavour torch, as torchao has it, else delayed, Megatron's own."""
    fused_accumulation: StrictBool = True
    """Products of weight gradients add to their sums themselves (`gradient_accumulation_fusion`, in Megatron
    since about the end of 2021: assumed); false, and always with flavour deepspeed: a kernel adds each gradient."""
    fused_residual: StrictBool = True
    """Bias, dropout and residual in one kernel (`bias_dropout_fusion`); false: one each, as is assumed of
    Megatron's function of 2023, which Torch did not fuse (github NVIDIA/Megatron-LM, pull request 532)."""
    loss_fusion: Literal["native", "te"] | None = None
    """Kernels of cross-entropy (`--cross-entropy-loss-fusion`, `--cross-entropy-fusion-impl`): Megatron's, compiled, or
    Transformer Engine's, in compute precision. Absent: a chain of eager operations in fp32."""
    layers_in_steps: StrictBool = False
    """RMS norms and rotary positions as chains of eager operations in fp32, as in Llama's published code; false: a
    kernel each."""
    gradient_precision: Literal["fp32", "compute"] = "fp32"
    """In which type gradients are summed over micro-steps and ranks (`--accumulate-allreduce-grads-in-fp32`, which bf16
    turns on)."""

    @property
    def concrete_grid(self) -> Grid:
        """The grid, which must not be `auto` any more."""
        grid = super().concrete_grid
        assert isinstance(grid, Grid)
        return grid

    @property
    def mesh(self) -> Mesh:
        """Axes in the order of ranks."""
        grid = self.concrete_grid
        if self.rank_order == "pipeline_outermost":
            return grid.mesh
        axes = ("data", "pipeline", "context", "tensor")
        return Mesh(axes, tuple(grid.size(axis) for axis in axes))

    @property
    def order(self) -> Order:
        """The order of micro-batches, DeepSpeed's own included."""
        return "deepspeed" if self.flavour == "deepspeed" and self.concrete_grid.pipeline > 1 else self.schedule

    @property
    def stages(self) -> int:
        """Parts that the model is cut into: of DualPipe every rank holds two of as many as there are ranks."""
        pipeline = self.concrete_grid.pipeline
        return pipeline if self.schedule == "dualpipe" else pipeline * self.chunks

    @property
    def ends_together(self) -> bool:
        """Whether a rank that holds the first stage holds the last one too, as in a V."""
        return self.concrete_grid.pipeline == 1 or self.schedule in (*V_SHAPES, "dualpipe")

    @property
    def layers_by_stage(self) -> tuple[range, ...]:
        """Numbers of each stage's layers."""
        counts = self.stage_layers or (self.model.layers // self.stages,) * self.stages
        ends = list(accumulate(counts))
        return tuple(range(end - count, end) for end, count in zip(ends, counts, strict=True))

    @property
    def as_pytorch(self) -> bool:
        """Whether stages do what those of `torch.distributed.pipelining` do, in its order."""
        return self.flavour == "torch" and self.concrete_grid.pipeline > 1

    @property
    def unshards(self) -> bool:
        """Whether the schedule has UNSHARD actions: GPipe, 1F1B and all of 2024 leave gathers to the passes."""
        if not self.as_pytorch or self.weight_parts == 1 or self.reduces_before_sending:
            return False
        return self.schedule not in ("gpipe", "1f1b")

    @property
    def has_rounds(self) -> bool:
        """Whether micro-batches are divided into PyTorch's rounds, of as many in each chunk in a row."""
        return self.flavour == "torch" and self.schedule == "interleaved"

    @property
    def group(self) -> int | None:
        """Interleaved's micro-batches of a chunk in a row; None if one for each pipeline rank."""
        if self.has_rounds:
            return group_of(self.concrete_grid.pipeline, self.micro_steps)
        return self.micro_group

    @property
    def waits_for_messages(self) -> bool:
        """Whether a message is waited for where it is sent."""
        if self.flavour == "deepspeed":
            return True
        return self.schedule in BLOCKING if self.overlap_messages is None else not self.overlap_messages

    @property
    def splits_messages(self) -> bool:
        """Whether tensor ranks send a part each and gather."""
        cut = self.concrete_grid.tensor > 1 and not self.sequence_parallel
        return cut and (self.split_messages or self.flavour == "deepspeed")

    @property
    def main_gradient_bytes(self) -> int:
        """Bytes of a gradient's number in its sum."""
        return FP32_BYTES if self.gradient_precision == "fp32" else self.element_bytes

    @property
    def reduced_gradient_bytes(self) -> int:
        """Bytes of a gradient's number on its way: DeepSpeed's BF16_Optimizer sends 16 bits."""
        return self.element_bytes if self.flavour == "deepspeed" else self.main_gradient_bytes

    @property
    def accumulates_apart(self) -> bool:
        """Whether a kernel of its own adds weight gradients to their sums."""
        if self.flavour == "torch":
            return not self.reduces_each
        return not self.fused_accumulation or self.flavour == "deepspeed"

    @property
    def keeps_rounded(self) -> bool:
        """Whether what products of 8 bits read stays in 8 bits: Transformer Engine's, not torchao's.

        Of a weight, for all micro-batches of a step, beside the weight itself (github NVIDIA/TransformerEngine, issues
        257 and 1764).
        """
        return self.fp8_linears and self.flavour != "torch"

    @property
    def scales_by_content(self) -> bool:
        """Whether tensors of 8 bits are scaled by what they hold."""
        return (self.fp8_recipe or ("tensorwise" if self.flavour == "torch" else "delayed")) == "tensorwise"

    @property
    def accumulates_in_product(self) -> bool:
        """Whether products of weight gradients add to their sums themselves."""
        return self.flavour == "megatron" and self.fused_accumulation

    @property
    def traders(self) -> int:
        """Context ranks that trade heads for sequence."""
        context, tensor = self.concrete_grid.context, self.concrete_grid.tensor
        if self.context_exchange == "all_to_all":
            return context
        if self.context_exchange != "hierarchical":
            return 1
        near = max(1, self.machine.devices_per_node // tensor)
        return self.context_traders or gcd(gcd(context, near), max(1, self.model.key_value_heads // tensor))

    @property
    def attends_to_parts(self) -> bool:
        """Whether attention meets a sequence's keys in parts, as ranks that share it send them."""
        return self.traders < self.concrete_grid.context

    @property
    def attention_of_parts(self) -> AttentionForm:
        """The kernel that attends to a part of a sequence's keys: of flavour torch FlashAttention 2, as it trains.

        Also where PyTorch takes another for whole sequences, as cuDNN's on Hopper; the usual one where the device has
        no rates of it.
        """
        trains = self.flavour == "torch" and self.attention == "flash"
        return "flash2" if trains and "flash2" in self.machine.device.attention else self.attention

    @property
    def weight_parts(self) -> int:
        """Ranks that each weight is cut over besides tensor ranks."""
        if self.flavour != "torch":
            return 1
        grid = self.concrete_grid
        return self.weight_shards or grid.data * grid.context

    @property
    def reshards(self) -> bool:
        """Whether weights are gathered in every pass."""
        alone = self.concrete_grid.pipeline == 1
        return self.weight_parts > 1 and (alone if self.reshard_after_forward is None else self.reshard_after_forward)

    @property
    def reduces_each(self) -> bool:
        """Whether gradients are scattered in every micro-step; in a pipeline they are summed whole before."""
        return self.weight_parts > 1 and self.concrete_grid.pipeline == 1

    @property
    def kept_flops(self) -> float:
        """Flops of a step that all blocks' recomputation would be, and that are not done.

        By the convention of published rates: attention is not halved for its mask. What is done beyond that counts
        against it: attention computed again without `recompute`, and keys and values that several ranks compute.
        """
        model, passes = self.model, 4 if self.recompute else 3
        tokens = float(self.batch.sequences * model.sequence)
        queries, keys = model.qkv_parts[0], self._computed_keys
        attention = 4.0 * model.sequence * queries
        repeated = passes * tokens * model.layers * 4.0 * model.hidden * (keys - model.qkv_parts[1])
        if not self.recompute:
            return (-tokens * model.layers * attention if self.recompute_attention else 0.0) - repeated
        up = (2 if model.mlp_kind == "swiglu" else 1) * model.mlp_hidden  # gate and up
        down = 2.0 * model.hidden * model.mlp_hidden
        products = 2.0 * model.hidden * (2 * queries + 2 * keys + up) + down
        stops = self.flavour == "torch" and not self.dropout  # PyTorch stops at the last thing kept
        kept = down if stops or self.keeps_down else 0.0
        if self.recompute_keeps != "nothing":
            kept += attention
        if self.recompute_keeps == "half_products":
            kept += 2.0 * model.hidden * (queries + keys + model.mlp_hidden)
        again = model.layers
        if self.recompute_layers is not None:
            again = sum(min(len(stage), self.recompute_layers) for stage in self.layers_by_stage)
        return tokens * (again * kept + (model.layers - again) * (products + attention)) - repeated

    @property
    def keeps_down(self) -> bool:
        """Whether what the MLP's last product gives is kept: with SwiGLU it is the seventh, of which every other is."""
        return self.recompute_keeps == "half_products" and self.model.mlp_kind == "swiglu"

    @property
    def _computed_keys(self) -> int:
        """Width of keys that all tensor ranks compute: where they have fewer heads than ranks, each rank has a copy."""
        heads, tensor = self.model.key_value_heads, self.concrete_grid.tensor
        return self.model.head_size * tensor * max(1, heads // tensor)
