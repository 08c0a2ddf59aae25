"""Every job of a sweep in its own process, through the real command."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import yaml
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from framework.study import process
from framework.study.process import Job, Outcome, run_jobs

PROJECT = Path(__file__).parents[2]
FRONT_DOOR = PROJECT / "train.py"
SMALL = ["data.batch_size=4", "data.count=null", "train.epochs=1", "train.max_steps=2", "device=cpu"]
MODULE = '''
import os, time, torch

class Net(torch.nn.Module):
    """Takes 4 MiB a row in training, and waits or records its process, as it is told to; some batches fail."""

    def __init__(self, seconds: float = 0.0, name: str = "", waits_for: str = ""):
        super().__init__()
        self.layer, self.seconds, self.waits_for = torch.nn.Linear(64, 10), seconds, waits_for
        print("process", os.getpid(), name)

    def forward(self, x):
        if not self.training:
            return self.layer(x.flatten(1))
        held = torch.ones(len(x), 2**20)
        if len(x) == 64:
            raise torch.OutOfMemoryError("this batch was told not to fit")
        if len(x) == 96:
            raise RuntimeError("this job was told to fail")
        end = time.monotonic() + 60  # so that a test that fails leaves nothing behind for long
        while self.waits_for and not os.path.exists(self.waits_for) and time.monotonic() < end:
            time.sleep(0.05)
        time.sleep(self.seconds)
        return self.layer(x.flatten(1))
'''
OWN = ["model=custom", "model._target_=net_of_the_test.Net"]
THERE = "hydra.sweep.dir=sweep"
MIXED = "data.batch_size=4,32,64,96,4"  # small, large, out of memory, failing, and the first once more


def start(folder: Path, *overrides: str, **environment: str) -> subprocess.Popen[str]:
    command = [sys.executable, str(FRONT_DOOR), *overrides]
    return subprocess.Popen(
        command,
        cwd=folder,
        env=os.environ | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def ended(running: subprocess.Popen[str], seconds: float = 240) -> subprocess.CompletedProcess[str]:
    output, errors = running.communicate(timeout=seconds)
    return subprocess.CompletedProcess(running.args, running.returncode, output, errors)


def sweep(folder: Path, *overrides: str) -> subprocess.CompletedProcess[str]:
    return ended(start(folder, "-m", *SMALL, *OWN, *overrides))


def prepared(folder: Path) -> Path:
    (folder / "net_of_the_test.py").write_text(MODULE, encoding="utf-8")
    return folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return prepared(tmp_path)


def summaries(folder: Path) -> dict[str, dict[str, Any]]:
    return {
        path.parent.name: json.loads(path.read_text(encoding="utf-8"))
        for path in sorted((folder / "sweep").glob("*/summary.json"))
    }


def log(folder: Path, job: str) -> str:
    return (folder / "sweep" / job / "job.log").read_text(encoding="utf-8")


def contents(job: Path) -> dict[str, tuple[int, bytes]]:
    return {path.name: (path.stat().st_mtime_ns, path.read_bytes()) for path in job.iterdir()}


def wait_until(there: Path, seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not there.exists():
        assert time.monotonic() < deadline, f"{there} did not appear"
        time.sleep(0.05)


@dataclass(frozen=True)
class Swept:
    """A sweep that is over."""

    folder: Path
    parent: int
    done: subprocess.CompletedProcess[str]


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> Swept:
    """A sweep in which two jobs of five fail."""
    folder = prepared(tmp_path_factory.mktemp("mixed"))
    running = start(folder, "-m", *SMALL, *OWN, MIXED, THERE)
    return Swept(folder, running.pid, ended(running))


@pytest.mark.slow
def test_A03_failing_jobs_are_told_of_in_their_logs_and_the_table_and_the_others_run(mixed: Swept) -> None:
    folder, done = mixed.folder, mixed.done
    assert done.returncode == 1
    states = {name: one["status"] for name, one in summaries(folder).items()}
    assert states == {"0": "completed", "1": "completed", "2": "failed", "3": "failed", "4": "completed"}
    for job, row, reason in (
        ("2", r"^2 +failed +\d+ .*data\.batch_size=64\b.*", "OutOfMemoryError: this batch was told not to fit"),
        ("3", r"^3 +failed +\d+ .*data\.batch_size=96\b.*", "RuntimeError: this job was told to fail"),
    ):
        found = re.search(row, done.stdout, re.MULTILINE)
        assert found is not None
        assert found.group().endswith(reason)
        assert "Traceback" in log(folder, job)
        assert reason in log(folder, job)
    assert all(re.search(rf"^{job} +ok ", done.stdout, re.MULTILINE) for job in "014")
    assert all("Traceback" not in log(folder, job) for job in "014")
    assert len({log(folder, job).split("process ")[1].split()[0] for job in "01234"}) == 5


@pytest.mark.slow
def test_A01_the_peak_memory_of_a_job_is_its_own_whatever_ran_before(mixed: Swept) -> None:
    peaks = {name: one["memory"].get("peak_process_gib") for name, one in summaries(mixed.folder).items()}
    assert peaks["1"] > peaks["0"] + 0.08  # 28 rows more, 4 MiB each
    assert peaks["4"] == pytest.approx(peaks["0"], rel=0.03)


@pytest.mark.slow
def test_J01_a_job_out_of_memory_is_not_tried_again_and_the_next_small_one_succeeds(mixed: Swept) -> None:
    folder = mixed.folder
    assert summaries(folder)["2"]["error"] == "OutOfMemoryError: this batch was told not to fit"
    assert log(folder, "2").count("OutOfMemoryError: ") == 1
    assert summaries(folder)["4"]["status"] == "completed"


@pytest.mark.slow
def test_A10_jobs_that_are_done_are_neither_run_again_nor_overwritten(mixed: Swept) -> None:
    folder = mixed.folder
    before = {job: contents(folder / "sweep" / job) for job in "014"}
    again = sweep(folder, MIXED, THERE)
    assert again.returncode == 1
    assert again.stdout.count("finished before") == 3
    assert sorted(path.name for path in (folder / "sweep" / "attempts").iterdir()) == ["2-0", "3-0"]
    other = sweep(folder, "data.batch_size=96,4,32", THERE)
    assert other.returncode == 2
    assert "hydra.sweep.dir" in other.stderr
    assert {job: contents(folder / "sweep" / job) for job in "014"} == before


@pytest.mark.slow
def test_A10_a_killed_sweep_goes_on_once_the_job_that_outlived_it_has_ended(folder: Path) -> None:
    (folder / "here").touch()
    command = ["-m", *SMALL, *OWN, "+model.waits_for=here,later", THERE]
    killed = start(folder, *command)
    second = folder / "sweep" / "1"
    wait_until(second / "config.yaml")
    killed.kill()
    ended(killed)
    before = contents(folder / "sweep" / "0")
    too_early = ended(start(folder, *command))
    assert too_early.returncode == 2
    assert f"still runs in {second}" in too_early.stderr
    (folder / "later").touch()
    wait_until(second / "summary.json")
    last = ended(start(folder, *command))
    assert last.returncode == 0, last.stdout + last.stderr
    assert {name: one["status"] for name, one in summaries(folder).items()} == {"0": "completed", "1": "completed"}
    assert contents(folder / "sweep" / "0") == before
    assert len(list(second.glob("events.*"))) == 1


NOTING_TORCH = """
import atexit, os, sys
atexit.register(lambda: print("torch" in sys.modules, file=open(f"imports-{os.getpid()}", "w")))
"""
ODD = ["+model.name='./a/b','[c, d]'", "+optim.optimizer.betas=[0.9,0.95],[0.8,0.9]"]


@pytest.fixture(scope="module")
def odd(tmp_path_factory: pytest.TempPathFactory) -> Swept:
    """A sweep over values that no folder could be named after, in a folder that nobody named."""
    folder = prepared(tmp_path_factory.mktemp("odd"))
    (folder / "sitecustomize.py").write_text(NOTING_TORCH, encoding="utf-8")
    running = start(folder, "-m", *SMALL, *OWN, *ODD, PYTHONPATH=str(folder))
    return Swept(folder, running.pid, ended(running))


def jobs_below(folder: Path) -> list[Path]:
    """The folders of all runs, wherever they lie."""
    return sorted(path.parent for path in folder.rglob("config.yaml"))


@pytest.mark.slow
def test_A12_job_folders_are_numbers_and_the_overrides_are_kept(odd: Swept) -> None:
    folder, done = odd.folder, odd.done
    assert done.returncode == 0, done.stdout + done.stderr
    jobs = jobs_below(folder)
    assert [job.name for job in jobs] == ["0", "1", "2", "3"]
    assert len({job.parent for job in jobs}) == 1
    names = [path.name for path in (folder / "outputs").rglob("*")]
    assert all(re.fullmatch(r"[A-Za-z0-9._-]{1,127}", name) for name in names)
    pairs = [("./a/b", [0.9, 0.95]), ("./a/b", [0.8, 0.9]), ("[c, d]", [0.9, 0.95]), ("[c, d]", [0.8, 0.9])]
    for job, (name, betas) in zip(jobs, pairs, strict=True):
        config = yaml.safe_load((job / "config.yaml").read_text(encoding="utf-8"))
        assert (config["model"]["name"], config["optim"]["optimizer"]["betas"]) == (name, betas)
        overrides = json.loads((job / "overrides.json").read_text(encoding="utf-8"))
        assert any(one.startswith("+model.name=") and name in one for one in overrides)
        assert f"+optim.optimizer.betas=[{betas[0]},{betas[1]}]" in overrides


@pytest.mark.slow
def test_G02_each_job_is_one_tensorboard_run_with_its_hyperparameters(odd: Swept) -> None:
    files = sorted((odd.folder / "outputs").rglob("events.*"))
    assert [file.parent for file in files] == jobs_below(odd.folder)
    for file in files:
        board = EventAccumulator(str(file.parent))
        board.Reload()
        assert {"train/loss", "final/peak_process_gib"} <= set(board.Tags()["scalars"])
        assert b"model.name" in board.summary_metadata["_hparams_/session_start_info"].plugin_data.content


@pytest.mark.slow
def test_A05_a_sweep_has_one_folder_and_its_jobs_take_no_other(odd: Swept) -> None:
    folder, done = odd.folder, odd.done
    (place,) = {job.parent for job in jobs_below(folder)}
    below = {path for path in place.parent.rglob("*") if path.is_dir()}
    assert below == {place, *jobs_below(folder)}
    assert f"jobs lie in {place}" in done.stdout
    assert all("process " in (job / "job.log").read_text(encoding="utf-8") for job in jobs_below(folder))


@pytest.mark.parametrize("arguments", [["-m", "seed=1,2"], ["study=control"], []])
def test_A05_copies_of_one_process_are_refused_and_leave_nothing(tmp_path: Path, arguments: list[str]) -> None:
    copies = [start(tmp_path, *arguments, *SMALL, RANK=rank, WORLD_SIZE="2") for rank in "01"]
    for copy in map(ended, copies):
        assert copy.returncode == 2
        assert copy.stderr.startswith("gearshift: WORLD_SIZE=2: ")
        assert "without torchrun" in copy.stderr
    assert not list(tmp_path.rglob("*"))


RECORDING = """
import json, os, sys
with open(os.path.join(os.environ["RECORDS"], f"{os.getpid()}.json"), "w") as file:
    json.dump([sys.argv[1:], {key: value for key, value in os.environ.items() if "ALLOC_CONF" in key}], file)
sys.exit(7)
"""
SHELLS = "max_split_size_mb:64"
PRETENDING = f"""
import sys
sys.path.insert(0, {str(PROJECT)!r})
import framework.environment as environment
environment.look = lambda: environment.Machine((2, 14), True, 1)
"""


def test_F01_each_job_has_its_allocator_setting_in_a_process_of_its_own(tmp_path: Path) -> None:
    """torch is a stand-in that records what it would read; that of the shell is for the job that asks for nothing."""
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text(RECORDING, encoding="utf-8")
    (tmp_path / "sitecustomize.py").write_text(PRETENDING, encoding="utf-8")
    (tmp_path / "records").mkdir()
    settings = ["expandable_segments:True", "backend:native", "null"]
    quoted = ",".join(f"'{one}'" if ":" in one else one for one in settings)
    here = {"PYTHONPATH": str(tmp_path), "RECORDS": str(tmp_path / "records"), "PYTORCH_ALLOC_CONF": SHELLS}
    done = ended(start(tmp_path, "-m", "device=cuda", f"perf.allocator={quoted}", THERE, **here))
    assert done.returncode == 1, done.stderr
    records = [json.loads(path.read_text(encoding="utf-8")) for path in (tmp_path / "records").iterdir()]
    seen = {
        next(one.partition("=")[2] for one in overrides if one.startswith("perf.allocator=")).strip("'"): variables
        for overrides, variables in records
    }
    wanted = {one: {"PYTORCH_ALLOC_CONF": one} for one in settings[:2]}
    assert seen == wanted | {"null": {"PYTORCH_ALLOC_CONF": SHELLS}}
    assert len(records) == 3


STAND_IN = """
import json, os, sys, time
began = time.monotonic()
time.sleep(0.2)
told = [began, time.monotonic(), os.environ["CUDA_VISIBLE_DEVICES"], os.environ["GEARSHIFT_TEST"]]
print(json.dumps(told))
"""


@dataclass(frozen=True)
class Told:
    began: float
    over: float
    gpu: str
    own: str


def run_five_on_two_gpus(tmp_path: Path) -> list[Told]:
    """What the jobs tell."""
    outcomes: dict[int, Outcome] = {}
    jobs = [(n, Job((), tmp_path / str(n), {"GEARSHIFT_TEST": str(n)})) for n in range(5)]
    run_jobs(jobs, [{"CUDA_VISIBLE_DEVICES": "0"}, {"CUDA_VISIBLE_DEVICES": "1"}], outcomes.__setitem__)
    assert [outcomes[n].status for n in range(5)] == ["ok"] * 5
    return [Told(*json.loads((tmp_path / str(n) / "job.log").read_text(encoding="utf-8"))) for n in range(5)]


def overlaps(jobs: Iterable[Told]) -> bool:
    ordered = sorted(jobs, key=lambda one: one.began)
    return any(one.over > other.began for one, other in pairwise(ordered))


def test_F01_each_job_has_its_environment_and_a_gpu_to_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "stand_in.py").write_text(STAND_IN, encoding="utf-8")
    monkeypatch.setattr(process, "FRONT_DOOR", tmp_path / "stand_in.py")
    told = run_five_on_two_gpus(tmp_path)
    assert [one.own for one in told] == ["0", "1", "2", "3", "4"]
    assert "GEARSHIFT_TEST" not in os.environ
    assert {one.gpu for one in told} == {"0", "1"}
    assert not any(overlaps(one for one in told if one.gpu == gpu) for gpu in "01")


@pytest.mark.slow
def test_a_job_past_its_time_limit_fails_and_the_next_one_runs(folder: Path) -> None:
    done = sweep(folder, "+model.seconds=300,0", "hydra.launcher.time_limit_s=45", THERE)
    assert done.returncode == 1
    assert "time limit of 45 s" in " ".join(done.stdout.split())
    assert summaries(folder)["1"]["status"] == "completed"


@pytest.mark.slow
def test_interrupted_the_running_job_ends_cleanly_and_the_rest_do_not_start(folder: Path) -> None:
    running = start(folder, "-m", *SMALL, *OWN, "+model.seconds=30,31", THERE)
    first = folder / "sweep" / "0"
    deadline = time.time() + 60
    while time.time() < deadline and not list(first.glob("events.*")):
        time.sleep(0.2)
    time.sleep(1.0)
    running.send_signal(signal.SIGINT)
    done = ended(running, 60)
    assert done.returncode == 130
    assert "not started" in done.stdout
    assert summaries(folder)["0"]["status"] == "interrupted"
    assert not (folder / "sweep" / "1").exists()


@pytest.mark.slow
def test_the_parent_of_a_sweep_never_imports_torch(odd: Swept) -> None:
    told = {path.name: path.read_text(encoding="utf-8").strip() for path in odd.folder.glob("imports-*")}
    assert told.pop(f"imports-{odd.parent}") == "False"
    assert list(told.values()).count("True") == 4  # the jobs; others only asked the driver or git something
