"""Peak memory: of the GPU's allocator, by phase too, or of the process on a CPU."""

from __future__ import annotations

import contextlib
import resource
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import torch

GIB = 2**30
EVALUATION = "evaluation"  # the phase that is no part of training
Enter = Callable[[str], None]  # told before each phase: forward, backward, optimizer


def _ignore(phase: str) -> None:
    return


class Source(Protocol):
    """Where peaks come from."""

    def reset(self) -> None:
        """Forgets the peaks so far."""

    def peaks(self) -> dict[str, float]:
        """Peaks since the last reset, in GiB, under names that say what they are."""


class CudaMemory:
    """The caching allocator's peaks: `allocated` is what tensors held, `reserved` what was taken from the GPU."""

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def reset(self) -> None:
        torch.cuda.reset_peak_memory_stats(self.device)

    def peaks(self) -> dict[str, float]:
        stats = torch.cuda.memory_stats(self.device)
        return {f"peak_{kind}_gib": stats.get(f"{kind}_bytes.all.peak", 0) / GIB for kind in ("allocated", "reserved")}


class ProcessMemory:
    """The process's peak resident memory. Linux can reset it; elsewhere it counts from the start of the process."""

    def reset(self) -> None:
        with contextlib.suppress(OSError):
            Path("/proc/self/clear_refs").write_text("5", encoding="ascii")

    def peaks(self) -> dict[str, float]:
        status = Path("/proc/self/status")
        if status.exists():
            for line in status.read_text(encoding="utf-8").splitlines():
                if line.startswith("VmHWM:"):  # some containers leave it out
                    return {"peak_process_gib": int(line.split()[1]) * 1024 / GIB}
        unit = 1 if sys.platform == "darwin" else 1024
        return {"peak_process_gib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / GIB}


def source(device: torch.device) -> Source:
    """Where the peaks of `device` come from."""
    return CudaMemory(device) if device.type == "cuda" else ProcessMemory()


class Memory:
    """Peaks of training after warm-up, and those of each phase. Evaluation's count in its phase alone.

    The phases of a step are read once, in the last step of the warm-up, since reading takes as long as a short step.
    The allocator keeps its count as the host calls it, so nothing waits for the device.
    """

    def __init__(self, source: Source, warmup_steps: int) -> None:
        self.source, self.warmup_steps = source, warmup_steps
        self._by_phase: dict[str, float] = {}
        self._highest: dict[str, float] = {}
        self._phase: str | None = None
        source.reset()

    def step(self, number: int) -> Enter:
        """What step `number`, counted from 1, tells its phases to. Forgets the warm-up when it is over."""
        if number == self.warmup_steps:
            return self.enter
        if number == self.warmup_steps + 1:
            self.leave()
            self._highest = {}
        return _ignore

    def enter(self, phase: str) -> None:
        """Ends the phase before and begins `phase`."""
        self.leave()
        self._phase = phase

    def leave(self) -> None:
        """Ends a phase: its peak is kept, and the next begins at what is held now."""
        peaks = self.source.peaks()
        self._by_phase |= self._present(peaks)
        if self._phase != EVALUATION:
            self._highest = _higher(self._highest, peaks)
        self._phase = None
        self.source.reset()

    def _present(self, peaks: dict[str, float]) -> dict[str, float]:
        """The phase that has begun, with the first of its `peaks`; empty where none has."""
        if self._phase is None:
            return {}
        return {self._phase: max(next(iter(peaks.values())), self._by_phase.get(self._phase, 0.0))}

    @property
    def by_phase(self) -> dict[str, float]:
        """Highest peak of each phase so far, in GiB, the one that has not ended included."""
        return self._by_phase | self._present(self.source.peaks())

    def peaks(self) -> dict[str, float]:
        """Peaks of training since the warm-up, or since the start while it lasts, in GiB. Not for use in evaluation."""
        return _higher(self._highest, self.source.peaks())


def _higher(one: dict[str, float], other: dict[str, float]) -> dict[str, float]:
    return {name: max(value, one.get(name, 0.0)) for name, value in other.items()}


def host_gib() -> float | None:
    """Proportional memory of this process and its children (loader workers), in GiB; None where the system hides it."""
    own = Path("/proc/self")
    if not (own / "smaps_rollup").exists():
        return None
    pids = [pid for task in (own / "task").iterdir() for pid in _children(task)]
    return sum(_proportional(Path("/proc") / pid) for pid in ["self", *pids]) / GIB


def _children(task: Path) -> list[str]:
    with contextlib.suppress(OSError):  # a thread may end while it is read, and some kernels do not tell
        return (task / "children").read_text(encoding="ascii").split()
    return []


def _proportional(process: Path) -> int:
    with contextlib.suppress(OSError):  # a worker may end while it is read
        for line in (process / "smaps_rollup").read_text(encoding="ascii").splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    return 0
