"""How jobs are started and how their ends are told; small programs take the place of train.py."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from framework.mistakes import ConfigError
from framework.study import process
from framework.study.launcher import _slots
from framework.study.process import Job, Outcome, one_by_one

FRONT_DOOR = Path(__file__).parents[2] / "train.py"
NOTE = 'print("gearshift: perf.channels_last changes nothing here")\n'


def outcome(folder: Path, monkeypatch: pytest.MonkeyPatch, program: str) -> Outcome:
    door = folder / "door.py"
    door.write_text(program, encoding="utf-8")
    monkeypatch.setattr(process, "FRONT_DOOR", door)
    ends: list[Outcome] = []
    one_by_one([(0, Job((), folder / "job"))], lambda _, end: ends.append(end))
    return ends[0]


@pytest.mark.parametrize(
    ("program", "status", "reason"),
    [
        (NOTE + 'raise ValueError("far off")', "failed", "ValueError: far off"),
        (NOTE + "import sys; sys.exit(3)", "skipped", "perf.channels_last changes nothing here"),
        ("import os, signal; print('step 20'); os.kill(os.getpid(), signal.SIGKILL)", "failed", "ended by SIGKILL"),
        ("import sys; sys.exit(7)", "failed", "exit code 7"),
    ],
)
def test_the_reason_is_the_error_and_no_line_that_happens_to_be_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: str, status: str, reason: str
) -> None:
    end = outcome(tmp_path, monkeypatch, program)
    assert (end.status, end.reason) == (status, reason)


@pytest.mark.parametrize(
    ("gpus", "visible", "slots"), [([0, 1], None, ["0", "1"]), ([1, 0], "4, GPU-7", ["GPU-7", "4"]), ([3], None, ["3"])]
)
def test_gpus_are_numbered_as_the_user_sees_them(
    monkeypatch: pytest.MonkeyPatch, gpus: list[int], visible: str | None, slots: list[str]
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert [slot["CUDA_VISIBLE_DEVICES"] for slot in _slots(gpus)] == slots


@pytest.mark.parametrize(("gpus", "says"), [([0, 0], "twice"), ([2], "no such one"), ([-1], "no such one")])
def test_a_gpu_that_is_not_there_or_is_named_twice_is_refused(
    monkeypatch: pytest.MonkeyPatch, gpus: list[int], says: str
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5")
    with pytest.raises(ConfigError, match=says):
        _slots(gpus)


def test_jobs_find_the_configs_of_their_parent_and_start_no_sweep_of_their_own(tmp_path: Path) -> None:
    """The experiment keeps a sweep in its file, as Hydra allows, and lies in a folder that only --config-dir names."""
    (tmp_path / "conf" / "experiment").mkdir(parents=True)
    text = "# @package _global_\nhydra: {mode: MULTIRUN, sweeper: {params: {seed: '1,2'}}}\ntrain: {max_steps: 2}\n"
    (tmp_path / "conf" / "experiment" / "mine.yaml").write_text(text, encoding="utf-8")
    command = [sys.executable, str(FRONT_DOOR), "--config-dir", "conf", "experiment=mine", "hydra.sweep.dir=sweep"]
    there = os.environ | {"CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(command, cwd=tmp_path, env=there, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stdout + done.stderr
    assert sorted(path.parent.name for path in (tmp_path / "sweep").rglob("summary.json")) == ["0", "1"]
