"""The plan as it is carried out: which runs there are, and when it ends. A stand-in takes the place of training."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from framework.mistakes import ConfigError
from framework.study import process
from framework.study.analysis import narrow_enough
from framework.study.arms import named_arms
from framework.study.model import StudySettings
from framework.study.progress import ATTEMPTS
from framework.study.study import Study

STAND_IN = """
import json, pathlib, sys

told = dict(one.lstrip("+").split("=", 1) for one in sys.argv[1:])
folder = pathlib.Path(told["hydra.run.dir"].strip("'"))
summary = {"status": "completed", "step_ms": float(told.get("ms", 10)) * (1 + 0.01 * (int(told["seed"]) % 3))}
if "out_of_memory" in told:
    summary = {"status": "failed", "error": "OutOfMemoryError: no room"}
(folder / "summary.json").write_text(json.dumps(summary))
sys.exit(summary["status"] != "completed")
"""


@pytest.fixture(autouse=True)
def _stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "stand_in.py").write_text(STAND_IN, encoding="utf-8")
    monkeypatch.setattr(process, "FRONT_DOOR", tmp_path / "stand_in.py")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


def study(folder: Path, arms: dict[str, list[str]], **settings: float) -> tuple[Study, list[str]]:
    said: list[str] = []
    made = StudySettings(**settings)
    return Study(folder / "study", named_arms(arms), made, (), 1, None, {}, said.append), said


def test_J01_an_arm_out_of_memory_is_given_up_and_the_others_go_on(tmp_path: Path) -> None:
    made, said = study(tmp_path, {"large": ["+out_of_memory=1"], "small": ["+ms=9"]}, blocks=4)
    made.run(narrow_enough)
    ends = {
        arm: [run.status for run in made.runs if run.arm == arm] for arm in ("baseline", "control", "large", "small")
    }
    assert ends == {arm: ["ok"] * 4 for arm in ("baseline", "control", "small")} | {"large": ["failed"] * ATTEMPTS}
    assert {run.reason for run in made.runs if run.arm == "large"} == {"OutOfMemoryError: no room"}
    assert sum("OutOfMemoryError: no room" in line for line in said) == ATTEMPTS


def test_a_baseline_that_fails_ends_the_study(tmp_path: Path) -> None:
    made, _ = study(tmp_path, {"small": ["+ms=9"]}, blocks=9)
    made.overrides = ("+out_of_memory=1",)
    with pytest.raises(ConfigError, match="nothing to compare with: OutOfMemoryError: no room"):
        made.run(narrow_enough)
    assert [run.status for run in made.runs if run.arm == "baseline"] == ["failed"] * ATTEMPTS


@pytest.mark.parametrize(
    ("settings", "blocks"),
    [
        ({"blocks": 3}, 3),
        ({"blocks": 3, "half_width": 1e9, "max_blocks": 6}, 3),
        ({"blocks": 1, "half_width": 1e9, "max_blocks": 6}, 2),
        ({"blocks": 3, "half_width": 1e-99, "max_blocks": 4}, 4),
    ],
)
def test_a_study_has_as_many_blocks_as_its_widths_ask_for(
    tmp_path: Path, settings: dict[str, float], blocks: int
) -> None:
    made, _ = study(tmp_path, {"odd": ["+ms=11"]}, **settings)
    made.run(lambda arms, runs, asked: asked.half_width == 1e9 and len({run.block for run in runs}) > 1)
    assert sorted(run.block for run in made.runs) == [block for block in range(blocks) for _ in range(3)]
