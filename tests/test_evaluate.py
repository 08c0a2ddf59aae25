"""Evaluation: each row counts once, nothing of it reaches training, and the model's mode is put back."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from torch import Tensor, nn
from torch.nn import functional as F

from framework import build, config, engine, rules
from framework.clock import HostClock
from framework.engine import Evaluation, Run
from framework.environment import Machine
from framework.events import Events
from framework.losses import Losses
from framework.memory import Memory
from framework.meter import Meter
from framework.objective import Classification, Objective, Supervised

CONFIGS = Path(__file__).parents[1] / "configs"
IMAGES = ("data=synthetic", "data.count=40", "data.image_size=8", "data.channels=1", "data.classes=3")
HELD_OUT = (
    "data.eval={_target_:framework.data.synthetic.SyntheticImages,count:20,channels:1,image_size:8,classes:3,seed:1}"
)
CPU = torch.device("cpu")


class Peaks:
    """A source of memory peaks."""

    def reset(self) -> None:
        return

    def peaks(self) -> dict[str, float]:
        return {"peak_allocated_gib": 1.0}


def run_of(
    model: nn.Module, batches: list[Any] | None, objective: Objective, scores: Callable[[Any], Any] | None = None
) -> Run:
    """As much of a run as its evaluation needs."""

    def both(batch: Any) -> tuple[Tensor, Tensor | None]:
        loss, output = objective.loss(model, batch)
        return loss, objective.correct(output, batch)

    meter = Meter(HostClock(), warmup_steps=1)
    meter.start()
    parts = {
        "state": SimpleNamespace(model=model),
        "held_out": None if batches is None else lambda: iter(batches),
        "scores": scores or both,
        "count": objective.count,
        "losses": Losses(CPU),
        "meter": meter,
        "memory": Memory(Peaks(), warmup_steps=1),
    }
    return cast(Run, SimpleNamespace(**parts))


def evaluated(run: Run) -> Evaluation:
    found = engine.evaluate(run)
    assert found is not None
    return found


class Watched(nn.Module):
    """A linear layer that keeps the mode that each forward ran in, and raises in the one asked for."""

    def __init__(self, fails_at: int | None = None) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.norm, self.fails_at = nn.Linear(4, 3), nn.BatchNorm1d(4), fails_at
        self.modes: list[tuple[bool, bool]] = []

    def forward(self, x: Tensor) -> Tensor:
        self.modes.append((self.training, torch.is_grad_enabled()))
        if len(self.modes) == self.fails_at:
            raise torch.OutOfMemoryError("no memory left")
        return self.layer(self.norm(x))  # type: ignore[no-any-return]


def rows(count: int, seed: int = 1) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(count, 4, generator=generator), torch.randint(0, 3, (count,), generator=generator)


@pytest.mark.parametrize("sizes", [[37], [8, 8, 8, 8, 5], [1, 30, 6], [36, 1]])
def test_every_row_counts_once_whatever_the_batches(sizes: list[int]) -> None:
    model, (x, target) = Watched(), rows(37)
    batches = list(zip(x.split(sizes), target.split(sizes), strict=True))
    found = evaluated(run_of(model, batches, Classification()))
    output = model.eval()(x)
    assert found.count == 37
    assert found.loss == pytest.approx(float(F.cross_entropy(output, target).detach()), rel=1e-6)
    assert found.accuracy == pytest.approx(float((output.argmax(1) == target).double().mean()))


def test_tokens_without_a_target_count_for_nothing() -> None:
    torch.manual_seed(0)
    x, target = torch.randn(4, 6, 4), torch.randint(0, 3, (4, 6))
    target[0, 2:] = -100
    target[3] = -100  # a batch of its own, without any target
    model = nn.Linear(4, 3)
    batches = list(zip(x.split([2, 1, 1]), target.split([2, 1, 1]), strict=True))
    found = evaluated(run_of(model, batches, Classification()))
    output = model(x).detach()
    assert found.count == 2 + 6 + 6
    assert found.loss == pytest.approx(float(F.cross_entropy(output.flatten(0, 1), target.flatten())), rel=1e-6)
    assert found.accuracy == pytest.approx(int((output.argmax(-1) == target).sum()) / 14)


def test_an_objective_without_accuracy_gives_none() -> None:
    found = evaluated(run_of(nn.Linear(4, 1), [(torch.ones(3, 4), torch.ones(3, 1))], Supervised(F.mse_loss)))
    assert found.accuracy is None
    assert found.count == 3


def test_no_held_out_set_is_no_evaluation() -> None:
    assert engine.evaluate(run_of(Watched(), None, Classification())) is None


def test_a_held_out_set_that_counts_nothing_is_said_in_a_sentence() -> None:
    batch = (torch.randn(2, 6, 4), torch.full((2, 6), -100))
    with pytest.raises(ValueError, match=r"objective\.count gives 0 for the whole held-out set"):
        engine.evaluate(run_of(nn.Linear(4, 3), [batch], Classification()))


@pytest.mark.parametrize("training", [True, False])
def test_J03_eval_mode_without_gradients_and_the_mode_put_back(training: bool) -> None:
    model = Watched().train(training)
    buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
    evaluated(run_of(model, [rows(8), rows(5)], Classification()))
    assert model.modes == [(False, False)] * 2
    assert [module.training for module in model.modules()] == [training] * 3
    assert torch.is_grad_enabled()
    assert all(torch.equal(buffers[name], buffer) for name, buffer in model.named_buffers())
    assert all(parameter.grad is None for parameter in model.parameters())


@pytest.mark.parametrize("fails_at", [1, 2])
def test_J03_the_mode_is_put_back_when_it_raises(fails_at: int) -> None:
    model = Watched(fails_at)
    run = run_of(model, [rows(8), rows(5)], Classification())
    with pytest.raises(torch.OutOfMemoryError):
        engine.evaluate(run)
    assert all(module.training for module in model.modules())
    assert torch.is_grad_enabled()
    assert "evaluation" in run.memory.by_phase


def test_J03_the_mode_is_put_back_when_the_held_out_set_raises() -> None:
    def broken() -> Iterator[Any]:
        yield rows(8)
        raise OSError("row 8")

    model = Watched()
    run = run_of(model, [], Classification())
    with pytest.raises(OSError, match="row 8"):
        engine.evaluate(cast(Run, SimpleNamespace(**(vars(run) | {"held_out": broken}))))
    assert model.training


@pytest.mark.parametrize("raises", [False, True])
def test_J03_a_part_that_the_user_froze_stays_frozen(raises: bool) -> None:
    model = Watched(fails_at=1 if raises else None)
    model.norm.eval()
    run = run_of(model, [rows(8)], Classification())
    if raises:
        with pytest.raises(torch.OutOfMemoryError):
            engine.evaluate(run)
    else:
        engine.evaluate(run)
    assert (model.training, model.layer.training, model.norm.training) == (True, True, False)


def built(folder: Path, *overrides: str) -> Run:
    """A run composed as train.py would, on the CPU."""
    GlobalHydra.instance().clear()
    config.register()
    with initialize_config_dir(str(CONFIGS), version_base="1.3"):
        raw = compose("config", overrides=list(overrides))
    return build.build(rules.settle(raw, Machine((2, 14), cuda_build=False, gpus=0)), folder)


def gradients(folder: Path, *overrides: str) -> tuple[list[float], list[list[Tensor | None]]]:
    """Losses, and the gradients that each optimizer step met."""
    run = built(folder, *IMAGES, HELD_OUT, "data.batch_size=8", "train.max_steps=5", "device=cpu", *overrides)
    met: list[list[Tensor | None]] = []

    def keep(optimizer: torch.optim.Optimizer, arguments: object, named: object) -> None:
        parameters = optimizer.param_groups[0]["params"]
        met.append([None if p.grad is None else p.grad.clone() for p in parameters])

    run.state.optimizer.register_step_pre_hook(keep)
    engine.train(run)
    return run.losses.history, met


@pytest.mark.parametrize("amp", ["fp32", "bf16"])
def test_D06_evaluation_between_steps_changes_no_gradient(tmp_path: Path, amp: str) -> None:
    """A model with dropout, evaluated after every step, trains bit by bit as without."""
    model = ("model=vit", "model.width=16", "model.depth=1", "model.heads=2", "model.dropout=0.1")
    plain, evaluated = (
        gradients(tmp_path / f"every-{every}", *model, f"perf.amp={amp}", f"train.eval_every={every}")
        for every in (0, 1)
    )
    assert plain[0] == evaluated[0]
    assert len(evaluated[1]) == 5
    for one, other in zip(plain[1], evaluated[1], strict=True):
        for expected, gradient in zip(one, other, strict=True):
            assert gradient is not None
            assert expected is not None
            assert torch.equal(expected, gradient)


def test_H02_what_an_evaluation_costs_in_the_report_is_in_no_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Host memory is asked for, and the figures are written, between the last mark of a step and a new one."""
    run = built(tmp_path, *IMAGES, f"+{HELD_OUT}", "train.max_steps=3", "train.eval_every=1", "perf.log_every=0")
    told: list[str] = []
    clock_mark, scalars = run.meter.clock.mark, Events.scalars

    def mark() -> Any:
        told.append("mark")
        return clock_mark()

    def held() -> None:
        told.append("host memory")

    def write(events: Events, figures: dict[str, float], step: int) -> None:
        told.append("eval" if "eval/loss" in figures else "other")
        scalars(events, figures, step)

    monkeypatch.setattr(run.meter.clock, "mark", mark)
    monkeypatch.setattr("framework.report.host_gib", held)
    monkeypatch.setattr(Events, "scalars", write)
    engine.train(run)
    written = [index for index, name in enumerate(told) if name == "eval"]
    assert len(written) == 3
    assert all(told[index - 2 : index + 2] == ["mark", "host memory", "eval", "mark"] for index in written)
