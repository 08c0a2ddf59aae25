"""Sweeps and studies through submitit's launchers, by the real command; Slurm itself is played by three scripts."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from framework.study.carrier import errand
from framework.study.process import Job

pytestmark = pytest.mark.slow
PROJECT = Path(__file__).parents[2]
MODULE = '''
import os, signal, time, torch

class Net(torch.nn.Module):
    """Ends as it is told to, and records its process."""

    def __init__(self, end: str = "well", seconds: float = 0.0):
        super().__init__()
        self.layer, self.end, self.seconds = torch.nn.Linear(64, 10), end, seconds
        print("process", os.getpid(), "launched by", os.environ.get("SUBMITIT_EXECUTOR"))

    def forward(self, x):
        if self.end == "crash":
            raise RuntimeError("planted crash")
        if self.end == "lost":  # as where a machine breaks down: not even the launcher's process is left
            os.kill(os.getppid(), signal.SIGKILL)
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(self.seconds)
        return self.layer(x.flatten(1))
'''
COMMON = ["optim=sgd", "optim.lr=0.01", "train.max_steps=8", "meter.warmup_steps=1", "hydra.sweep.dir=sweep"]
OWN = ["model=custom", "model._target_=net_of_the_test.Net"]
LOCAL = "hydra/launcher=submitit_local"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "net_of_the_test.py").write_text(MODULE, encoding="utf-8")
    return tmp_path


def start(folder: Path, *overrides: str, **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, str(PROJECT / "train.py"), *overrides, *COMMON],
        cwd=folder,
        env=os.environ | {"CUDA_VISIBLE_DEVICES": "", "TMPDIR": str(folder)} | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def status(folder: Path) -> dict[str, str]:
    found = sorted((folder / "sweep").glob("*/summary.json"))
    return {path.parent.name: json.loads(path.read_text(encoding="utf-8"))["status"] for path in found}


def runs(folder: Path) -> list[dict[str, Any]]:
    path = folder / "sweep" / "runs.jsonl"
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []


def test_a_job_that_crashes_is_lost_or_misconfigured_is_told_of_and_the_others_run(folder: Path) -> None:
    ends = "+model.end=crash,lost,well"
    process = start(folder, "-m", LOCAL, *OWN, ends, "seed=0,-1")
    output, _ = process.communicate(timeout=400)
    assert process.returncode == 1, output
    rows = {line.split()[0]: line for line in output.splitlines() if "+model.end=" in line and line[:1].isdigit()}
    assert [rows[n].split()[1] for n in sorted(rows)] == ["failed"] * 4 + ["ok", "failed"], output
    assert "planted crash" in rows["0"]
    assert "has not produced any output" in rows["2"]
    assert all("seed=-1 is" in rows[n] for n in "135")
    assert status(folder)["0"] == "failed"
    assert status(folder)["4"] == "completed"
    logs = [(folder / "sweep" / n / "job.log").read_text(encoding="utf-8") for n in "024"]
    assert all("launched by local" in log for log in logs)
    assert len({log.split("process ")[1].split()[0] for log in logs}) == 3
    process = start(folder, "-m", LOCAL, *OWN, "+model.end=well", "hydra.launcher.timeout_min=5")
    output, _ = process.communicate(timeout=100)
    assert process.returncode == 0, output  # job 0 failed before, and runs again
    assert status(folder)["0"] == "completed"


SITE = '''
import os, sys
import framework.environment
framework.environment.look = lambda: framework.environment.Machine((2, 14), True, 1)

def record(event, arguments):
    """Writes the variable down at the moment at which torch begins to be imported."""
    if event == "import" and arguments[0] == "torch":
        with open(os.path.join({folder!r}, f"torch-{{os.getpid()}}"), "w") as file:
            file.write(str(os.environ.get("PYTORCH_ALLOC_CONF")) + " " + str(os.environ.get("OF_THE_JOB")))

sys.addaudithook(record)
'''


def test_the_allocators_variable_is_in_place_before_torch_is_imported_in_each_job(folder: Path) -> None:
    (folder / "sitecustomize.py").write_text(SITE.format(folder=str(folder)), encoding="utf-8")
    settings = ["expandable_segments:True", "nonsense", "max_split_size_mb:64", "null"]
    quoted = ",".join(f"'{one}'" if one != "null" else one for one in settings)
    process = start(
        folder,
        *("-m", LOCAL, f"perf.allocator={quoted}", "+hydra.job.env_set.OF_THE_JOB=here"),
        PYTHONPATH=os.pathsep.join([str(folder), str(PROJECT)]),
    )
    output, _ = process.communicate(timeout=200)
    assert "'nonsense' should read KEY:VALUE" in output
    seen = sorted(path.read_text(encoding="utf-8") for path in folder.glob("torch-*"))
    assert seen == ["None here", "expandable_segments:True here", "max_split_size_mb:64 here"], output


def test_a_study_runs_one_job_at_a_time_and_once_interrupted_goes_on(folder: Path) -> None:
    study = ["study=arms", "study.blocks=2", LOCAL, "device=cpu", *OWN, "+model.seconds=0.02"]
    study += ["+study.arms.same=['seed=5']", "+study.arms.crash=['+model.end=crash']"]
    process = start(folder, *study)
    deadline = time.time() + 200
    while time.time() < deadline and not (len(runs(folder)) >= 2 and running(folder, len(runs(folder)))):
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 130, output
    before = runs(folder)
    assert "interrupted" in {status_of(path) for path in (folder / "sweep" / "runs").iterdir()}
    process = start(folder, *study)
    output, _ = process.communicate(timeout=400)
    assert process.returncode == 0, output
    after = runs(folder)
    assert after[: len(before)] == before
    assert sorted((one["arm"], one["block"]) for one in after if one["status"] == "ok") == sorted(
        (arm, block) for arm in ("baseline", "control", "same") for block in range(2)
    )
    assert [one["status"] for one in after if one["arm"] == "crash"] == ["failed", "failed"]
    assert all(one["started"] + one["seconds"] <= other["started"] for one, other in pairwise(after))
    report = json.loads((folder / "sweep" / "report.json").read_text(encoding="utf-8"))
    rows = {row["arm"]: row for row in report["analysis"]["named"]}
    assert rows["same"]["speedup"] is not None
    assert rows["crash"]["verdict"] == "failed"
    assert "planted crash" in rows["crash"]["reason"]
    logs = [path.read_text(encoding="utf-8") for path in (folder / "sweep" / "runs").glob("*/job.log")]
    assert len(logs) == 8
    assert all("launched by local" in log for log in logs)


def running(folder: Path, done: int) -> bool:
    """Whether one run more than those done has come to train."""
    return len(list((folder / "sweep" / "runs").glob("*/events.*"))) > done


def status_of(run: Path) -> str | None:
    path = run / "summary.json"
    return json.loads(path.read_text(encoding="utf-8"))["status"] if path.exists() else None


SBATCH = '''#!{python}
"""Starts the batch script at once, and says its number."""
import os, pathlib, subprocess, sys
script = pathlib.Path(sys.argv[1]).read_text()
environment = os.environ | {{"SLURM_JOB_NUM_NODES": "1", "SLURM_NODEID": "0", "SLURM_JOB_NODELIST": "node"}}
environment |= {{"SLURM_NTASKS": "1", "SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_JOB_ID": str(os.getpid())}}
quiet = {{"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}}
subprocess.Popen(["bash", "-c", script], env=environment, start_new_session=True, **quiet)
print("Submitted batch job", os.getpid())
'''
SRUN = """#!/bin/bash
while [[ $1 == --* ]]; do [[ $1 == --unbuffered ]] && shift || shift 2; done
exec "$@"
"""
SACCT = "#!/bin/bash\necho 'JobID|State|NodeList'\n"


def slurm(folder: Path) -> str:
    """A PATH on which the commands of Slurm are played."""
    (folder / "bin").mkdir()
    for name, text in {"sbatch": SBATCH.format(python=sys.executable), "srun": SRUN, "sacct": SACCT}.items():
        (folder / "bin" / name).write_text(text, encoding="utf-8")
        (folder / "bin" / name).chmod(0o755)
    return os.pathsep.join([str(folder / "bin"), os.environ["PATH"]])


def test_on_slurm_a_block_goes_to_the_scheduler_as_a_whole_and_each_job_looks_at_its_own_machine(folder: Path) -> None:
    study = ["study=arms", "study.blocks=1", *OWN, "+model.seconds=1", "+study.arms.tf32=['perf.tf32=true']"]
    launcher = ["hydra/launcher=submitit_slurm", "hydra.launcher.array_parallelism=3"]
    process = start(folder, *study, *launcher, PATH=slurm(folder))
    output, _ = process.communicate(timeout=200)
    assert process.returncode == 0, output
    ran = {one["arm"]: one for one in runs(folder)}
    assert {name: one["status"] for name, one in ran.items()} == {"baseline": "ok", "control": "ok", "tf32": "skipped"}
    assert ran["tf32"]["position"] >= 0, "it was skipped before any job had looked"
    assert "needs a CUDA device" in ran["tf32"]["reason"]
    one, other = ran["baseline"], ran["control"]
    assert max(one["started"], other["started"]) < min(x["started"] + x["seconds"] for x in (one, other))
    log = folder / "sweep" / "runs" / f"{one['position']:04d}" / "job.log"
    assert "launched by slurm" in log.read_text(encoding="utf-8")


def test_a_job_that_a_scheduler_starts_after_the_sweep_was_stopped_does_nothing(tmp_path: Path) -> None:
    (tmp_path / "stop").touch()
    outcome = errand(Job(("no_such_key=1",), tmp_path / "job"), tmp_path / "stop", OmegaConf.create())
    assert outcome.status == "interrupted"
    assert not (tmp_path / "job").exists()


def test_a_job_that_a_scheduler_starts_again_begins_anew_and_keeps_what_the_first_attempt_left(tmp_path: Path) -> None:
    (tmp_path / "job").mkdir()
    (tmp_path / "job" / "job.log").write_text("first attempt", encoding="utf-8")
    outcome = errand(Job(("no_such_key=1",), tmp_path / "job"), tmp_path / "stop", OmegaConf.create())
    assert outcome.status == "failed"
    assert "no_such_key" in (outcome.reason or "")
    assert (tmp_path / "attempts" / "job-0" / "job.log").read_text(encoding="utf-8") == "first attempt"
