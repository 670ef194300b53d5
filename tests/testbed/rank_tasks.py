"""What the tests of the test bed let ranks do: `python -m tests.testbed.rank_tasks TASK FOLDER`."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

BYTES = 8 << 20
REPEATS = 3


def bulk(folder: Path) -> None:
    """Rank 0 sends a large message to the last rank, which says how long that took."""
    import torch  # the other task needs none
    import torch.distributed as dist

    dist.init_process_group("gloo")
    rank, last = dist.get_rank(), dist.get_world_size() - 1
    buffer, seconds = torch.zeros(BYTES // 4), []
    for _ in range(REPEATS):
        dist.barrier()
        begin = time.monotonic()
        if rank == 0:
            dist.send(buffer, last)
        elif rank == last:
            dist.recv(buffer, 0)
        seconds.append(time.monotonic() - begin)
    dist.barrier()
    if rank == last:
        (folder / "seconds.json").write_text(json.dumps(seconds))
    sys.stderr.flush()
    os._exit(0)


def probe(folder: Path) -> None:
    """Hosts of two ranks probe their links; rank 0 writes what they found."""
    import torch
    import torch.distributed as dist

    from runtime.tracing.probe import probe_links

    dist.init_process_group("gloo")
    ranks = dist.get_world_size()
    found = probe_links(dist.group.WORLD, torch.device("cpu"), dist.get_rank(), [rank // 2 for rank in range(ranks)])
    if dist.get_rank() == 0:
        (folder / "probe.json").write_text(json.dumps(found))
    dist.barrier()
    sys.stderr.flush()
    os._exit(0)


def fail_on_1(_folder: Path) -> None:
    """Rank 1 fails, the others wait for ever."""
    if os.environ["RANK"] == "1":
        sys.exit("rank 1 has had enough")
    time.sleep(600)


if __name__ == "__main__":
    {"bulk": bulk, "probe": probe, "fail_on_1": fail_on_1}[sys.argv[1]](Path(sys.argv[2]))
