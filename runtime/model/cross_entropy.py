"""Cross-entropy, of a vocabulary that may be split over ranks (section 3 of the algorithm).

Three all-reduces of one number per token: the maximum, the sum of exponentials, the target's
logit. The gradient (softmax − 1 at the target) follows at once, in the memory of the logits.
"""

from __future__ import annotations

import torch

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
    ops, collectives = context.ops, context.collectives
    wide = context.master_type
    columns = logits.shape[1]
    valid = columns if valid is None else valid
    count = float(logits.numel())
    e, w = logits.element_size(), wide.itemsize
    cast = e + w if e < w else 0  # an element is read in one type and written in another, where they differ

    def maximum() -> tuple[torch.Tensor, torch.Tensor]:
        scores = logits.detach().to(wide)
        if valid < columns:
            # as good as −∞, and still a number for those who look for numbers that are none
            scores[:, valid:] = torch.finfo(wide).min
        return scores, scores.amax(1)

    scores, top = ops.compute(
        PLACE, "maximum", maximum, lambda: Memory(count * (cast + w), work="loss/maximum"), phase="loss"
    )
    if over is not None:
        top = collectives.all_reduce(PLACE, over, top, reduction="max", name="maximum", phase="loss").wait()

    local = targets - first
    mine = (local >= 0) & (local < valid)
    local = local.clamp(0, columns - 1)[:, None]
    picked = scores.gather(1, local)[:, 0] - top

    def exponentials() -> tuple[torch.Tensor, torch.Tensor]:
        raised = scores.sub_(top[:, None]).exp_()
        return raised, raised.sum(1)

    raised, total = ops.compute(
        PLACE, "sum", exponentials, lambda: Memory(count * 5 * w, work="loss/sum"), phase="loss"
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
    loss = torch.dot(total.log() - target, weights.to(wide))
    if not with_gradient:
        return loss, None

    def gradient() -> torch.Tensor:
        scale = weights.to(wide)
        raised.mul_((scale / total)[:, None])
        raised.scatter_add_(1, local, -(scale * mine)[:, None])
        return raised.to(logits.dtype)

    return loss, ops.compute(
        PLACE, "gradient", gradient, lambda: Memory(count * (2 * w + cast), work="loss/gradient"), phase="loss"
    )
