"""Where a run has gone back, and which batches it goes on without: part of what the run is.

Kept in `run.json` and in every checkpoint, so that a resumed run leaves out the same ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from twin.description.problems import fail

KEY = "rollbacks"
"""In `run.json` and in the `extra` of a checkpoint."""
Number = Annotated[int, Field(ge=0, lt=1 << 48, strict=True)]


class WentBack(BaseModel):
    """One time that a run went back."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    from_step: Number
    """The step, counted from 0, whose loss or gradient was the reason."""
    to_step: Number
    """So many steps were done again after that."""
    left_out: Annotated[tuple[Number, ...], Field(max_length=1_000_000)]
    """Batches, numbered as without any left out."""
    why: str


class History:
    """All times that a run went back, in order."""

    def __init__(self, entries: Sequence[WentBack] = ()) -> None:
        self.entries = tuple(entries)
        self._left_out = sorted({batch for entry in entries for batch in entry.left_out})

    @classmethod
    def read(cls, raw: Any, origin: str) -> History:
        """Check what was kept (JSON, None if nothing was); raises DescriptionError naming `origin`."""
        try:
            return cls(TypeAdapter(list[WentBack]).validate_python(raw or []))
        except ValidationError as error:
            reason = error.errors(include_url=False)[0]["msg"]
            raise fail(
                f"{origin}: {KEY}", f"is damaged ({reason}); choose another --out, or --force to begin anew"
            ) from None

    def as_json(self) -> list[dict[str, Any]]:
        """As it is kept."""
        return [entry.model_dump(mode="json") for entry in self.entries]

    def plus(self, entry: WentBack) -> History:
        """Return the history with one more entry."""
        return History((*self.entries, entry))

    def times(self, newest: int) -> int:
        """Count how often the run has gone back without getting past what made it; `newest`: of its checkpoints."""
        return sum(entry.from_step >= newest for entry in self.entries)

    def batch(self, step: int) -> int:
        """Return the number of the batch that a step trains on: those left out do not count."""
        batch = step
        for left_out in self._left_out:
            if left_out > batch:
                break
            batch += 1
        return batch


def longer(one: History, other: History) -> History:
    """Return the one that knows more: a checkpoint may come from another directory than `run.json`."""
    return one if len(one.entries) >= len(other.entries) else other
