"""4D parallelism for models of the user's own: `auto_parallelize` and what it gives back.

Outside the linears a model is purely data parallel: ranks that differ only in x and y work on the
same rows with full features. Each `nn.Linear` that divides is cut over x, y and z; its activations
are redistributed at its edges, so that the module around it needs no change.
"""

from runtime.auto.linear import ParallelLinear
from runtime.auto.parallel import Parallel, auto_parallelize

__all__ = ["Parallel", "ParallelLinear", "auto_parallelize"]
