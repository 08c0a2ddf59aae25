"""Planted effects are found, and nothing else: whole studies on the CPU, through the real command."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slow
FRONT_DOOR = Path(__file__).parents[2] / "train.py"
MODULE = '''
import time, torch
from torch.utils.data import get_worker_info

from framework.data.digits import Digits

class Faulty(Digits):
    """A loader worker reads other values than this process, so that perf.workers changes the losses."""

    def __getitem__(self, index):
        image, label = super().__getitem__(index)
        return image * (1.0 if get_worker_info() is None else 1.001), label

class Sleeper(torch.nn.Module):
    """Sleeps a known time in each training step, so that an arm's effect is known too."""

    def __init__(self, ms: float = 40.0, broken: bool = False):
        super().__init__()
        self.layer, self.ms, self.broken = torch.nn.Linear(64, 10), ms, broken

    def forward(self, x):
        if self.broken:
            raise RuntimeError("planted crash")
        if self.training:
            time.sleep(self.ms / 1e3)
        return self.layer(x.flatten(1))
'''
COMMON = [
    *("model=custom", "model._target_=sleeper_of_the_test.Sleeper", "device=cpu", "optim=sgd", "optim.lr=0.01"),
    *("train.max_steps=14", "meter.warmup_steps=4", "hydra.sweep.dir=study"),
]


def start(folder: Path, *overrides: str) -> subprocess.Popen[str]:
    (folder / "sleeper_of_the_test.py").write_text(MODULE, encoding="utf-8")
    command = [sys.executable, str(FRONT_DOOR), *overrides, *COMMON]
    return subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def report(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "study" / "report.json").read_text(encoding="utf-8"))
    return found


@pytest.mark.timing
def test_planted_effects_are_found_and_nothing_else(tmp_path: Path) -> None:
    arms = [
        "+study.arms.slower=['+model.ms=48']",
        "+study.arms.same=['+model.ms=40']",
        "+study.arms.crash=['+model.broken=true']",
    ]
    process = start(tmp_path, "study=arms", "study.blocks=5", "study.smallest_effect=0.05", *arms)
    output, _ = process.communicate(timeout=500)
    assert process.returncode == 0, output
    rows = {row["arm"]: row for row in report(tmp_path)["analysis"]["named"]}
    assert rows["slower"]["verdict"] == "slower"
    assert 1 / rows["slower"]["speedup"]["estimate"] == pytest.approx(1.2, abs=0.05)
    assert rows["same"]["verdict"] in ("no effect", "undecided")
    assert rows["crash"]["verdict"] == "failed"
    assert "planted crash" in rows["crash"]["reason"]
    assert rows["same"]["numbers"]["verdict"] == "same"


def test_a_switch_that_does_nothing_is_not_active_and_an_interrupted_study_goes_on(tmp_path: Path) -> None:
    techniques = ["study=techniques", "study.techniques=[channels_last,prefetch]", "study.blocks=2"]
    process = start(tmp_path, *techniques)
    runs = tmp_path / "study" / "runs.jsonl"
    deadline = time.time() + 200
    while time.time() < deadline and not (runs.exists() and len(runs.read_text(encoding="utf-8").splitlines()) >= 3):
        time.sleep(0.2)
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 130, output
    before = runs.read_text(encoding="utf-8").splitlines()
    process = start(tmp_path, *techniques)
    output, _ = process.communicate(timeout=400)
    assert process.returncode == 0, output
    after = runs.read_text(encoding="utf-8").splitlines()
    assert after[: len(before)] == before
    ran = [json.loads(line) for line in after]
    assert sorted((one["arm"], one["block"]) for one in ran if one["status"] == "ok") == sorted(
        (arm, block) for arm in ("baseline", "control", "channels_last") for block in range(2)
    )
    rows = {row["technique"]: row for row in report(tmp_path)["analysis"]["techniques"]}
    assert rows["channels_last"]["alone"]["verdict"] == "not active"
    assert rows["prefetch"]["alone"]["verdict"] == "skipped"
    assert "CUDA" in rows["prefetch"]["alone"]["reason"]
    page = (tmp_path / "study" / "report.html").read_text(encoding="utf-8")
    assert "not active" in page
    assert "skipped" in page


def test_a_technique_that_changes_the_loss_is_caught_and_one_that_does_not_is_not_accused(tmp_path: Path) -> None:
    """The losses depend on the seeds alone, so that no outcome depends on time."""
    arms = [
        "+study.arms.faulty=['perf.workers=1']",
        "+study.arms.honest=['perf.log_every=7']",
        "+study.arms.rate=['optim.lr=1']",
    ]
    faulty = ["data.train._target_=sleeper_of_the_test.Faulty", "+model.ms=1"]
    process = start(tmp_path, "study=arms", "study.blocks=2", *arms, *faulty)
    output, _ = process.communicate(timeout=400)
    assert process.returncode == 0, output
    found = report(tmp_path)
    numbers = {row["arm"]: row["numbers"] for row in found["analysis"]["named"]}
    assert {arm: one["verdict"] for arm, one in numbers.items()} == {
        "faulty": "differs",
        "honest": "same",
        "rate": "differs",
    }
    assert (
        numbers["faulty"]["reason"]
        == "losses part at step 1 of block 1; the baseline's repeats are bit-equal in 2 blocks"
    )
    assert numbers["rate"]["reason"].startswith("final loss differs by -")
    page = (tmp_path / "study" / "report.html").read_text(encoding="utf-8")
    assert "losses part at step 1 of block 1" in page
    assert found["analysis"]["repeats"] == "Baseline and control have bit-equal losses in 2 of 2 blocks."
    assert found["machine"]["gpu_neighbours"] is None
    assert found["machine"]["why_unseen"] == "the run is not on a GPU"


def blocks_run(folder: Path) -> list[int]:
    lines = (folder / "study" / "runs.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line)["block"] for line in lines]


def test_blocks_are_added_until_the_most_and_none_once_intervals_are_narrow(tmp_path: Path) -> None:
    """No interval of times is as narrow as 1e-9; every one is as narrow as 1e9, so that study needs no block more."""
    for width, most in (("1e-9", 6), ("1e9", 9)):
        settings = [f"study.half_width={width}", "study.blocks=5", f"study.max_blocks={most}"]
        process = start(tmp_path, "study=control", "study.controls=1", "+model.ms=1", *settings)
        output, _ = process.communicate(timeout=400)
        assert process.returncode == 0, output
        assert f"5 to {most} blocks" in output
        assert blocks_run(tmp_path) == [block for block in range(6) for _ in range(2)]
    assert report(tmp_path)["settings"]["half_width"] == 1e9


def test_a_study_in_another_studys_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "study").mkdir()
    (tmp_path / "study" / "plan.json").write_text('{"arms": [], "overrides": [], "settings": {}}', encoding="utf-8")
    process = start(tmp_path, "study=control")
    output, _ = process.communicate(timeout=100)
    assert process.returncode == 2
    assert "holds a study of other arms" in output
