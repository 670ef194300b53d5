"""What keeps a run alive: signals, restarts on other ranks, copies in memory, going back.

* `signals`, `stop`: a signal ends the run in a checkpoint, after the same step on all ranks.
* `board`: what ranks tell each other through the store, without a collective.
* `elastic`, `spare`: the best grid for the ranks that are there, and what the others do meanwhile.
* `spikes`, `history`, `rollback`: going back to a checkpoint and on without the batches that did it.
* `memory`: copies of the state in the memory of two hosts.
"""
