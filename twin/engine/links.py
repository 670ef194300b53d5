"""Running transfers on the links they share.

Whenever transfers begin, end or change their speed limits, those that are connected with them get new
speeds (`twin.engine.sharing`), and the ends of those that changed are planned anew.

* A link with room for all that its transfers could move holds nobody up, and connects nobody: progressive filling
  comes to their limits before it comes to the link's. So only what is connected through links that are asked for more
  than they have is shared out, and the same few meet again and again: their speeds are known.
* A transfer that has to start up first is put on its links as soon as it is known of, if these have room for it beside
  all that are there: its end is known then. Where room gets short before it begins, it is taken off until it does.
* What happens at one time is shared out once, where the environment can tell when a time is over: a speed that no time
  passes at moves nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from twin.engine.sharing import FULL, Flow, assign_speeds

SAME_TIME = 1e-14
"""Of the time now: what ends so much later ends now, together with what made it be planned anew. Rounding leaves
such rests, and where ranks share cores who is ahead gets further ahead: a rest doubles with every op."""
FIRST_PLAN = 0
"""That of a flow whose end was known before it began, as long as nothing changes that."""
MAX_KNOWN = 10_000
"""Combinations of flows whose speeds are remembered: some megabytes."""


class Environment(Protocol):
    """What links need of whoever says what happens next."""

    @property
    def now(self) -> float:
        """Seconds since the step began."""

    def after(self, delay: float, happen: Callable[[Any, int], None], subject: Any, plan: int) -> None:
        """Call `happen(subject, plan)` so many seconds from now."""

    def at(self, time: float, happen: Callable[[Any, int], None], subject: Any, plan: int) -> None:
        """Call `happen(subject, plan)` then."""

    def before_time_passes(self, do: Callable[[], None]) -> None:
        """Call `do()` while it is still now, at once or later."""


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

    __slots__ = ("allowed", "alone", "finish", "kind", "limited_since", "plan", "remaining", "since")

    def __init__(self, transfer: Transfer, limit: float, finish: Callable[[], None], now: float) -> None:
        self.demands = transfer.demands
        self.peak_rate = transfer.peak_rate
        self.limit = limit
        self.speed = 0.0
        self.core_rate = transfer.core_rate
        self.remaining = transfer.transfer_seconds
        self.finish = finish
        self.since = now
        self.plan = FIRST_PLAN
        self.alone = transfer.transfer_seconds
        self.allowed = 0.0
        self.limited_since = now
        self.kind = -1
        """Flows of one kind get the same speed; -1: not asked for yet."""

    def change_limit(self, limit: float, now: float) -> None:
        """Set another speed limit from now on."""
        self.allowed += (now - self.limited_since) * self.limit
        self.limited_since = now
        self.limit = limit
        self.kind = -1

    def share(self, now: float) -> float:
        """Work done by now, at its end, over what the limit alone would have allowed."""
        if self.plan == FIRST_PLAN:
            return 1.0
        allowed = self.allowed + (now - self.limited_since) * self.limit
        return self.alone / allowed if self.demands and allowed > 0.0 else 1.0


class Links:
    """All shared resources, and the flows on them."""

    def __init__(self, environment: Environment, capacity: list[float], cores: frozenset[int] = frozenset()) -> None:
        self._environment = environment
        self._capacity = capacity
        self._enough = [room * (1 + FULL) for room in capacity]
        self._cores = cores
        self._users: list[dict[ActiveFlow, float]] = [{} for _ in capacity]
        """Flows on each resource, with their demands there."""
        self._short = [False] * len(capacity)
        """Resources that are asked for more than they have; where ranks share cores, all that are used."""
        self._changed: dict[ActiveFlow, None] = {}
        """Flows that have come or have another limit, and are not yet given a speed for it."""
        self._touched: dict[int, None] = {}
        """Resources of those, and of flows that have gone."""
        self._asked = False
        """Whether to share out before time passes."""
        self._kinds: dict[tuple[Sequence[tuple[int, float]], float, float, float], int] = {}
        self._known: dict[tuple[int, ...], list[float]] = {}
        """Speeds of flows that meet, by their kinds in order."""

    def begin(self, transfer: Transfer, limit: float, finish: Callable[[], None]) -> ActiveFlow:
        """Let a flow start now; `finish` is called when all its bytes have moved."""
        flow = ActiveFlow(transfer, limit, finish, self._environment.now)
        self._begin(flow, flow.plan)
        return flow

    def begin_after_startup(self, transfer: Transfer, limit: float, finish: Callable[[], None]) -> ActiveFlow:
        """Let a flow start when its start-up is over; its limit must stay what it is."""
        flow = ActiveFlow(transfer, limit, finish, self._environment.now + transfer.startup_seconds)
        if self._has_room(flow):
            self._put(flow)
            flow.speed = limit
            self._environment.at(flow.since + _left(flow), self._end, flow, flow.plan)
        else:
            self._environment.at(flow.since, self._begin, flow, flow.plan)
        return flow

    def _begin(self, flow: ActiveFlow, _plan: int) -> None:
        """A flow begins."""
        room = self._has_room(flow)
        self._put(flow)
        if room:  # nobody is held up, and nobody else's speed changes
            self._give(flow, flow.limit)
        else:
            self._change(flow)

    def _put(self, flow: ActiveFlow) -> None:
        """Put a flow on its links."""
        for resource, rate in flow.demands:
            self._users[resource][flow] = rate

    def _has_room(self, flow: ActiveFlow) -> bool:
        """Tell whether no link of a flow is asked for too much with it, or was when it was last looked at."""
        if self._cores:  # threads share cores by other rules
            return False
        limit = flow.limit
        for resource, rate in flow.demands:
            if self._short[resource]:
                return False
            asked = 0.0
            for user, own in self._users[resource].items():
                asked += own * user.limit
            if asked + rate * limit > self._enough[resource]:
                return False
        return True

    def _take_off(self, resource: int) -> None:
        """Take flows that have not begun off their links until they do: these have not enough for all any more."""
        now = self._environment.now
        for flow in [user for user in self._users[resource] if user.since > now]:
            for each, _ in flow.demands:
                del self._users[each][flow]
            flow.plan += 1
            flow.speed = 0.0
            self._environment.at(flow.since, self._begin, flow, flow.plan)

    def limit(self, flow: ActiveFlow, limit: float) -> None:
        """Give a flow another speed limit."""
        flow.change_limit(limit, self._environment.now)
        self._change(flow)

    def _end(self, flow: ActiveFlow, plan: int) -> None:
        """A flow has moved all its bytes, unless that was planned anew."""
        if plan != flow.plan:
            return
        self._changed.pop(flow, None)
        for resource, _ in flow.demands:
            del self._users[resource][flow]
            if self._short[resource]:
                self._touched[resource] = None
        if self._touched:
            self._ask()
        flow.finish()

    def _change(self, flow: ActiveFlow) -> None:
        """Note that a flow needs another speed, and that its resources are asked for more or less than before."""
        self._changed[flow] = None
        for resource, _ in flow.demands:
            self._touched[resource] = None
            self._take_off(resource)
        self._ask()

    def _ask(self) -> None:
        """Ask to be called when all changes of this time are known."""
        if not self._asked:
            self._asked = True
            self._environment.before_time_passes(self._share)

    def _share(self) -> None:
        """Give speeds to all flows that are connected with what has come, gone or changed."""
        self._asked = False
        changed, done = self._changed, set[ActiveFlow]()
        for resource in self._held_up():
            for flow in self._users[resource]:
                if flow not in done:
                    affected = self._connected(flow, done)
                    for each, speed in zip(affected, self._speeds(affected), strict=True):
                        self._give(each, speed)
        for flow in changed:
            if flow not in done:
                self._give(flow, flow.limit)
        changed.clear()

    def _held_up(self) -> list[int]:
        """Note which of the touched resources are asked for too much; return them, and those that no longer are."""
        found, short = [], self._short
        for resource in self._touched:
            users = self._users[resource]
            if self._cores:
                now = bool(users)  # threads share cores by other rules
            else:
                asked = 0.0
                for flow, rate in users.items():
                    asked += rate * flow.limit
                now = asked > self._enough[resource]
            if now or short[resource]:
                found.append(resource)
                short[resource] = now
        self._touched.clear()
        return found

    def _connected(self, first: ActiveFlow, done: set[ActiveFlow]) -> list[ActiveFlow]:
        """Return a flow and all that are connected with it; note that they are done."""
        found, short, seen = [first], self._short, set[int]()
        done.add(first)
        for flow in found:
            for resource, _ in flow.demands:
                if short[resource] and resource not in seen:
                    seen.add(resource)
                    more = [user for user in self._users[resource] if user not in done]
                    done.update(more)
                    found += more
        return found

    def _speeds(self, flows: list[ActiveFlow]) -> list[float]:
        """Share out what there is; the same flows may have met before."""
        for flow in flows:
            if flow.kind < 0:
                kind = (flow.demands, flow.peak_rate, flow.limit, flow.core_rate)
                flow.kind = self._kinds.setdefault(kind, len(self._kinds))
        key = tuple([flow.kind for flow in flows])
        found = self._known.get(key)
        if found is None:
            before = [flow.speed for flow in flows]
            assign_speeds(flows, self._capacity, self._cores)
            found = [flow.speed for flow in flows]
            for flow, speed in zip(flows, before, strict=True):
                flow.speed = speed
            if len(self._known) >= MAX_KNOWN:
                self._known.clear()
            self._known[key] = found
        return found

    def _give(self, flow: ActiveFlow, speed: float) -> None:
        """Let a flow go on at a speed, and plan its end."""
        if speed == flow.speed:
            return
        now = self._environment.now
        flow.remaining -= (now - flow.since) * flow.speed
        flow.since = now
        flow.speed = speed
        flow.plan += 1
        self._environment.after(_left(flow), self._end, flow, flow.plan)


def _left(flow: ActiveFlow) -> float:
    """Return the seconds from when a flow was last looked at to its end, at its speed."""
    seconds = max(0.0, flow.remaining) / flow.speed
    return 0.0 if seconds <= SAME_TIME * flow.since else seconds
