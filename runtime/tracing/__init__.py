"""Recording what a step really did: every op of chosen steps on every rank, in the design's event table.

* `listener`: notes times while a step runs, by the host's clock or by device events.
* `clock`: how far apart the hosts' clocks are.
* `write`: notes to a table, all ranks to one trace directory.
* `tracer`: which steps, and when. `energy`: joules of a while, where a counter can be read.
"""
