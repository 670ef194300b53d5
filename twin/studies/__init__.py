"""Studies: one question asked of many jobs, computed in parallel, and resumed where it stopped.

* `description`: the study file.
* `points`: the jobs that it stands for; `sensitivity`: parameters moved one at a time.
* `compute`: one point, from a mapping to a mapping of figures.
* `directory`: results on disk, one line for each finished point.
* `workers`, `cluster`: where points are computed: processes here, or Dask's workers.
* `run`: all of this together.
* `derived`: efficiency, time and cost to a target, effects; `measured`: points shown beside.
* `table`, `figures`, `page`: columns, pictures and the page; `results` writes the files.
"""
