"""Which arms are held against which, and where a comparison can claim nothing: skipped, failed or not active."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from framework.study.model import Arm, Kind, RunRecord, Verdict
from framework.study.statistics import Array
from framework.study.wording import evidence

SINGLE, POOLED, INTERACTION = 7, 4, 3  # parts of what may go wrong; why: see `weight`
Standing = tuple[Verdict, str] | None  # None: the figures decide


@dataclass(frozen=True)
class Comparison:
    """`fast` against `slow`: arms by name, several on a side where they repeat one configuration. `arm` asks for it."""

    arm: Arm
    fast: tuple[str, ...]
    slow: tuple[str, ...]

    @property
    def weight(self) -> int:
        """Its part of what may go wrong: chosen so that a true 2 % is found about equally often in all.

        A difference of single runs is noisier than one against the mean of two.
        """
        single = len(self.fast) == len(self.slow) == 1
        return SINGLE if single and self.arm.kind is not Kind.control else POOLED

    @property
    def judged(self) -> str:
        """The arm whose speed is judged."""
        return self.fast[0]


def comparisons(arms: Sequence[Arm]) -> list[Comparison]:
    """All on which a claim may be made: control, alone, without, all and named."""
    repeats = {arm.name: [arm.name] for arm in arms}
    for arm in arms:
        if arm.kind is Kind.control and arm.reference in repeats:
            repeats[arm.reference].append(arm.name)
    found = []
    for arm in arms:
        if arm.kind in (Kind.baseline, Kind.needs) or arm.reference not in repeats:
            continue
        reference = (arm.reference,) if arm.kind is Kind.control else tuple(repeats[arm.reference])
        sides = (reference, (arm.name,)) if arm.kind is Kind.without else ((arm.name,), reference)
        found.append(Comparison(arm, *sides))
    return found


class Runs:
    """The runs of a study by arm and block. A run counts if it ended well and has a step time (`step_of`)."""

    def __init__(self, runs: Sequence[RunRecord]) -> None:
        self.blocks = 1 + max((run.block for run in runs), default=-1)
        self.past: dict[str, list[RunRecord]] = {}
        self.counted: dict[str, dict[int, RunRecord]] = {}
        for run in sorted(runs, key=lambda run: run.position):
            self.past.setdefault(run.arm, []).append(run)
            if step_of(run) is not None:
                self.counted.setdefault(run.arm, {})[run.block] = run

    def of(self, *arms: str) -> list[RunRecord]:
        """The runs of these arms that count, by block."""
        return [run for arm in arms for _, run in sorted(self.counted.get(arm, {}).items())]

    def table(self, arms: Sequence[str], figure: str) -> Array:
        """A figure of the summary, [arms, blocks]; NaN where it is missing."""
        values = np.full((len(arms), self.blocks), np.nan)
        for n, arm in enumerate(arms):
            for block, run in self.counted.get(arm, {}).items():
                value = run.summary.get(figure)
                values[n, block] = np.nan if value is None else value
        return values

    def rows_a_step(self, arms: Sequence[str]) -> float | None:
        """Rows of a mean step, to a tenth; None where no run tells."""
        told = [run.summary for run in self.of(*arms) if run.summary.get("rows") and run.summary.get("steps")]
        return round(statistics.median(one["rows"] / one["steps"] for one in told), 1) if told else None

    def switches(self, arm: str) -> list[dict[str, dict[str, Any]]]:
        """The switches of each run that counts."""
        return [run.summary.get("switches", {}) for run in self.of(arm)]


def step_of(run: RunRecord) -> float | None:
    """The step time of a run that counts; None where it did not end well or has none."""
    step = run.summary.get("step_ms") if run.status == "ok" else None
    return float(step) if step is not None and math.isfinite(step) and step > 0 else None


def per_row(comparison: Comparison, runs: Runs) -> bool:
    """Whether time per row is compared: where a step of the one side has more rows than one of the other."""
    fast, slow = runs.rows_a_step(comparison.fast), runs.rows_a_step(comparison.slow)
    return fast is not None and slow is not None and fast != slow


def standing(comparison: Comparison, runs: Runs) -> Standing:
    """Why nothing can be claimed, or None."""
    for side in (comparison.fast, comparison.slow):
        lacks = [lack for arm in side if (lack := without_runs(arm, runs))]
        if len(lacks) == len(side):
            verdict, reason = lacks[0]
            return verdict, reason if side[0] == comparison.arm.name else f"{side[0]}: {reason}"
    if comparison.arm.technique is not None:
        return _of_switch(comparison, comparison.arm.technique, runs)
    return _of_switches(comparison, runs)


def without_runs(arm: str, runs: Runs) -> Standing:
    """Why no run of an arm counts; None where one does."""
    if runs.of(arm):
        return None
    past = runs.past.get(arm, [])
    failed = [run for run in past if run.status in ("failed", "ok")]
    skipped = [run for run in past if run.status == "skipped"]
    if failed:
        return Verdict.failed, fault(failed[-1])
    if skipped:
        return Verdict.skipped, skipped[-1].reason or "skipped"
    return Verdict.undecided, "was interrupted" if past else "has not run yet"


def fault(run: RunRecord) -> str:
    """Why a run does not count."""
    missing = run.summary.get("missing", {}).get("step_ms")
    return run.reason or (missing if run.status == "ok" else None) or "no reason was recorded"


def _of_switch(comparison: Comparison, switch: str, runs: Runs) -> Standing:
    rows = [switches.get(switch, {}) for switches in runs.switches(comparison.judged)]
    for row in rows:
        if row.get("left_out"):
            return Verdict.skipped, str(row["left_out"])
    silent = [row for row in rows if row.get("active") is not True]
    if silent:
        seen = evidence(silent[0].get("evidence") or {})
        instead = f"what was seen is {seen}" if seen else "nothing was seen"
        return Verdict.not_active, f"no sign of it in {len(silent)} of {len(rows)} runs; {instead}"
    if any(switches.get(switch, {}).get("on") for switches in runs.switches(comparison.slow[0])):
        return Verdict.not_active, f"it was on in {comparison.slow[0]} too"
    return None


def _of_switches(comparison: Comparison, runs: Runs) -> Standing:
    """Of an arm that sets several: not active where it sets nothing but switches and none of them took effect."""
    added = switched(runs, comparison)
    only_switches = all(one.startswith("perf") for one in comparison.arm.overrides)
    if not added or not only_switches or any(active(runs, comparison.judged, switch) for switch in added):
        return None
    return Verdict.not_active, f"no sign of any of its switches: {', '.join(added)}"


def switched(runs: Runs, comparison: Comparison) -> list[str]:
    """Switches that are on in the arm that is judged, and not in its reference."""
    before = {name for switches in runs.switches(comparison.slow[0]) for name, row in switches.items() if row.get("on")}
    on = {
        name: None for switches in runs.switches(comparison.judged) for name, row in switches.items() if row.get("on")
    }
    return [name for name in on if name not in before]


def active(runs: Runs, arm: str, switch: str) -> bool:
    """Whether every run of the arm showed that the switch took effect."""
    rows = [switches.get(switch, {}) for switches in runs.switches(arm)]
    return bool(rows) and all(row.get("active") is True for row in rows)
