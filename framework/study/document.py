"""report.json: all of a study in one file, so that every figure can be computed again.

schema      1; grows when a field changes its meaning
machine     devices: the distinct `device` of the runs' summaries; versions: likewise; git_commits;
            gpu_neighbours: the most other processes that a run saw on its GPU, null with `why_unseen` where none could
settings    `StudySettings`: how the study was planned and is judged
plan        plan.json as it lies in the folder: arms (see `Arm`), the overrides common to all, settings
runs        every run in the order in which they ran (see `RunRecord`), with its whole summary.json (see `Summary`)
analysis    what is concluded (see `Analysis`); ratios are plain, 1.02 is 2 % faster; null where not known

`plan` and one line for each of `runs`, written as plan.json and runs.jsonl, make the study's folder again.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from framework.study.material import Material, unlike

SCHEMA = 1


def document(material: Material) -> dict[str, Any]:
    """The contents of report.json as plain values; numbers that JSON lacks become null."""
    summaries = [run.summary for run in material.runs]
    found: dict[str, Any] = _plain(
        {
            "schema": SCHEMA,
            "machine": {
                "devices": unlike(one for summary in summaries if (one := summary.get("device"))),
                "versions": unlike(one for summary in summaries if (one := summary.get("versions"))),
                "git_commits": list(material.commits),
                **_neighbours(summaries),
            },
            "settings": asdict(material.settings),
            "plan": material.plan,
            "analysis": asdict(material.analysis),
            "runs": [asdict(run) for run in material.runs],
        }
    )
    return found


def text(found: dict[str, Any]) -> str:
    """The file, without a character that is not ASCII."""
    return json.dumps(found, indent=1, allow_nan=False) + "\n"


def _neighbours(summaries: Sequence[dict[str, Any]]) -> dict[str, Any]:
    seen = [count for one in summaries if (count := one.get("gpu_neighbours")) is not None]
    why = [why for one in summaries if (why := one.get("missing", {}).get("gpu_neighbours"))]
    return {"gpu_neighbours": max(seen, default=None), "why_unseen": None if seen else next(iter(why), "no run told")}


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
