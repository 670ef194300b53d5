"""Measuring a machine by microbenchmarks, as `fourfold calibrate` does it.

* `sample`, `team`: how one thing is timed, and how ranks start together.
* `gemms`, `kernels`, `copies`, `attention`, `host`, `sharing`: what a device computes.
* `messages`, `groups`, `overlap`: what ranks tell each other, and what that does to compute.
* `measure`: all of it, within a budget of time; data out. Fitting a machine to the data is the twin's.

No training step is ever timed as a whole: that is what the fitted machine has to predict.
"""
