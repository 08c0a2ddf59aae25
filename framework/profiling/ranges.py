"""The phases of a step as named ranges, for torch.profiler and for NVIDIA's tools."""

from __future__ import annotations

from contextlib import ExitStack

import torch
from torch.autograd.profiler import record_function


class Ranges:
    """One range at a time. With `nvtx` it is an NVTX range too, which nsys and ncu see.

    The NVTX ranges are of the kind that belongs to the process, not to a thread: the backward's kernels are launched by
    a thread of their own.
    """

    def __init__(self, nvtx: bool) -> None:
        self.nvtx = nvtx
        self._open = ExitStack()

    def enter(self, phase: str) -> None:
        """Ends the range before and begins `phase`."""
        self.leave()
        self._open.enter_context(record_function(phase))
        if self.nvtx:
            self._open.callback(torch.cuda.nvtx.range_end, torch.cuda.nvtx.range_start(phase))

    def leave(self) -> None:
        """Ends the range, where one is open."""
        self._open.close()
