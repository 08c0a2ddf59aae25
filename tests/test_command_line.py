"""The front door, as a user meets it: `train.py` in processes of its own, started in a folder outside the project.

A start costs seconds, nearly all of them for importing torch. So most runs here are children of one process that has
imported it already: each forks, goes to a folder of its own, and then runs `train.py` as the main program.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import pytest
import yaml
from hydra.core.override_parser.overrides_parser import OverridesParser
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from framework.summary import Summary

PROJECT = Path(__file__).parents[1]
TRAIN = str(PROJECT / "train.py")
CHILD_SECONDS = 120

MODULE = '''
"""A user's own classes, as the README shows them."""

import os
import signal
import time

import torch
from torch.utils.data import Dataset, IterableDataset


class MyNet(torch.nn.Module):
    def __init__(self, width: int = 4):
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(3, width), torch.nn.ReLU(), torch.nn.Linear(width, 2))

    def forward(self, x):
        return self.layers(x)


class MySet(Dataset):
    """Item i is (i, i, i). The item asked for as number `at`, counted from 0, makes trouble."""

    def __init__(self, rows: int = 16, trouble: str = "", at: int = -1, path: str = ""):
        self.rows, self.trouble, self.at, self.served = rows, trouble, at, 0
        self.offset = torch.load(path).item() if path else 0.0

    def __len__(self):
        return self.rows

    def __getitem__(self, index):
        self.served += 1
        if self.served == self.at + 1:
            if self.trouble == "raise":
                raise KeyError(f"item {self.at}")
            if self.trouble.startswith("SIG"):
                os.kill(os.getpid(), getattr(signal, self.trouble))
            if self.trouble == "wait":
                open("waiting", "w").close()
                time.sleep(60)
        return torch.full((3,), index / 16 + self.offset), index % 2


class Stream(IterableDataset):
    def __init__(self, rows: int = 10):
        self.rows = rows

    def __iter__(self):
        for index in range(self.rows):
            yield torch.full((3,), float(index)), index % 2


class NotMade(torch.nn.Module):
    def __init__(self):
        raise RuntimeError("no such weights")
'''

DRIVER = """
import atexit, gc, json, os, runpy, sys, time, traceback

project, train, jobs, preload = sys.argv[1], sys.argv[1] + "/train.py", json.loads(sys.argv[2]), sys.argv[3:]
sys.path[0] = project
for module in preload:
    __import__(module)
gc.collect()
gc.freeze()  # so that the children's collector leaves shared pages alone


def became(job):
    os.makedirs(job["folder"], exist_ok=True)
    os.chdir(job["folder"])
    for number, name in ((1, "stdout"), (2, "stderr")):
        file = os.open(job["records"] + "." + name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(file, number)
    sys.stdin.close()
    sys.argv = [train, *job["arguments"]]
    note = job["records"] + ".torch"
    atexit.register(lambda: "torch" in sys.modules and open(note, "w").close())
    code = 0
    try:  # what the interpreter does at its end, without taking every module apart, which takes a second
        exec(job["first"], {})
        runpy.run_path(train, run_name="__main__")
    except SystemExit as end:
        code = end.code
    except BaseException:
        traceback.print_exc()
        code = 1
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def ended(running, codes):
    pid, status = os.wait()
    codes[running.pop(pid)] = os.waitstatus_to_exitcode(status)


running, codes = {}, {}
for job in jobs:
    if len(running) == 2:
        ended(running, codes)
    pid = os.fork()
    if not pid:
        became(job)
    running[pid] = job["name"]
    if job["kill_when"]:
        while not os.path.exists(job["kill_when"]):
            time.sleep(0.05)
        time.sleep(job["kill_after"])
        os.kill(pid, job["kill_by"])
while running:
    ended(running, codes)
print(json.dumps(codes))
"""


@dataclass(frozen=True)
class Job:
    """One start of `train.py`. `first` is Python code that runs before it; `kill_when` waits for a file."""

    name: str
    arguments: list[str]
    folder: str = ""
    first: str = ""
    kill_when: str = ""
    kill_after: float = 0.0
    kill_by: int = signal.SIGTERM


@dataclass(frozen=True)
class Ended:
    """What is left of a run: its exit code, what it printed, and the folder where it was started."""

    code: int
    stdout: str
    stderr: str
    folder: Path
    imported_torch: bool

    @property
    def outputs(self) -> list[Path]:
        return sorted(path.parent for path in self.folder.rglob("config.yaml"))

    @property
    def output(self) -> Path:
        (only,) = self.outputs
        return only

    @property
    def summary(self) -> dict[str, Any]:
        summary: dict[str, Any] = json.loads((self.output / "summary.json").read_text())
        return summary

    def steps(self, tag: str = "train/loss") -> list[int]:
        return [event.step for event in events(self.output).Scalars(tag)]


def events(folder: Path) -> EventAccumulator:
    accumulator = EventAccumulator(str(folder), size_guidance={"scalars": 0})
    accumulator.Reload()
    return accumulator


def run_all(root: Path, jobs: Iterable[Job], preload: list[str], **environment: str) -> dict[str, Ended]:
    """Runs `jobs` as children of one process, two at a time, each in its folder below `root`."""
    jobs, folders = list(jobs), {}
    for job in jobs:
        folders[job.name] = root / (job.folder or job.name)
        folders[job.name].mkdir(exist_ok=True)
        (folders[job.name] / "my_module.py").write_text(MODULE)
    told = [
        asdict(job)
        | {"folder": str(folders[job.name]), "records": str(root / job.name)}
        | {"kill_when": str(folders[job.name] / job.kill_when) if job.kill_when else ""}
        for job in jobs
    ]
    command = [sys.executable, "-c", DRIVER, str(PROJECT), json.dumps(told), *preload]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=600,
        env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
        cwd=root,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    codes = json.loads(done.stdout)
    return {
        job.name: Ended(
            codes[job.name],
            (root / f"{job.name}.stdout").read_text(),
            (root / f"{job.name}.stderr").read_text(),
            folders[job.name],
            (root / f"{job.name}.torch").exists(),
        )
        for job in jobs
    }


def start(*arguments: str, cwd: Path, flags: Iterable[str] = ()) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *flags, TRAIN, *arguments], cwd=cwd, capture_output=True, text=True, timeout=120, check=False
    )


OWN = ["device=cpu", "model=custom", "model._target_=my_module.MyNet"]
MINE = [*OWN, "data=custom", "data.train._target_=my_module.MySet", "data.batch_size=2", "meter.warmup_steps=2"]
HELD_OUT = "data.eval={_target_:my_module.MySet,rows:5}"
TEXT = ["device=cpu", "model=gpt", "model.width=8", "model.depth=1", "model.heads=1", "data=synthetic_text"]
TEXT += ["data.context=8", "data.vocab=16", "data.count=40", "data.batch_size=4", "meter.warmup_steps=2"]
IMAGES = ["device=cpu", "data=synthetic", "data.count=8", "data.image_size=4", "data.channels=1", "data.batch_size=4"]

# ---------------------------------------------------------------------------------------------------------------------
# Mistakes: told in one sentence, before torch is imported, and nothing is left behind
# ---------------------------------------------------------------------------------------------------------------------

MISTAKES = {  # one of each kind; tests/test_config.py has the rest
    "modle=gpt": "modle is not a key: did you mean model?",
    "train.max_step=2": "train.max_step is not a key: did you mean max_steps?",
    "+train.max_step=2": "train.max_step is not a key: did you mean max_steps?",
    "+model.hiddn=3": "model.hiddn is not an argument of models.convnet.ConvNet: did you mean hidden?",
    "+data.train.trian=false": "is not an argument of framework.data.digits.Digits: did you mean train?",
    "+optim.optimizer.bettas=[0.9,0.95]": "is not an argument of torch.optim.AdamW: did you mean betas?",
    "hydra.run.dir=/proc/nope": "No such file or directory: '/proc/nope'",
    "hydra.run.dirr=x": "did you mean dir?",
    "optim=custom": "optim.optimizer._target_ has no value: set it with optim.optimizer._target_=...",
    "model=resnt18": "model=resnt18 is not an option: did you mean resnet18? The options are convnet,",
    "perf=null": "a group cannot be null: leave its override out",
    "train=nonsense": "train is a section, not a value: set its keys, such as train.NAME=...",
    "data.eval=nonsense": "data.eval names no class: set data.eval._target_=module.Name.",
    "seed=-1": "seed=-1 is too small: use 0 or more.",
    "device=tpu": "device=tpu is not a device: use auto, cpu, cuda or cuda:N.",
    "device=cpu perf.amp=fp16": "perf.amp=fp16 needs a CUDA device and this run is on the CPU",
    "perf.allocator=foo:1": "'foo:1' should read KEY:VALUE, where KEY is one of backend, expandable_segments",
}


@pytest.fixture(scope="module")
def mistakes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Ended]:
    jobs = [Job(f"mistake{number}", line.split(" ")) for number, line in enumerate(MISTAKES)]
    ended = run_all(tmp_path_factory.mktemp("mistakes"), jobs, ["hydra.main", "framework.rules"])
    return dict(zip(MISTAKES, ended.values(), strict=True))


@pytest.mark.parametrize("line", MISTAKES)
def test_A08_a_mistake_is_told_before_torch_is_imported_and_leaves_nothing(
    mistakes: dict[str, Ended], line: str
) -> None:
    ended = mistakes[line]
    sentence = ended.stderr.removesuffix("\n")
    assert ended.code == (3 if "needs a CUDA device" in sentence else 2), ended.stderr
    assert sentence.startswith("gearshift: ")
    assert "\n" not in sentence
    assert MISTAKES[line] in sentence
    assert ended.stdout == ""
    assert not ended.imported_torch
    assert {path.name for path in ended.folder.iterdir()} == {"my_module.py"}


def test_a_mistake_costs_no_import_of_torch_from_the_shell(tmp_path: Path) -> None:
    done = start("+model.hiddn=3", cwd=tmp_path, flags=["-X", "importtime"])
    lines = done.stderr.splitlines()
    imported = {line.rpartition("|")[2].strip() for line in lines if line.startswith("import time:")}
    told = [line for line in lines if not line.startswith("import time:")]
    assert done.returncode == 2
    assert told == ["gearshift: model.hiddn is not an argument of models.convnet.ConvNet: did you mean hidden?"]
    assert "hydra" in imported
    assert not {name for name in imported if name.split(".")[0] in ("torch", "numpy", "tensorboard")}


# ---------------------------------------------------------------------------------------------------------------------
# Runs
# ---------------------------------------------------------------------------------------------------------------------

FROZEN = """
import datetime, framework.folder
class Frozen(datetime.datetime):
    @classmethod
    def now(cls, tz=None):
        return cls(2026, 1, 2, 3, 4, 5)
framework.folder.datetime = Frozen
"""
HURRIED = "import framework.events; framework.events.FLUSH_SECONDS = 0.2"
STRICT = """
import warnings, torch
warnings.simplefilter("error")
def touched(*_):
    raise AssertionError("CUDA was touched in a run on the CPU")
torch.cuda._lazy_init = touched
"""
PATHS = [*MINE, "+data.train.path=${data.path}", "data.path=./tiny.pt", "train.max_steps=2"]
TINY = "import torch, pathlib; pathlib.Path('tiny.pt').exists() or torch.save(torch.tensor(0.5), 'tiny.pt')"
HIDING = "import pathlib; [pathlib.Path(name).write_text('1/0') for name in ('models.py', 'framework.py', 'train.py')]"
TWO_STEPS = [*MINE, "train.max_steps=2"]


def jobs() -> list[Job]:
    def troubled(name: str, trouble: str, served: int, *more: str, **options: Any) -> Job:
        trouble_at = [f"+data.train.trouble={trouble}", f"+data.train.at={served}", "perf.log_every=3"]
        return Job(name, [*MINE, "train.epochs=9", *trouble_at, *more], **options)

    eight = [Job(f"eight{number}", TWO_STEPS, folder="eight", first=FROZEN) for number in range(8)]
    return [
        *eight,
        Job(
            "images",
            [*MINE, "train.max_steps=12", "perf.log_every=5", HELD_OUT, "+model.width=8", "train.eval_every=4"],
        ),
        Job("text", [*TEXT, "train.max_steps=12", "perf.log_every=0", "meter.peak_tflops=1"]),
        Job("short", [*TWO_STEPS, HELD_OUT, "seed=3"]),
        Job("bf16", [*TWO_STEPS, "perf.amp=bf16"], first=STRICT),
        Job("fp16_skipped", [*TWO_STEPS, "perf.amp=fp16", "perf.if_unavailable=skip"], first=STRICT),
        Job("fp32", TWO_STEPS, first=STRICT),
        Job("all", [*TWO_STEPS, "perf=all", "perf.workers=1", "perf.compile=eager"], first=STRICT),
        Job("stays", [*PATHS, "hydra.job.chdir=false"], first=TINY),
        Job("moves", [*PATHS, "hydra.job.chdir=true"], first=TINY),
        Job("named", [*PATHS, "hydra.job.chdir=true", "hydra.run.dir=results/first"], first=TINY),
        Job("hidden", [*IMAGES, "train.max_steps=2"], first=HIDING),
        Job("betas", [*TWO_STEPS, "+optim.optimizer.betas=[0.9,0.95]"]),
        Job("odd_name", [*TWO_STEPS, "name='a=b, [c] #1|%{x}/../é'"]),
        Job("stream", [*MINE, "data.train._target_=my_module.Stream", "optim.schedule=cosine", "train.max_steps=7"]),
        Job("stream_epoch", [*MINE, "data.train._target_=my_module.Stream", "train.epochs=1"]),
        Job("stream_endless", [*MINE, "data.train._target_=my_module.Stream", "optim.schedule=cosine"]),
        Job("few", [*MINE, "+data.train.rows=5", "data.batch_size=8", "data.drop_last=true"]),
        Job("few_held_out", [*MINE, "data.eval={_target_:my_module.MySet,rows:0}"]),
        Job("stream_few", [*MINE, "data.train._target_=my_module.Stream", "data.batch_size=20", "data.drop_last=true"]),
        Job("not_found", [*MINE, "model._target_=my_module.MyNett"]),
        Job("not_made", [*MINE, "model._target_=my_module.NotMade"]),
        troubled("crash", "raise", 15),  # two items a step: seven whole steps
        troubled("SIGINT", "SIGINT", 15),
        troubled("SIGTERM", "SIGTERM", 15),
        troubled("SIGTERM_held_out", "SIGTERM", 10**6, "data.eval={_target_:my_module.MySet,trouble:SIGTERM,at:3}"),
        troubled("SIGKILL", "wait", 15, first=HURRIED, kill_when="waiting", kill_after=1.5, kill_by=signal.SIGKILL),
    ]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Ended]:
    return run_all(tmp_path_factory.mktemp("runs"), jobs(), ["framework.build", "framework.engine", "hydra.main"])


COMPLETED = ["images", "text", "short", "bf16", "fp16_skipped", "fp32", "all", "stays", "moves", "hidden", "betas"]
COMPLETED += ["odd_name", "stream", "stream_epoch"]
NO_GPU = "needs a CUDA device and this run is on the CPU"
NOTES = {
    "all": "gearshift: perf.channels_last=true changes nothing here: the model has no 2-D convolution.\n"
    f"gearshift: left out: pinned, prefetch, tf32, allocator, cudnn_benchmark ({NO_GPU})\n",
    "fp16_skipped": f"gearshift: left out: amp ({NO_GPU} (perf.amp=bf16 works there))\n",
}
ENDED_EARLY = ["crash", "not_made", "SIGINT", "SIGTERM", "SIGTERM_held_out"]


@pytest.mark.parametrize("name", COMPLETED)
def test_a_run_completes_and_says_so_in_one_line(runs: dict[str, Ended], name: str) -> None:
    ended = runs[name]
    assert (ended.code, ended.stderr) == (0, NOTES.get(name, ""))
    assert ended.summary["status"] == "completed"
    assert ended.summary["error"] is None
    assert ended.stdout == f"completed after {ended.summary['steps']} steps: {ended.output}\n"


@pytest.mark.parametrize("name", [*COMPLETED, *ENDED_EARLY])
def test_every_field_of_the_summary_is_there_and_every_null_has_its_reason(runs: dict[str, Ended], name: str) -> None:
    summary = runs[name].summary
    assert list(summary) == [f.name for f in fields(Summary)]
    nulls = {field for field, value in summary.items() if value is None} - {"error"}
    nulls |= {"memory"} if not summary["memory"] else set()
    nulls |= {"memory_by_phase"} if "forward" not in summary["memory_by_phase"] else set()
    assert set(summary["missing"]) == nulls
    assert all(re.search(r"\w \w", reason) for reason in summary["missing"].values())


def test_a_run_of_images_measures_all_but_tokens(runs: dict[str, Ended]) -> None:
    summary = runs["images"].summary
    assert set(summary["missing"]) == {"loss_scale", "tokens_per_s", "peak_tflops", "mfu", "gpu_neighbours"}
    assert summary["measured_steps"] == 10
    assert summary["rows"] == 24
    assert summary["evaluation"]["count"] == 5
    assert summary["evaluation"]["step"] == 12
    assert len(summary["losses"]) == summary["steps"] == summary["optimizer_steps"] == 12


def test_a_run_of_text_measures_tokens_and_mfu(runs: dict[str, Ended]) -> None:
    summary = runs["text"].summary
    assert set(summary["missing"]) == {"loss_scale", "evaluation", "gpu_neighbours"}
    assert summary["tokens"] == 8 * summary["rows"] == 8 * 4 * 12
    assert summary["tokens_per_s"] == pytest.approx(8 * summary["samples_per_s"])
    assert 0 < summary["mfu"] < 1


def test_a_run_that_is_too_short_says_so(runs: dict[str, Ended]) -> None:
    missing = runs["short"].summary["missing"]
    assert missing["step_ms"] == missing["samples_per_s"] == missing["mfu"]
    assert "not enough steps" in missing["step_ms"]
    assert "meter.warmup_steps" in missing["step_ms"]


def test_A04_eight_runs_of_one_second_have_eight_folders(runs: dict[str, Ended]) -> None:
    outputs = runs["eight0"].outputs
    assert [runs[f"eight{number}"].code for number in range(8)] == [0] * 8
    assert sorted(path.name for path in outputs) == ["030405_custom", *(f"030405_custom-{n}" for n in range(1, 8))]
    for output in outputs:
        kinds = sorted(path.name.split(".")[0] for path in output.iterdir())
        assert kinds == ["config", "events", "summary"]
        assert len(events(output).Scalars("train/loss")) == 2
    told = {runs[f"eight{number}"].stdout.rpartition(": ")[2].strip() for number in range(8)}
    assert told == {str(output) for output in outputs}


@pytest.mark.parametrize("name", ["images", "text", "short", "stream"])
def test_G02_one_event_file_holds_scalars_and_hyperparameters(runs: dict[str, Ended], name: str) -> None:
    output = runs[name].output
    assert not [path for path in output.iterdir() if path.is_dir()]
    assert len(list(output.glob("events.*"))) == 1
    board = events(output)
    scalars = set(board.Tags()["scalars"])
    assert {"train/loss", "train/lr"} <= scalars
    assert {"_hparams_/experiment", "_hparams_/session_start_info", "_hparams_/session_end_info"} <= set(
        board.summary_metadata
    )
    started = board.summary_metadata["_hparams_/session_start_info"].plugin_data.content
    assert b"perf.amp" in started
    assert b"optim.optimizer._target_" in started
    assert ("final/step_ms" in scalars) == (runs[name].summary["step_ms"] is not None)
    assert len(board.Scalars("final/peak_process_gib")) == 1


def test_G01_a_short_run_logs_every_point(runs: dict[str, Ended]) -> None:
    assert runs["short"].steps() == [1, 2]
    assert runs["images"].steps() == [5, 10, 12]
    assert runs["images"].steps("eval/loss") == [4, 8, 12]
    assert runs["text"].steps() == [12]


def test_the_config_is_kept_and_composes_to_the_same_run(runs: dict[str, Ended]) -> None:
    ended = runs["images"]
    kept = yaml.safe_load((ended.output / "config.yaml").read_text())
    assert kept == ended.summary["config"]
    assert kept["model"] == {"_target_": "my_module.MyNet", "width": 8}
    assert kept["perf"]["log_every"] == 5


def test_A06_no_file_needs_quoting_in_an_override(runs: dict[str, Ended]) -> None:
    parser = OverridesParser.create()
    files = [path for ended in runs.values() for path in ended.folder.glob("outputs/**/*") if path.is_file()]
    assert len(files) > 60
    for file in files:
        relative = str(file.relative_to(file.parents[3]))
        assert re.fullmatch(r"[A-Za-z0-9._/-]+", relative)
        (override,) = parser.parse_overrides([f"+resume={relative}"])
        assert override.value() == relative
    assert runs["odd_name"].output.name.endswith("_a-b-c-1-x")


@pytest.mark.parametrize("name", ["stays", "moves"])
def test_A07_inputs_lie_in_the_launch_folder_and_outputs_in_the_run_folder(runs: dict[str, Ended], name: str) -> None:
    ended = runs[name]
    assert ended.code == 0, ended.stderr
    there = {path.name for path in ended.folder.iterdir()} - {"__pycache__"}
    assert there == {"my_module.py", "tiny.pt", "outputs"}
    assert ended.output.parents[1] == ended.folder / "outputs"


def test_A07_a_run_folder_by_name_is_relative_to_the_launch_folder(runs: dict[str, Ended]) -> None:
    assert runs["named"].code == 0
    assert runs["named"].output == runs["named"].folder / "results" / "first"


def test_a_run_never_writes_into_a_folder_that_holds_one(runs: dict[str, Ended], tmp_path: Path) -> None:
    output = runs["named"].output
    before = {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in output.iterdir()}
    again = start(*PATHS, f"hydra.run.dir={output}", cwd=runs["named"].folder)
    assert again.returncode == 2
    assert (
        again.stderr == f"gearshift: hydra.run.dir={output} holds a run already: name another, or leave the key out.\n"
    )
    assert {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in output.iterdir()} == before


def test_modules_of_the_launch_folder_do_not_hide_our_own(runs: dict[str, Ended]) -> None:
    assert (runs["hidden"].folder / "models.py").read_text() == "1/0"
    assert runs["hidden"].code == 0


def test_A09_lists_of_the_config_reach_the_optimizer(runs: dict[str, Ended]) -> None:
    assert runs["betas"].summary["config"]["optim"]["optimizer"]["betas"] == [0.9, 0.95]


def test_D05_what_took_effect_on_the_cpu_is_recorded(runs: dict[str, Ended]) -> None:
    rows = {name: runs[name].summary["switches"]["amp"] for name in ("fp32", "bf16", "fp16_skipped")}
    assert {name: (row["requested"], row["effective"], row["on"], row["active"]) for name, row in rows.items()} == {
        "fp32": ("fp32", "fp32", False, False),
        "bf16": ("bf16", "bf16", True, True),
        "fp16_skipped": ("fp16", "fp32", False, False),
    }
    assert rows["bf16"]["evidence"]["first_output"] == "bfloat16"
    assert rows["fp16_skipped"]["evidence"]["first_output"] == "float32"
    assert rows["fp16_skipped"]["left_out"] == (
        "needs a CUDA device and this run is on the CPU (perf.amp=bf16 works there)"
    )
    assert runs["fp16_skipped"].summary["losses"] == runs["fp32"].summary["losses"] != runs["bf16"].summary["losses"]
    assert runs["fp16_skipped"].summary["config"]["perf"]["amp"] == "fp16"


def test_perf_all_leaves_out_what_needs_cuda_and_lists_it(runs: dict[str, Ended]) -> None:
    switches = runs["all"].summary["switches"]
    left_out = {name for name, row in switches.items() if row["left_out"]}
    assert left_out == {"pinned", "prefetch", "tf32", "allocator", "cudnn_benchmark"}
    assert all(row["effective"] != row["requested"] and not row["on"] for row in switches.values() if row["left_out"])
    assert {name for name, row in switches.items() if row["active"]} == {
        "workers",
        "amp",
        "log_every",
        "fused_optimizer",
    }


def test_B05_a_stream_without_a_length_trains_by_steps_or_to_its_end(runs: dict[str, Ended]) -> None:
    assert runs["stream"].summary["steps"] == 7
    assert runs["stream_epoch"].summary["steps"] == 5
    assert runs["stream_endless"].code == 2
    assert runs["stream_endless"].stderr == (
        "gearshift: optim.schedule=cosine needs an end, and data.train has no length: set train.max_steps.\n"
    )


@pytest.mark.parametrize(
    ("name", "facts"), [("few", ["data.train", "5", "8", "drop_last=true"]), ("few_held_out", ["data.eval", "0"])]
)
def test_B08_no_batch_at_all_is_told_with_its_numbers(runs: dict[str, Ended], name: str, facts: list[str]) -> None:
    ended = runs[name]
    assert ended.code == 2
    assert all(fact in ended.stderr for fact in facts)
    assert "data.batch_size" in ended.stderr
    assert ended.outputs == []


def test_B08_a_stream_without_a_batch_is_an_error_too(runs: dict[str, Ended]) -> None:
    ended = runs["stream_few"]
    assert ended.code == 1
    assert ended.summary["status"] == "failed"
    assert "data.train" in ended.summary["error"]
    assert "data.batch_size=20" in ended.summary["error"]
    assert "data.drop_last=true" in ended.summary["error"]


def test_a_class_that_is_not_there_is_told(runs: dict[str, Ended]) -> None:
    ended = runs["not_found"]
    assert ended.code == 2
    assert re.fullmatch(r"gearshift: model\._target_=my_module\.MyNett .*has no attribute 'MyNett'.*\n", ended.stderr)
    assert ended.outputs == []


def test_a_crash_while_a_run_is_built_shows_its_traceback(runs: dict[str, Ended]) -> None:
    ended = runs["not_made"]
    assert ended.code == 1
    assert "Traceback" in ended.stderr
    assert "RuntimeError: no such weights" in ended.stderr


def test_a_crash_while_a_run_is_built_is_in_its_summary(runs: dict[str, Ended]) -> None:
    summary = runs["not_made"].summary
    assert (summary["status"], summary["error"]) == ("failed", "RuntimeError: no such weights")
    assert (summary["steps"], summary["losses"]) == (0, [])
    assert summary["missing"]["step_ms"] == "the run ended while it was built"
    assert summary["config"]["model"]["_target_"] == "my_module.NotMade"
    assert summary["versions"]["torch"]


def test_G01_a_crash_keeps_everything_up_to_the_last_log_point(runs: dict[str, Ended]) -> None:
    ended = runs["crash"]
    summary = ended.summary
    assert ended.code == 1
    assert "Traceback" in ended.stderr
    assert "KeyError: 'item 15'" in ended.stderr
    assert (summary["status"], summary["error"]) == ("failed", "KeyError: 'item 15'")
    assert (summary["steps"], len(summary["losses"])) == (7, 6)
    assert ended.steps() == [3, 6]
    assert ended.stdout.startswith("failed after 7 steps: ")


@pytest.mark.parametrize(("name", "code"), [("SIGINT", 130), ("SIGTERM", 143)])
def test_M01_an_interrupted_run_says_so_and_closes_its_files(runs: dict[str, Ended], name: str, code: int) -> None:
    ended = runs[name]
    assert ended.code == code
    assert ended.stderr == ""
    assert ended.summary["status"] == "interrupted"
    assert ended.summary["error"] == {130: "KeyboardInterrupt", 143: "SystemExit: 143"}[code]
    assert (ended.summary["steps"], len(ended.summary["losses"])) == (7, 6)
    assert ended.steps() == [3, 6]


def test_M01_a_signal_during_evaluation_counts_too(runs: dict[str, Ended]) -> None:
    ended = runs["SIGTERM_held_out"]
    assert (ended.code, ended.summary["status"]) == (143, "interrupted")
    assert ended.summary["steps"] == 72
    assert ended.steps()[-1] == 72


def test_G01_a_killed_run_loses_one_flush_interval_at_most(runs: dict[str, Ended]) -> None:
    ended = runs["SIGKILL"]
    assert ended.code == -signal.SIGKILL
    assert ended.steps() == [3, 6]


# ---------------------------------------------------------------------------------------------------------------------
# Processes of their own
# ---------------------------------------------------------------------------------------------------------------------

RECORDING = """
import json, os, sys
with open(os.environ["RECORD"], "w") as file:
    json.dump({key: value for key, value in os.environ.items() if "ALLOC_CONF" in key}, file)
sys.exit(7)
"""
PRETENDING = """
import framework.environment as environment
environment.look = lambda: environment.Machine({version}, True, 1)
"""


@pytest.mark.parametrize(
    ("version", "asked", "exported", "expected"),
    [
        ((2, 14), "expandable_segments:True", {}, {"PYTORCH_ALLOC_CONF"}),
        ((2, 11), "expandable_segments:True", {}, {"PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"}),
        ((2, 14), "max_split_size_mb:64", {"PYTORCH_CUDA_ALLOC_CONF": "backend:native"}, {"PYTORCH_ALLOC_CONF"}),
        ((2, 14), None, {"PYTORCH_CUDA_ALLOC_CONF": "backend:native"}, {"PYTORCH_CUDA_ALLOC_CONF"}),
    ],
)
def test_A02_the_allocator_setting_is_there_when_torch_is_imported(
    tmp_path: Path, version: tuple[int, int], asked: str | None, exported: dict[str, str], expected: set[str]
) -> None:
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text(RECORDING)
    record = tmp_path / "record.json"
    job = Job("job", ["device=cuda", f"perf.allocator={asked or 'null'}"], first=PRETENDING.format(version=version))
    environment = {"PYTHONPATH": str(tmp_path), "RECORD": str(record), **exported}
    ended = run_all(tmp_path, [job], ["hydra.main"], **environment)["job"]
    assert ended.code == 7, ended.stderr
    assert json.loads(record.read_text()) == dict.fromkeys(expected, asked or "backend:native")


def test_F03_a_malformed_setting_of_the_shell_is_told_with_its_name(tmp_path: Path) -> None:
    ended = run_all(tmp_path, [Job("job", ["device=cpu"])], ["hydra.main"], PYTORCH_CUDA_ALLOC_CONF="foo:1")["job"]
    assert ended.code == 2
    assert ended.stderr.startswith("gearshift: PYTORCH_CUDA_ALLOC_CONF=foo:1 is exported in this shell: 'foo:1' should")
    assert ended.stderr.endswith(" Or unset PYTORCH_CUDA_ALLOC_CONF.\n")
    assert ended.outputs == []


def test_a_user_interrupts_a_run_with_workers_from_outside(tmp_path: Path) -> None:
    (tmp_path / "my_module.py").write_text(MODULE)
    waiting = ["+data.train.trouble=wait", "+data.train.at=9", "perf.workers=1", "train.epochs=9", "perf.log_every=2"]
    process = subprocess.Popen(
        [sys.executable, TRAIN, *MINE, *waiting],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        deadline = time.monotonic() + 60
        while not (tmp_path / "waiting").exists():
            assert time.monotonic() < deadline
            time.sleep(0.05)
        time.sleep(0.5)
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to the workers too
        stdout, stderr = process.communicate(timeout=20)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
    (output,) = (path.parent for path in tmp_path.rglob("config.yaml"))
    summary = json.loads((output / "summary.json").read_text())
    assert process.returncode == 130
    assert (summary["status"], summary["steps"]) == ("interrupted", 4)
    assert [event.step for event in events(output).Scalars("train/loss")] == [2, 4]
    assert stdout == f"interrupted after 4 steps: {output}\n"
    assert "Traceback" not in stderr


@pytest.mark.slow
@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_A11_workers_start_by_every_method(tmp_path: Path, method: str) -> None:
    (tmp_path / "my_module.py").write_text(MODULE)
    done = start(*TWO_STEPS, "perf.workers=1", f"data.start_method={method}", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    (summary,) = (json.loads(path.read_text()) for path in tmp_path.rglob("summary.json"))
    assert summary["switches"]["workers"]["evidence"] == {"worker_processes": 1}
    assert summary["switches"]["workers"]["active"] is True


def test_help_and_the_config_are_shown_without_a_run(tmp_path: Path) -> None:
    shown = [Job("cfg", ["--cfg", "job"]), Job("help", ["--help"])]
    ended = run_all(tmp_path, shown, ["hydra.main"])
    assert yaml.safe_load(ended["cfg"].stdout)["perf"]["amp"] == "fp32"
    assert "model: convnet, custom" in ended["help"].stdout
    for one in ended.values():
        assert (one.code, one.imported_torch) == (0, False)
        assert not (one.folder / "outputs").exists()
