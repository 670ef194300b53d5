"""What one operation costs: compute kernels, collectives, memory, energy.

* `kernels`, `gemm`: seconds of device work.
* `collective`: seconds and link loads of a collective over the placement of its group.
* `memory`: bytes per rank by category. `energy`: joules of a step.
"""
