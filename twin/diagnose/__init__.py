"""Which part is slow: from what a run took, what the twin expected, and how the grid is built.

* `observed`: what each rank took, step by step, from a trace, a running job or a simulation.
* `expected`: what the twin says that the same should take.
* `robust`: medians, scales and how surprising a value is.
* `devices`, `links`, `loading`, `axes`: one kind of culprit each.
* `interference`: compute that is slowed by collectives beside it, which is no culprit.
* `diagnose`: all of them in turn; what one explains is no evidence for another.
* `pipeline`: bubbles of a simulated pipeline by name, stage by stage.
"""
