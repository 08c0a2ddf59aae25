"""Errors of loader workers that torch words without a hint, with what to do about them."""

from __future__ import annotations

import re
import signal
import threading
from collections.abc import Callable
from dataclasses import dataclass
from types import FrameType
from typing import Any

_LACKS = (  # torch's own words, but for the last two
    *("unable to (?:allocate|open) shared memory", r"unable to mmap \d+ bytes", "unable to resize file </torch_"),
    *("received 0 items of ancdata", r"Too many open files"),
)


class WorkerError(RuntimeError):
    """A loader worker failed for a reason that lies outside the set's own code."""


def explained(error: RuntimeError | OSError, name: str = "") -> WorkerError | None:
    """`error` with a hint where it tells of a dead worker, of CUDA in a forked one or of what they lack; else None.

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
    if lack := re.search(rf".*({'|'.join(_LACKS)}).*", said):
        return WorkerError(
            f"the loader workers{whose} lack shared memory or open files ({lack.group().strip()}): use a larger "
            "/dev/shm, fewer perf.workers, a smaller data.worker_batches or data.batch_size, or a higher `ulimit -n`."
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
    if threading.current_thread() is not threading.main_thread():
        return
    handler = signal.getsignal(signal.SIGCHLD)
    if callable(handler) and not isinstance(handler, _Explaining):
        signal.signal(signal.SIGCHLD, _Explaining(handler))
