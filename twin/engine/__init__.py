"""When everything happens: layout, folding, and the SimPy engine.

`simulate.simulate(job)` is the way in.
"""
