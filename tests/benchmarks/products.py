"""Products of a linear layer on one CPU core: by the library that PyTorch takes for fp32, and by oneDNN.

    python -m tests.benchmarks.products [--out FILE.json]

Each product is computed as the layers store its operands, by both libraries in turn, best of `REPEATS`. Prints JSON:
FLOP/s of the three passes of each layer, and whether `train.gemm_library: onednn` takes them.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import time
from pathlib import Path
from typing import Any

from tests.benchmarks.processes import machine

LINEARS = (
    (1, 4096, 4096),
    (16, 1024, 1024),
    (64, 64, 64),
    (128, 128, 128),
    (256, 128, 256),
    (256, 256, 256),
    (2048, 768, 256),
    (2048, 1024, 256),
    (2048, 256, 1024),
    (1024, 4096, 1024),
)
"""(tokens, out-features, in-features); some below the sizes from which oneDNN is taken."""
REPEATS, WARM_UP = 40, 3


def measure(linear: tuple[int, int, int]) -> list[dict[str, Any]]:
    """Time the three passes of a linear layer by both libraries."""
    import torch

    from runtime.calibration.gemms import passes
    from runtime.step.products import MatrixProducts, by_onednn
    from runtime.strategies.four_d.gemm import natural_operands

    rows = []
    for signature in passes(*linear):
        a, b = natural_operands(signature, torch.float32, torch.device("cpu"))
        taken = MatrixProducts(onednn=True).takes(a, b)
        best = [float("inf"), float("inf")]
        for repeat in range(WARM_UP + REPEATS):
            for which, run in enumerate((torch.mm, MatrixProducts(onednn=True).multiply if taken else by_onednn)):
                begin = time.perf_counter()
                run(a, b)
                seconds = time.perf_counter() - begin
                if repeat >= WARM_UP:
                    best[which] = min(best[which], seconds)
        work = 2.0 * signature.m * signature.n * signature.k
        rows.append(
            {
                "pass": signature.pass_,
                "tokens": linear[0],
                "out": linear[1],
                "in": linear[2],
                "pytorch_flops_per_second": round(work / best[0]),
                "onednn_flops_per_second": round(work / best[1]),
                "taken": taken,
            }
        )
    return rows


def main() -> None:
    """Measure all and print them."""
    import torch

    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--out", type=Path, metavar="FILE.json", help="write the figures, with machine, date and load")
    chosen = options.parse_args()
    torch.set_num_threads(1)
    load = round(os.getloadavg()[0], 1)
    answer = {
        "machine": f"{machine()}, {torch.backends.cpu.get_cpu_capability()}, PyTorch {torch.__version__}",
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "load": load,
        "products": [row for linear in LINEARS for row in measure(linear)],
    }
    text = json.dumps(answer, indent=1)
    print(text)
    if chosen.out:
        chosen.out.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
