"""The plan as it is carried out: which runs there are, and when it ends. A stand-in takes the place of training."""

from __future__ import annotations

import tempfile
from contextlib import nullcontext
from pathlib import Path

import pytest

from framework.mistakes import ConfigError
from framework.study import process
from framework.study.analysis import narrow_enough
from framework.study.arms import named_arms
from framework.study.model import StudySettings
from framework.study.process import one_by_one
from framework.study.progress import ATTEMPTS
from framework.study.study import Study

STAND_IN = """
import json, pathlib, sys

told = dict(one.lstrip("+").split("=", 1) for one in sys.argv[1:])
folder = pathlib.Path(told["hydra.run.dir"].strip("'"))
summary = {"status": "completed", "step_ms": float(told.get("ms", 10)) * (1 + 0.01 * (int(told["seed"]) % 3))}
if "short" in told:
    summary = {"status": "completed", "step_ms": None, "missing": {"step_ms": "too few steps"}}
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
    return Study(folder / "study", named_arms(arms), made, (), 1, None, {}, said.append, one_by_one, nullcontext), said


def test_J01_an_arm_out_of_memory_is_given_up_and_the_others_go_on(tmp_path: Path) -> None:
    made, said = study(tmp_path, {"large": ["+out_of_memory=1"], "small": ["+ms=9"]}, blocks=4)
    made.run(narrow_enough)
    ends = {
        arm: [run.status for run in made.runs if run.arm == arm] for arm in ("baseline", "control", "large", "small")
    }
    assert ends == {arm: ["ok"] * 4 for arm in ("baseline", "control", "small")} | {"large": ["failed"] * ATTEMPTS}
    assert {run.reason for run in made.runs if run.arm == "large"} == {"OutOfMemoryError: no room"}
    assert sum("OutOfMemoryError: no room" in line for line in said) == ATTEMPTS


def test_a_baseline_that_fails_ends_the_study_before_it_begins(tmp_path: Path) -> None:
    made, _ = study(tmp_path, {"small": ["+ms=9"]}, blocks=9)
    made.overrides = ("+out_of_memory=1",)
    with pytest.raises(ConfigError, match="nothing to compare with: OutOfMemoryError: no room"):
        made.run(narrow_enough)
    assert made.runs == []


@pytest.mark.parametrize("blocks", [1, 9])
def test_a_baseline_that_fails_later_ends_the_study_too(tmp_path: Path, blocks: int) -> None:
    made, _ = study(tmp_path, {"small": ["+ms=9"]}, blocks=blocks)
    rehearsal = made.folder / "rehearsal" / "baseline"
    rehearsal.mkdir(parents=True)
    (rehearsal / "summary.json").write_text('{"status": "completed"}', encoding="utf-8")
    made.overrides = ("+out_of_memory=1",)
    with pytest.raises(ConfigError, match="nothing to compare with: OutOfMemoryError: no room"):
        made.run(narrow_enough)
    failed = [run.status for run in made.runs if run.arm == "baseline"]
    assert failed == ["failed"] * min(blocks, ATTEMPTS)


def test_a_run_without_a_step_time_counts_as_failed(tmp_path: Path) -> None:
    made, _ = study(tmp_path, {"short": ["+short=1"]}, blocks=3)
    made.run(narrow_enough)
    short = [run for run in made.runs if run.arm == "short"]
    assert [(run.status, run.reason) for run in short] == [("failed", "no step time: too few steps")] * ATTEMPTS


def test_the_plan_tells_how_long_it_takes_and_nothing_that_was_rehearsed_is_measured(tmp_path: Path) -> None:
    made, said = study(tmp_path, {"small": ["+ms=9"]}, blocks=2)
    made.run(narrow_enough)
    before = next(number for number, line in enumerate(said) if line.startswith("block 1"))
    assert any(line.startswith("the baseline takes") and line.endswith("min") for line in said[:before])
    assert len(made.runs) == 6
    again, said = study(tmp_path, {"small": ["+ms=9"]}, blocks=3)
    again.run(narrow_enough)
    assert not any(line.startswith("the baseline takes") for line in said)


def test_with_a_warm_cache_what_compiles_is_rehearsed_once(tmp_path: Path) -> None:
    made, said = study(tmp_path, {"fast": ["+ms=9"], "broken": ["+out_of_memory=1"]}, blocks=2, compile_cache="warm")
    made.compiling = frozenset({"fast", "broken"})
    made.run(narrow_enough)
    rehearsed = [line.removeprefix("rehearsed ") for line in said if line.startswith("rehearsed")]
    assert [line.split(",")[0] for line in rehearsed] == ["fast", "broken"]
    assert rehearsed[1].endswith("OutOfMemoryError: no room")
    again, said = study(tmp_path, {"fast": ["+ms=9"], "broken": ["+out_of_memory=1"]}, blocks=3, compile_cache="warm")
    again.compiling = made.compiling
    again.run(narrow_enough)
    assert not any(line.startswith("rehearsed fast") for line in said)


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
