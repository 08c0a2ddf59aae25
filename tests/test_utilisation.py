"""Model FLOPs, counted on shapes and by hand, and the peaks that they are held against."""

from __future__ import annotations

import random
import warnings

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from framework.objective import Classification, Supervised
from framework.utilisation import Utilisation, peak_tflops, per_row
from models.convnet import ConvNet
from models.gpt import GPT

CPU = torch.device("cpu")
CUDA = torch.device("cuda:0")


def test_flops_of_a_linear_layer_equal_the_count_by_hand() -> None:
    """A multiply and an add each, forward and for the weights' gradient; the input needs none."""
    batch = (torch.zeros(7, 20), torch.zeros(7, 30))
    assert per_row(lambda: nn.Linear(20, 30), Supervised(F.mse_loss), batch) == 2 * 2 * 20 * 30


def test_flops_of_the_convnet_equal_the_count_by_hand() -> None:
    batch = (torch.zeros(4, 3, 32, 32), torch.zeros(4, dtype=torch.int64))
    first = 2 * 9 * 3 * 32 * 32 * 32  # kernel, channels in, channels out, pixels
    others = 2 * 9 * (32 * 64 * 16 * 16 + 64 * 64 * 8 * 8) + 2 * (1024 * 128 + 128 * 10)
    assert per_row(lambda: ConvNet(3, 32, 10), Classification(), batch) == 2 * first + 3 * others


def test_flops_of_the_gpt_equal_the_count_by_hand() -> None:
    vocab, context, width, depth = 96, 16, 32, 3
    tokens = torch.zeros(2, context, dtype=torch.int64)
    flops = per_row(lambda: GPT(vocab, context, width, depth, heads=4), Classification(), (tokens, tokens))
    products = 2 * context * (depth * 12 * width**2 + vocab * width)
    attention = depth * 4 * context**2 * width  # scores and mixing, not halved for the causal mask
    backward = 2 * attention
    recomputed = depth * 2 * context**2 * width  # a fused attention makes the scores again in its backward
    assert flops in (3 * products + attention + backward, 3 * products + attention + backward + recomputed)


def test_counting_needs_no_memory_and_no_arithmetic() -> None:
    """GPT-2's width and context at a depth of 1: more than 10^11 FLOPs a row, in a moment."""
    tokens = torch.zeros(32, 1024, dtype=torch.int64)
    flops = per_row(lambda: GPT(50304, 1024, 768, 1, heads=12), Classification(), (tokens, tokens))
    assert flops > 2e11


def test_counting_draws_no_random_numbers_and_leaves_the_batch() -> None:
    batch = (torch.ones(2, 5), torch.zeros(2, dtype=torch.int64))
    before = torch.get_rng_state(), random.getstate()
    utilisation = Utilisation(1.0)

    def make_model() -> nn.Module:
        random.random()
        torch.rand(1, device="cpu")
        return nn.Sequential(nn.Dropout(0.5), nn.Linear(5, 3))

    utilisation.count(make_model, Classification(), batch)
    assert utilisation.flops_per_row == 2 * 2 * 5 * 3  # dropping the input needs no gradient of it
    assert torch.equal(torch.get_rng_state(), before[0])
    assert random.getstate() == before[1]
    assert batch[0].device == CPU


def test_mfu_is_arithmetic_over_peak() -> None:
    utilisation = Utilisation(peak_tflops=2.0, flops_per_row=1e9)
    assert utilisation.mfu(samples_per_s=500) == pytest.approx(0.25)
    assert utilisation.why is None


def test_a_missing_peak_is_said_and_the_count_is_made_all_the_same() -> None:
    utilisation = Utilisation(None)
    utilisation.count(lambda: nn.Linear(2, 3), Classification(), (torch.zeros(1, 2), torch.zeros(1, dtype=torch.int64)))
    assert utilisation.flops_per_row == 24
    assert utilisation.mfu(10) is None
    assert utilisation.why is not None
    assert "meter.peak_tflops" in utilisation.why


def test_a_model_that_loads_weights_is_counted_without_a_warning() -> None:
    """torch warns of each weight that is loaded into a model on the meta device."""

    def make_model() -> nn.Module:
        with torch.device("cpu"):
            weights = nn.Linear(5, 3).state_dict()
        model = nn.Linear(5, 3)
        model.load_state_dict(weights)
        return model

    batch = (torch.ones(2, 5), torch.zeros(2, dtype=torch.int64))
    with torch.device("meta"), pytest.warns(UserWarning, match="meta"):
        make_model()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert per_row(make_model, Classification(), batch) == 2 * 2 * 5 * 3


class ReadsNumbers(nn.Module):
    """Needs values, which the meta device lacks."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.weight * float(x.sum())


def test_a_model_that_cannot_be_counted_costs_the_figure_and_no_more() -> None:
    utilisation = Utilisation(1.0)
    utilisation.count(ReadsNumbers, Supervised(F.mse_loss), (torch.zeros(1, 2), torch.zeros(1)))
    assert utilisation.mfu(10) is None
    assert utilisation.why is not None
    assert utilisation.why.startswith("the model could not be counted on the meta device")


@pytest.mark.parametrize(
    ("name", "peaks"),
    [
        ("NVIDIA H200", (67.0, 494.7, 989.4)),
        ("NVIDIA H200 NVL", (60.0, 417.5, 835.5)),
        ("NVIDIA H200 MIG 1g.18gb", (None, None, None)),
        ("NVIDIA A100-SXM4-40GB MIG 1g.5gb", (None, None, None)),
        ("NVIDIA H100 80GB HBM3", (67.0, 494.7, 989.4)),
        ("NVIDIA H100 PCIe", (51.2, 378.0, 756.0)),
        ("NVIDIA H100 NVL", (60.0, 417.5, 835.5)),
        ("NVIDIA A100-SXM4-80GB", (19.5, 156.0, 312.0)),
        ("Tesla V100-SXM2-16GB", (15.7, 15.7, 125.0)),
        ("Tesla T4", (8.1, 8.1, 65.0)),
        ("NVIDIA L4", (30.3, 60.0, 121.0)),
        ("NVIDIA L40S", (91.6, 183.0, 362.05)),
        ("NVIDIA L40", (None, None, None)),  # a name that another begins with is not that device
        ("NVIDIA RTX A1000", (None, None, None)),
        ("NVIDIA A10G", (None, None, None)),
        ("NVIDIA GeForce RTX 5090", (None, None, None)),
    ],
)
def test_peaks_are_found_by_the_device_s_whole_name(
    monkeypatch: pytest.MonkeyPatch, name: str, peaks: tuple[float | None, ...]
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: name)
    found = (
        peak_tflops(CUDA, torch.float32, False),
        peak_tflops(CUDA, torch.float32, True),
        peak_tflops(CUDA, torch.bfloat16, True),
    )
    assert found == peaks
    assert peak_tflops(CPU, torch.float32, False) is None
