"""The look at the first layers tells what they met and leaves everything as it was."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from framework.first_layer import FirstLayer, look, sample
from framework.techniques import amp, channels_last

CPU = torch.device("cpu")
FP32 = amp.autocasts(torch.float32, CPU)


def convolutions(channels: int = 3) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(channels, 8, 3), nn.BatchNorm2d(8), nn.Dropout(0.5), nn.Conv2d(8, 8, 3))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_dtype_is_that_of_the_first_output(dtype: torch.dtype) -> None:
    model = nn.Sequential(nn.Embedding(5, 8), nn.LayerNorm(8), nn.Linear(8, 3))
    seen = look(model, lambda: model(torch.zeros(2, 4, dtype=torch.int64)), amp.autocasts(dtype, CPU))
    assert seen == FirstLayer(dtype, None)


def test_a_model_without_such_layers_tells_nothing() -> None:
    model = nn.Sequential(nn.Flatten(), nn.ReLU())
    assert look(model, lambda: model(torch.zeros(2, 4)), FP32) == FirstLayer(None, None)


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("converted", [False, True])
def test_the_strides_are_those_of_the_first_convolution_s_input(channels: int, converted: bool) -> None:
    """Also with one channel, where both formats lie alike in memory and the strides alone tell the kernels."""
    model, images = convolutions(channels), torch.randn(2, channels, 9, 9)
    if converted:
        model, images = channels_last.convert_model(model), channels_last.convert(images)  # type: ignore[assignment]
    strides = look(model, lambda: model(images), FP32).strides
    assert channels_last.evidence(strides).active is converted
    assert model(images).is_contiguous(memory_format=torch.channels_last) is converted


class Watching(nn.Module):
    """Keeps what its forward saw."""

    def __init__(self) -> None:
        super().__init__()
        self.layers, self.seen = convolutions(), dict[str, Any]()

    def forward(self, x: Tensor) -> Tensor:
        self.seen = {"training": self.training, "gradients": torch.is_grad_enabled()}
        torch.rand(3)
        return self.layers(x)  # type: ignore[no-any-return]


@pytest.mark.parametrize("raises", [False, True])
def test_model_modes_and_generators_are_left_as_they_were(raises: bool) -> None:
    model = Watching().train()
    model.layers[1].eval()  # a frozen batch norm
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    generators = torch.get_rng_state(), random.getstate()

    def forward() -> Tensor:
        output: Tensor = model(torch.randn(2, 3, 9, 9))
        if raises:
            raise KeyError("forward")
        return output

    if raises:
        with pytest.raises(KeyError):
            look(model, forward, FP32)
    else:
        look(model, forward, FP32)
    assert model.seen == {"training": False, "gradients": False}
    assert [module.training for module in model.layers] == [True, False, True, True]
    assert model.training
    assert all(torch.equal(state[name], tensor) for name, tensor in model.state_dict().items())
    assert torch.equal(torch.get_rng_state(), generators[0])
    assert random.getstate() == generators[1]
    assert not any(module._forward_hooks for module in model.modules())


def test_a_sample_is_two_rows_of_its_own_in_the_same_format() -> None:
    images = torch.randn(8, 3, 4, 4).to(memory_format=torch.channels_last)
    batch = {"images": images, "labels": torch.arange(8), "scale": torch.tensor(2.0), "name": "x", "none": None}
    kept = sample(batch)
    assert kept["images"].shape == (2, 3, 4, 4)
    assert kept["images"].is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(kept["images"], images[:2])
    assert kept["labels"].tolist() == [0, 1]
    assert (float(kept["scale"]), kept["name"], kept["none"]) == (2.0, "x", None)
    images.zero_()
    assert bool(kept["images"].any())


def test_a_batch_whose_tensors_differ_in_length_is_kept_whole() -> None:
    """The edges of a graph name its nodes: two rows of each would not fit together."""
    graph = {"nodes": torch.randn(5, 3), "edges": torch.tensor([[0, 4], [4, 0]])}
    kept = sample(graph)
    assert torch.equal(kept["nodes"], graph["nodes"])
    assert torch.equal(kept["edges"], graph["edges"])
    assert kept["nodes"] is not graph["nodes"]


def test_a_batch_of_one_row_is_kept() -> None:
    assert sample((torch.ones(1, 3), torch.zeros(1)))[0].shape == (1, 3)
