"""The plan of a study: which arm runs when, where its results lie, and how it goes on where it stopped."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from framework.mistakes import ConfigError
from framework.study.model import Arm, Kind, RunRecord, StudySettings

PLAN, RUNS = "plan.json", "runs.jsonl"


@dataclass(frozen=True)
class Slot:
    """A place in the plan: `arm` runs in `block`, at `position` in the order of the whole study."""

    position: int
    block: int
    arm: Arm


def block_order(arms: Sequence[Arm], block: int, seed: int) -> list[Slot]:
    """Every arm once, in an order drawn from the study's seed and the block's number alone."""
    drawn = list(arms)
    random.Random(f"{seed}/{block}").shuffle(drawn)
    return [Slot(block * len(arms) + n, block, arm) for n, arm in enumerate(drawn)]


def claim(
    folder: Path, arms: Sequence[Arm], settings: StudySettings, overrides: Sequence[str], commit: str | None = None
) -> list[RunRecord]:
    """Writes the plan into `folder` and returns the runs that were done before, none in a new one.

    `commit` joins those under which the study ran before. Errors: ConfigError where the folder holds another study.
    """
    plan = json.loads(json.dumps({"arms": [arm_json(arm) for arm in arms], "overrides": list(overrides)}))
    path = folder / PLAN
    folder.mkdir(parents=True, exist_ok=True)
    before = json.loads(path.read_text(encoding="utf-8")) if path.exists() else None
    if before is not None and {key: before.get(key) for key in plan} != plan:
        raise ConfigError(
            f"hydra.sweep.dir={folder} holds a study of other arms or overrides: name another folder, or start that "
            "very study again to go on with it."
        )
    for key, told in (before or {}).get("settings", {}).items():
        asked = asdict(settings)[key]
        if told != asked and key in ("seed", "compile_cache"):
            raise ConfigError(f"study.{key}={asked} would mix two studies in {folder}: go on with study.{key}={told}.")
    if before is None and any(folder.glob("*/summary.json")):
        raise ConfigError(f"hydra.sweep.dir={folder} holds the runs of a sweep: name another folder for the study.")
    commits = list(dict.fromkeys([*(before or {}).get("commits", []), commit]))
    whole = plan | {"settings": asdict(settings), "commits": [one for one in commits if one]}
    part = path.with_suffix(".part")
    part.write_text(json.dumps(whole, indent=1), encoding="utf-8")
    part.replace(path)
    return list(read_runs(folder))


def arm_json(arm: Arm) -> dict[str, Any]:
    """An arm as plain values."""
    return asdict(arm) | {"kind": arm.kind.value}


def read_plan(folder: Path) -> tuple[list[Arm], StudySettings, dict[str, Any]]:
    """Arms, settings and the whole plan. Errors: ConfigError where `folder` holds no study."""
    path = folder / PLAN
    if not path.exists():
        raise ConfigError(f"{folder} holds no study: {PLAN} is missing.")
    plan = json.loads(path.read_text(encoding="utf-8"))
    arms = [Arm(**_tuples(one) | {"kind": Kind(one["kind"])}) for one in plan["arms"]]
    return arms, StudySettings(**plan["settings"]), plan


def _tuples(one: dict[str, Any]) -> dict[str, Any]:
    return {key: tuple(value) if isinstance(value, list) else value for key, value in one.items()}


def append(folder: Path, run: RunRecord) -> None:
    """Adds a run to the record, on disk before this returns. A line that was cut off gives way."""
    path = folder / RUNS
    if path.exists():
        os.truncate(path, path.read_bytes().rfind(b"\n") + 1)
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(asdict(run)) + "\n")
        file.flush()
        os.fsync(file.fileno())


def read_runs(folder: Path) -> Iterator[RunRecord]:
    """The runs on record. A last line that was cut off is a run that is to be done again."""
    path = folder / RUNS
    if not path.exists():
        return
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            yield RunRecord(**json.loads(line))
        except json.JSONDecodeError:
            return
