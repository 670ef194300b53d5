"""Every so often: listen for a few steps, put ranks together, ask who is slow, write an alert.

Rank 0 asks in the background, while the next steps run. What two looks in a row find is an alert. A link
that every group crosses cannot be told from the others by collectives: if the answer is an axis, hosts
probe their links after the next window.
"""

from __future__ import annotations

import json
import threading
import time
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import torch.distributed as dist

from runtime.launch.environment import Process
from runtime.parallel.collectives import CollectiveError
from runtime.records.console import Display
from runtime.step.context import Context
from runtime.tracing.clock import align
from runtime.tracing.hosts import find_hosts
from runtime.tracing.notes import StepNotes
from runtime.tracing.probe import probe_links
from runtime.watch.wanted import WatchWanted
from runtime.watch.window import Summary, summed_up
from twin.description.files import write_whole
from twin.description.problems import DescriptionError

ALERTS, LATEST = "alerts.jsonl", "watch.json"
STEPS = 3
"""Of a window."""
PATIENCE = timedelta(minutes=5)
"""Time for which the figures of other ranks are waited for: longer than any step or checkpoint."""


@dataclass
class _Answer:
    """A question in the background."""

    thread: threading.Thread
    after_steps: int
    found: dict[str, Any] | None = None
    problem: str = ""


class Lookout:
    """Watches one run; every rank makes one and calls the same methods."""

    def __init__(self, context: Context, process: Process, out: Path, wanted: WatchWanted, display: Display) -> None:
        self.context, self.process, self.out, self.every = context, process, out, wanted.every
        self._heard = StepNotes(context)
        self._listening = 0
        self._ask = wanted.ask_of(context.job) if process.rank == 0 else None
        self._display = display
        self._answer: _Answer | None = None
        self._known: dict[str, dict[str, Any]] = {}
        """Alerts, as they were last."""
        self._seen: set[str] = set()
        """What the last look found."""
        self._looks = 0
        self._long_seen = self._long = False
        self._longer: dict[str, Any] = {}
        """How steps were far too long when that was last seen."""
        self._suspicious = False
        self._group = context.mesh.everyone
        if self._group is not None and context.device.type == "cuda":
            self._group = dist.new_group(backend="gloo", timeout=PATIENCE)  # objects travel on the host
        self._hosts = find_hosts(self._group, process.ranks)

    def before(self, step: int) -> None:
        """Begin to listen, if a window begins or goes on."""
        place = step % self.every
        if step < self.every or place >= STEPS or (place and not self._listening):
            return
        if self._heard.before(step):
            self._listening += 1
        else:
            self._display.say(f"watch: no look at step {step}, for a trace is recorded")

    def loaded(self, step: int) -> None:
        """The step's samples are there."""
        self._heard.loaded(step)

    def after(self, step: int) -> None:
        """Keep what was heard; at the end of a window look at it. Every rank must call it."""
        self._heard.after()
        self._take_answer(wait=False)
        if self._listening and step % self.every == STEPS - 1:
            if self._listening == STEPS:  # else somebody else listened: a trace was recorded
                self._look_together(step + 1)
            self._heard.forget()
            self._listening = 0

    def close(self) -> None:
        """Wait for the last answer."""
        self._take_answer(wait=True)
        if not self._looks and self._ask is not None:
            self._display.say(
                f"watch: the run ended before there was a look: they are after {STEPS} steps from each "
                f"{self.every}th on"
            )

    def _look_together(self, after_steps: int) -> None:
        try:
            self._look(after_steps)
        except RuntimeError as error:  # of torch.distributed, which names neither rank nor op
            reason = str(error).strip().splitlines()[0]
            raise CollectiveError(
                f"{self.context.mesh.where()}: watching after step {after_steps} failed: a peer "
                f"has probably died ({reason})"
            ) from error

    def _look(self, after_steps: int) -> None:
        mesh, process = self.context.mesh, self.process
        clock = align(self._group, process.ranks, process.rank)
        mine = summed_up(self._heard.notes, self._heard.loading_ns, mesh, clock, self.context.device)
        everyone: list[Any] | None = [mine]
        suspicious = [self._suspicious]
        if self._group is not None:
            everyone = [None] * process.ranks if process.rank == 0 else None
            dist.gather_object(mine, everyone, group=self._group, group_dst=0)
            dist.broadcast_object_list(suspicious, group=self._group, group_src=0)
        probe = None
        if suspicious[0]:
            probe = probe_links(mesh.everyone, self.context.device, process.rank, self._hosts.of_rank)
        if everyone is None or self._answer is not None:  # one question at a time
            return
        steps = sorted({note.step for note in self._heard.notes})
        window = {**put_together(everyone), "steps": steps, "hosts": self._hosts.as_json(), "probe": probe}
        self._answer = _Answer(threading.Thread(target=lambda: None), after_steps)
        self._answer.thread = threading.Thread(target=self._question, args=(self._answer, window), daemon=True)
        self._answer.thread.start()

    def _question(self, answer: _Answer, window: dict[str, Any]) -> None:
        assert self._ask is not None
        try:
            answer.found = self._ask(window)
        except Exception as error:  # whatever it is, training goes on
            answer.problem = f"{type(error).__name__}: {error}"

    def _take_answer(self, *, wait: bool) -> None:
        answer = self._answer
        if answer is None or (answer.thread.is_alive() and not wait):
            return
        answer.thread.join()
        self._answer = None
        if answer.found is None:
            self._looks += 1
            self._display.warn(f"watch: no diagnosis after step {answer.after_steps} ({answer.problem})")
            return
        seen = {each["where"] + each["kind"]: each for each in answer.found["findings"]}
        # what is seen once may be chance: many looks are taken; it is an alert when it is seen again
        now = {key: each for key, each in seen.items() if key in self._seen}
        self._suspicious = any(each["kind"] == "axis" for each in seen.values())
        for note in answer.found.get("notes", []) if not self._looks else ():
            self._display.say(f"watch: {note}")
        for key, each in now.items():
            if key not in self._known:
                self._display.warn(f"watch: {each['text']} (confidence {100 * each['confidence']:.1f} %)")
        for key in sorted(set(self._known) - set(now)):
            self._display.say(f"watch: it is over: {self._known[key]['text']}")
        was_long, is_long = self._long, self._is_long(answer.found)
        told = {**answer.found, "healthy": not now and not is_long, "findings": list(now.values())}
        told["suspected"] = [each["text"] for key, each in seen.items() if key not in now]
        if self._long_seen and not is_long:
            told["suspected"].append(self._longer["text"])
        if now or self._known or is_long or was_long:
            self._write(answer.after_steps, told)
        self._seen, self._known, self._looks = set(seen), now, self._looks + 1
        text = json.dumps({"after_steps": answer.after_steps, **told})
        try:
            write_whole(self.out / LATEST, text)
        except DescriptionError as error:  # a full disk does not end a run
            self._display.warn(f"watch: {error}")

    def _is_long(self, found: dict[str, Any]) -> bool:
        """Tell whether steps are far too long for no known reason, twice in turn; say when that begins and ends.

        Where a finding was not priced, nobody knows what it leaves unexplained: all stays as it was.
        """
        if not found.get("judged", True):
            return self._long
        longer, seen = found.get("not_located") or {}, self._long_seen
        self._long_seen = not longer.get("assumed", True)
        self._longer = longer if self._long_seen else self._longer
        was_long, self._long = self._long, seen and self._long_seen
        if self._long and not was_long:
            self._display.warn(f"watch: {longer['text']}; what was found does not explain it")
        if was_long and not self._long:
            self._display.say("watch: it is over: steps are no longer than they should be, or it is known why")
        return self._long

    def _write(self, after_steps: int, told: dict[str, Any]) -> None:
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S%z")
        kept = {key: told[key] for key in ("healthy", "findings", "step_seconds", "expected_step_seconds")}
        kept["not_located"] = self._longer if self._long else None
        line = json.dumps({"time": stamp, "after_steps": after_steps, **kept})
        try:
            with (self.out / ALERTS).open("a", encoding="utf-8") as file:
                file.write(line + "\n")
        except OSError as error:
            self._display.warn(f"watch: {self.out / ALERTS} cannot be written: {error.strerror}")


def put_together(everyone: list[Summary]) -> dict[str, Any]:
    """All ranks' summaries in seconds: lists (steps, ranks), and (steps,) for the steps."""
    begin = np.array([each.begin_ns for each in everyone]).min(axis=0)
    end = np.array([each.end_ns for each in everyone]).max(axis=0)

    def rows(parts: list[Any]) -> list[list[float]]:
        return [[float(value) / 1e9 for value in step] for step in np.array(parts).T]

    axes = everyone[0].transfer_ns
    return {
        "step_seconds": ((end - begin) / 1e9).tolist(),
        "compute": rows([each.compute_ns for each in everyone]),
        "loading": rows([each.loading_ns for each in everyone]),
        "transfer": {axis: rows([each.transfer_ns[axis] for each in everyone]) for axis in axes},
        "waited": {axis: rows([each.waited_ns[axis] for each in everyone]) for axis in axes},
    }
