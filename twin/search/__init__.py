"""Search: every way to run a job on so many ranks, each simulated.

* `options`: what besides the grid may vary, and which variants differ on a grid.
* `candidates`: every grid with its variants; what cannot run is kept with the reason.
* `search`: rank by the published communication model, simulate all, order by time.
* `fleet`: the same for several numbers of ranks, against a number of tokens and a deadline.
* `tables`, `page`, `best`, `write`: the answer as JSON, Parquet, a page and a job file.
"""
