"""Profiles of a few steady steps: what they record, which steps those are, and that a run without one is left alone."""

from __future__ import annotations

import dataclasses
import json
import pickle
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hydra import compose, initialize_config_dir
from torch import Tensor

from framework import build, config, engine, environment, rules
from framework.environment import Machine
from framework.memory import Enter
from framework.profiling import span
from framework.profiling.operations import most_expensive, table, told
from framework.profiling.profiled import Profiled, Tool, profiled
from framework.profiling.ranges import Ranges
from framework.profiling.snapshot import MOST_ENTRIES, Snapshot
from framework.profiling.trace import on_cpu, on_gpu
from framework.rules import Settled
from framework.update import Window

PROJECT = Path(__file__).parents[1]
SMALL = ["data=synthetic", "data.count=64", "data.image_size=8", "data.batch_size=4", "data.classes=3"]
WARM_UP, STEPS = 2, 3  # so that step 3 is the profiler's own, steps 4 to 6 are covered, and 7 ends the profile


def settled(*overrides: str, machine: Machine | None = None) -> Settled:
    config.register()
    with initialize_config_dir(str(PROJECT / "configs"), version_base="1.3"):
        own = [f"meter.warmup_steps={WARM_UP}", f"profile_steps={STEPS}", "train.max_steps=14"]
        raw = compose("config", [*SMALL, *own, *overrides])
    return rules.settle(raw, machine or Machine((2, 14), False, 0))


def made(folder: Path, *overrides: str) -> engine.Run:
    folder.mkdir(exist_ok=True)
    return build.build(settled("device=cpu", *overrides), folder)


def trained(folder: Path, *overrides: str) -> engine.Run:
    run = made(folder, *overrides)
    engine.train(run)
    return run


def summary(folder: Path) -> dict[str, Any]:
    found = json.loads((folder / "summary.json").read_text())
    assert isinstance(found, dict)
    return found


def ranges(folder: Path) -> dict[str, list[tuple[float, float]]]:
    """Begin and end of the named ranges in a trace, by their names."""
    found: dict[str, list[tuple[float, float]]] = {}
    for event in json.loads((folder / "trace.json").read_text())["traceEvents"]:
        if event.get("cat") == "user_annotation":
            found.setdefault(event["name"], []).append((event["ts"], event["ts"] + event["dur"]))
    return {name: sorted(times) for name, times in found.items()}


# The trace


def test_a_trace_has_the_steps_that_were_asked_for_and_the_phases_in_each(tmp_path: Path) -> None:
    trained(tmp_path, "profile=trace", "train.accumulate=2")
    found = ranges(tmp_path)
    steps = {name: times for name, times in found.items() if name.startswith("ProfilerStep")}
    assert sorted(steps) == ["ProfilerStep#4", "ProfilerStep#5", "ProfilerStep#6"]
    for (times,) in steps.values():
        inside = [
            (begin, end, phase)
            for phase in ("data", "forward", "backward", "optimizer")
            for begin, end in found[phase]
            if times[0] <= begin and end <= times[1]
        ]
        assert [phase for *_, phase in sorted(inside)] == [
            "data",
            *("forward", "backward") * 2,
            "optimizer",
        ]
        assert all(one[1] <= other[0] for one, other in pairwise(sorted(inside)))  # one at a time
    assert {len(found["data"]), len(found["optimizer"])} == {STEPS}


def test_the_summary_says_where_the_profile_lies_and_which_steps_it_covers(tmp_path: Path) -> None:
    trained(tmp_path, "profile=trace")
    profile = summary(tmp_path)["profile"]
    assert (profile["kind"], profile["first_step"], profile["steps"]) == ("trace", 4, 3)
    assert profile["note"].startswith("steps 4 to 6. Steps 3 to 7 are in no figure of this run")
    assert all((tmp_path / name).stat().st_size for name in profile["files"].values())


def test_the_table_has_the_ten_most_expensive_operations_and_is_printed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trained(tmp_path, "profile=trace")
    profile = summary(tmp_path)["profile"]
    rows, times = profile["operations"], [row["ms"] for row in profile["operations"]]
    assert len(rows) == 10  # a step has more operations than that
    assert times == sorted(times, reverse=True)
    assert 0.3 < sum(row["share"] for row in rows) < 1
    assert profile["clock"] == "cpu"
    (convolution,) = (row for row in rows if row["name"] == "aten::convolution_backward")
    assert convolution["calls"] == 2  # a step: the model has two
    written = (tmp_path / "operations.txt").read_text()
    assert len(written.splitlines()) == 11
    assert written in capsys.readouterr().out.replace("\r", "")


def test_named_ranges_are_no_operations(tmp_path: Path) -> None:
    trained(tmp_path, "profile=trace")
    names = {row["name"] for row in summary(tmp_path)["profile"]["operations"]}
    assert not {name for name in names if name in ("data", "forward", "backward", "optimizer") or "Step" in name}


def test_operations_are_summed_sorted_and_cut() -> None:
    times = [(f"op{n}", float(n)) for n in range(15)] * 2 + [("op3", 100.0)]
    rows = most_expensive(times, steps=2)
    assert [row.name for row in rows] == ["op3", *(f"op{n}" for n in range(14, 5, -1))]
    assert (rows[0].calls, rows[0].ms, rows[0].share) == pytest.approx((1.5, 0.053, 106 / 310))
    assert most_expensive([("nothing", 0.0)], steps=1) == []
    assert most_expensive([], steps=1) == []


def test_a_long_name_does_not_break_the_table() -> None:
    lines = table([dataclasses.asdict(row) for row in most_expensive([("k" * 500, 1.0), ("a", 1.0)], 1)], "cuda")
    assert len({len(line) for line in lines.splitlines()}) == 1
    assert "CUDA ms a step" in lines


def event(name: str, on: str = "CPU", cpu: float = 0.0, kernels: Any = (), annotation: bool = False) -> SimpleNamespace:
    return SimpleNamespace(
        name=name,
        device_type=SimpleNamespace(name=on),
        self_cpu_time_total=cpu,
        kernels=[SimpleNamespace(name=kernel, duration=duration) for kernel, duration in kernels],
        is_user_annotation=annotation,
    )


EVENTS = [
    event("aten::mm", cpu=5, kernels=[("gemm", 100.0), ("reduce", 20.0)]),
    event("aten::relu", cpu=7),
    event("forward", cpu=50, kernels=[("graph_kernel", 30.0), ("forward", 400.0)], annotation=True),
    event("gemm", on="CUDA"),
    event("forward", on="CUDA", annotation=True),
]


def test_an_operation_on_the_gpu_has_the_time_of_its_kernels() -> None:
    """A range has a twin on the GPU, which is no kernel. The kernels of a replayed graph belong to no operation."""
    assert list(on_gpu(EVENTS)) == [("aten::mm", 120.0), ("graph_kernel", 30.0)]
    assert list(on_cpu(EVENTS)) == [("aten::mm", 5), ("aten::relu", 7)]


# Which steps count


def test_profiled_steps_are_in_no_figure(tmp_path: Path) -> None:
    """The covered steps, the one before and the one after are slow here; the meter must not see that."""
    run = made(tmp_path, "profile=none")

    def slow(window: Window, enter: Enter) -> Tensor:
        if 3 <= run.meter.steps + 1 <= 7:
            time.sleep(0.2)
        return run.update(window, enter)

    plain = dataclasses.replace(run, update=slow)
    cfg = settled("profile=trace").config
    engine.train(profiled(plain, cfg, tmp_path))
    found = summary(tmp_path)
    assert found["measured_steps"] == 14 - WARM_UP - (STEPS + 2)
    assert found["step_ms_mean"] < 100
    assert found["data_wait_ms"] < 100
    assert (found["steps"], found["rows"], len(found["losses"])) == (14, 56, 14)


def test_a_log_point_and_an_evaluation_in_a_profiled_step_do_not_bring_it_back(tmp_path: Path) -> None:
    held_out = "data.eval={_target_:framework.data.synthetic.SyntheticImages,count:8,channels:3,image_size:8,classes:3}"
    run = trained(tmp_path, "profile=trace", "train.eval_every=1", "perf.log_every=1", held_out)
    assert run.report.summary.measured_steps == 14 - WARM_UP - (STEPS + 2)


@pytest.mark.parametrize(("steps", "covered"), [(1, 0), (2, 0), (3, 0), (4, 1), (5, 2)])
def test_a_run_that_is_too_short_says_so_and_gives_what_it_has(tmp_path: Path, steps: int, covered: int) -> None:
    trained(tmp_path, "profile=trace", f"train.max_steps={steps}")
    found = summary(tmp_path)
    assert found["status"] == "completed"
    assert found["profile"]["steps"] == covered
    assert found["profile"]["note"].startswith(f"the run ended after step {steps}, and steps 4 to 6 were to be covered")
    assert "train.max_steps" in found["profile"]["note"]
    assert set(found["profile"]["files"]) == ({"trace", "table"} if covered else set())
    assert (tmp_path / "trace.json").exists() is bool(covered)
    if covered:
        found = ranges(tmp_path)
        assert len(found["optimizer"]) == covered
        assert len([name for name in found if name.startswith("ProfilerStep")]) == covered + 1  # data sought in vain


def test_a_run_that_ends_with_the_last_covered_step_is_not_too_short(tmp_path: Path) -> None:
    trained(tmp_path, "profile=trace", "train.max_steps=6")
    assert summary(tmp_path)["profile"]["note"].startswith("steps 4 to 6.")
    assert summary(tmp_path)["profile"]["steps"] == 3


@pytest.mark.parametrize("at", [2, 3, 5])
def test_an_error_ends_the_profile_and_stays_the_error(tmp_path: Path, at: int) -> None:
    def broken(inner: Callable[[Window, Enter], Tensor]) -> Callable[[Window, Enter], Tensor]:
        def update(window: Window, enter: Enter) -> Tensor:
            if run.meter.steps + 1 == at:
                raise RuntimeError("the model broke")
            return inner(window, enter)

        return update

    run = made(tmp_path / "broken")
    run = dataclasses.replace(run, update=broken(run.update))
    run = profiled(run, settled("profile=trace").config, tmp_path / "broken")
    with pytest.raises(RuntimeError, match="the model broke"):
        engine.train(run)
    assert summary(tmp_path / "broken")["profile"]["note"] == f"the run ended with an error after step {at} began."
    assert not torch.autograd._profiler_enabled()  # type: ignore[attr-defined]
    trained(tmp_path / "next", "profile=trace")  # another run has it
    assert "ProfilerStep#4" in ranges(tmp_path / "next")


# Off


def test_off_leaves_the_run_as_it_is(tmp_path: Path) -> None:
    run = made(tmp_path, "meter.budget=false")  # which stands around the step too
    assert profiled(run, settled("profile=none").config, tmp_path) is run
    assert run.update.__module__ == "framework.update"  # what the loop calls is the step itself
    engine.train(run)
    assert summary(tmp_path)["profile"] == {}
    assert summary(tmp_path)["measured_steps"] == 14 - WARM_UP
    assert {path.name.split(".")[0] for path in tmp_path.iterdir()} == {"summary", "events"}


def test_a_profile_changes_no_loss(tmp_path: Path) -> None:
    plain, traced = trained(tmp_path / "none"), trained(tmp_path / "trace", "profile=trace")
    assert len(plain.losses.history) == 14
    assert traced.losses.history == plain.losses.history
    assert traced.update.__module__ == "framework.profiling.profiled"


def test_the_loop_knows_no_profile() -> None:
    assert "profil" not in (PROJECT / "framework" / "engine.py").read_text()


# Ranges and memory, which need a GPU


class Calls:
    """Stands for functions of torch.cuda and keeps what they were called with."""

    def __init__(self) -> None:
        self.made: list[tuple[str, Any]] = []

    def of(self, name: str, answer: Any = None) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            self.made.append((name, arguments[0] if arguments else named))
            return len(self.made) if answer == "handle" else answer

        return call


@pytest.fixture
def nvtx(monkeypatch: pytest.MonkeyPatch) -> Calls:
    calls = Calls()
    monkeypatch.setattr(torch.cuda.nvtx, "range_start", calls.of("start", "handle"))
    monkeypatch.setattr(torch.cuda.nvtx, "range_end", calls.of("end"))
    return calls


def test_each_phase_is_an_nvtx_range_and_one_at_a_time(nvtx: Calls) -> None:
    phases = Ranges(nvtx=True)
    for phase in ("data", "forward"):
        phases.enter(phase)
    phases.leave()
    phases.leave()
    assert nvtx.made == [("start", "data"), ("end", 1), ("start", "forward"), ("end", 3)]


class Watch:
    """A tool that keeps the steps it was told of."""

    def __init__(self) -> None:
        self.steps: list[int] = []

    def begin(self, step: int) -> None:
        self.steps.append(step)

    def end(self, steps: int) -> dict[str, Any]:
        self.steps.append(-steps)
        return {}

    def failed(self) -> dict[str, Any]:
        self.steps.append(0)
        return {}


def watched(folder: Path, tool: Tool, nvtx: bool, *overrides: str) -> engine.Run:
    """A run on the CPU with `tool`, as if on a GPU."""
    run = made(folder, *overrides)
    around = Profiled(run, tool, span.after(WARM_UP, STEPS), Ranges(nvtx))
    run.report.summary.profile = {"kind": "memory", "files": {}, "note": ""}
    return dataclasses.replace(run, windows=around.windows, update=around.update)


def test_only_the_covered_steps_have_ranges(tmp_path: Path, nvtx: Calls) -> None:
    tool = Watch()
    engine.train(watched(tmp_path, tool, True))
    begun = [argument for name, argument in nvtx.made if name == "start"]
    assert begun == ["data", "forward", "backward", "optimizer"] * STEPS
    assert len(nvtx.made) == 2 * len(begun)
    assert tool.steps == [1, 2, 3, 4, 5, 6, -3]


def test_data_that_fail_end_the_profile_and_its_range(tmp_path: Path, nvtx: Calls) -> None:
    tool = Watch()
    run = watched(tmp_path, tool, True)

    def failing() -> Iterator[Window]:
        yield from [[(torch.zeros(4, 3, 8, 8), torch.zeros(4, dtype=torch.long))]] * 4
        raise OSError("the disk is gone")

    around = run.update.__self__  # type: ignore[attr-defined]
    around.run = dataclasses.replace(around.run, windows=failing)
    with pytest.raises(OSError, match="the disk is gone"):
        engine.train(run)
    assert tool.steps == [1, 2, 3, 4, 5, 0]
    assert nvtx.made[-2][1] == "data"
    assert nvtx.made[-1][0] == "end"


@pytest.fixture
def allocator(monkeypatch: pytest.MonkeyPatch) -> Calls:
    calls = Calls()
    monkeypatch.setattr(torch.cuda.memory, "_record_memory_history", calls.of("record"))
    monkeypatch.setattr(torch.cuda.memory, "_dump_snapshot", calls.of("dump"))
    return calls


def test_the_allocators_history_is_kept_from_the_first_step_to_the_last_covered(
    tmp_path: Path, allocator: Calls
) -> None:
    engine.train(watched(tmp_path, Snapshot(tmp_path), False))
    path = tmp_path / "memory_snapshot.pickle"
    recording = {"stacks": "python", "max_entries": MOST_ENTRIES}
    assert allocator.made == [("record", recording), ("dump", str(path)), ("record", {"enabled": None})]
    assert summary(tmp_path)["profile"]["files"] == {"snapshot": path.name}


def test_the_allocators_history_is_kept_where_memory_runs_out(tmp_path: Path, allocator: Calls) -> None:
    run = watched(tmp_path, Snapshot(tmp_path), False)

    def full(window: Window, enter: Enter) -> Tensor:
        raise torch.OutOfMemoryError("no memory left")

    around = run.update.__self__  # type: ignore[attr-defined]
    around.run = dataclasses.replace(around.run, update=full)
    with pytest.raises(torch.OutOfMemoryError):
        engine.train(run)
    assert [name for name, _ in allocator.made] == ["record", "dump", "record"]
    assert summary(tmp_path)["profile"]["files"] == {"snapshot": "memory_snapshot.pickle"}
    assert summary(tmp_path)["profile"]["note"] == "the run ended with an error after step 1 began."


@pytest.mark.parametrize("kind", ["memory", "nvtx"])
def test_what_needs_a_gpu_is_refused_on_the_cpu_before_torch_is_imported(kind: str, tmp_path: Path) -> None:
    command = ["-X", "importtime", "train.py", "device=cpu", f"profile={kind}", f"hydra.run.dir={tmp_path}/run"]
    done = subprocess.run([sys.executable, *command], cwd=PROJECT, capture_output=True, text=True, check=False)
    lines = done.stderr.splitlines()
    assert done.returncode == 3
    assert [line for line in lines if line.startswith("gearshift")] == [
        f"gearshift: profile={kind} needs a CUDA device and this run is on the CPU: set profile=none "
        "(profile=trace works there)."
    ]
    imported = {line.rpartition("|")[2].strip() for line in lines}
    assert "hydra" in imported
    assert "torch" not in imported
    assert not (tmp_path / "run").exists()
    assert settled(f"profile={kind}", machine=Machine((2, 14), True, 1)).config.device == "cuda:0"


def test_what_a_person_reads_at_the_end() -> None:
    profile = {"kind": "memory", "files": {"snapshot": "a.pickle"}, "note": "steps 4 to 6."}
    assert told(profile) == "profile=memory: steps 4 to 6. See a.pickle in the run's folder."
    assert told(profile | {"files": {}}) == "profile=memory: steps 4 to 6."


# On a GPU


def on_cuda(folder: Path, *overrides: str) -> engine.Run:
    run = build.build(settled("device=cuda", *overrides, machine=environment.look()), folder)
    engine.train(run)
    return run


@pytest.mark.gpu
def test_a_trace_of_a_gpu_has_its_kernels_and_phases(tmp_path: Path) -> None:
    run = on_cuda(tmp_path, "profile=trace")
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    assert [one for one in events if one.get("cat") == "kernel"]
    found = ranges(tmp_path)
    assert {len(found[phase]) for phase in ("data", "forward", "backward", "optimizer")} == {STEPS}
    profile = run.report.summary.profile
    assert profile["clock"] == "cuda"
    assert 1 <= len(profile["operations"]) <= 10
    assert any("conv" in row["name"] for row in profile["operations"])
    kernels = sum(one["dur"] for one in events if str(one.get("cat")) in ("kernel", "gpu_memcpy", "gpu_memset"))
    first = profile["operations"][0]
    assert first["ms"] / first["share"] * STEPS == pytest.approx(kernels / 1e3, rel=0.05)  # nothing is missed


@pytest.mark.gpu
def test_the_kernels_of_a_replayed_graph_are_in_the_table(tmp_path: Path) -> None:
    run = on_cuda(tmp_path, "profile=trace", "perf.compile=reduce_overhead", "data.drop_last=true")
    assert run.report.summary.profile["clock"] == "cuda"
    assert run.report.summary.profile["operations"]


@pytest.mark.gpu
def test_nvtx_ranges_and_the_capture_signal_are_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[str] = []
    start = torch.cuda.nvtx.range_start
    monkeypatch.setattr(torch.cuda.nvtx, "range_start", lambda name: (begun.append(name), start(name))[1])
    run = on_cuda(tmp_path, "profile=nvtx")  # cudaProfilerStart and Stop raise where they fail
    assert begun == ["data", "forward", "backward", "optimizer"] * STEPS
    assert run.report.summary.profile["steps"] == STEPS


@pytest.mark.gpu
def test_a_memory_snapshot_has_segments_and_a_history_with_stacks(tmp_path: Path) -> None:
    run = on_cuda(tmp_path, "profile=memory")
    with (tmp_path / run.report.summary.profile["files"]["snapshot"]).open("rb") as file:
        snapshot = pickle.load(file)
    assert snapshot["segments"]
    history = [entry for trace in snapshot["device_traces"] for entry in trace]
    assert {"alloc", "free_completed"} <= {entry["action"] for entry in history}
    files = {frame["filename"] for entry in history for frame in entry.get("frames", [])}
    assert any(name.endswith("framework/update.py") for name in files)
