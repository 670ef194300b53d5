"""Questions asked of the twin: which grid, how far from what was measured.

* `choose`: resolve `grid: auto` and `micro_sequences: auto` as the authors of the algorithm did.
* `published`, `validate`: predictions against published runs.
* `measurements`: predictions against a user's own tables.
"""
