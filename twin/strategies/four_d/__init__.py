"""The 4D algorithm of AxoNN: its keys, shapes, schedule, memory, communication model and candidates.

* `job`, `grid`, `rules`, `options`: the keys, the rules they keep, and what a search varies.
* `shapes`, `linear`, `block`, `reduction`, `step`: the schedule of one training step; `buckets`, `updated`: parts of
  buckets that replicas own.
* `memory`; `communication_model`: the published one, which ranks grids.
"""

from twin.strategies.four_d.strategy import FourD

STRATEGY = FourD()

__all__ = ["STRATEGY", "FourD"]
