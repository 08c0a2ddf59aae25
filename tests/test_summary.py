"""summary.json: whole, plain JSON, every field there, every null explained."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hydra import compose, initialize_config_dir
from torch import Tensor
from torch.amp.grad_scaler import GradScaler

from framework import build, config, engine, first_layer, rules
from framework.engine import Run
from framework.environment import Machine
from framework.events import Events
from framework.first_layer import FirstLayer
from framework.report import Report
from framework.summary import FILE, Summary, device_facts, versions, write
from framework.update import Window

CONFIGS = str(Path(__file__).parents[1] / "configs")
SMALL = ["device=cpu", "model.channels=[2]", "model.hidden=4", "data=synthetic", "data.image_size=4", "data.channels=1"]
SMALL += ["data.classes=3", "data.count=40", "data.batch_size=4", "meter.warmup_steps=3"]


def made(folder: Path, *overrides: str) -> Run:
    config.register()
    with initialize_config_dir(CONFIGS, version_base="1.3"):
        raw = compose("config", [*SMALL, *overrides])
    return build.build(rules.settle(raw, Machine((2, 14), False, 0)), folder)


def read(folder: Path) -> dict[str, Any]:
    return json.loads((folder / FILE).read_text(), parse_constant=lambda word: pytest.fail(f"{word} is no JSON"))


def explained(summary: dict[str, Any]) -> bool:
    nulls = {name for name, value in summary.items() if value is None} - {"error"}
    nulls |= {"memory"} if not summary["memory"] else set()
    nulls |= {"memory_by_phase"} if "forward" not in summary["memory_by_phase"] else set()
    return set(summary["missing"]) == nulls and all(summary["missing"].values())


def changed(run: Run, at: int, change: Callable[[], None]) -> Run:
    """`run`, with something happening in step `at`, counted from 1."""

    def update(window: Window, enter: Callable[[str], None]) -> Tensor:
        if run.meter.steps == at - 1:
            change()
        return run.update(window, enter)

    return dataclasses.replace(run, update=update)


def test_numbers_that_json_lacks_become_null(tmp_path: Path) -> None:
    summary = Summary(losses=[1.0, float("nan"), float("inf")], evaluation={"loss": float("-inf"), "count": 3})
    write(tmp_path, summary)
    assert read(tmp_path)["losses"] == [1.0, None, None]
    assert read(tmp_path)["evaluation"] == {"loss": None, "count": 3}


def test_the_file_is_written_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, Summary(name="first"))

    def full(_: int) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="no space left"):
        write(tmp_path, Summary(name="second"))
    assert read(tmp_path)["name"] == "first"


def test_device_and_versions_are_told() -> None:
    facts = device_facts(torch.device("cpu"))
    assert facts["type"] == "cpu"
    assert facts["name"] == facts["cpu"] != ""
    assert facts["cpu_cores"] == os.cpu_count()
    assert versions()["torch"] == torch.__version__
    assert {"python", "cuda", "platform", "hydra-core"} <= set(versions())


def test_a_completed_run_has_every_field(tmp_path: Path) -> None:
    run = made(tmp_path, "train.max_steps=10", "meter.peak_tflops=1", "data.eval=${data.train}")
    engine.train(run)
    summary = read(tmp_path)
    assert list(summary) == [f.name for f in dataclasses.fields(Summary)]
    assert summary["status"] == "completed"
    assert set(summary["missing"]) == {"loss_scale", "tokens_per_s", "gpu_neighbours"}
    assert explained(summary)
    assert summary["measured_steps"] == 7
    assert summary["parameters"] == sum(p.numel() for p in run.state.model.parameters())
    assert summary["switches"]["amp"]["evidence"]["first_output"] == "float32"
    assert summary["evaluation"]["count"] == 40


def test_the_first_layers_are_looked_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[FirstLayer] = []

    def look(*arguments: Any) -> FirstLayer:
        looked.append(original(*arguments))
        return looked[-1]

    original = first_layer.look
    monkeypatch.setattr(first_layer, "look", look)
    engine.train(made(tmp_path, "train.max_steps=1"))
    switches = read(tmp_path)["switches"]
    assert len(looked) == 1
    assert all("first_" in next(iter(switches[name]["evidence"])) for name in ("amp", "channels_last"))


@pytest.mark.parametrize("steps", [1, 3, 7])
def test_a_run_that_is_too_short_explains_every_null(tmp_path: Path, steps: int) -> None:
    engine.train(made(tmp_path, f"train.max_steps={steps}"))
    summary = read(tmp_path)
    assert explained(summary)
    assert summary["step_ms"] is None
    assert "not enough steps" in summary["missing"]["step_ms"]
    assert ("warmup_s" in summary["missing"]) == (steps < 3)
    assert ("memory_by_phase" in summary["missing"]) == (steps < 3)
    assert summary["flops_per_row"] > 0


@pytest.mark.parametrize(
    ("looks", "most", "why"),
    [([(0, ""), (2, "")], 2, None), ([(1, ""), (None, "gone")], 1, None), ([(None, "hidden")] * 2, None, "hidden")],
)
def test_the_most_neighbours_of_two_looks_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, looks: list[tuple[int | None, str]], most: int | None, why: str
) -> None:
    left = iter(looks)
    monkeypatch.setattr("framework.report.neighbours", lambda device: next(left))
    engine.train(made(tmp_path, "train.max_steps=1"))
    summary = read(tmp_path)
    assert summary["gpu_neighbours"] == most
    assert summary["missing"].get("gpu_neighbours") == why
    assert not list(left)


def test_a_model_that_cannot_be_counted_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def uncountable(*_: Any) -> float:
        raise NotImplementedError("no meta kernel")

    monkeypatch.setattr("framework.utilisation.per_row", uncountable)
    engine.train(made(tmp_path, "train.max_steps=9", "meter.peak_tflops=1"))
    summary = read(tmp_path)
    assert explained(summary)
    assert "no meta kernel" in summary["missing"]["flops_per_row"]
    assert "no meta kernel" in summary["missing"]["mfu"]


def test_G01_a_crash_is_written_with_what_was_read_so_far(tmp_path: Path) -> None:
    def crash() -> None:
        raise RuntimeError("at seven\nand more")

    run = changed(made(tmp_path, "train.max_steps=10", "perf.log_every=3"), 7, crash)
    with pytest.raises(RuntimeError, match="at seven"):
        engine.train(run)
    summary = read(tmp_path)
    assert (summary["status"], summary["error"]) == ("failed", "RuntimeError: at seven")
    assert (summary["steps"], summary["optimizer_steps"], len(summary["losses"])) == (6, 6, 6)
    assert explained(summary)
    assert summary["missing"]["step_ms"] == "the run failed before its figures were taken"


def test_G01_a_device_that_answers_no_more_costs_no_summary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def crash() -> None:
        monkeypatch.setattr(GradScaler, "get_scale", lambda _: pytest.fail("the device was asked"))
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    run = made(tmp_path, "train.max_steps=10")
    run.state.scaler = GradScaler("cpu", init_scale=8.0)
    run.state.read_scale()
    with pytest.raises(RuntimeError, match="illegal memory access"):
        engine.train(changed(run, 4, crash))
    summary = read(tmp_path)
    assert (summary["status"], summary["loss_scale"]) == ("failed", 8.0)
    assert "illegal memory access" in summary["error"]
    assert explained(summary)


def test_G01_nothing_that_fails_while_a_run_ends_costs_the_summary(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def crash() -> None:
        raise RuntimeError("first")

    def again(self: Report) -> None:
        raise RuntimeError("second")

    monkeypatch.setattr(Report, "_counts", again)
    with pytest.raises(RuntimeError, match="second"):
        engine.train(changed(made(tmp_path, "train.max_steps=10"), 4, crash))
    assert read(tmp_path)["error"] == "RuntimeError: first"


@pytest.mark.parametrize(
    ("error", "told"), [(KeyboardInterrupt(), "KeyboardInterrupt"), (SystemExit(143), "SystemExit: 143")]
)
def test_M01_an_interruption_is_written(tmp_path: Path, error: BaseException, told: str) -> None:
    def stop() -> None:
        raise error

    with pytest.raises(type(error)):
        engine.train(changed(made(tmp_path, "train.max_steps=10", "perf.log_every=2"), 4, stop))
    summary = read(tmp_path)
    assert (summary["status"], summary["error"]) == ("interrupted", told)
    assert (summary["steps"], len(summary["losses"])) == (3, 2)
    assert summary["missing"]["mfu"] == "the run was interrupted before its figures were taken"
    assert explained(summary)


def test_M01_a_second_interruption_while_files_are_closed_ends_at_once_and_loses_no_summary(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def again(self: Events) -> None:
        close(self)
        raise KeyboardInterrupt("second")

    def stop() -> None:
        raise KeyboardInterrupt

    close = Events.close
    monkeypatch.setattr(Events, "close", again)
    with pytest.raises(KeyboardInterrupt, match="second"):
        engine.train(changed(made(tmp_path, "train.max_steps=10"), 4, stop))
    assert read(tmp_path)["status"] == "interrupted"


@pytest.fixture
def on_cpu_only(monkeypatch: pytest.MonkeyPatch) -> None:
    def touched(*_: Any) -> None:
        pytest.fail("CUDA was touched in a run on the CPU")

    for name in ("_lazy_init", "synchronize", "Event", "Stream", "current_stream", "reset_peak_memory_stats"):
        monkeypatch.setattr(torch.cuda, name, touched)
    monkeypatch.setattr(torch.cuda.memory, "_snapshot", touched)


@pytest.mark.usefixtures("on_cpu_only")
@pytest.mark.parametrize("perf", [[], ["perf.amp=bf16"], ["perf=all", "perf.workers=0", "perf.compile=eager"]])
def test_D05_a_run_on_the_cpu_never_touches_cuda(tmp_path: Path, perf: list[str]) -> None:
    engine.train(made(tmp_path, "train.max_steps=9", "train.eval_every=4", "data.eval=${data.train}", *perf))
    summary = read(tmp_path)
    assert summary["status"] == "completed"
    expected = "float32" if not perf else "bfloat16"
    assert summary["switches"]["amp"]["evidence"]["first_output"] == expected
