"""The rules that the keys of a 4D job keep."""

from __future__ import annotations

from math import gcd

from twin.description.attention import UNFUSED
from twin.description.grid import divisors, nearest
from twin.description.offload import Offload
from twin.description.problems import Problem
from twin.strategies.four_d.grid import Grid
from twin.strategies.four_d.job import FourDJob
from twin.strategies.offload import check_held
from twin.strategies.sizes import FP32_BYTES


def check(job: FourDJob) -> list[Problem]:
    """Return the rules that the 4D keys of a job break; those of the grid only where it is given."""
    problems = []
    model = job.model
    if job.cache_gathered_layers > model.layers:
        problems.append(
            Problem(
                "cache_gathered_layers",
                f"the model has {model.layers} layers; use at most that many",
                job.cache_gathered_layers,
            )
        )
    problems += _check_beyond(job)
    if job.recompute_inputs == "host":
        problems += _check_host_inputs(job)
    problems += _check_offload(job)
    if job.lora is not None and job.communication_precision.gathers == "fp32":
        remedy = "weights that do not train have no fp32 form to be gathered in; use compute with lora"
        problems.append(Problem("communication_precision.gathers", remedy, "fp32"))
    if job.lora is not None:
        problems += _check_scatters(job)
    if not may_shard(job) and job.data_reduction.sharded:
        problems.append(
            Problem(
                "communication_precision.gathers",
                f"with data_reduction {job.data_reduction.mode} a rank keeps the fp32 weights of its own part only; "
                "use compute, or another data_reduction",
                "fp32",
            )
        )
    return problems if job.grid == "auto" else [*problems, *check_axes(job, job.grid)]


def _check_scatters(job: FourDJob) -> list[Problem]:
    """Return what adapters have no use for: their gradients are not cut over z, and weights have none."""
    remedy = "weights that do not train have no gradients to scatter; leave it out with lora"
    problems, most = list[Problem](), job.overlap.scatters_in_flight
    if job.communication_precision.scatters == "fp32":
        problems.append(Problem("communication_precision.scatters", remedy, "fp32"))
    if most is not None:
        problems.append(Problem("overlap.scatters_in_flight", remedy, most))
    return problems


def _check_beyond(job: FourDJob) -> list[Problem]:
    """Return what is wrong with options that go beyond the published algorithm."""
    problems: list[Problem] = []
    layers, keeps = job.recompute_layers, job.recompute_keeps
    ahead = job.data_reduction.mode == "sharded_overlapped"
    if job.published:
        remedy = "goes beyond the published algorithm; leave it out, or published"
        further = {
            "overlap.halves": job.overlap.halves,
            "overlap.across_blocks": job.overlap.across_blocks,
            "divide.attention": job.divide.attention,
            "divide.mlp": job.divide.mlp,
        }
        problems += [Problem(key, remedy, value) for key, value in further.items() if value]
        problems += [] if job.tensor == "2d" else [Problem("tensor", remedy, job.tensor)]
        problems += [] if not ahead else [Problem("data_reduction.mode", remedy, job.data_reduction.mode)]
        problems += [] if layers is None else [Problem("recompute_layers", remedy, layers)]
        problems += [] if keeps == "nothing" else [Problem("recompute_keeps", remedy, keeps)]
        problems += [Problem("recompute_stops_early", remedy, True)] if job.recompute_stops_early else []
    if layers is not None and not job.recompute:
        problems.append(Problem("recompute_layers", "needs recompute: true", layers))
    if keeps != "nothing" and not job.recompute:
        problems.append(Problem("recompute_keeps", "needs recompute: true", keeps))
    if job.recompute_stops_early and not job.recompute:
        problems.append(Problem("recompute_stops_early", "needs recompute: true", True))
    if keeps == "attention" and job.attention in UNFUSED:
        remedy = f"is for attention in one kernel, which keeps no scores; use flash, or another than {job.attention}"
        problems.append(Problem("recompute_keeps", remedy, keeps))
    if keeps != "nothing" and job.recompute_inputs == "host":
        remedy = f"is for blocks of which nothing but the input is kept; use device with recompute_keeps: {keeps}"
        problems.append(Problem("recompute_inputs", remedy, "host"))
    if layers is not None and layers > job.model.layers:
        remedy = f"the model has {job.model.layers} layers; use at most that many"
        problems.append(Problem("recompute_layers", remedy, layers))
    whole = {
        "overlap.halves": job.overlap.halves,
        "divide.attention": job.divide.attention,
        "divide.mlp": job.divide.mlp,
    }
    given = {key: value for key, value in whole.items() if value} | ({"tensor": "1d"} if job.tensor == "1d" else {})
    if job.lora is not None:
        remedy = "is for training all weights; leave it out with lora"
        problems += [Problem(key, remedy, value) for key, value in given.items()]
    if job.lora is not None and ahead:
        remedy = "is for training all weights, beside whose passes it works; use sharded with lora"
        problems.append(Problem("data_reduction.mode", remedy, job.data_reduction.mode))
    if job.model.qk_norm:
        remedy = "is for models without norms of queries and keys, whose gradients it would part; leave it out"
        parted = {key: value for key, value in given.items() if key in ("divide.attention", "tensor")}
        problems += [Problem(key, remedy, value) for key, value in parted.items()]
    if job.tensor == "1d":
        remedy = "has nothing to divide with tensor: 1d, which divides all between linears; leave one of them out"
        problems += [Problem(key, remedy, value) for key, value in whole.items() if value and key != "overlap.halves"]
    micro = job.batch.micro_sequences
    if job.overlap.halves and micro != "auto" and micro % 2:
        remedy = "must be even for overlap.halves, which divides them in two"
        problems.append(Problem("batch.micro_sequences", remedy, micro))
    return problems


def _check_offload(job: FourDJob) -> list[Problem]:
    """Return what does not go with parts of a job's state beyond the device."""
    problems = check_held(job, job.offload, parameters=True)
    if job.offload is None:
        return problems
    if job.offload.parameters is not None:
        problems += _check_parameters(job, job.offload)
    if job.offload.activations is not None:
        others = {"overlap.halves": job.overlap.halves, "recompute_inputs": job.recompute_inputs == "host"}
        others["recompute_keeps"] = job.recompute_keeps != "nothing"
        remedy = "does not go with offload.activations; leave one out"
        problems += [Problem(key, remedy) for key, given in others.items() if given]
    if job.offload.optimizer is not None and job.communication_precision.gathers == "fp32" and job.element_bytes < 4:
        remedy = "gathers master weights, which offload.optimizer takes off the device; leave one out"
        problems.append(Problem("communication_precision.gathers", remedy, "fp32"))
    return problems


def _check_parameters(job: FourDJob, offload: Offload) -> list[Problem]:
    """Return what does not go with weights beyond the device."""
    problems = []
    if job.overlap.halves:
        remedy = "uses weights twice in turn, and offload.parameters brings them once; leave one out"
        problems.append(Problem("overlap.halves", remedy, True))
    if job.data_reduction.sharded and (job.grid == "auto" or job.grid.data > 1):
        remedy = (
            "gathers the weights of all blocks on the device once they are updated, and offload.parameters takes them "
            "off it; use one_bucket or overlapped"
        )
        problems.append(Problem("data_reduction.mode", remedy, job.data_reduction.mode))
    if job.communication_precision.gathers == "fp32" and job.element_bytes < FP32_BYTES:
        remedy = "gathers master weights, and offload.parameters brings rounded ones to the device; leave one out"
        problems.append(Problem("communication_precision.gathers", remedy, "fp32"))
    if offload.optimizer is None and job.element_bytes == FP32_BYTES and job.lora is None:
        remedy = (
            "lays away the weights that are updated, which in fp32 are those that layers compute with: give "
            "offload.optimizer too"
        )
        problems.append(Problem("offload.parameters", remedy, offload.parameters))
    return problems


def _check_host_inputs(job: FourDJob) -> list[Problem]:
    """Return why a job cannot keep the inputs of its blocks on the host."""
    machine, reasons = job.machine, []
    if not job.recompute:
        reasons.append("is for recomputation; set recompute: true, or keep them on the device")
    if machine.device.type == "cpu":
        reasons.append(f"{machine.device.name} is a CPU, whose memory is the host's")
    elif machine.host_copy_bytes_per_second is None:
        reasons.append(f"{machine.name} does not say how fast copies to the host are; give it a host_link")
    return [Problem("recompute_inputs", reason, "host") for reason in reasons]


def may_shard(job: FourDJob) -> bool:
    """Tell whether states may be split over data: not where ranks gather fp32 weights, of which each keeps a part."""
    gathers = job.grid == "auto" or job.grid.z > 1
    return not gathers or job.gather_element_bytes == job.element_bytes


def check_axes(job: FourDJob, grid: Grid) -> list[Problem]:
    """Return the widths of the model that the axes do not divide (section 3 of the algorithm)."""
    model = job.model
    keys = "" if model.kv_heads in (None, model.heads) else f", {model.kv_heads} heads of keys"
    widths = f"hidden {model.hidden}, heads {model.heads}{keys} and MLP width {model.mlp_hidden}"
    rules = (
        ("x", grid.x, model.hidden, f"hidden {model.hidden}"),
        ("y", grid.y, gcd(model.heads, model.key_value_heads, model.mlp_hidden), widths),
    )
    problems = [] if not job.overlap.halves or grid.x * grid.y > 1 else [_idle_halves()]
    problems += _check_flat(job, grid) if job.tensor == "1d" else _check_parts(job, grid)
    return problems + [
        Problem(f"grid.{axis}", f"must divide {what}; nearest is {nearest(size, divisors(total))}", size)
        for axis, size, total, what in rules
        if total % size
    ]


def _check_parts(job: FourDJob, grid: Grid) -> list[Problem]:
    """Return why what is between linears cannot be divided over x."""
    micro = job.batch.micro_sequences
    if micro == "auto" or grid.x == 1:
        return []
    sequences = micro // (2 if job.overlap.halves else 1)
    heads = gcd(job.model.heads, job.model.key_value_heads) // grid.y
    problems = []
    if job.divide.attention and sequences % grid.x and heads % grid.x:
        what = f"neither {sequences} sequences at a time nor {heads} heads"
        remedy = f"{what} of a rank divide by x = {grid.x}; leave it out, or choose another grid or micro-batch"
        problems.append(Problem("divide.attention", remedy, True))
    if job.divide.mlp and sequences * job.model.sequence % grid.x:
        remedy = f"{sequences * job.model.sequence} tokens of a rank do not divide by x = {grid.x}; leave it out"
        problems.append(Problem("divide.mlp", remedy, True))
    return problems


def _check_flat(job: FourDJob, grid: Grid) -> list[Problem]:
    """Return why linears cannot be cut over x and y together."""
    model, both = job.model, grid.x * grid.y
    total = gcd(model.heads, model.key_value_heads, model.mlp_hidden)
    if total % both == 0:
        return []
    remedy = (
        f"cuts {model.heads} heads, {model.key_value_heads} of keys, and the MLP's width {model.mlp_hidden} over x·y = "
        f"{both}, which must divide them; use 2d, or another grid"
    )
    return [Problem("tensor", remedy, "1d")]


def _idle_halves() -> Problem:
    return Problem("overlap.halves", "hides all-reduces over x and y, of which there are none; leave it out", True)
