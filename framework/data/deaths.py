"""Errors of loader workers that torch words without a hint, with what to do about them."""

from __future__ import annotations

import re
import signal
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from types import FrameType
from typing import Any


class WorkerError(RuntimeError):
    """A loader worker failed for a reason that lies outside the set's own code."""


def explained(error: RuntimeError, name: str = "") -> WorkerError | None:
    """`error` with a hint where it is torch's word for a dead worker or for CUDA in a forked one; else None.

    `name` is that of the set, where it is known.
    """
    said, whose = str(error), f" of {name}" if name else ""
    if isinstance(error, WorkerError):
        return None
    if re.search(r"DataLoader worker \(pid", said):
        return WorkerError(
            f"a loader worker{whose} died ({said.splitlines()[0].strip()}). Usual causes: memory (fewer perf.workers "
            "or a smaller data.batch_size), a small /dev/shm, or too many open files "
            "(torch.multiprocessing.set_sharing_strategy('file_system'))."
        )
    if "Cannot re-initialize CUDA in forked subprocess" in said:
        return WorkerError(
            f"a loader worker{whose} used the GPU, which a forked process cannot: return CPU tensors (each batch is "
            "moved to the device), or set perf.workers=0 or data.start_method=spawn."
        )
    return None


@dataclass(frozen=True)
class _Explaining:
    """A signal handler around torch's own."""

    handler: Callable[[int, FrameType | None], Any]

    def __call__(self, number: int, frame: FrameType | None) -> None:
        try:
            self.handler(number, frame)
        except RuntimeError as error:
            if (told := explained(error)) is None:
                raise
            raise told from error


def explain_deaths() -> None:
    """To be called when workers have been started: their death is told with a hint wherever the main thread is then.

    torch raises it from a signal handler, which need not be while the loader is asked for a batch.
    """
    if sys.platform == "win32" or threading.current_thread() is not threading.main_thread():
        return
    handler = signal.getsignal(signal.SIGCHLD)
    if callable(handler) and not isinstance(handler, _Explaining):
        signal.signal(signal.SIGCHLD, _Explaining(handler))
