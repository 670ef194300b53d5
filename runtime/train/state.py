"""Where a run stands: the few things that change while it trains."""

from __future__ import annotations

from dataclasses import dataclass, field

from runtime.survive.history import History


@dataclass
class State:
    """One rank's; equal on all ranks."""

    history: History
    """What the run went back from, and which batches it leaves out."""
    step: int = 0
    """Optimizer steps done."""
    began: int = 0
    """Where this start began."""
    saved_at: int = -1
    """Step of the newest checkpoint."""
    ended: bool = False
    """True once a signal ends the run before its last step."""
    best: tuple[int, float] | None = None
    """Step with the least validation loss so far, and that loss; kept where `train.checkpoints.best` is set."""
    modes: dict[str, str] = field(default_factory=dict)
    """Operand modes of matrix products, as chosen by timing."""
