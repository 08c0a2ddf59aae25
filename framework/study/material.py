"""What the report is made of, and the facts for its head: workload, device, versions, dates, commit."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

from framework.study.analysis import analyse, narrow_enough
from framework.study.comparisons import step_of
from framework.study.findings import Analysis
from framework.study.model import Arm, Kind, RunRecord, StudySettings
from framework.study.plan import read_plan, read_runs
from framework.study.progress import blocks_needed, runs_left
from framework.study.wording import NOTHING, clean, figure, shell

Value = TypeVar("Value")


@dataclass(frozen=True)
class Material:
    """A study as it lies in its folder, and what is concluded from it. `runs` are in the order in which they ran."""

    arms: Sequence[Arm]
    runs: Sequence[RunRecord]
    settings: StudySettings
    plan: dict[str, Any]
    commits: Sequence[str]
    analysis: Analysis


def gather(folder: Path) -> Material:
    """Reads plan and runs and concludes anew. Errors: ConfigError where `folder` holds no study."""
    arms, settings, plan = read_plan(folder)
    runs = sorted(read_runs(folder), key=lambda run: (run.started, run.position))
    return Material(arms, runs, settings, plan, plan.get("commits", []), analyse(arms, runs, settings))


def title(material: Material) -> str:
    """What this study asks."""
    if material.analysis.techniques:
        return "What each technique is worth"
    baseline = next((arm.overrides for arm in material.arms if arm.kind is Kind.baseline), ())
    if any(arm.kind is Kind.named and arm.overrides != baseline for arm in material.arms):
        return "What each arm is worth"
    return "How noisy this machine is"


def head(material: Material) -> list[tuple[str, str]]:
    """Names and values of the facts at the top."""
    return [
        ("Workload", workload(material)),
        ("Device", "; ".join(devices(material)) or "not known: no run told"),
        ("Versions", "; ".join(_versions(material)) or "not known: no run told"),
        ("Date", _dates(material.runs)),
        ("Runs", _counts(material)),
        ("Commit", ", ".join(clean(one) for one in material.commits) or "not known: the plan names none"),
    ]


def workload(material: Material) -> str:
    """The overrides common to all arms, and what they made of model, data and batch."""
    said = [clean(shell(material.plan.get("overrides", []))) or "the default configuration"]
    summary = next((run.summary for run in material.runs if run.summary.get("config")), {})
    config = summary.get("config", {})
    model, data, optim = (config.get(group) or {} for group in ("model", "data", "optim"))
    if model.get("_target_"):
        size = summary.get("parameters")
        said.append(_class(model) + (f", {size:,} parameters" if size else ""))
    if data.get("batch_size"):
        said.append(f"batches of {data['batch_size']} from {_class(data.get('train') or {})}")
    if (optim.get("optimizer") or {}).get("_target_"):
        said.append(_class(optim["optimizer"]))
    return "; ".join(said)


def _class(node: dict[str, Any]) -> str:
    return clean(node.get("_target_", NOTHING)).rpartition(".")[2]


def devices(material: Material) -> list[str]:
    """What the runs were on; more than one where a study went on elsewhere, or an arm names another device."""
    return _devices(material.runs)


def _devices(runs: Iterable[RunRecord]) -> list[str]:
    return unlike(_device(run.summary["device"]) for run in runs if run.summary.get("device"))


def _machines(material: Material) -> int:
    """The most devices that runs of one arm were on: only a change of the machine makes them more than one."""
    return max((len(_devices(run for run in material.runs if run.arm == arm.name)) for arm in material.arms), default=0)


def _device(facts: dict[str, Any]) -> str:
    parts = [facts.get("name", NOTHING)]
    if facts.get("memory_gib"):
        parts.append(f"{facts['memory_gib']:.0f} GiB")
    if facts.get("cpu") and facts["cpu"] != facts.get("name"):
        parts.append(facts["cpu"])
    if facts.get("cpu_cores"):
        parts.append(f"{facts['cpu_cores']} cores")
    return clean(", ".join(str(part) for part in parts))


def _versions(material: Material) -> list[str]:
    told = (run.summary["versions"] for run in material.runs if run.summary.get("versions"))
    return unlike(clean(", ".join(f"{name} {version}" for name, version in one.items())) for one in told)


def unlike(values: Iterable[Value]) -> list[Value]:
    """Each value once, in their order."""
    kept: list[Value] = []
    for value in values:
        if value not in kept:
            kept.append(value)
    return kept


def _dates(runs: Sequence[RunRecord]) -> str:
    ran = [run for run in runs if run.started > 0]
    if not ran:
        return "nothing ran"
    first, last = min(run.started for run in ran), max(run.started + run.seconds for run in ran)
    minutes = sum(run.seconds for run in ran) / 60
    return f"{_moment(first)} to {_moment(last)} UTC, {figure(minutes, digits=3)} minutes of runs"


def _moment(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M")


def _counts(material: Material) -> str:
    blocks, ok = material.analysis.blocks, sum(run.status == "ok" for run in material.runs)
    cache = material.settings.compile_cache
    said = f"{ok} ended well, of {len(material.arms)} arms in {blocks} block{'' if blocks == 1 else 's'}"
    return f"{said}; compile cache {cache}"


def troubled(material: Material) -> list[RunRecord]:
    """The runs that give no step time, with what befell them."""
    return [run for run in material.runs if step_of(run) is None]


def cautions(material: Material) -> list[str]:
    """What a reader must know before any figure, the noise of the machine left out."""
    found = []
    if (machines := _machines(material)) > 1:
        found.append(f"The runs were on {machines} machines: what differs between them is not the arms.")
    if len(_versions(material)) > 1:
        found.append(f"The runs had {len(_versions(material))} sets of versions: the study went on after a change.")
    if shared := sum(bool(run.summary.get("gpu_neighbours")) for run in material.runs):
        runs = "1 run" if shared == 1 else f"{shared} runs"
        found.append(f"Other processes were on the GPU in {runs}: they may have taken time from any arm.")
    if lacking := _lacking(material):
        runs = "1 run of its plan is" if lacking == 1 else f"{lacking} runs of its plan are"
        least = "at least " if material.settings.half_width is not None else ""
        found.append(f"The study is not complete: {least}{runs} still to be done.")
    return found


def _lacking(material: Material) -> int:
    """Runs of the plan that were not done; what an arm that cannot run or always failed lacks is not counted."""
    blocks = blocks_needed(material.arms, material.runs, material.settings, narrow_enough)
    return sum(runs_left(material.arms, material.runs, blocks).values())


def commands(material: Material) -> list[str]:
    """The whole command that the recommendation asks for, and where no arm ran just that, the one that measures it."""
    found, common = material.analysis.recommendation, material.plan.get("overrides", [])
    if not found.overrides:
        return []
    measuring = ["study=arms", *common, f"+study.arms.chosen=[{','.join(found.overrides)}]"]
    wanted = [[*common, *found.overrides], *([measuring] if found.measured_by is None else [])]
    return [clean(shell(["python", "train.py", *own])) for own in wanted]
