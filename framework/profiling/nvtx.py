"""`profile=nvtx`: only what NVIDIA's tools look for, since they and torch.profiler shut each other out (CUPTI)."""

from __future__ import annotations

import contextlib
from typing import Any

import torch

from framework.profiling.span import Span


class Nvtx:
    """A tool that tells nsys (`--capture-range=cudaProfilerApi`) or ncu (`--profile-from-start off`) when to look.

    Source: https://docs.pytorch.org/docs/stable/cuda.html#nvidia-tools-extension-nvtx
    """

    def __init__(self, span: Span) -> None:
        self.span = span

    def begin(self, step: int) -> None:
        """Told before each step, up to the last one that is covered."""
        if step == self.span.first:
            torch.cuda.profiler.start()

    def end(self, steps: int) -> dict[str, Any]:
        """Tells the tool to stop, where it was started."""
        if steps:
            torch.cuda.profiler.stop()
        return {}

    def failed(self) -> dict[str, Any]:
        """Lets the tool keep what it has."""
        with contextlib.suppress(Exception):  # the error that ended the run is the one to be told
            torch.cuda.profiler.stop()
        return {}
