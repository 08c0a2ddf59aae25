"""What is minimised, what it is a mean over, and what counts as right."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from framework.components import make
from framework.objective import Classification, Objective, Supervised
from framework.techniques import amp

CPU = torch.device("cpu")


def identity(x: Tensor) -> Tensor:
    return x


def images() -> tuple[Tensor, Tensor]:
    torch.manual_seed(0)
    return torch.randn(5, 3, requires_grad=True), torch.tensor([0, 2, 1, 1, 0])


def text(*padded: int) -> tuple[Tensor, Tensor]:
    """Two sequences of four tokens, three classes; those at flat positions `padded` have no target."""
    torch.manual_seed(0)
    target = torch.randint(0, 3, (2, 4))
    target.view(-1)[list(padded)] = -100
    return torch.randn(2, 4, 3, requires_grad=True), target


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_classification_is_cross_entropy(smoothing: float) -> None:
    objective, (x, target) = Classification(smoothing), images()
    loss, output = objective.loss(identity, (x, target))
    assert torch.equal(loss, F.cross_entropy(x, target, label_smoothing=smoothing))
    assert output is x
    assert int(objective.count((x, target))) == 5
    right = objective.correct(output, (x, target))
    assert right is not None
    assert int(right) == int((x.argmax(1) == target).sum())


def test_next_tokens_are_a_mean_over_all_that_have_a_target() -> None:
    objective, (x, target) = Classification(), text(1, 6)
    loss, _ = objective.loss(identity, (x, target))
    assert torch.equal(loss, F.cross_entropy(x.reshape(8, 3), target.reshape(8)))
    assert int(objective.count((x, target))) == 6


@pytest.mark.parametrize("batch", [images(), text()], ids=["rows", "tokens"])
@pytest.mark.parametrize("ignore_index", [-100, 0])
def test_ignored_targets_count_for_nothing(batch: tuple[Tensor, Tensor], ignore_index: int) -> None:
    """Also where the index that is ignored is a class that the model may answer with."""
    x, target = batch[0].detach(), batch[1].clone()
    target.view(-1)[:2] = ignore_index
    objective = Classification(ignore_index=ignore_index)
    answers = torch.zeros_like(x)
    answers[..., 0] = 1.0  # always class 0
    keep = target != ignore_index
    right = objective.correct(answers, (x, target))
    assert right is not None
    assert int(objective.count((x, target))) == int(keep.sum())
    assert int(right) == int((target[keep] == 0).sum())


@pytest.mark.parametrize("batch", [images(), text()], ids=["rows", "tokens"])
def test_K01_a_batch_without_a_target_has_no_loss_and_no_gradient(batch: tuple[Tensor, Tensor]) -> None:
    x, target = batch[0].detach().requires_grad_(), torch.full_like(batch[1], -100)
    loss, _ = Classification(0.1).loss(identity, (x, target))
    loss.backward()
    assert float(loss.detach()) == 0.0
    assert x.grad is not None
    assert torch.equal(x.grad, torch.zeros_like(x))


def test_a_loss_that_is_not_a_number_is_not_hidden() -> None:
    x, target = images()
    loss, _ = Classification().loss(lambda x: x * float("nan"), (x, target))
    assert bool(loss.detach().isnan())


@pytest.mark.parametrize("batch", [images(), text(3)], ids=["rows", "tokens"])
def test_the_gradient_is_that_of_cross_entropy(batch: tuple[Tensor, Tensor]) -> None:
    x, target = batch
    plain = x.detach().requires_grad_()
    Classification(0.1).loss(identity, (x, target))[0].backward()
    F.cross_entropy(plain.flatten(0, -2), target.flatten(), label_smoothing=0.1).backward()
    assert x.grad is not None
    assert plain.grad is not None
    assert torch.equal(x.grad, plain.grad)


def test_supervised_is_any_loss_over_rows() -> None:
    objective: Objective = Supervised(F.l1_loss)
    batch = (torch.ones(4, 2), torch.zeros(4, 2))
    loss, output = objective.loss(identity, batch)
    assert float(loss) == 1.0
    assert objective.count(batch) == 4
    assert objective.correct(output, batch) is None


def test_supervised_is_named_in_a_config() -> None:
    component = {
        "_target_": "framework.objective.Supervised",
        "function": {"_target_": "hydra.utils.get_method", "path": "torch.nn.functional.mse_loss"},
        "fp32": True,
    }
    objective = make(component, "objective")
    assert objective == Supervised(F.mse_loss, fp32=True)


class Recorder:
    """A loss that keeps what it was given."""

    def __init__(self) -> None:
        self.dtype: torch.dtype | None = None
        self.autocast: bool | None = None

    def __call__(self, output: Tensor, target: Tensor) -> Tensor:
        self.dtype, self.autocast = output.dtype, torch.is_autocast_enabled("cpu")
        return F.mse_loss(output, target.to(output.dtype))


@pytest.mark.parametrize(("fp32", "dtype"), [(False, torch.bfloat16), (True, torch.float32)])
def test_D04_a_loss_runs_in_fp32_outside_autocast_where_asked(fp32: bool, dtype: torch.dtype) -> None:
    seen, model = Recorder(), nn.Linear(3, 1)
    with amp.autocasts(torch.bfloat16, CPU)():
        loss, output = Supervised(seen, fp32).loss(model, (torch.ones(2, 3), torch.ones(2, 1)))
    loss.backward()
    assert output.dtype is torch.bfloat16  # the model runs under autocast either way
    assert (seen.dtype, seen.autocast) == (dtype, not fp32)
    assert model.weight.grad is not None


def bce() -> tuple[nn.Module, Any]:
    return nn.Sequential(nn.Linear(3, 1), nn.Sigmoid()), (torch.randn(4, 3), torch.ones(4, 1))


@pytest.mark.gpu
def test_D04_binary_cross_entropy_trains_in_fp16_with_fp32_and_says_why_not_without() -> None:
    device = torch.device("cuda")
    model, batch = bce()
    model, batch = model.to(device), tuple(part.to(device) for part in batch)
    with amp.autocasts(torch.float16, device)():
        with pytest.raises(RuntimeError, match="unsafe to autocast"):
            Supervised(F.binary_cross_entropy).loss(model, batch)
        loss, _ = Supervised(F.binary_cross_entropy, fp32=True).loss(model, batch)
    loss.backward()
    assert all(parameter.grad is not None for parameter in model.parameters())
