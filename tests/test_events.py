"""TensorBoard: one run is one event file with scalars and hyperparameters; the frequency is one setting."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from hydra import compose, initialize_config_dir
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.backend.event_processing.event_file_loader import EventFileLoader
from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData

from framework import build, config, engine, events, rules
from framework.environment import Machine
from framework.events import Events

CONFIGS = str(Path(__file__).parents[1] / "configs")
STEPS = 100


def board(folder: Path) -> EventAccumulator:
    accumulator = EventAccumulator(str(folder), size_guidance={"scalars": 0})
    accumulator.Reload()
    return accumulator


def points(folder: Path, tag: str) -> list[tuple[int, float]]:
    return [(event.step, event.value) for event in board(folder).Scalars(tag)]


def test_the_scalars_of_a_step_are_one_event(tmp_path: Path) -> None:
    written = Events(tmp_path)
    for step in (1, 2):
        written.scalars({"a/b": 0.5 * step, "c": float("nan"), "d": 3}, step)
    written.close()
    (file,) = tmp_path.iterdir()
    assert points(tmp_path, "a/b") == [(1, 0.5), (2, 1.0)]
    assert points(tmp_path, "d") == [(1, 3.0), (2, 3.0)]
    assert len(points(tmp_path, "c")) == 2
    tags = [len(event.summary.value) for event in EventFileLoader(str(file)).Load() if event.step]
    assert tags == [3, 3]


def test_G02_hyperparameters_are_written_into_the_run_itself(tmp_path: Path) -> None:
    written = Events(tmp_path)
    written.config("a: 1")
    values = {"flag": True, "number": 0.5, "word": "x", "none": None, "list": [1, 2], "inside": {"deep": 3}}
    written.hyperparameters(values, {"final/loss": 0.25}, 7)
    written.close()
    (file,) = tmp_path.iterdir()
    assert file.is_file()
    metadata = board(tmp_path).summary_metadata
    started = HParamsPluginData.FromString(metadata["_hparams_/session_start_info"].plugin_data.content)
    held = {name: value.WhichOneof("kind") for name, value in started.session_start_info.hparams.items()}
    assert held == {
        "flag": "number_value",  # torch tests for numbers first
        "number": "number_value",
        "word": "string_value",
        "none": "string_value",
        "list": "string_value",
        "inside.deep": "number_value",
    }
    experiment = HParamsPluginData.FromString(metadata["_hparams_/experiment"].plugin_data.content).experiment
    assert [info.name.tag for info in experiment.metric_infos] == ["final/loss"]
    assert points(tmp_path, "final/loss") == [(7, 0.25)]


def test_the_config_is_shown_as_it_is_written(tmp_path: Path) -> None:
    written = Events(tmp_path)
    written.config("model:\n  width: 3\n")
    written.close()
    (shown,) = board(tmp_path).Tensors("config/text_summary")
    assert b"model:\n  width: 3\n" in shown.tensor_proto.string_val[0]


def test_G01_a_killed_run_loses_ten_seconds_at_most(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: dict[str, Any] = {}
    monkeypatch.setattr(events, "SummaryWriter", lambda folder, **options: asked.update(options))
    Events(tmp_path)
    assert 0 < asked["flush_secs"] <= 10


@pytest.fixture(scope="module")
def frequencies(tmp_path_factory: pytest.TempPathFactory) -> dict[int, tuple[Path, dict[str, torch.Tensor]]]:
    """The same run, logged every 1, 10, 50 steps and not at all: its folder and its final weights."""
    root = tmp_path_factory.mktemp("frequencies")
    small = ["device=cpu", "model.channels=[2]", "model.hidden=4", "data=synthetic", "data.image_size=4"]
    small += ["data.channels=1", "data.classes=3", "data.count=40", "data.batch_size=8", "meter.warmup_steps=1"]
    ended = {}
    config.register()
    for every in (1, 10, 50, 0):
        folder = root / str(every)
        with initialize_config_dir(CONFIGS, version_base="1.3"):
            raw = compose("config", [*small, f"train.max_steps={STEPS}", f"perf.log_every={every}"])
        run = build.build(rules.settle(raw, Machine((2, 14), False, 0)), folder)
        engine.train(run)
        ended[every] = folder, run.state.model.state_dict()
    return ended


def test_G04_logging_leaves_the_weights_as_they_are(
    frequencies: dict[int, tuple[Path, dict[str, torch.Tensor]]],
) -> None:
    _, reference = frequencies[0]
    for _, weights in frequencies.values():
        assert all(torch.equal(weights[name], reference[name]) for name in reference)


def test_G04_one_setting_governs_points_reads_and_size(
    frequencies: dict[int, tuple[Path, dict[str, torch.Tensor]]],
) -> None:
    sizes = {}
    for every, (folder, _) in frequencies.items():
        logged = [step for step, _ in points(folder, "train/loss")]
        assert logged == (list(range(every, STEPS + 1, every)) if every else [STEPS])
        summary = json.loads((folder / "summary.json").read_text())
        assert summary["switches"]["log_every"]["evidence"]["loss_reads"] == len(logged)
        assert len(summary["losses"]) == STEPS
        (file,) = folder.glob("events.*")
        sizes[every] = file.stat().st_size
    for_one = (sizes[1] - sizes[0]) / (STEPS - 1)
    assert sizes[10] - sizes[0] == pytest.approx(for_one * (STEPS / 10 - 1), rel=0.1)
    assert sizes[50] - sizes[0] == pytest.approx(for_one * (STEPS / 50 - 1), rel=0.2)


def test_a_logged_loss_is_the_mean_since_the_last(
    frequencies: dict[int, tuple[Path, dict[str, torch.Tensor]]],
) -> None:
    single = [value for _, value in points(frequencies[1][0], "train/loss")]
    for every in (10, 50):
        for step, value in points(frequencies[every][0], "train/loss"):
            assert value == pytest.approx(sum(single[step - every : step]) / every, rel=1e-5)


def test_no_tag_has_two_points_at_one_step(frequencies: dict[int, tuple[Path, dict[str, torch.Tensor]]]) -> None:
    for folder, _ in frequencies.values():
        for tag in board(folder).Tags()["scalars"]:
            steps = [step for step, _ in points(folder, tag)]
            assert steps == sorted(set(steps)), tag


def test_K03_the_logged_rate_is_that_of_the_step(tmp_path: Path) -> None:
    small = ["device=cpu", "model.channels=[2]", "model.hidden=4", "data=synthetic", "data.image_size=4"]
    small += ["data.channels=1", "data.classes=3", "data.count=16", "data.batch_size=8", "optim=sgd", "optim.lr=1"]
    config.register()
    with initialize_config_dir(CONFIGS, version_base="1.3"):
        raw = compose("config", [*small, "train.max_steps=4", "optim.schedule=linear"])
    engine.train(build.build(rules.settle(raw, Machine((2, 14), False, 0)), tmp_path))
    assert points(tmp_path, "train/lr") == [(1, 1.0), (2, 0.75), (3, 0.5), (4, 0.25)]
