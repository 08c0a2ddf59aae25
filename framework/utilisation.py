"""Model FLOPs utilisation: the arithmetic a step must do, over what the device could do in its time."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from framework.data.seeding import generators_kept
from framework.objective import Objective
from framework.tree import Batch, rows, tree_map

# Dense peaks in TFLOP/s: (float32, TF32, 16 bits). Source: NVIDIA's datasheets of each device.
PEAKS = {
    "H200 NVL": (60.0, 417.5, 835.5),
    "H200": (67.0, 494.7, 989.4),
    "H100 NVL": (60.0, 417.5, 835.5),
    "H100 PCIe": (51.2, 378.0, 756.0),
    "H100": (67.0, 494.7, 989.4),
    "A100": (19.5, 156.0, 312.0),
    "L40S": (91.6, 183.0, 362.05),
    "L4": (30.3, 60.0, 121.0),
    "A10": (31.2, 62.5, 125.0),
    "V100": (15.7, 15.7, 125.0),
    "T4": (8.1, 8.1, 65.0),
}
UNKNOWN_PEAK = "the device's peak is not known (it is not in the table, or a MIG slice): set meter.peak_tflops"


def per_row(make_model: Callable[[], nn.Module], objective: Objective, batch: Batch) -> float:
    """FLOPs of forward, loss and backward for one row of `batch`, counted on shapes alone (no memory, no arithmetic).

    Attention counts in full, also where a causal mask halves it. Errors: whatever the model raises on the meta device.
    """
    with torch.device("meta"), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the model was made before; this time loading its weights changes nothing
        model = make_model()
    shapes = tree_map(_shape_only, batch)
    with FlopCounterMode(display=False) as counter:
        objective.loss(model, shapes)[0].backward()
    return float(counter.get_total_flops()) / rows(batch)


def _shape_only(leaf: Any) -> Any:
    return leaf.detach().to("meta") if isinstance(leaf, Tensor) else leaf


def peak_tflops(device: torch.device, dtype: torch.dtype, tf32: bool) -> float | None:
    """The dense peak of `device` at the precision in use, None where it is not in the table or is a MIG slice."""
    if device.type != "cuda":
        return None
    words = set(re.split(r"[^A-Za-z0-9]+", torch.cuda.get_device_name(device)))  # an RTX A1000 is no A100
    if "MIG" in words:  # the name is that of the whole card
        return None
    column = 2 if dtype is not torch.float32 else int(tf32)
    return next((peaks[column] for known, peaks in PEAKS.items() if words.issuperset(known.split())), None)


@dataclass
class Utilisation:
    """What MFU needs. `why` says why the figure is missing."""

    peak_tflops: float | None
    flops_per_row: float | None = None
    why: str | None = None

    def count(self, make_model: Callable[[], nn.Module], objective: Objective, batch: Batch) -> None:
        """Counts the arithmetic of a row. A model that cannot be counted costs the figure, never the run."""
        if self.peak_tflops is None:
            self.why = UNKNOWN_PEAK
        try:
            with generators_kept():
                self.flops_per_row = per_row(make_model, objective, batch)
        except Exception as error:
            self.why = (
                f"the model could not be counted on the meta device ({type(error).__name__}: {error})".splitlines()[0]
            )

    def mfu(self, samples_per_s: float) -> float | None:
        """Model FLOPs utilisation, 0 to 1; None where a part of it is not known."""
        if self.flops_per_row is None or self.peak_tflops is None:
            return None
        return self.flops_per_row * samples_per_s / (self.peak_tflops * 1e12)
