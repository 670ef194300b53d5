"""The algorithms that collectives run by, a module each.

A module registers what it offers (`twin.cost.algorithms.register`); every module of this package is found
and imported by itself, so that a new algorithm is a new file here.
"""
