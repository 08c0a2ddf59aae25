"""How often the host reads from the device: once every `perf.log_every` steps and no more."""

from __future__ import annotations

from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from torch import Tensor

from framework import build, config, engine, rules
from framework.engine import Run
from framework.environment import Machine
from framework.techniques import log_every

CONFIGS = Path(__file__).parents[1] / "configs"
STEPS = 100
RUN = (
    *(
        "data=synthetic",
        "data.count=200",
        "data.image_size=4",
        "data.channels=1",
        "data.classes=3",
        "data.batch_size=8",
    ),
    *("model.channels=[2]", "model.hidden=4", "optim=sgd", "device=cpu", f"train.max_steps={STEPS}"),
)
READS = ("item", "tolist", "cpu", "numpy", "__float__", "__bool__", "__format__")


def built(folder: Path, *overrides: str) -> Run:
    """A run composed as train.py would, on the CPU."""
    GlobalHydra.instance().clear()
    config.register()
    with initialize_config_dir(str(CONFIGS), version_base="1.3"):
        raw = compose("config", overrides=[*RUN, *overrides])
    return build.build(rules.settle(raw, Machine((2, 14), cuda_build=False, gpus=0)), folder)


@pytest.mark.parametrize(("every", "expected"), [(1, 100), (10, 10), (30, 4), (0, 1)])
@pytest.mark.parametrize("more", [(), ("train.accumulate=2", "train.clip_norm=1.0")], ids=["plain", "clipped"])
def test_E07_the_host_reads_once_a_log_point(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, every: int, expected: int, more: tuple[str, ...]
) -> None:
    """100 steps; at 30 the last read is that of the end. Whole numbers, such as the data's labels, do not count."""
    run = built(tmp_path, f"perf.log_every={every}", *more)
    reads: list[str] = []
    for name in READS:
        method = getattr(Tensor, name)

        def counting(tensor: Tensor, *arguments: object, name: str = name, method: object = method) -> object:
            if tensor.is_floating_point():
                reads.append(name)
            return method(tensor, *arguments)  # type: ignore[operator]

        monkeypatch.setattr(Tensor, name, counting)
    engine.train(run)
    monkeypatch.undo()
    assert reads == ["tolist"] * expected
    assert run.losses.host_reads == expected
    assert len(run.losses.history) == STEPS
    row = run.report.summary.switches["log_every"]
    assert row["evidence"] == {"loss_reads": expected, "steps": STEPS}
    assert row["active"] is (every != 1)


@pytest.mark.parametrize(("every", "points"), [(1, [1, 2, 3, 4, 5, 6, 7]), (3, [3, 6]), (7, [7]), (8, []), (0, [])])
def test_a_log_point_is_every_nth_step(every: int, points: list[int]) -> None:
    due = log_every.cadence(every)
    assert [step for step in range(1, 8) if due(step)] == points


def test_evidence_of_a_single_step_says_nothing() -> None:
    assert log_every.evidence(1, 1).active is None
    assert log_every.evidence(1, 2).active is True
    assert log_every.evidence(2, 2).active is False
