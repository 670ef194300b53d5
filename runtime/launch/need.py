"""What a command cannot run without; torch itself is not loaded to find out."""

from __future__ import annotations

from importlib.util import find_spec

from twin.description.problems import fail


def need_torch(command: str) -> None:
    """Refuse a command that cannot run without PyTorch; raises DescriptionError."""
    if find_spec("torch") is None:
        raise fail(command, "needs PyTorch, which is not installed; pip install 'fourfold[runtime]'")
