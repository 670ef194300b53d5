"""What one rank does in a training step, in program order.

The op language (`ops`, `kernels`) is the only thing the engines understand. `step.generate` writes
the schedule of the 4D algorithm in it; `recording` reads and writes schedules that the runtime
recorded, and `difference` holds two against each other. Nothing here knows a machine.
"""
