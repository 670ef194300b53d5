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
    """Time that this adds to a step, on the culprit."""
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
            return f"rank{'s' if len(self.ranks) > 1 else ''} {_some(self.ranks)}{at}"
        if self.kind == "axis":
            return f"axis {self.axis}"
        if self.kind == "compute":
            return "all ranks"
        head = "host" if len(hosts) == 1 else "one of hosts"
        of = f" (ranks {_some(self.ranks)})" if self.ranks else ""
        return f"{head} {_some(hosts)}{of}"

    @property
    def text(self) -> str:
        """One sentence."""
        percent = f"{100 * (self.slowdown - 1):.0f} %"
        longer = f"{1e3 * self.seconds:,.3g} ms a step"
        said = {
            "device": f"compute of {self.where} is slow: {percent} longer than its peers, {longer}",
            "host": f"{self.where} is slow: all its ranks compute {percent} longer than the others, {longer}",
            "link": f"the network of {self.where} is slow: what crosses it takes {percent} longer, {longer}",
            "loading": f"{self.where} wait{'s' if len(self.ranks) == 1 else ''} for data: {longer}",
            "axis": f"{self.where} is slower than {self.yardstick} everywhere: {percent} longer, {longer}",
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

    @property
    def healthy(self) -> bool:
        """Nothing was found."""
        return not self.findings

    def as_json(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "healthy": self.healthy,
            "findings": [each.as_json() for each in self.findings],
            "notes": list(self.notes),
            "steps": self.steps,
            "ranks": self.ranks,
            "step_seconds": float(f"{self.step_seconds:.6g}"),
            "expected_step_seconds": float(f"{self.expected_seconds:.6g}"),
        }


def _some(items: tuple[int, ...] | list[str], most: int = 6) -> str:
    shown = ", ".join(map(str, items[:most]))
    return f"{shown} and {len(items) - most} more" if len(items) > most else shown
