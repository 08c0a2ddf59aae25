"""The fused optimizer: offered where it works, refused in words where it does not, and on record."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

from framework.techniques import UnavailableError, fused_optimizer

CPU = torch.device("cpu")
FUSED = (torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW, torch.optim.Adagrad)


def trained(make: Callable[..., torch.optim.Optimizer], **asked: Any) -> tuple[torch.optim.Optimizer, list[float]]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
    optimizer, x, losses = make(model.parameters(), lr=1e-2, **asked), torch.randn(37, 8), []
    for _ in range(20):
        loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    return optimizer, losses


@pytest.mark.parametrize("make", FUSED)
def test_N02_where_it_is_offered_it_trains_alike_and_is_on_record(make: type[torch.optim.Optimizer]) -> None:
    plain, expected = trained(make)
    fused, losses = trained(make, **fused_optimizer.arguments(make, CPU))
    assert losses == pytest.approx(expected, rel=1e-4)
    assert losses[-1] < losses[0]
    assert fused_optimizer.evidence(fused).active is True
    assert fused_optimizer.evidence(plain).active is False


@pytest.mark.parametrize("make", [torch.optim.RMSprop, torch.optim.NAdam])
def test_N02_an_optimizer_without_it_is_named(make: type[torch.optim.Optimizer]) -> None:
    with pytest.raises(UnavailableError, match=rf"not offered by {make.__name__} .*AdamW"):
        fused_optimizer.arguments(make, CPU)


def test_N02_an_optimizer_that_raises_on_this_device_is_not_offered() -> None:
    class Picky(torch.optim.SGD):
        def __init__(self, params: Any, lr: float, fused: bool = False) -> None:
            super().__init__(params, lr)

        def step(self, closure: Any = None) -> None:  # type: ignore[override]
            raise RuntimeError("not on this device\nsecond line")

    with pytest.raises(UnavailableError, match=r"not offered by Picky on cpu \(not on this device\)$"):
        fused_optimizer.arguments(Picky, CPU)


def test_N02_parameters_that_it_cannot_take_are_found_before_training() -> None:
    with pytest.raises(UnavailableError, match="complex64"):
        fused_optimizer.arguments(torch.optim.Adam, CPU, {torch.float32, torch.complex64})
    assert fused_optimizer.arguments(torch.optim.Adam, CPU, {torch.float32, torch.float64}) == {"fused": True}


def test_N02_what_the_user_asked_of_the_optimizer_is_tried_with_it() -> None:
    with pytest.raises(UnavailableError, match=r"not offered by AdamW on cpu .*foreach"):
        fused_optimizer.arguments(partial(torch.optim.AdamW, lr=0.1, foreach=True), CPU)
    assert fused_optimizer.arguments(partial(torch.optim.SGD, lr=0.1, momentum=0.9), CPU) == {"fused": True}


def test_N02_parameters_that_take_no_gradient_are_told_in_words() -> None:
    with pytest.raises(UnavailableError, match=r"^is not offered by SGD on cpu \(.*floating point"):
        fused_optimizer.arguments(torch.optim.SGD, CPU, [torch.float32, torch.int8])


def test_evidence_needs_every_group() -> None:
    one, other = nn.Parameter(torch.zeros(1)), nn.Parameter(torch.zeros(1))
    mixed = torch.optim.SGD([{"params": [one], "fused": True}, {"params": [other]}], lr=0.1)
    found = fused_optimizer.evidence(mixed)
    assert (found.active, found.seen) == (False, {"groups_fused": 1, "groups": 2})
