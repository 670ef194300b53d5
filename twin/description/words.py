"""The words of Fourfold: one word for one thing, in code, in files and on screens."""

from __future__ import annotations

from collections.abc import Mapping

WORDS: Mapping[str, str] = {
    "machine": "devices, nodes, links, NICs, switches, and the constants of the collective library (NCCL, RCCL, gloo)",
    "device": "what one rank computes on: a GPU, one GCD of an MI250X, or a CPU",
    "rank": "one process that drives one device",
    "strategy": "how a job is cut over ranks; one key of the job, one folder of `twin/strategies`",
    "axis": "one direction of a mesh of ranks, with a name and a size",
    "mesh": "the axes of a job's ranks; the last one is innermost, its neighbours are neighbouring ranks",
    "grid": "sizes of the strategy's axes, as a job file gives them; in 4D data × z × y × x",
    "communicator": "groups of ranks that talk together, and the stream that their collectives run on",
    "role": "ranks that run the same program, such as a pipeline stage",
    "job": "model, machine, grid, batch and options: one YAML file",
    "schedule": "what one rank does in a step, in program order: compute ops, collectives started, waits",
    "stream": "an in-order queue of a device: `compute`, and one for each communicator",
    "op": "one entry of a schedule, with a stable name such as `micro0/fwd/block3/mlp_up/gemm`",
    "event": "one op that ran on one rank: its start and its end",
    "trace": "the events of a run, predicted or measured, with its manifest; one directory",
    "step": "one update of the weights: all micro-steps, the reduction of gradients, the optimizer",
    "micro-step": "forward and backward pass of one micro-batch",
    "micro-batch": "the sequences that a rank works on at once",
    "pass": "a micro-batch through one stage: forward (F), backward (B), or input (I) and weight gradients (W) apart",
    "stage": "layers of the model that one pipeline rank holds, or one of its chunks",
    "chunk": "one of several parts of the model on a pipeline rank (virtual stage)",
    "bubble": "time in which a pipeline rank has no pass to do: warm-up, drain, imbalance",
    "warm-up": "of a pipeline rank: its bubble before its first backward pass",
    "drain": "of a pipeline rank: its bubble after its last forward pass",
    "imbalance": "of a pipeline rank: its bubble between these, where it waits for slower stages",
    "collective": "a communication in which all members of a group take part, such as an all-gather",
    "exposed": "of communication: the time in which the device computes nothing",
    "idle": "time of a step in which a rank neither computes nor communicates",
    "straggler": "a rank whose device is slower than the others",
    "class": "ranks with the same future in a step, of which one is simulated for all",
    "folding": "finding the classes of a job, so that 32,768 ranks need not be simulated one by one",
    "parameter": "a number of a machine file, with its kind (datasheet, measured, calibrated, assumed) and its source",
    "calibration": "measuring a machine by microbenchmarks; never by the time of a training step",
    "interval": "a step under optimistic and pessimistic terms: a range of assumptions, not of confidence",
    "recomputation": "running a block's forward pass again before its backward pass: no activations are kept",
    "goodput": "the share of a run's time that became training that was kept",
    "checkpoint": "the state of a run on disk, from which it goes on",
}
"""By word, what it means; the reference of the site prints it."""
