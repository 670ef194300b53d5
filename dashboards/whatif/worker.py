"""The process that simulates: one request a line on standard input, answers on standard output.

It is a process, and not a thread, so that it can be ended in the middle of a simulation. A
request is `{"old": JOB, "new": JOB}`. An answer is a line of JSON, followed by as many bytes of
Arrow tables as its `sizes` say. It ends when its input does.
"""

from __future__ import annotations

import gc
import json
import sys
from typing import BinaryIO

import pyarrow as pa

from dashboards.whatif.answer import Memory, answer
from twin.description.problems import DescriptionError


def serve(requests: BinaryIO, answers: BinaryIO) -> None:
    """Answer until there are no more requests."""
    memory = Memory()
    for line in requests:
        tables: list[bytes] = []
        try:
            request = json.loads(line)
            head, found = answer(memory, request["old"], request["new"])
            tables = [packed(table) for table in found]
        except DescriptionError as error:
            head = {"problem": "\n".join(str(problem) for problem in error.problems)}
        except Exception as error:
            head = {"problem": f"this job cannot be simulated: {type(error).__name__}: {str(error)[:300]}"}
        answers.write(json.dumps(head | {"sizes": [len(one) for one in tables]}).encode() + b"\n")
        for one in tables:
            answers.write(one)
        answers.flush()


def packed(table: pa.Table) -> bytes:
    """Return a table as an Arrow stream."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())


if __name__ == "__main__":
    # a schedule is many small objects and no cycles: looking for some as often as usual takes 40 % of the time
    gc.set_threshold(1_000_000)
    serve(sys.stdin.buffer, sys.stdout.buffer)
