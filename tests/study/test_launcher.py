"""Every job of a sweep in its own process, through the real command."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

FRONT_DOOR = Path(__file__).parents[2] / "train.py"
SMALL = ["data.count=null", "train.epochs=1", "train.max_steps=2", "device=cpu"]
MODULE = '''
import os, time, torch

class Net(torch.nn.Module):
    """Fails, waits or records its process, as it is told to."""

    def __init__(self, fail: bool = False, seconds: float = 0.0, name: str = ""):
        super().__init__()
        self.layer, self.fail, self.seconds = torch.nn.Linear(64, 10), fail, seconds
        print("process", os.getpid(), os.environ.get("CUDA_VISIBLE_DEVICES"), name)

    def forward(self, x):
        if self.fail:
            raise RuntimeError("this job was told to fail")
        time.sleep(self.seconds)
        return self.layer(x.flatten(1))
'''
OWN = ["model=custom", "model._target_=net_of_the_test.Net"]


def sweep(folder: Path, *overrides: str, timeout: float = 240) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(FRONT_DOOR), "-m", *SMALL, *OWN, *overrides, "hydra.sweep.dir=sweep"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=timeout, check=False)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "net_of_the_test.py").write_text(MODULE, encoding="utf-8")
    return tmp_path


def summaries(folder: Path) -> dict[str, dict[str, object]]:
    return {
        path.parent.name: json.loads(path.read_text(encoding="utf-8"))
        for path in sorted((folder / "sweep").glob("*/summary.json"))
    }


@pytest.mark.slow
def test_A03_A10_a_failing_job_is_told_of_and_finished_jobs_are_not_run_again(folder: Path) -> None:
    done = sweep(folder, "+model.fail=false,true,true")
    assert done.returncode == 1
    assert "RuntimeError: this job was told to fail" in " ".join(done.stdout.split())
    assert {name: one["status"] for name, one in summaries(folder).items()} == {
        "0": "completed",
        "1": "failed",
        "2": "failed",
    }
    logs = [(folder / "sweep" / name / "job.log").read_text(encoding="utf-8") for name in "012"]
    assert "Traceback" not in logs[0]
    assert all("Traceback" in log and "this job was told to fail" in log for log in logs[1:])
    processes = {log.split("process ")[1].split()[0] for log in logs}
    assert len(processes) == 3
    events = next((folder / "sweep" / "0").glob("events.*"))
    before = (events.stat().st_mtime_ns, events.read_bytes())
    again = sweep(folder, "+model.fail=false,true,true")
    assert again.returncode == 1
    assert "finished before" in again.stdout
    assert (events.stat().st_mtime_ns, events.read_bytes()) == before
    assert len(list((folder / "sweep" / "attempts").iterdir())) == 2
    other = sweep(folder, "+model.fail=true,false,true")
    assert other.returncode == 2
    assert "hydra.sweep.dir" in other.stderr
    assert (events.stat().st_mtime_ns, events.read_bytes()) == before


@pytest.mark.slow
def test_A12_G02_job_folders_are_numbers_and_each_holds_one_tensorboard_run(folder: Path) -> None:
    done = sweep(folder, "+model.name='a/b','[c, d]'", "optim.lr=1e-3,2e-3")
    assert done.returncode == 0, done.stdout + done.stderr
    jobs = [path for path in (folder / "sweep").iterdir() if path.is_dir()]
    assert sorted(path.name for path in jobs) == ["0", "1", "2", "3"]
    for job in jobs:
        assert len(list(job.rglob("events.*"))) == 1
        assert any("model.name" in one for one in json.loads((job / "overrides.json").read_text(encoding="utf-8")))


@pytest.mark.slow
def test_a_job_past_its_time_limit_fails_and_the_next_one_runs(folder: Path) -> None:
    done = sweep(folder, "+model.seconds=300,0", "hydra.launcher.time_limit_s=45")
    assert done.returncode == 1
    assert "time limit of 45 s" in " ".join(done.stdout.split())
    assert summaries(folder)["1"]["status"] == "completed"


@pytest.mark.slow
def test_interrupted_the_running_job_ends_cleanly_and_the_rest_do_not_start(folder: Path) -> None:
    command = [sys.executable, str(FRONT_DOOR), "-m", *SMALL, *OWN, "+model.seconds=30,31", "hydra.sweep.dir=sweep"]
    process = subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    log = folder / "sweep" / "0" / "job.log"
    deadline = time.time() + 60
    while time.time() < deadline and not (log.exists() and list(log.parent.glob("events.*"))):
        time.sleep(0.2)
    time.sleep(1.0)
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "not started" in output
    assert summaries(folder)["0"]["status"] == "interrupted"
    assert not (folder / "sweep" / "1").exists()


def test_F01_J01_each_slot_has_its_environment_and_an_earlier_job_leaves_nothing(tmp_path: Path) -> None:
    from framework.study.process import Job, Outcome, run_jobs

    ended: dict[int, Outcome] = {}
    jobs = [(n, Job((f"no_such_key={n}",), tmp_path / str(n), {"GEARSHIFT_TEST": str(n)})) for n in range(2)]
    run_jobs(jobs, [{"CUDA_VISIBLE_DEVICES": "0"}, {"CUDA_VISIBLE_DEVICES": "1"}], ended.__setitem__)
    assert [ended[n].status for n in range(2)] == ["failed", "failed"]
    assert "no_such_key" in (ended[0].reason or "")
    assert "GEARSHIFT_TEST" not in os.environ


@pytest.mark.slow
def test_the_parent_of_a_sweep_never_imports_torch(folder: Path) -> None:
    (folder / "sitecustomize.py").write_text(
        "import atexit, os, sys\n"
        "atexit.register(lambda: print('torch' in sys.modules, file=open(f'imports-{os.getpid()}', 'w')))\n",
        encoding="utf-8",
    )
    command = [sys.executable, str(FRONT_DOOR), "-m", *SMALL, *OWN, "seed=1,2", "hydra.sweep.dir=sweep"]
    environment = os.environ | {"PYTHONPATH": str(folder)}
    process = subprocess.Popen(command, cwd=folder, env=environment, stdout=subprocess.DEVNULL)
    assert process.wait(200) == 0
    assert (folder / f"imports-{process.pid}").read_text(encoding="utf-8").strip() == "False"
