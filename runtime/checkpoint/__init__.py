"""Checkpoints that resume on a different grid, and plain full models.

* `checkpoints`: save while training goes on, load the newest that is whole; `loading`: the latter, for readers.
* `pieces`, `host`: which rectangles of which full tensor a rank writes and reads, and its copies
  of them in host memory.
* `planner`, `storage`: how PyTorch's distributed checkpoint is told about them.
* `manifest`, `tensor_file`, `directory`: what lies on disk, and when it counts as complete.
* `full_model`: one safetensors file with the whole model, from a checkpoint or into a grid.

On disk there is JSON and safetensors, nothing that runs when it is read.
"""
