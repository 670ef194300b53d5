"""Where the difference between a predicted and a measured step comes from.

* `jobs`: whether two runs are of the same job. `clocks`: how well ranks' clocks agree.
* `side`: one run, read and checked. `steps`: events as matrices of ranks and ops. `kinds`: what an op is.
* `stages`: the same for each stage of a pipeline. `pairing`: ops of two runs joined, stage by stage.
* `account`: every nanosecond of a step, once. `bubbles`: waits for other stages. `errors`: how far off single ops are.
* `terms`: two accounts side by side. `pipeline`: which stage decides the step. `compare`: the two runs together.
* `page`: one HTML page of it. `stage_rows`: stages in words.
"""
