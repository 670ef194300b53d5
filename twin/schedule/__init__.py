"""What one rank does in a training step, in program order.

The op language (`ops`) is the only thing the engines understand. `step.generate` writes the
schedule of the 4D algorithm in it. Nothing here knows a machine.
"""
