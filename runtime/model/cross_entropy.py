"""Cross-entropy, of a vocabulary that may be split over ranks (section 3 of the algorithm).

Three all-reduces of one number per token: the maximum, the sum of exponentials, the target's
logit. The gradient (softmax − 1 at the target) follows at once. How logits are widened is `scores`' matter.
"""

from __future__ import annotations

import torch

from runtime.model.scores import Scores, make
from runtime.parallel.mesh import Communicator
from runtime.parallel.ops import Place
from runtime.step.context import Context
from twin.schedule.kernels import Memory

PLACE = Place("")


def cross_entropy(
    context: Context,
    logits: torch.Tensor,
    targets: torch.Tensor,
    weights: torch.Tensor,
    *,
    with_gradient: bool,
    over: Communicator | None = None,
    valid: int | None = None,
    first: int = 0,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Return the weighted sum of the tokens' losses, and the gradient of the logits.

    logits (m, columns); targets (m,) full token ids; weights (m,): what each token's loss counts for in the sum, zero
    where it is masked. Where the vocabulary is split, `over` is the communicator of its parts, whose sums are the same,
    `first` the token of the first column here, and `valid` counts the columns that are no padding. The memory of the
    logits is used up.
    """
    ops, collectives, wide = context.ops, context.collectives, context.master_type
    columns = logits.shape[1]
    valid = columns if valid is None else valid
    scores: Scores = make(logits.detach(), wide, valid, context.job.loss_rows)
    top = ops.compute(
        PLACE, "maximum", scores.maximum, lambda: Memory(scores.moved("maximum"), work="loss/maximum"), phase="loss"
    )
    if over is not None:
        top = collectives.all_reduce(PLACE, over, top, reduction="max", name="maximum", phase="loss").wait()

    local = targets - first
    mine = (local >= 0) & (local < valid)
    local = local.clamp(0, columns - 1)[:, None]
    picked = scores.at(local) - top

    total = ops.compute(
        PLACE,
        "sum",
        lambda: scores.exponentials(top),
        lambda: Memory(scores.moved("sum"), work="loss/sum"),
        phase="loss",
    )
    if over is not None:
        total = collectives.all_reduce(PLACE, over, total, name="sum", phase="loss").wait()
    target = ops.compute(
        PLACE,
        "target",
        lambda: torch.where(mine, picked, 0.0),
        lambda: Memory(2.0 * top.nbytes + mine.nbytes, work="loss/target"),
        phase="loss",
    )
    if over is not None:
        target = collectives.all_reduce(PLACE, over, target, name="target", phase="loss").wait()
    scale = weights.to(wide)
    loss = torch.dot(total.log() - target, scale)
    if not with_gradient:
        return loss, None
    return loss, ops.compute(
        PLACE,
        "gradient",
        lambda: scores.gradient(top, (scale / total)[:, None], local, -(scale * mine)[:, None]),
        lambda: Memory(scores.moved("gradient"), work="loss/gradient"),
        phase="loss",
    )
