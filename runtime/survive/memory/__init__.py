"""Copies of a run's state in the memory of two hosts: a lost host costs a few steps, not an interval.

* `place`: the directory in a host's memory file system.
* `part`: what one rank's part of a copy says about itself, and how parts become a checkpoint.
* `neighbours`: which rank of which other host keeps a rank's part.
* `copies`: making them, while training goes on.
* `recovery`: putting a checkpoint together from what the hosts that are left hold.
"""
