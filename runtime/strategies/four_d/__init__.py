"""The 4D algorithm: layers, gathers of weights, reduction of gradients, matrix products.

* `assembly`: makes the model of a job on a rank; `context`, `model`, `layers`: what a rank computes.
* `gathers`, `reduction`: how weights and gradients travel; `trainee`: one training step.
* `gemm`, `tuning`: how operands of products are stored.
"""

from runtime.strategies.four_d.refusals import refusals

__all__ = ["TRAINED_WITH", "refusals"]

TRAINED_WITH = {"recompute_inputs": "device"}
"""Keys of which other values are for simulation."""
