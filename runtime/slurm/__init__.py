"""Job scripts for SLURM: `fourfold train JOB --slurm`.

* `write`: a job and its machine to a script.
* `templates/`: one file for each machine that is known by name, one for all others, and `run.sh`,
  with which every script ends. `@WORD@` stands for what the job decides.
"""

from runtime.slurm.write import script

__all__ = ["script"]
