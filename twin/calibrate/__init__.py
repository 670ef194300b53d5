"""From microbenchmarks of a machine to its description: `fourfold calibrate`.

* `solve`: robust least squares on relative errors, with standard errors.
* `compute`: cores that are shared, matrix products, attention, memory-bound work, the host.
* `network`: links, and the constants of the collective library.
* `machine`: all of it as the YAML that `simulate` reads.

Nothing here looks at the time of a training step.
"""

from twin.calibrate.machine import machine_from

__all__ = ["machine_from"]
