"""Whole studies for the tests of the report, as they would lie in a folder: made up, with every kind of ending."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from framework.study.arms import control_arms, named_arms, technique_arms
from framework.study.model import Arm, RunRecord, StudySettings
from framework.study.plan import append, claim
from tests.study.made_gpu import PRESETS, told

HOSTILE = "'<script>alert(1)</script> & \x1b[31m|`*[x](y) \ud800'"


def techniques() -> list[Arm]:
    return technique_arms(PRESETS, None, list(PRESETS))


def slower(summary: dict[str, Any], times: float) -> dict[str, Any]:
    return summary | {name: summary[name] * times for name in ("step_ms", "step_ms_mean")}


def changed(runs: Sequence[RunRecord], arm: str, step: float = 1.0, **fields: Any) -> list[RunRecord]:
    """The runs, those of `arm` with other fields, their step times `step` times as long."""

    def other(run: RunRecord) -> RunRecord:
        told = slower(run.summary, step) if run.summary else {}
        return replace(run, summary=told, **fields) if fields else replace(run, summary=told)

    return [other(run) if run.arm == arm else run for run in runs]


def ended(runs: Sequence[RunRecord], arm: str, status: str, reason: str, blocks: Sequence[int]) -> list[RunRecord]:
    """The runs, those of `arm` in `blocks` without a figure; a skipped arm is one record that never started."""
    kept = [run for run in runs if run.arm != arm or run.block not in blocks]
    lost = [run for run in runs if run.arm == arm and run.block in blocks]
    if status == "skipped":
        first = replace(lost[0], position=-1, status=status, reason=reason, started=0.0, seconds=0.0, summary={})
        return [first, *kept]
    return [*kept, *(replace(run, status=status, reason=reason, summary={}) for run in lost)]


def silent(runs: Sequence[RunRecord], switch: str, **row: Any) -> list[RunRecord]:
    """The runs, with another row of a switch in those that have it on."""

    def other(run: RunRecord) -> RunRecord:
        switches = run.summary.get("switches", {})
        if not switches.get(switch, {}).get("on"):
            return run
        return replace(run, summary=run.summary | {"switches": switches | {switch: switches[switch] | row}})

    return [other(run) for run in runs]


def h200() -> tuple[list[Arm], list[RunRecord]]:
    """A study as a user sees it: fast, slow and undecided techniques, one not active, one failing, one skipped."""
    arms = techniques()
    runs = told(arms, 5)
    rng = np.random.default_rng(3)
    runs = [
        replace(run, summary=slower(run.summary, float(np.exp(rng.normal(0, 0.03)))))
        if run.arm in ("log_every", "without_log_every")
        else run
        for run in runs
    ]
    runs = silent(runs, "allocator", active=False, evidence={"settings": {"expandable_segments": False}})
    runs = ended(runs, "cudnn_benchmark", "skipped", "perf.cudnn_benchmark=true needs CUDA: there is none.", range(5))
    runs = ended(runs, "compile", "failed", "OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.", [2])
    reason = "RuntimeError: a reduction of <b>tf32</b> & co went wrong | at line 12"
    return arms, ended(ended(runs, "tf32", "failed", reason, [2, 3, 4]), "tf32", "failed", reason, [0, 1])


def lay(folder: Path, arms: Sequence[Arm], runs: Sequence[RunRecord], **settings: Any) -> Path:
    """Writes a study's folder: its plan and its raw runs."""
    claim(folder, arms, StudySettings(**settings), ("experiment=rn50", "meter.warmup_steps=30"))
    for run in runs:
        append(folder, run)
    return folder


def again(folder: Path, document: Mapping[str, Any]) -> Path:
    """The folder of a study, made from its report.json alone."""
    folder.mkdir()
    (folder / "plan.json").write_text(json.dumps(document["plan"]), encoding="utf-8")
    lines = [json.dumps(run) for run in document["runs"]]
    (folder / "runs.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return folder


def only_controls(noisy: bool) -> tuple[list[Arm], list[RunRecord]]:
    arms = control_arms(3)
    runs = told(arms, 5)
    return arms, changed(runs, "control", 1.05) if noisy else runs


def of_the_user() -> tuple[list[Arm], list[RunRecord]]:
    """Arms that a user named, on a CPU, with text that means something to HTML, Markdown and shells."""
    arms = named_arms({"bf16": ["perf.amp=bf16"], "big": ["data.batch_size=512", f"+model.note={HOSTILE}"]})
    memory = {"peak_process_gib": 1.5}
    return arms, [replace(run, summary=run.summary | {"memory": memory}) for run in told(arms, 5)]


def interrupted() -> tuple[list[Arm], list[RunRecord]]:
    """A study of five blocks that was stopped in its third."""
    arms = technique_arms(PRESETS, ["amp", "prefetch"], ["amp", "prefetch"])
    return arms, told(arms, 3)[: 2 * len(arms) + 3]


def all_failed() -> tuple[list[Arm], list[RunRecord]]:
    """A study in which no run ended well."""
    arms = technique_arms(PRESETS, ["amp"], ["amp"])
    runs = told(arms, 2)
    for arm in arms:
        runs = ended(runs, arm.name, "failed", f"ValueError: {HOSTILE}", (0, 1))
    return arms, runs
