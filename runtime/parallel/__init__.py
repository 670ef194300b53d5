"""Named ops, and collectives over the axes of a mesh; random numbers by address."""
