"""A run with a profiler around some of its steps. A run without one stays as it is."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from framework.config import Config, Profile
from framework.engine import Run
from framework.memory import Enter
from framework.profiling.nvtx import Nvtx
from framework.profiling.ranges import Ranges
from framework.profiling.snapshot import Snapshot
from framework.profiling.span import Span, after
from framework.profiling.trace import Trace
from framework.update import Window

DATA = "data"  # the phase in which the host waits for a window


class Tool(Protocol):
    """What looks at the steps. Results are fields of `profile` in summary.json."""

    def begin(self, step: int) -> None:
        """Told before each step, up to the last one that is covered."""

    def end(self, steps: int) -> dict[str, Any]:
        """Stops and writes its files; `steps` of those to be covered there were."""

    def failed(self) -> dict[str, Any]:
        """Stops because of an error; raises none itself."""


def profiled(run: Run, cfg: Config, folder: Path) -> Run:
    """`run` itself with `profile=none`; else one whose steady steps are profiled, with results in `folder`.

    These steps, the one before and the one after are in no figure of the run. The profile is in summary.json.
    """
    if cfg.profile is Profile.none:
        return run
    span, device = after(cfg.meter.warmup_steps, cfg.profile_steps), torch.device(cfg.device)
    tools: dict[Profile, Tool] = {
        Profile.trace: Trace(device, folder, span),
        Profile.nvtx: Nvtx(span),
        Profile.memory: Snapshot(folder),
    }
    run.report.summary.profile = {
        "kind": cfg.profile.name,
        "first_step": span.first,
        "steps": 0,
        "files": {},
        "note": "the run ended before its profile was complete.",
    }
    watched = Profiled(run, tools[cfg.profile], span, Ranges(nvtx=device.type == "cuda"))
    return replace(run, windows=watched.windows, update=watched.update)


class Profiled:
    """The values of a run that a profile takes the place of: where windows come from, and the update."""

    def __init__(self, run: Run, tool: Tool, span: Span, ranges: Ranges) -> None:
        self.run, self.tool, self.span, self.ranges = run, tool, span, ranges
        self.step = 0
        self.over = False

    def windows(self) -> Iterator[Window]:
        """Those of the run. The tool begins and ends between two steps, while the meter is paused."""
        items, span, meter = self.run.windows(), self.span, self.run.meter
        for step in range(1, span.last + 1):
            if step == span.first:
                with meter.paused():  # the device is idle: nothing of the step before is in the profile
                    self.tool.begin(step)
            else:
                self.tool.begin(step)
            if step >= span.lead:
                meter.leave_out()
            held = self._fetch(items, step)
            if not held:
                break
            self.step = step
            yield held.pop()  # no reference is kept: the batch would lie on the device for longer
        with meter.paused():
            self._end()
        meter.leave_out()
        yield from items

    def _fetch(self, items: Iterator[Window], step: int) -> list[Window]:
        try:
            if step >= self.span.first:
                self.ranges.enter(DATA)
            return list(islice(items, 1))
        except BaseException:
            self._fail()
            raise
        finally:
            self.ranges.leave()

    def update(self, window: Window, enter: Enter) -> Tensor:
        """The run's own update, its phases in ranges while they are profiled."""

        def told(phase: str) -> None:
            enter(phase)
            self.ranges.enter(phase)

        covered = not self.over and self.step >= self.span.first
        try:
            return self.run.update(window, told if covered else enter)
        except BaseException:
            self._fail()
            raise
        finally:
            self.ranges.leave()

    def _end(self) -> None:
        self.over, span = True, self.span
        steps = span.covered(self.step)
        found = self.tool.end(steps)
        note = (
            f"steps {span.first} to {span.last}. Steps {span.lead} to {span.last + 1} are in no figure of this run, "
            "and the profiler may still slow those after: compare runs with profile=none."
        )
        if self.step < span.last:
            note = (
                f"the run ended after step {self.step}, and steps {span.first} to {span.last} were to be covered: "
                "raise train.max_steps or train.epochs, or lower meter.warmup_steps or profile_steps."
            )
        self._note(steps, note, found)

    def _fail(self) -> None:
        if self.over:
            return
        self.over = True
        found = self.tool.failed()
        self._note(self.span.covered(self.step), f"the run ended with an error after step {self.step} began.", found)

    def _note(self, steps: int, note: str, found: dict[str, Any]) -> None:
        lack = found.pop("lack", None)
        told = f"{note} But {lack}." if lack else note
        self.run.report.summary.profile |= {"steps": steps, "note": told, **found}
