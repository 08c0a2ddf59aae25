"""channels_last converts what it is made for and passes everything else."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from framework.techniques import channels_last
from framework.tree import tree_map


def is_last(tensor: Tensor) -> bool:
    return tensor.is_contiguous(memory_format=torch.channels_last)


def test_N01_only_4d_floating_tensors_of_a_batch_are_converted() -> None:
    batch: dict[str, Any] = {
        "image": torch.randn(2, 3, 4, 5),
        "half": torch.randn(2, 3, 4, 5).half(),
        "mask": torch.zeros(2, 3, 4, 5, dtype=torch.int64),
        "label": torch.zeros(2, 7),
        "signal": torch.randn(2, 3, 9),
        "volume": torch.randn(2, 3, 4, 5, 6),
        "scalar": torch.tensor(1.0),
        "pair": ("name", None, 3),
    }
    placed = tree_map(channels_last.convert, batch)
    for name in ("image", "half"):
        assert is_last(placed[name])
        assert torch.equal(placed[name], batch[name])
    for name in set(batch) - {"image", "half", "pair"}:
        assert placed[name] is batch[name]
    assert placed["pair"] == batch["pair"]


class Hybrid(nn.Module):
    """2-D, 3-D and 1-D convolutions beside a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.flat, self.deep = nn.Conv2d(3, 4, 3, padding=1), nn.Conv3d(4, 4, 3, padding=1)
        self.norm, self.line, self.head = nn.BatchNorm2d(4), nn.Conv1d(4, 4, 1), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = self.deep(self.norm(self.flat(x)).unsqueeze(2)).mean((2, 3, 4))
        return self.head(self.line(x.unsqueeze(-1)).squeeze(-1))  # type: ignore[no-any-return]


def test_N01_a_model_of_many_kinds_of_layers_trains_as_before() -> None:
    torch.manual_seed(0)
    plain, converted = Hybrid(), Hybrid()
    converted.load_state_dict(plain.state_dict())
    assert channels_last.convert_model(converted) is converted
    assert is_last(converted.flat.weight)
    assert converted.deep.weight.is_contiguous()
    x = torch.randn(2, 3, 6, 6)
    losses = [model(channels_last.convert(x) if model is converted else x).sum() for model in (plain, converted)]
    for loss in losses:
        loss.backward()
    torch.testing.assert_close(losses[0], losses[1], rtol=1e-5, atol=1e-5)
    for one, other in zip(plain.parameters(), converted.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad, rtol=1e-4, atol=1e-4)


def test_N01_a_model_without_2d_convolutions_gets_a_note_and_trains(caplog: pytest.LogCaptureFixture) -> None:
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
    with caplog.at_level(logging.WARNING, "gearshift"):
        channels_last.convert_model(model)
    assert [record.getMessage() for record in caplog.records] == [
        "perf.channels_last=true changes nothing here: the model has no 2-D convolution."
    ]
    model(channels_last.convert(torch.randn(4, 8))).sum().backward()


def test_N01_a_model_with_2d_convolutions_gets_no_note(caplog: pytest.LogCaptureFixture) -> None:
    for layer in (nn.Conv2d(2, 2, 3), nn.ConvTranspose2d(2, 2, 3)):
        channels_last.convert_model(nn.Sequential(layer))
    assert caplog.records == []


def test_shared_weights_stay_shared() -> None:
    model = nn.Sequential(nn.Conv2d(4, 4, 3), nn.Conv2d(4, 4, 3))
    model[1].weight = model[0].weight
    channels_last.convert_model(model)
    assert model[1].weight is model[0].weight
    assert is_last(model[0].weight)


@pytest.mark.parametrize(
    ("strides", "active"),
    [((48, 1, 12, 3), True), ((48, 16, 4, 1), False), ((12, 4, 1), False), (None, False)],
)
def test_evidence_is_the_strides_that_a_convolution_met(strides: tuple[int, ...] | None, active: bool) -> None:
    assert channels_last.evidence(strides).active is active
