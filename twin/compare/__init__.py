"""Where the difference between a predicted and a measured step comes from.

* `jobs`: whether two runs are of the same job. `clocks`: how well ranks' clocks agree.
* `side`: one run, read and checked. `steps`: events as matrices of ranks and ops. `kinds`: what an op is.
* `account`: every nanosecond of a step, once. `errors`: how far off single ops are.
* `compare`: the two runs together. `page`: one HTML page of it.
"""
