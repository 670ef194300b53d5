"""The schedule that a rank of any world really runs, recorded on one CPU without peers or data.

* `world`: a process group that is not there.
* `listener`: ops of the running step, in the twin's op language.
* `launches`: which aten kernels run, under a name and outside of names.
* `gpt.record`: a job's own training step, the same that `fourfold train` runs.
* `own.record_step`: a step of a user's own model under `auto_parallelize`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from runtime.recorder.gpt import record
    from runtime.recorder.own import record_step

__all__ = ["record", "record_step"]


def __getattr__(name: str) -> Any:
    # they load torch, which the command line does without
    if name == "record":
        from runtime.recorder.gpt import record  # noqa: PLC0415

        return record
    if name == "record_step":
        from runtime.recorder.own import record_step  # noqa: PLC0415

        return record_step
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
