"""What every command does whose work is done by ranks: one way to end, with one exit code.

2 for what the user can mend, 1 for what went wrong on the way, 130 for an interruption. A rank of
`fourfold train --ranks`, or of a SLURM job, tells who starts it again by GIVE_UP that another start
would fare no better.
"""

from __future__ import annotations

import os
import resource
import select
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, NoReturn

from twin.description.problems import DescriptionError

if TYPE_CHECKING:
    from runtime.launch.environment import Process

# torch is imported when a rank works, so that --help is instant
# ruff: noqa: PLC0415, T201


MANY_FILES = 2**20
"""More than ranks of any job connect; where nothing limits a process, some programs walk through all it might have."""


def run_as_rank(process: Process, work: Callable[[], None]) -> NoReturn:
    """Do a rank's work and end the process with the exit code that fits.

    What is the same on every rank is said by rank 0 alone.
    """
    import typer

    from runtime.launch.disagreement import DisagreementError
    from runtime.launch.local import GIVE_UP, end_with_parent
    from runtime.parallel.collectives import CollectiveError
    from runtime.parallel.failures import NonFiniteError, TakenOverError

    code, text, shared = 0, "", False
    over = 1
    if process.launcher in {"fourfold", "srun"}:
        over = GIVE_UP
    if process.launcher == "fourfold":
        end_with_parent()
    allow_many_files()
    try:
        work()
    except DisagreementError as error:
        code, text, shared = 2, str(error), True
    except DescriptionError as error:
        code, text = 2, str(error)
    except NonFiniteError as error:
        code, text, shared = over, str(error), True
    except TakenOverError as error:
        code, text = over, str(error)
    except (CollectiveError, OSError) as error:
        code, text = (0, "") if isinstance(error, BrokenPipeError) and _reader_has_gone() else (1, str(error))
    except KeyboardInterrupt:
        code, text, shared = 130, "interrupted", True
    except Exception:  # a defect of ours: show it, and leave so that the others notice
        code, text = 1, traceback.format_exc()
    _say_last(text if process.rank == 0 or not shared else "")
    if process.ranks > 1:
        # gloo's threads may abort a process that ends in the ordinary way
        os._exit(code)
    raise typer.Exit(code)


def _say_last(text: str) -> None:
    """Say why a rank ends, and write out what was printed; where that has no place Python is not to try once more."""
    with suppress(OSError):
        if text:
            print(f"fourfold: {text}", file=sys.stderr)
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _reader_has_gone() -> bool:
    """Say whether nobody reads what is printed any more; a pipe to a process of our own may break too."""
    poll = select.poll()
    try:
        poll.register(sys.stdout, select.POLLOUT)
    except (OSError, ValueError):  # it is no file
        return False
    return any(event & select.POLLERR for _, event in poll.poll(0))


def allow_many_files() -> None:
    """Let this process have as many files and sockets as it may: gloo connects each rank with every other one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = MANY_FILES if hard == resource.RLIM_INFINITY else min(hard, MANY_FILES)
    if soft != resource.RLIM_INFINITY and soft < most:
        with suppress(OSError, ValueError):  # a container may forbid it; what it costs is said when files run out
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
