"""Running transfers on the links they share.

Whenever a transfer begins, ends or changes its speed limit, the transfers that are connected with
it through links get new speeds (`twin.engine.sharing`), and the ends of those that changed are
planned anew.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import simpy

from twin.engine.clock import Clock, Timer
from twin.engine.sharing import Flow, assign_speeds

SAME_TIME = 1e-14
"""Of the time now: what ends so much later ends now, together with what made it be planned anew. Rounding leaves
such rests, and where ranks share cores who is ahead gets further ahead: a rest doubles with every op."""


@dataclass(frozen=True)
class Transfer:
    """One call on one class of groups: start-up, transfer alone, demands on resource classes."""

    startup_seconds: float
    transfer_seconds: float
    demands: tuple[tuple[int, float], ...]
    """(resource class, bytes per second of all groups of the class together)."""
    peak_rate: float
    core_rate: float = 0.0
    """Cores that one member keeps busy."""

    def longer(self, factor: float) -> Transfer:
        """Return the same transfer taking so many times as long, on shared links too."""
        return replace(
            self, startup_seconds=self.startup_seconds * factor, transfer_seconds=self.transfer_seconds * factor
        )


class ActiveFlow(Flow):
    """A flow in progress."""

    __slots__ = ("allowed", "alone", "finish", "limited_since", "plan", "remaining", "since")

    def __init__(self, transfer: Transfer, limit: float, finish: Callable[[], None], now: float) -> None:
        super().__init__(transfer.demands, transfer.peak_rate, limit, core_rate=transfer.core_rate)
        self.remaining = transfer.transfer_seconds
        self.finish = finish
        self.since = now
        self.plan = 0
        self.alone = transfer.transfer_seconds
        self.allowed = 0.0
        self.limited_since = now

    def change_limit(self, limit: float, now: float) -> None:
        """Set another speed limit from now on."""
        self.allowed += (now - self.limited_since) * self.limit
        self.limited_since = now
        self.limit = limit

    def share(self, now: float) -> float:
        """Work done by now, at its end, over what the limit alone would have allowed."""
        allowed = self.allowed + (now - self.limited_since) * self.limit
        return self.alone / allowed if self.demands and allowed > 0.0 else 1.0


class Links:
    """All shared resources, and the flows on them."""

    def __init__(
        self, environment: simpy.Environment | Clock, capacity: list[float], cores: frozenset[int] = frozenset()
    ) -> None:
        self._environment = environment
        self._capacity = capacity
        self._cores = cores
        self._users: list[dict[int, ActiveFlow]] = [{} for _ in capacity]
        self._alone: dict[tuple[tuple[tuple[int, float], ...], float, float, float], float] = {}
        """Speeds of flows that share links with nobody."""

    def begin(self, transfer: Transfer, limit: float, finish: Callable[[], None]) -> ActiveFlow:
        """Let a flow start now; `finish` is called when all its bytes have moved."""
        flow = ActiveFlow(transfer, limit, finish, self._environment.now)
        for resource, _ in flow.demands:
            self._users[resource][id(flow)] = flow
        self._share(flow, starting=True)
        return flow

    def limit(self, flow: ActiveFlow, limit: float) -> None:
        """Give a flow another speed limit."""
        flow.change_limit(limit, self._environment.now)
        self._share(flow, starting=False)

    def _end(self, flow: ActiveFlow) -> None:
        for resource, _ in flow.demands:
            del self._users[resource][id(flow)]
        self._share(flow, starting=False, present=False)
        flow.finish()

    def _share(self, changed: ActiveFlow, *, starting: bool, present: bool = True) -> None:
        """Give speeds to all flows that are connected with one that has come, gone or changed."""
        users = self._users
        if all(len(users[resource]) <= present for resource, _ in changed.demands):
            if present:
                self._give(changed, self._speed_alone(changed), starting=starting)
            return
        affected = self._connected(changed)
        before = [flow.speed for flow in affected]
        assign_speeds(affected, self._capacity, self._cores)
        for flow, old in zip(affected, before, strict=True):
            speed, flow.speed = flow.speed, old
            self._give(flow, speed, starting=starting and flow is changed)

    def _give(self, flow: ActiveFlow, speed: float, *, starting: bool) -> None:
        """Let a flow go on at a speed."""
        if speed != flow.speed or starting:
            now = self._environment.now
            flow.remaining -= (now - flow.since) * flow.speed
            flow.since = now
            flow.speed = speed
            self._plan(flow)

    def _speed_alone(self, flow: ActiveFlow) -> float:
        """Return the speed of a flow that shares with nobody: equal ones have the same."""
        demands = tuple(flow.demands)
        key = (demands, flow.peak_rate, flow.limit, flow.core_rate)
        found = self._alone.get(key)
        if found is None:
            only = Flow(demands, flow.peak_rate, flow.limit, core_rate=flow.core_rate)
            assign_speeds([only], self._capacity, self._cores)
            found = self._alone[key] = only.speed
        return found

    def _connected(self, changed: ActiveFlow) -> list[ActiveFlow]:
        found: dict[int, ActiveFlow] = {}
        seen: set[int] = set()
        frontier = [resource for resource, _ in changed.demands]
        while frontier:
            resource = frontier.pop()
            if resource in seen:
                continue
            seen.add(resource)
            for key, flow in self._users[resource].items():
                if key not in found:
                    found[key] = flow
                    frontier += [r for r, _ in flow.demands]
        return list(found.values())

    def _plan(self, flow: ActiveFlow) -> None:
        flow.plan += 1
        plan = flow.plan
        seconds = max(0.0, flow.remaining) / flow.speed
        if seconds <= SAME_TIME * self._environment.now:
            seconds = 0.0
        timer = self._environment.timeout(seconds)

        def end(_event: Any) -> None:
            if plan == flow.plan:
                flow.plan += 1
                self._end(flow)

        listen(timer, end)


def listen(event: simpy.Event | Timer, callback: Callable[[Any], None]) -> None:
    """Call back when an event happens."""
    assert event.callbacks is not None
    event.callbacks.append(callback)
