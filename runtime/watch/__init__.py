"""Looking for what is slow while training goes on.

* `window`: what a few steps took, summed up on each rank: a few numbers, however many ranks there are.
* `lookout`: every so often, listen for a few steps, put ranks together, ask the twin, write an alert.
"""
