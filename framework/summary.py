"""summary.json: what a run did, in one file that other programs may rely on."""

from __future__ import annotations

import json
import math
import os
import platform
from dataclasses import asdict, dataclass, field, fields
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
from torch import nn

FILE = "summary.json"


@dataclass
class Summary:
    """The fields of summary.json. A figure that is null, or a table that lacks its figures, has its
    reason in `missing`, under the same name.

    Steps are optimizer steps; times ending in `_ms` are per step, after warm-up. Peaks in `memory` are training's
    since the warm-up; evaluation's is in `memory_by_phase`. What it leaves reserved or resident counts in both.
    """

    status: str = "running"  # completed, failed or interrupted
    error: str | None = None  # type and first line, where it failed
    name: str = ""
    config: dict[str, Any] = field(default_factory=dict)  # as composed, before anything was left out
    device: dict[str, Any] = field(default_factory=dict)  # name, type, memory_gib, cpu, cpu_cores
    versions: dict[str, str] = field(default_factory=dict)
    parameters: int = 0  # trainable numbers of the model
    switches: dict[str, dict[str, Any]] = field(default_factory=dict)  # see Switch
    steps: int = 0  # windows processed, skipped steps included
    optimizer_steps: int = 0  # steps that the optimizer took
    skipped_steps: int = 0  # fp16 steps skipped because of overflow
    loss_scale: float | None = None  # as last read: at the end, or before an error; fp16 only
    rows: int = 0  # samples trained on, all epochs
    tokens: int = 0  # the same for text
    warmup_steps: int = 0
    warmup_s: float | None = None  # from the first request for data to the end of the warm-up, evaluation left out
    measured_steps: int = 0
    step_ms: float | None = None  # median
    step_ms_mean: float | None = None
    step_ms_p10: float | None = None
    step_ms_p90: float | None = None
    data_wait_ms: float | None = None  # mean time that the host waited for a batch
    step_budget_ms: dict[str, float] | None = None  # parts of the mean step: see framework/budget.py
    step_budget_steps: int = 0  # steps that were sampled for it
    step_budget_sampled_ms: float | None = None  # their mean, with logging as in the mean of all
    samples_per_s: float | None = None
    tokens_per_s: float | None = None  # text only
    flops_per_row: float | None = None  # forward, loss and backward
    peak_tflops: float | None = None  # what MFU is held against
    mfu: float | None = None  # 0 to 1
    memory: dict[str, float] = field(
        default_factory=dict
    )  # peak_allocated_gib, peak_reserved_gib; CPU: peak_process_gib
    memory_by_phase: dict[str, float] = field(default_factory=dict)  # GiB in forward, backward, optimizer, evaluation
    gpu_neighbours: int | None = None  # other processes seen on the GPU, the most of two looks: before and after
    host_gib: float | None = None  # proportional memory of the process and its workers, at the end
    losses: list[float | None] = field(default_factory=list)  # of each step, as far as read; null where not finite
    evaluation: dict[str, Any] | None = None  # loss, accuracy, count, step
    profile: dict[str, Any] = field(default_factory=dict)  # kind, first_step, steps, files (in this folder), note;
    # a trace has operations too, in the time of its clock (cuda, cpu); empty where profile=none
    missing: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Switch:
    """One technique in summary.json: what was asked for, what was tried, and what was seen."""

    requested: Any
    effective: Any
    on: bool  # whether `effective` is not the off value
    active: bool | None  # what the evidence says; null where nothing could be seen
    equivalence: str
    evidence: dict[str, Any]
    left_out: str | None  # why it was not tried


def write(folder: Path, summary: Summary) -> Path:
    """Writes the file whole or not at all. Numbers that JSON lacks (NaN, infinity) become null."""
    path, part = folder / FILE, folder / (FILE + ".part")
    with part.open("w", encoding="utf-8") as file:
        json.dump(_finite(asdict(summary)), file, indent=1, allow_nan=False)
        file.write("\n")
        file.flush()
        os.fsync(file.fileno())
    part.replace(path)
    return path


def end(summary: Summary, error: BaseException) -> None:
    """Notes that `error` ended the run."""
    summary.status = "failed" if isinstance(error, Exception) else "interrupted"
    summary.error = f"{type(error).__name__}: {error}".splitlines()[0].removesuffix(": ")


def nulls(summary: Summary) -> list[str]:
    """The figures that need a reason in `missing`: those that are null, and tables without those of training."""
    unknown = [f.name for f in fields(summary) if getattr(summary, f.name) is None and f.name != "error"]
    unknown += [] if summary.memory else ["memory"]
    return unknown + ([] if "forward" in summary.memory_by_phase else ["memory_by_phase"])


def write_unbuilt(folder: Path, name: str, config: dict[str, Any], error: BaseException) -> None:
    """Writes the summary of a run that `error` ended while it was built."""
    summary = Summary(name=name, config=config, versions=versions(), warmup_steps=config["meter"]["warmup_steps"])
    end(summary, error)
    summary.missing = dict.fromkeys(nulls(summary), "the run ended while it was built")
    write(folder, summary)


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _finite(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def device_facts(device: torch.device) -> dict[str, Any]:
    """What the run is on."""
    facts: dict[str, Any] = {"type": device.type, "cpu": _processor(), "cpu_cores": os.cpu_count()}
    if device.type == "cuda":
        seen = torch.cuda.get_device_properties(device)
        facts |= {
            "name": seen.name,
            "memory_gib": seen.total_memory / 2**30,
            "capability": f"{seen.major}.{seen.minor}",
        }
    else:
        facts["name"] = facts["cpu"]
    return facts


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.exists() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def versions() -> dict[str, str]:
    """Versions of what shapes the figures."""
    named = {name: metadata.version(name) for name in ("torchvision", "hydra-core", "numpy")}
    return named | {
        "torch": str(torch.__version__),  # with the build, such as +cu130
        "python": platform.python_version(),
        "cuda": str(torch.version.cuda),
        "platform": platform.platform(),
    }


def describe(name: str, config: dict[str, Any], model: nn.Module, device: torch.device) -> Summary:
    """A summary with what is known before the run begins."""
    return Summary(
        name=name,
        config=config,
        device=device_facts(device),
        versions=versions(),
        parameters=sum(p.numel() for p in model.parameters() if p.requires_grad),
        warmup_steps=config["meter"]["warmup_steps"],
    )
