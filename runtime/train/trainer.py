"""The whole of a training run on one rank: meet, prepare, train, end together.

The run's directory holds `run.json` (what is trained), `metrics.jsonl`, `checkpoints/` and
`tensorboard/` if wanted. The same command again continues from the last complete checkpoint.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from functools import partial

import torch

from runtime.launch.board import Board
from runtime.launch.devices import agree_on_type
from runtime.launch.disagreement import DisagreementError
from runtime.launch.environment import Process
from runtime.launch.meeting import agree, join, make_deterministic, open_store, set_threads, told_by_another
from runtime.launch.signals import Notice
from runtime.model.attention_backend import settled_backend
from runtime.parallel.failures import NonFiniteError
from runtime.parallel.mesh import Mesh
from runtime.plan.plan import Plan, check_plan
from runtime.plan.sources import Sources
from runtime.records.ownership import Ownership
from runtime.records.run_directory import CHOICE, JOB, RUN, prepare_directory, read_run, write_chosen
from runtime.step.context import PRECISIONS
from runtime.step.tiers import check_room
from runtime.strategies import ranks_of, refuse
from runtime.survive import elastic
from runtime.survive.history import KEY, History
from runtime.survive.memory.copies import MemoryCopies
from runtime.survive.memory.recovery import recover
from runtime.survive.spare import dismiss, stand_by
from runtime.survive.stop import Stop
from runtime.train import choice
from runtime.train.run import Run
from twin.description.problems import DescriptionError


def train(
    plan: Plan,
    process: Process,
    notice: Notice | None = None,
    resolve: elastic.Resolve | None = None,
    left_open: choice.Open | None = None,
) -> None:
    """Train on this rank until the last step; every rank of the job must call it.

    If `notice` hears a signal, the run ends before that, in a checkpoint. `resolve` chooses grids where
    the job is elastic, `left_open` the strategy where the plan's job does not name it. Raises DescriptionError
    for what the user can mend, CollectiveError if a peer is lost, NonFiniteError if the loss is NaN or infinite.
    """
    with ExitStack() as held:
        _train(plan, process, notice or Notice(), resolve, left_open, held)


def _train(
    plan: Plan,
    process: Process,
    notice: Notice,
    resolve: elastic.Resolve | None,
    left_open: choice.Open | None,
    held: ExitStack,
) -> None:
    """Train; `held` gets what is let go when that is over."""
    options = plan.options
    set_threads(process, options.threads)
    if options.deterministic:
        make_deterministic()
    store = open_store(process, options.timeout_seconds) if process.ranks > 1 else None
    all_agree = partial(agree, store, process)
    board = Board(store, process)
    plan, compared = choice.settle(plan, left_open, board)
    plan, why = elastic.fit(plan, board, resolve)
    device, sources = all_agree("setup", lambda: _checked(plan, process))
    agree_on_type(board, device)
    owned = all_agree("directory", lambda: _prepare(plan, process, sources, held))
    described = board.tell(lambda: read_run(plan.out))
    history = History.read(described.get(KEY), str(plan.out / RUN))
    memory, found = recover(plan, board, described, history)
    stop = Stop(board, notice)
    if process.rank >= plan.job.ranks:
        stand_by(board, stop)
        if memory is not None and process.local_rank == 0:  # none of this host's ranks trained
            memory.place.remove()
        return
    spares, process = process.ranks - plan.job.ranks, replace(process, ranks=plan.job.ranks)
    if store is not None and process.ranks > 1:
        join(process, store, device, options.timeout_seconds)
    mesh = Mesh.create(ranks_of(plan.job), timeout_seconds=options.timeout_seconds)
    run = Run(plan, process, mesh, device, sources, stop, history, owned)
    try:
        run.resume(compared, why, found)
        if memory is not None:
            memory.loaded()
        run.saving.copies = MemoryCopies.of(memory, run.context, run.trainee.optimizer)
        all_agree = partial(agree, store, process)
        all_agree("files", run.open_files)
        run.loop()
        run.finish()
        run.write_energy(replace(board, process=process))  # spare ranks have nothing to tell
        all_agree("trace", run.write_trace)
        dismiss(board, process.ranks, spares)
    except NonFiniteError:
        run.saving.checkpoints.close()  # every rank is here: what is being written was whole and good
        raise
    except DescriptionError as error:
        if store is not None and told_by_another(store, process, str(error)):
            raise DisagreementError([str(error)]) from None
        raise
    finally:
        run.display.close()


def _checked(plan: Plan, process: Process) -> tuple[torch.device, Sources]:
    """Refuse what cannot be trained, before anything is written."""
    refuse(plan.job)
    check_room(plan.job, process.local_ranks)
    device, sources = check_plan(plan, process)
    settled_backend(plan.job, device, PRECISIONS[plan.job.precision])
    return device, sources


def _prepare(plan: Plan, process: Process, sources: Sources, held: ExitStack) -> Ownership | None:
    """Make the run's directory, or take it over, on rank 0."""
    if process.rank != 0:
        return None
    owned = Ownership.claim(plan.out, process.launch)  # before anything there is deleted
    held.callback(owned.release)
    job, chosen = plan.kept_job(), plan.chosen
    facts = {JOB: job} if chosen is None else {JOB: job, CHOICE: choice.as_json(chosen)}
    prepare_directory(plan.out, plan.identity(sources), facts, force=plan.force)
    if chosen is not None:
        write_chosen(plan.out, job)
    return owned
