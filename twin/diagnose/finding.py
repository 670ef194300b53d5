"""What a diagnosis says."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from twin.description.grid import Axis

Kind = Literal["device", "host", "link", "loading", "axis", "compute"]
Yardstick = Literal["the model", "the reference"]
CERTAIN = 0.99
"""Confidence from which something is a finding."""


@dataclass(frozen=True)
class Finding:
    """One culprit."""

    kind: Kind
    confidence: float
    slowdown: float
    """Factor by which it takes longer than its healthy peers, or, for `axis` and `compute`, than the twin says."""
    seconds: float
    """Time in a step that its ops take longer, on the culprit; of an axis' collectives some may be hidden."""
    ranks: tuple[int, ...] = ()
    hosts: tuple[int, ...] = ()
    """One, or several of which it is one that the evidence cannot tell apart."""
    axis: Axis | None = None
    host_names: tuple[str, ...] = ()
    """Of `hosts`."""
    evidence: str = ""
    yardstick: Yardstick = "the model"
    """Of `axis` and `compute`."""
    saved_share: float | None = None
    """Of a step with this fault alone, what it would be shorter by without, by the twin."""

    @property
    def where(self) -> str:
        """Name the place."""
        hosts = list(self.host_names)
        if self.kind in {"device", "loading"}:
            if not self.ranks:
                return "all ranks"
            at = f" on host {hosts[0]}" if hosts else ""
            return f"rank{'s' if len(self.ranks) > 1 else ''} {some(self.ranks)}{at}"
        if self.kind == "axis":
            return f"axis {self.axis}"
        if self.kind == "compute":
            return "all ranks"
        head = "host" if len(hosts) == 1 else "one of hosts"
        of = f" (ranks {some(self.ranks)})" if self.ranks else ""
        return f"{head} {some(hosts)}{of}"

    @property
    def text(self) -> str:
        """One sentence."""
        percent = f"{100 * (self.slowdown - 1):.0f} %"
        longer = f"{1e3 * self.seconds:,.3g} ms a step"
        hidden_too = f"{longer}, hidden or not"
        said = {
            "device": f"compute of {self.where} is slow: {percent} longer than its peers, {longer}",
            "host": f"{self.where} is slow: all its ranks compute {percent} longer than the others, {longer}",
            "link": f"the network of {self.where} is slow: what crosses it takes {percent} longer, {longer}",
            "loading": f"{self.where} wait{'s' if len(self.ranks) == 1 else ''} for data: {longer}",
            "axis": f"{self.where} is slower than {self.yardstick} everywhere: {percent} longer, {hidden_too}",
            "compute": f"all ranks compute slower than {self.yardstick}: {percent} longer, {longer}",
        }
        return said[self.kind]

    def as_json(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "kind": self.kind,
            "where": self.where,
            "text": self.text,
            "confidence": round(self.confidence, 4),
            "slowdown": float(f"{self.slowdown:.4g}"),
            "seconds_per_step": float(f"{self.seconds:.4g}"),
            "ranks": list(self.ranks),
            "hosts": list(self.hosts),
            "host_names": list(self.host_names),
            "axis": self.axis,
            "evidence": self.evidence,
            "saved_share": None if self.saved_share is None else float(f"{self.saved_share:.4g}"),
        }


@dataclass(frozen=True)
class NotLocated:
    """What a step takes more than it should, and no finding explains."""

    slowdown: float
    """Factor by which a step is longer, without what findings explain."""
    seconds: float
    yardstick: Yardstick
    assumed: bool = False
    """The machine's constants are a guess: it may be the model that is wrong."""

    @property
    def text(self) -> str:
        """One sentence."""
        of = "the twin says" if self.yardstick == "the model" else "the reference's"
        doubt = "; its constants are assumed, so it may be the twin that is wrong" if self.assumed else ""
        return f"a step takes {self.slowdown:.3g} times as long as {of}, {1e3 * self.seconds:,.3g} ms more{doubt}"

    def as_json(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "text": self.text,
            "slowdown": float(f"{self.slowdown:.4g}"),
            "seconds_per_step": float(f"{self.seconds:.4g}"),
            "assumed": self.assumed,
        }


@dataclass(frozen=True)
class Diagnosis:
    """Everything found, the most expensive first."""

    findings: tuple[Finding, ...]
    notes: tuple[str, ...] = ()
    """What could not be looked at, and why."""
    steps: int = 0
    ranks: int = 0
    step_seconds: float = 0.0
    """Median over steps."""
    expected_seconds: float = 0.0
    """A healthy step, by the twin."""
    not_located: NotLocated | None = None
    """Where a step is far longer than it should be, and findings do not explain it."""
    saved_share: float | None = None
    """What a step would be shorter by without all that was found, by the twin; None where it cannot say."""

    @property
    def judged(self) -> bool:
        """Whether what findings leave of a step is known, and so whether it is too long."""
        return not self.findings or self.saved_share is not None

    @property
    def healthy(self) -> bool:
        """Nothing was found, nor is a step far too long by a yardstick that is no guess."""
        return not self.findings and (self.not_located is None or self.not_located.assumed)

    def as_json(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "healthy": self.healthy,
            "findings": [each.as_json() for each in self.findings],
            "not_located": None if self.not_located is None else self.not_located.as_json(),
            "judged": self.judged,
            "saved_share": None if self.saved_share is None else float(f"{self.saved_share:.4g}"),
            "notes": list(self.notes),
            "steps": self.steps,
            "ranks": self.ranks,
            "step_seconds": float(f"{self.step_seconds:.6g}"),
            "expected_step_seconds": float(f"{self.expected_seconds:.6g}"),
        }


def some(items: tuple[int, ...] | list[str], most: int = 6) -> str:
    """List the first of them, and how many more there are."""
    shown = ", ".join(map(str, items[:most]))
    return f"{shown} and {len(items) - most} more" if len(items) > most else shown
