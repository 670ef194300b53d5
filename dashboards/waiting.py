"""What lies between a rank's arrival at a collective and its begin: queueing, standing still, and other work."""

from __future__ import annotations

import numpy as np

from dashboards.events import Events, Ints


def held(events: Events, chosen: Ints, queued: Ints) -> Ints:
    """Nanoseconds that the rank of each of these collectives stands still until the last member comes.

    That is while its wait for the collective is on: a receive that was asked for ahead of its message holds nobody up
    before the rank needs it. What the collective queues for is apart.
    """
    number = {word: code for code, word in enumerate(events.op.words)}
    waited_for = np.array([number.get(word.removesuffix("/wait"), -1) for word in events.op.words], dtype=np.int64)
    waits = np.flatnonzero(events.kind.are("wait"))
    key = events.rank.astype(np.int64) * max(len(number), 1)
    keys = key[waits] + waited_for[events.op.code[waits]]
    order = np.argsort(keys, kind="stable")
    place = np.searchsorted(keys[order], key[chosen] + events.op.code[chosen])
    found = np.zeros(len(chosen), dtype=np.int64)
    there = np.flatnonzero(place < len(waits))
    at = waits[order[place[there]]]
    there, at = (one[keys[order[place[there]]] == (key[chosen] + events.op.code[chosen])[there]] for one in (there, at))
    row = chosen[there]
    begin = np.maximum(events.start_ns[at], events.arrival_ns[row] + queued[there])
    found[there] = np.maximum(np.minimum(events.end_ns[at], events.start_ns[row]) - begin, 0)
    return found


def queues(events: Events, chosen: Ints) -> Ints:
    """Nanoseconds that each of these collectives queues behind the one before it on its rank's stream.

    A stream runs one at a time. Where the one before ends later than this one starts, the stream does not, and none
    queues.
    """
    order = np.lexsort((chosen, events.stream.code[chosen], events.rank[chosen]))
    at = chosen[order]
    follows = (np.diff(events.rank[at], prepend=-1) == 0) & (np.diff(events.stream.code[at], prepend=-1) == 0)
    before = np.where(follows, np.roll(events.end_ns[at], 1), events.arrival_ns[at])
    serial = before <= events.start_ns[at]
    queues = np.empty(len(at), dtype=np.int64)
    queues[order] = np.where(serial, np.maximum(before - events.arrival_ns[at], 0), 0)
    return queues
