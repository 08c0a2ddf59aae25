"""`profile=trace`: torch.profiler, its trace for Chrome or Perfetto, and the most expensive operations."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile, schedule

from framework.profiling.operations import most_expensive, table
from framework.profiling.span import Span

TRACE, TABLE = "trace.json", "operations.txt"


class Trace:
    """A tool that records what host and GPU do. Its `ProfilerStep#N` is step N of the run.

    Where a run ends before the last covered step, an empty one follows: data were sought in vain.
    Source: https://docs.pytorch.org/docs/stable/profiler.html
    """

    def __init__(self, device: torch.device, folder: Path, span: Span) -> None:
        self.on_gpu, self.folder = device.type == "cuda", folder
        activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if self.on_gpu else [])]
        steps = span.last - span.lead
        self.profiler = profile(
            activities=activities,
            schedule=schedule(wait=span.lead, warmup=1, active=steps, repeat=1),
            acc_events=True,  # the one cycle's events are all there are; torch warns of losing them otherwise
        )

    def begin(self, step: int) -> None:
        """Told before each step, up to the last one that is covered."""
        if step == 1:
            self.profiler.start()  # idle until the lead
        self.profiler.step()

    def end(self, steps: int) -> dict[str, Any]:
        """Stops, and writes what `steps` covered steps showed."""
        self.profiler.stop()
        if not steps:
            return {}
        self.profiler.export_chrome_trace(str(self.folder / TRACE))
        events = list(self.profiler.events())
        clock = "cuda" if self.on_gpu and any(on_gpu(events)) else "cpu"
        rows = [asdict(row) for row in most_expensive(on_gpu(events) if clock == "cuda" else on_cpu(events), steps)]
        (self.folder / TABLE).write_text(table(rows, clock) + "\n", encoding="utf-8")
        found: dict[str, Any] = {"files": {"trace": TRACE, "table": TABLE}, "clock": clock, "operations": rows}
        if self.on_gpu and clock == "cpu":
            found["lack"] = "no work of the GPU was seen (nsys and ncu shut this profiler out: see profile=nvtx)"
        return found

    def failed(self) -> dict[str, Any]:
        """Stops, whatever state an error has left the device in."""
        with contextlib.suppress(Exception):  # the error that ended the run is the one to be told
            self.profiler.stop()
        return {}


def on_cpu(events: Iterable[Any]) -> Iterator[tuple[str, float]]:
    """Each operation and the host's time in it, in microseconds; named ranges are none."""
    for event in events:
        if event.device_type.name == "CPU" and not event.is_user_annotation:
            yield event.name, event.self_cpu_time_total


def on_gpu(events: Iterable[Any]) -> Iterator[tuple[str, float]]:
    """Each operation and the time of the kernels and copies that it launched, in microseconds.

    What was launched outside any operation, such as a replayed CUDA graph, stands under the names of the kernels.
    """
    events = list(events)
    ranges = {event.name for event in events if event.is_user_annotation}  # the GPU's side has them as well
    for event in events:
        if event.device_type.name != "CPU":
            continue
        kernels = [kernel for kernel in event.kernels if kernel.name not in ranges]
        if event.is_user_annotation:
            yield from ((kernel.name, kernel.duration) for kernel in kernels)
        elif kernels:
            yield event.name, sum(kernel.duration for kernel in kernels)
