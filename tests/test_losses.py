"""Losses wait on the device, let go of their graphs, and are read all at once."""

from __future__ import annotations

import weakref

import pytest
import torch
from torch import Tensor

from framework import losses
from framework.losses import Losses

CPU = torch.device("cpu")


def test_losses_are_read_in_order_and_once() -> None:
    kept = Losses(CPU)
    assert kept.read() == []
    assert kept.host_reads == 0
    for value in (3.0, 1.0, 2.0):
        kept.add(torch.tensor(value))
    assert kept.read() == [3.0, 1.0, 2.0]
    kept.add(torch.tensor(5.0))
    assert kept.read() == [5.0]
    assert kept.read() == []
    assert kept.history == [3.0, 1.0, 2.0, 5.0]
    assert kept.host_reads == 2


@pytest.mark.parametrize("count", [3, 4, 5, 8, 9, 13])
def test_any_number_of_losses_fits_between_two_reads(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    monkeypatch.setattr(losses, "CHUNK", 4)
    kept = Losses(CPU)
    for start in (0, 100):
        values = [float(start + number) for number in range(count)]
        for value in values:
            kept.add(torch.tensor(value))
        assert kept.read() == values
    assert kept.host_reads == 2
    assert len(kept.history) == 2 * count


def test_a_loss_is_copied_since_its_memory_may_be_used_again() -> None:
    """A CUDA graph writes each step's loss to the same place."""
    kept, same = Losses(CPU), torch.zeros(())
    for value in (1.0, 2.0):
        same.fill_(value)
        kept.add(same)
    assert kept.read() == [1.0, 2.0]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_a_loss_of_any_precision_is_kept(dtype: torch.dtype) -> None:
    kept = Losses(CPU)
    kept.add(torch.tensor(1.5, dtype=dtype))
    assert kept.read() == [1.5]


def test_J02_the_graph_of_a_loss_is_let_go() -> None:
    kept = Losses(CPU)
    graphs: list[weakref.ref[Tensor]] = []
    for _ in range(5):
        weight = torch.ones(3, requires_grad=True)
        saved = weight.exp()
        graphs.append(weakref.ref(saved))
        kept.add((saved * saved).sum())
        del weight, saved
    assert [graph() for graph in graphs] == [None] * 5
    assert len(kept.read()) == 5


def test_nothing_is_read_from_the_device_before_it_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    reads: list[str] = []
    for name in ("item", "tolist", "cpu", "numpy", "__float__", "__bool__"):
        method = getattr(Tensor, name)

        def counting(tensor: Tensor, *arguments: object, name: str = name, method: object = method) -> object:
            reads.append(name)
            return method(tensor, *arguments)  # type: ignore[operator]

        monkeypatch.setattr(Tensor, name, counting)
    kept = Losses(CPU)
    for _ in range(losses.CHUNK + 1):
        kept.add(torch.ones(()))
    assert reads == []
    assert len(kept.read()) == losses.CHUNK + 1
    assert reads == ["tolist"]
