"""Failures that end a run on every rank; how each is told is in `runtime.launch.rank`."""

from __future__ import annotations


class NonFiniteError(RuntimeError):
    """The loss or the gradient is NaN or infinite."""


class DivergedError(NonFiniteError):
    """The loss leaps again and again, however often the run goes back."""


class TakenOverError(RuntimeError):
    """Another start of the run uses its directory now."""
