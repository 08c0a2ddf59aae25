"""torch.compile: forward AND loss become one compiled graph, its backward another.

Helps when: many small operations move memory between large ones. Memory falls too: logits need not exist in full.
Costs: compile time at the start, and again for each new shape; here a batch of another shape than the first runs
uncompiled instead, and is counted. reduce_overhead and max_autotune record CUDA graphs.
Needs: a C++ compiler on the CPU, Triton on CUDA; a small probe says so at the start.
Numbers: close.
Source: https://docs.pytorch.org/docs/stable/generated/torch.compile.html
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import torch
import torch._dynamo
import torch._inductor.config
from torch._dynamo.utils import counters

from framework.techniques import Equivalence, Evidence, Technique, UnavailableError

RECORD = Technique("compile", Equivalence.close)
log = logging.getLogger("gearshift")
SHAPES_BEFORE_WARNING = 4


def probe(device: torch.device, backend: str = "inductor") -> None:
    """Compiles and runs a tiny forward and backward, past every cache.

    Errors: UnavailableError with the compiler's words.
    """
    value = torch.ones(8, device=device, requires_grad=True)
    before = {name: dict(values) for name, values in counters.items()}
    try:
        with torch._inductor.config.patch(force_disable_caches=True):
            torch.compile(lambda x: (x.sin() * 2).sum(), backend=backend)(value).backward()
    except Exception as error:
        words = next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
        raise UnavailableError(f"cannot compile on {device.type} ({words})") from error
    finally:
        torch._dynamo.reset()
        counters.clear()
        for name, values in before.items():
            counters[name].update(values)


class Compiled:
    """`function(batch)` compiled for the shapes of the first batch; other shapes run as they are, and are counted.

    `shapes_of(batch)` is what is compared. Ragged batches are rare by nature: compiling each would stall the run for
    longer than they take, and a graph made for any shape is slower for all.
    """

    def __init__(
        self, function: Callable[..., Any], mode: str, shapes_of: Callable[[Any], Any], backend: str = "inductor"
    ) -> None:
        options = {} if backend != "inductor" or mode == "default" else {"mode": mode.replace("_", "-")}
        self.function, self.shapes_of = function, shapes_of
        self.compiled = torch.compile(function, dynamic=False, backend=backend, **options)  # type: ignore[call-overload]
        self.first: Any = None
        self.other_shapes: set[Any] = set()
        self.uncompiled_calls = 0

    def __call__(self, batch: Any) -> Any:
        shapes = self.shapes_of(batch)
        if self.first is None:
            self.first = shapes
        if shapes == self.first:
            return self.compiled(batch)
        self.uncompiled_calls += 1
        if shapes not in self.other_shapes:
            self._note(shapes)
        return self.function(batch)

    def _note(self, shapes: Any) -> None:
        self.other_shapes.add(shapes)
        if len(self.other_shapes) == 1:
            log.warning("perf.compile: a batch differs in shape from the first; such batches run uncompiled.")
        if len(self.other_shapes) == SHAPES_BEFORE_WARNING:
            log.warning(
                "perf.compile: %d shapes so far, and only the first is compiled: pad the batches to one shape, or set "
                "perf.compile=eager.",
                SHAPES_BEFORE_WARNING + 1,
            )


def evidence(compiled: Compiled) -> Evidence:
    """Compiled frames, graph breaks and recompiles of this process, and the calls that ran uncompiled."""
    frames, stats = counters["frames"], counters["stats"]
    seen = {
        "frames": frames["ok"],
        "graphs": stats["unique_graphs"],
        "graph_breaks": sum(counters["graph_break"].values()),
        "recompiles": sum(counters["recompiles"].values()),
        "uncompiled_calls": compiled.uncompiled_calls,
        "shapes": 1 + len(compiled.other_shapes),
    }
    return Evidence(stats["unique_graphs"] > 0 if compiled.first is not None else None, seen)
