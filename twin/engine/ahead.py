"""What a rank does for certain: segments beside which nothing can begin are gone through ahead of the clock.

A rank that has started nothing that is not over is disturbed by nobody until it starts the next message. So its
segments until then begin and end when they would alone, and so do the waits between them, for what is over already.
"""

from __future__ import annotations

from twin.engine.members import Member
from twin.engine.program import WAIT
from twin.engine.segment import Segment


def undisturbed(rank: Member, segment: Segment, begin: float) -> Segment | None:
    """Return the segment that follows for certain on one that begins then; None if none does.

    All that the rank has started is over, and is what it waits for between the two; and the host is ahead.
    """
    part, pending = rank.part, rank.pending
    if not pending or rank.shares_streams or part + 1 >= len(rank.stops):
        return None
    stop, following = rank.stops[part], rank.segments[rank.numbers[part + 1]]
    if following is None or stop - rank.op != len(pending):
        return None
    for op, one in zip(range(rank.op, stop), pending.values(), strict=True):
        if rank.program.code[op] != WAIT or not one.over:
            return None
    host = rank.host + segment.host_seconds + following.lead_seconds
    return following if host <= begin + segment.seconds else None


def go_through(rank: Member, segment: Segment, begin: float) -> float:
    """Note a segment and the waits behind it; return when the next one begins."""
    end, part = begin + segment.seconds, rank.part
    rank.host += segment.host_seconds
    rank.known.add(part - 1, begin, None, alone=True)
    for at in range(rank.op + rank.shifts[part], rank.stops[part] + rank.shifts[part]):
        rank.start[at] = rank.arrival[at] = rank.end[at] = end
    rank.pending.clear()
    return end
