"""The digital twin: what one 4D-parallel training step of a GPT costs, before it runs.

The twin reads a job file, generates the schedule every rank would execute, prices each
operation on the machine, and plays the schedule in a discrete-event simulator. It imports
neither torch nor dash.

* `twin.description`: machine, model, grid and job, as data.
* `twin.schedule`: what one rank does, in program order.
* `twin.cost`: how long one operation takes, and how much memory and energy a step needs.
* `twin.engine`: when everything happens.
* `twin.trace`: what happened, as a table of events.
* `twin.search`, `twin.studies`, `twin.validate`, `twin.calibrate`, `twin.compare`, `twin.diagnose`, `twin.goodput`: a
  question each, asked of all of the above.
"""

__version__ = "0.1.0"
