"""With every switch off a run is a plain PyTorch loop, bit by bit; the exact techniques change no bit either."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count, islice
from pathlib import Path

import pytest
import torch
from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader

from framework import build, config, engine, rules
from framework.data.loader import SeededOrder
from framework.data.synthetic import SyntheticImages
from framework.engine import Run
from framework.environment import Machine
from models.convnet import ConvNet
from models.vit import ViT

CONFIGS = Path(__file__).parents[1] / "configs"
ROWS, BATCH, SEED, STEPS = 150, 16, 7, 20  # ten batches an epoch, the last of six rows
IMAGES = (
    "data=synthetic",
    f"data.count={ROWS}",
    "data.image_size=8",
    "data.channels=1",
    "data.classes=10",
    f"data.batch_size={BATCH}",
)
RUN = (f"seed={SEED}", f"train.max_steps={STEPS}", "device=cpu")
CONVNET = ("model=convnet", "model.channels=[4,8]", "model.hidden=16")
VIT = ("model=vit", "model.width=16", "model.depth=2", "model.heads=2", "model.dropout=0.2")


def trained(folder: Path, *overrides: str) -> Run:
    """A run composed as train.py would, on the CPU, and trained to its end."""
    GlobalHydra.instance().clear()
    config.register()
    with initialize_config_dir(str(CONFIGS), version_base="1.3"):
        raw = compose("config", overrides=[*IMAGES, *RUN, *overrides])
    run = build.build(rules.settle(raw, Machine((2, 14), cuda_build=False, gpus=0)), folder)
    engine.train(run)
    return run


def windows(accumulate: int) -> Iterator[list[tuple[Tensor, Tensor]]]:
    """The batches of each step, in the order that the framework's seed gives."""
    dataset = SyntheticImages(ROWS, 1, 8, 10)
    for epoch in count():
        order = SeededOrder(ROWS, SEED, torch.tensor(epoch))
        batches = iter(DataLoader(dataset, BATCH, sampler=order, generator=torch.Generator()))
        while window := list(islice(batches, accumulate)):
            yield window


def plain_loop(
    model_class: type[nn.Module], optim: str, accumulate: int, clip_norm: float | None
) -> tuple[nn.Module, list[float]]:
    """What a reader of PyTorch's tutorials would write."""
    torch.manual_seed(SEED)
    if model_class is ViT:
        model: nn.Module = ViT(8, 4, 1, 10, width=16, depth=2, heads=2, dropout=0.2)
    else:
        model = ConvNet(1, 8, 10, channels=[4, 8], hidden=16)
    if optim == "sgd":
        optimizer: torch.optim.Optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    else:
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    losses = []
    for window in islice(windows(accumulate), STEPS):
        rows, mean = sum(len(target) for _, target in window), torch.zeros(())
        for x, target in window:
            loss = F.cross_entropy(model(x), target)
            if len(window) > 1:
                loss = loss * (len(target) / rows)
            loss.backward()
            mean += loss.detach()
        if clip_norm is not None:
            nn.utils.clip_grad_norm_(model.parameters(), clip_norm)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(mean))
    return model, losses


@pytest.mark.parametrize(
    ("model", "optim", "accumulate", "clip_norm"),
    [
        (VIT, "sgd", 1, None),
        (VIT, "adamw", 1, 0.5),
        (VIT, "sgd", 4, 0.5),
        (CONVNET, "adamw", 1, None),
        (CONVNET, "sgd", 3, None),
    ],
    ids=["vit-sgd", "vit-adamw-clipped", "vit-sgd-accumulated-clipped", "convnet-adamw", "convnet-sgd-accumulated"],
)
def test_with_every_switch_off_a_run_is_a_plain_loop(
    tmp_path: Path, model: tuple[str, ...], optim: str, accumulate: int, clip_norm: float | None
) -> None:
    switches = (
        "perf=baseline",
        f"train.accumulate={accumulate}",
        *([f"train.clip_norm={clip_norm}"] * bool(clip_norm)),
    )
    run = trained(tmp_path, *model, f"optim={optim}", *switches)
    plain, losses = plain_loop(ViT if model is VIT else ConvNet, optim, accumulate, clip_norm)
    assert run.losses.history == pytest.approx(losses, rel=1e-6)  # sums of a window may be rounded otherwise
    if accumulate == 1:
        assert run.losses.history == losses
    expected = plain.state_dict()
    weights = run.state.model.state_dict()
    assert weights.keys() == expected.keys()
    assert [name for name, tensor in weights.items() if not torch.equal(tensor, expected[name])] == []
    assert run.state.steps == STEPS
    assert run.meter.total_rows == sum(
        len(target) for window in islice(windows(accumulate), STEPS) for _, target in window
    )


@pytest.fixture(scope="module")
def baseline(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return trained(tmp_path_factory.mktemp("baseline"), *VIT)


@pytest.mark.parametrize("switch", ["perf.workers=2", "perf.log_every=7", "perf.log_every=0"])
def test_C07_an_exact_technique_changes_no_bit(tmp_path: Path, baseline: Run, switch: str) -> None:
    run = trained(tmp_path, *VIT, switch)
    assert len(run.losses.history) == STEPS
    assert run.losses.history == baseline.losses.history
    pairs = zip(run.state.model.state_dict().values(), baseline.state.model.state_dict().values(), strict=True)
    assert all(torch.equal(one, other) for one, other in pairs)


def test_a_technique_that_rounds_otherwise_stays_close(tmp_path: Path) -> None:
    plain, fused, last = (
        trained(tmp_path / switch, *CONVNET, f"perf={switch}")
        for switch in ("baseline", "fused_optimizer", "channels_last")
    )
    for run in (fused, last):
        assert run.losses.history == pytest.approx(plain.losses.history, rel=1e-4)
        assert [name for name, row in run.report.summary.switches.items() if row["active"]] == [run.report.folder.name]


def test_another_seed_is_another_run(tmp_path: Path, baseline: Run) -> None:
    assert trained(tmp_path, *VIT, "seed=8").losses.history != baseline.losses.history
