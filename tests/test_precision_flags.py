"""TF32 and cuDNN benchmark: what was set is what every interface reads back."""

from __future__ import annotations

import warnings
from collections.abc import Iterator

import pytest
import torch

from framework.techniques import cudnn_benchmark, tf32


@pytest.fixture(autouse=True)
def flags_restored() -> Iterator[None]:
    """PyTorch's own defaults: IEEE for products, TF32 for convolutions, no benchmark."""
    yield
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = True
    torch.backends.cudnn.benchmark = False


@pytest.mark.parametrize("asked", [[True], [False], [True, False], [False, True], [True, True]])
def test_N03_both_interfaces_read_back_what_was_asked(asked: list[bool]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for enabled in asked:
            tf32.apply(enabled)
    name = "tf32" if enabled else "ieee"
    assert tf32.evidence().seen == {"matmul": name, "conv": name, "rnn": name}
    assert tf32.evidence().active is enabled
    # torch's compiler reads these in some versions and modes: where the interfaces disagree, that raises
    assert torch.backends.cuda.matmul.allow_tf32 is enabled
    assert torch.backends.cudnn.allow_tf32 is enabled
    assert torch.get_float32_matmul_precision() == ("high" if enabled else "highest")
    with torch.backends.cudnn.flags(enabled=False):
        pass
    assert tf32.evidence().active is enabled


def test_N03_a_flag_that_took_no_effect_is_not_active() -> None:
    tf32.apply(True)
    torch.backends.cudnn.conv.fp32_precision = "ieee"  # type: ignore[attr-defined]
    assert tf32.evidence().active is False


@pytest.mark.parametrize("enabled", [True, False])
def test_cudnn_benchmark_is_set_either_way_and_read_back(enabled: bool) -> None:
    torch.backends.cudnn.benchmark = not enabled
    cudnn_benchmark.apply(enabled)
    assert torch.backends.cudnn.benchmark is enabled
    assert cudnn_benchmark.evidence().active is enabled


@pytest.mark.gpu
@pytest.mark.parametrize("enabled", [True, False])
def test_N03_products_and_convolutions_round_as_asked(enabled: bool) -> None:
    torch.manual_seed(0)
    tf32.apply(enabled)
    matrix, image, kernel = torch.randn(256, 256), torch.randn(4, 64, 32, 32), torch.randn(64, 64, 3, 3)
    convolve = torch.nn.functional.conv2d
    exact = (matrix.double() @ matrix.double(), convolve(image.double(), kernel.double()))
    there = (matrix.cuda() @ matrix.cuda(), convolve(image.cuda(), kernel.cuda()))
    for true, result in zip(exact, there, strict=True):
        error = float((result.double().cpu() - true).abs().max() / true.abs().max())
        assert (error > 1e-5) is enabled


@pytest.mark.gpu
@pytest.mark.filterwarnings("default")  # only an error counts here: torch's compiler warns of its own inner workings
@pytest.mark.parametrize("mode", ["default", "max-autotune-no-cudagraphs"])
def test_N03_a_compiled_function_runs_with_tf32_on(mode: str) -> None:
    torch._dynamo.reset()
    tf32.apply(True)
    weight = torch.randn(256, 256, device="cuda")
    compiled = torch.compile(lambda x: (x @ weight).relu().sum(), mode=mode)
    assert bool(compiled(torch.randn(128, 256, device="cuda")).isfinite())
