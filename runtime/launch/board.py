"""What ranks tell each other through the store: notices between steps, talks before the first.

No collective is needed for it, so that a step's schedule stays what it is; and it works for ranks that
are in no process group.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from torch._C._distributed_c10d import Store

from runtime.launch.environment import Process
from runtime.parallel.collectives import CollectiveError

T = TypeVar("T")


@dataclass
class Board:
    """One rank's side of it; without a store the rank is alone."""

    store: Store | None
    process: Process
    _alone: dict[str, str] = field(default_factory=dict)
    _talks: int = 0

    @property
    def first(self) -> bool:
        """True if this is rank 0, which decides for all."""
        return self.process.rank == 0

    def post(self, key: str, value: Any) -> None:
        """Put up a value (JSON) for all ranks to read."""
        if self.store is None:
            self._alone[key] = json.dumps(value)
        else:
            store = self.store
            self._asked(lambda: store.set(f"board/{key}", json.dumps(value)))

    def read(self, key: str) -> Any:
        """Return what was put up, or None; does not wait. Raises CollectiveError if the store is gone."""
        if self.store is None:
            text = self._alone.get(key)
            return None if text is None else json.loads(text)
        store, name = self.store, f"board/{key}"
        if not self._asked(lambda: store.check([name])):
            return None
        return json.loads(self._asked(lambda: store.get(name)))

    def gather(self, value: Any) -> list[Any]:
        """Return on rank 0 what each rank gave (JSON), in order; elsewhere nothing. All must call it."""
        self._talks += 1
        if self.store is None:
            return [json.loads(json.dumps(value))]
        store, talk = self.store, f"talk/{self._talks}"
        self._asked(lambda: store.set(f"{talk}/{self.process.rank}", json.dumps(value)))
        if not self.first:
            return []
        keys = [f"{talk}/{rank}" for rank in range(self.process.ranks)]
        return [json.loads(text) for text in self._asked(lambda: store.multi_get(keys))]

    def tell(self, make: Callable[[], Any]) -> Any:
        """Return on every rank what `make` returned (JSON) on rank 0. All must call it."""
        self._talks += 1
        if self.store is None:
            return json.loads(json.dumps(make()))
        store, talk = self.store, f"talk/{self._talks}"
        if self.first:
            text = json.dumps(make())
            self._asked(lambda: store.set(talk, text))
            return json.loads(text)
        return json.loads(self._asked(lambda: store.get(talk)))

    def _asked(self, ask: Callable[[], T]) -> T:
        try:
            return ask()
        except RuntimeError as error:  # torch's own errors of the store are of this class
            reason = str(error).strip().split("\n")[0]
            raise CollectiveError(
                f"rank {self.process.rank} lost the meeting point: a peer has probably died ({reason})"
            ) from None
