"""Studies made up for tests: the arms of a whole study, and runs with the times that a test wants."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from framework.study.model import Arm, Kind, RunRecord

TECHNIQUES = {
    "workers": "exact",
    "pinned": "exact",
    "prefetch": "exact",
    "amp": "reduced",
    "tf32": "reduced",
    "log_every": "exact",
    "allocator": "exact",
    "compile": "close",
    "channels_last": "close",
    "fused_optimizer": "close",
    "cudnn_benchmark": "close",
}
NEEDS = {"prefetch": ("pinned",)}


def overrides(switches: Sequence[str]) -> tuple[str, ...]:
    return ("perf=baseline", *(f"perf.{name}=1" for name in sorted(switches)))


def arms(techniques: Sequence[str] = tuple(TECHNIQUES)) -> list[Arm]:
    """Baseline, control, each technique alone, all, and all without each one, as the plan of a study has them."""
    made = [
        Arm("baseline", Kind.baseline, overrides(())),
        Arm("control", Kind.control, overrides(()), "baseline"),
    ]
    for name in techniques:
        needs = tuple(need for need in NEEDS.get(name, ()) if need in techniques)
        made.append(Arm(name, Kind.alone, overrides((*needs, name)), needs[0] if needs else "baseline", name, needs))
    made.append(Arm("all", Kind.all, overrides(techniques), "baseline"))
    for name in techniques:
        dependents = [other for other in techniques if name in NEEDS.get(other, ())]
        rest = [other for other in techniques if other != name and other not in dependents]
        reference = f"without_{dependents[0]}" if dependents else "all"
        made.append(Arm(f"without_{name}", Kind.without, overrides(rest), reference, name))
    return made


def named(*names: str) -> list[Arm]:
    """Baseline, control, and arms that a user named; those called `same...` repeat the baseline."""
    own = [Arm(name, Kind.named, overrides(() if name.startswith("same") else (name,)), "baseline") for name in names]
    return [*arms(())[:2], *own]


def switches(arm: Arm) -> dict[str, dict[str, Any]]:
    """What a run of the arm would tell, every switch doing what was asked."""
    on = {one.removeprefix("perf.").split("=")[0] for one in arm.overrides if one.startswith("perf.")}
    return {
        name: {
            "on": name in on,
            "active": name in on,
            "equivalence": equivalence,
            "evidence": {"seen": name} if name in on else {},
            "left_out": None,
        }
        for name, equivalence in TECHNIQUES.items()
    }


def run(arm: Arm, block: int, step_ms: float | None, position: int = 0, **summary: Any) -> RunRecord:
    """A run that ended well."""
    told = {
        "step_ms": step_ms,
        "step_ms_mean": step_ms,
        "samples_per_s": 64e3 / step_ms if step_ms else None,
        "warmup_s": 1.0,
        "warmup_steps": 5,
        "memory": {"peak_process_gib": 2.0},
        "losses": [1.0, 0.5, 0.25],
        "rows": 640,
        "steps": 10,
        "switches": switches(arm),
        "missing": {},
    }
    return RunRecord(arm.name, block, position, "ok", None, 0.0, 1.0, block, told | summary)


def study(
    made: Sequence[Arm], log_ms: NDArray[np.float64], told: Mapping[str, Mapping[str, Any]] | None = None
) -> list[RunRecord]:
    """Runs with the times exp(`log_ms`), [arms, blocks]; NaN where a run is missing. `told` adds to arms' summaries."""
    return [
        run(arm, block, float(np.exp(log_ms[n, block])), block * len(made) + n, **(told or {}).get(arm.name, {}))
        for block in range(log_ms.shape[1])
        for n, arm in enumerate(made)
        if np.isfinite(log_ms[n, block])
    ]


def times(made: Sequence[Arm], blocks: int, speedups: Mapping[str, float], noise: float = 0.0, seed: int = 0) -> Any:
    """Log step times of 10 ms, an arm with a speedup being faster by that ratio; [arms, blocks]."""
    base = np.array([[np.log(10.0 / speedups.get(arm.name, 1.0))] for arm in made])
    return base + noise * np.random.default_rng(seed).standard_normal((len(made), blocks))
