"""Machines as data: one YAML file each, every number with its kind and its source.

* `*.yaml`: machines.
* `devices/*.yaml`: devices that machines share.
* `libraries/*.yaml`: collective libraries that machines share.
"""
