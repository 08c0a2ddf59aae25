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
import tempfile
from collections.abc import Callable
from typing import Any

import torch
import torch._dynamo
import torch._inductor.config
from torch._dynamo import convert_frame
from torch._dynamo.utils import counters
from torch._inductor.cpu_vec_isa import pick_vec_isa
from torch._inductor.utils import fresh_cache

from framework.techniques import Equivalence, Evidence, Technique, UnavailableError

RECORD = Technique("compile", Equivalence.close)
log = logging.getLogger("gearshift")
SHAPES_BEFORE_WARNING = 4


def probe(device: torch.device, backend: str = "inductor") -> None:
    """Compiles and runs a tiny forward and backward, past every cache, in this process.

    Whatever this process compiled before is forgotten, so that the evidence tells of one run.
    Errors: UnavailableError with the compiler's words.
    """
    value = torch.ones(8, device=device, requires_grad=True)
    failure: Exception | None = None
    alone = torch._inductor.config.patch(compile_threads=1)  # a compiling process would keep the folder's name
    try:
        if device.type == "cpu" and backend == "inductor":
            pick_vec_isa()  # outside the passing cache: what the processor can do takes seconds to find out
        with tempfile.TemporaryDirectory() as folder, fresh_cache(dir=folder), alone:
            torch.compile(lambda x: x * 3, backend=backend)(value).sum().backward()
    except Exception as error:
        failure = error
    torch._dynamo.reset()
    counters.clear()
    if failure is not None:
        lines = (line.strip() for line in str(failure).splitlines())
        words = next((line for line in lines if line and not line.endswith(":")), type(failure).__name__)
        raise UnavailableError(f"cannot compile on {device.type} ({words})") from failure


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
        self.compiled_calls = self.uncompiled_calls = 0

    def __call__(self, batch: Any) -> Any:
        shapes = self.shapes_of(batch)
        if self.first is None:
            self.first = shapes
        if shapes == self.first:
            self.compiled_calls += 1
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
    """Compiled frames, graph breaks and recompiles since the probe, and the calls that ran uncompiled.

    Active where graphs were made and most calls ran in them. Past the limit of recompiles torch gives up on a frame.
    """
    compiles = list(convert_frame.FRAME_COMPILE_COUNTER.values())  # tries, for each frame
    gave_up = any(number > torch._dynamo.config.recompile_limit for number in compiles)
    graphs = counters["stats"]["unique_graphs"]
    seen = {
        "frames": counters["frames"]["ok"],
        "graphs": graphs,
        "graph_breaks": sum(counters["graph_break"].values()),
        "recompiles": sum(compiles) - len(compiles),
        "gave_up": gave_up,
        "compiled_calls": compiled.compiled_calls,
        "uncompiled_calls": compiled.uncompiled_calls,
        "shapes": len(compiled.other_shapes) + (compiled.first is not None),
    }
    mostly = compiled.compiled_calls > compiled.uncompiled_calls
    return Evidence(graphs > 0 and mostly and not gave_up if compiled.first is not None else None, seen)
