"""Runs on a GPU as they would tell of themselves, made up: every technique's speedups, losses, memory and evidence."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import numpy as np

from framework.study.model import Arm, Kind, RunRecord
from tests.study.made import TECHNIQUES

PRESETS = {
    "workers": {"workers": "14"},
    "pinned": {"pinned": "true"},
    "prefetch": {"pinned": "true", "prefetch": "2"},
    "amp": {"amp": "bf16"},
    "tf32": {"tf32": "true"},
    "log_every": {"log_every": "50"},
    "allocator": {"allocator": "'expandable_segments:True'"},
    "compile": {"compile": "default"},
    "channels_last": {"channels_last": "true"},
    "fused_optimizer": {"fused_optimizer": "true"},
    "cudnn_benchmark": {"cudnn_benchmark": "true"},
}
ALONE = {
    "workers": 1.21,
    "pinned": 1.012,
    "prefetch": 1.031,
    "amp": 1.93,
    "tf32": 1.42,
    "log_every": 1.006,
    "allocator": 1.0,
    "compile": 1.27,
    "channels_last": 0.93,
    "fused_optimizer": 1.018,
    "cudnn_benchmark": 1.11,
}
COMPANY = ALONE | {"amp": 1.75, "compile": 1.44, "channels_last": 1.05, "tf32": 1.0, "pinned": 1.19, "log_every": 1.14}
EVIDENCE: dict[str, dict[str, Any]] = {
    "workers": {"worker_processes": 14},
    "pinned": {"pinned_copies": 300, "pageable_copies": 0},
    "prefetch": {"batches": 150, "hidden_share": 0.9821, "side_stream": True},
    "amp": {"first_output": "bfloat16"},
    "tf32": {"matmul": "tf32", "conv": "tf32", "rnn": "tf32"},
    "log_every": {"host_reads": 3, "steps": 150},
    "allocator": {"settings": {"expandable_segments": True}, "variable": "expandable_segments:True"},
    "compile": {"frames": 1, "graphs": 1, "graph_breaks": 0, "recompiles": 0, "compiled_calls": 150},
    "channels_last": {"first_conv_strides": [150528, 1, 672, 3]},
    "fused_optimizer": {"groups_fused": 1, "groups": 1},
    "cudnn_benchmark": {"benchmark": True},
}
CONFIG = {
    "model": {"_target_": "torchvision.models.resnet50"},
    "data": {"train": {"_target_": "framework.data.synthetic.Images"}, "batch_size": 256},
    "optim": {"optimizer": {"_target_": "torch.optim.SGD"}},
}
H200 = {"type": "cuda", "name": "NVIDIA H200", "memory_gib": 139.8, "cpu": "Intel Xeon Platinum 8480C", "cpu_cores": 16}
VERSIONS = {"torch": "2.11.0", "torchvision": "0.26.0", "hydra-core": "1.3.2", "numpy": "2.4.6", "cuda": "13.0"}
STARTED = 1796112000.0  # 2026-12-01


def switched_on(arm: Arm) -> list[str]:
    return [one.removeprefix("perf.").split("=")[0] for one in arm.overrides if one.startswith("perf.")]


def summary(arm: Arm, step_ms: float, draw: np.random.Generator, seed: int, **more: Any) -> dict[str, Any]:
    """What a run on a GPU tells; losses depend on the seed, and on the run where a switch may change them."""
    on = switched_on(arm)
    switches = {
        name: {
            "on": name in on,
            "active": name in on,
            "equivalence": equivalence,
            "evidence": EVIDENCE[name] if name in on else {},
            "left_out": None,
        }
        for name, equivalence in TECHNIQUES.items()
    }
    blurred = any(TECHNIQUES.get(name) in ("close", "reduced") for name in on)
    curve = 7.0 * np.exp(-np.arange(150) / 90) + 0.02 * np.random.default_rng(seed).standard_normal(150)
    losses = curve + (0.002 * draw.standard_normal(150) if blurred else 0.0)
    allocated = 22.4 * (0.56 if "amp" in on else 1.0) * (0.9 if "compile" in on else 1.0)
    return {
        "status": "completed",
        "config": CONFIG,
        "device": H200,
        "versions": VERSIONS,
        "parameters": 25557032,
        "switches": switches,
        "steps": 150,
        "rows": 150 * 256,
        "step_ms": step_ms,
        "step_ms_mean": step_ms,
        "samples_per_s": 256e3 / step_ms,
        "warmup_steps": 30,
        "warmup_s": 6.0 + (41.0 if "compile" in on else 0.0) + (3 if "workers" in on else 0.0) + draw.normal(0, 0.2),
        "memory": {"peak_allocated_gib": allocated, "peak_reserved_gib": allocated * 1.12},
        "losses": [float(loss) for loss in losses],
        "missing": {},
    } | more


def speedup(arm: Arm) -> float:
    on = switched_on(arm)
    table = COMPANY if arm.kind in (Kind.all, Kind.without) or len(on) > 3 else ALONE
    return float(np.prod([table[name] for name in on])) if on else 1.0


def told(arms: Sequence[Arm], blocks: int, noise: float = 0.003, drift: float = 0.01) -> list[RunRecord]:
    """A study in which every run ends well: `noise` from run to run, and times that rise by `drift` over all."""
    draw, runs, clock = np.random.default_rng(0), [], STARTED
    for block in range(blocks):
        for arm in random.Random(block).sample(list(arms), len(arms)):
            position = len(runs)
            slow = 1 + drift * position / (blocks * len(arms))
            step = 371.0 / speedup(arm) * slow * float(np.exp(noise * draw.standard_normal()))
            found = summary(arm, step, draw, block)
            seconds = 20.0 + found["warmup_s"] + 0.12 * step
            runs.append(RunRecord(arm.name, block, position, "ok", None, clock, seconds, block, found))
            clock += seconds + 1
    return runs
