"""The attention kernel: the one asked for is dispatched, what is lacking is told at the start, nothing else changes."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from hydra import compose, initialize_config_dir
from torch import Tensor, nn
from torch.nn import functional as F

from framework import build, config, engine, rules
from framework.environment import Machine
from framework.first_layer import look
from framework.mistakes import ConfigError
from framework.techniques import UnavailableError, attention
from models.gpt import GPT

CONFIGS = str(Path(__file__).parents[1] / "configs")
CPU = torch.device("cpu")
TEXT = ["model=gpt_tiny", "data=synthetic_text", "data.context=16", "data.vocab=32", "data.count=64"]
SHORT = ["device=cpu", "data.batch_size=8", "train.max_steps=6", "meter.warmup_steps=2"]


def made(folder: Path, *overrides: str) -> engine.Run:
    config.register()
    with initialize_config_dir(CONFIGS, version_base="1.3"):
        raw = compose("config", [*TEXT, *SHORT, *overrides])
    return build.build(rules.settle(raw, Machine((2, 14), True, 0)), folder)


def trained(folder: Path, *overrides: str) -> dict[str, Any]:
    run = made(folder, *overrides)
    engine.train(run)
    return run.report.summary.switches["attention"] | {"losses": run.losses.history}


def gpt(dropout: float = 0.0) -> GPT:
    torch.manual_seed(0)
    return GPT(vocab=32, context=16, width=32, depth=3, heads=2, dropout=dropout)


def test_the_off_value_is_no_context_at_all() -> None:
    before = torch.backends.cuda.flash_sdp_enabled(), torch.backends.cuda.math_sdp_enabled()
    with attention.kernels("auto")():
        assert (torch.backends.cuda.flash_sdp_enabled(), torch.backends.cuda.math_sdp_enabled()) == before


def test_there_is_a_kernel_for_every_value() -> None:
    assert {"auto", *attention.KERNELS} == {value.name for value in config.Attention}


@pytest.mark.parametrize("asked", ["flash", "math"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_what_the_processor_has_passes_the_probe(asked: str, dtype: torch.dtype) -> None:
    attention.probe(asked, dtype, CPU)


@pytest.mark.parametrize("asked", ["efficient", "cudnn"])
def test_what_it_lacks_is_told_in_one_line_with_torch_s_reason(asked: str) -> None:
    with pytest.raises(UnavailableError, match=r"^does not take float32 on cpu \(\S.*\)$"):
        attention.probe(asked, torch.float32, CPU)


def test_the_reason_is_that_of_the_kernel_asked_for() -> None:
    """What torch says on a GPU where flash is asked for in float32."""
    place = " (Triggered internally at sdp_utils.cpp:1.)"
    words = [
        "No available kernel. Aborting execution.",
        f"Memory efficient kernel not used because:{place}",
        f"Memory Efficient attention has been runtime disabled.{place}",
        f"Flash attention kernel not used because:{place}",
        f"Expected query, key and value to all be of dtype: {{Half, BFloat16}}. Got Float.{place}",
        f"cuDNN attention kernel not used because:{place}",
        f"cuDNN attention has been runtime disabled.{place}",
    ]
    assert attention._reason(words) == "Expected query, key and value to all be of dtype: {Half, BFloat16}. Got Float"
    assert attention._reason(words[:1]) == "No available kernel. Aborting execution"


@pytest.mark.parametrize("asked", ["efficient", "cudnn"])
def test_it_is_refused_before_torch_is_asked(asked: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=rf"^perf\.attention={asked} needs a CUDA device.*perf\.attention=auto"):
        made(tmp_path, f"perf.attention={asked}")


def test_what_the_probe_finds_lacking_is_left_out_or_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(attention.KERNELS, "flash", attention.KERNELS["cudnn"])  # a device that lacks it
    with pytest.raises(ConfigError, match=r"^perf\.attention=flash does not take float32 on cpu \("):
        made(tmp_path / "refused", "perf.attention=flash")
    row = trained(tmp_path / "left_out", "perf.attention=flash", "perf.if_unavailable=skip")
    assert (row["effective"], row["active"]) == ("auto", False)
    assert "does not take float32" in row["left_out"]


@pytest.mark.parametrize(
    ("own", "autocast", "given"), [("float32", "bfloat16", "bfloat16"), ("bfloat16", "float32", "bfloat16")]
)
def test_the_probe_takes_what_attention_will_be_given(own: str, autocast: str, given: str) -> None:
    model = nn.Linear(2, 2, dtype=getattr(torch, own))
    assert attention.dtype_of(model, getattr(torch, autocast)) is getattr(torch, given)


@pytest.mark.parametrize("amp", ["fp32", "bf16"])
@pytest.mark.parametrize("asked", ["flash", "math"])
def test_a_run_uses_the_kernel_and_says_so(asked: str, amp: str, tmp_path: Path) -> None:
    row = trained(tmp_path, f"perf.attention={asked}", f"perf.amp={amp}")
    assert row["active"] is True
    assert row["evidence"] == {"kernels": {asked: 4}}


def test_kernels_agree_closely_and_were_really_different(tmp_path: Path) -> None:
    flash = trained(tmp_path / "flash", "perf.attention=flash")["losses"]
    plain = trained(tmp_path / "math", "perf.attention=math")["losses"]
    torch.testing.assert_close(torch.tensor(flash), torch.tensor(plain), rtol=1e-4, atol=0)
    assert flash != plain


def test_a_model_without_attention_is_not_active(tmp_path: Path) -> None:
    row = trained(tmp_path, "model=convnet", "data=digits", "perf.attention=flash")
    assert row["active"] is False
    assert row["evidence"]["why"] == "scaled_dot_product_attention was not called"


def test_another_kernel_than_asked_for_is_not_active() -> None:
    assert attention.evidence("flash", {"flash": 3}).active is True
    assert attention.evidence("flash", {"math": 3}).active is False
    assert attention.evidence("flash", {"flash": 2, "math": 1}).active is False


class Attending(nn.Module):
    """A part of torch's own that has a faster way outside training, in which the function is not called."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x)  # type: ignore[no-any-return]


def test_the_look_takes_the_way_of_training_and_leaves_the_other_open() -> None:
    model = Attending().train()

    def forward() -> Tensor:
        with attention.kernels("math")():
            return model(torch.zeros(2, 4, 16))  # type: ignore[no-any-return]

    assert look(model, forward, attention.kernels("auto")).attention == {"math": 1}
    assert torch.backends.mha.get_fastpath_enabled()


def test_the_look_counts_each_call_by_its_kernel() -> None:
    value = torch.zeros(1, 1, 4, 8)

    def forward() -> None:
        for asked in ("flash", "math", "flash"):
            with attention.kernels(asked)():
                F.scaled_dot_product_attention(value, value, value)

    assert look(nn.Identity(), forward, attention.kernels("auto")).attention == {"flash": 2, "math": 1}


@pytest.mark.slow
def test_a_compiled_graph_holds_the_kernel(tmp_path: Path) -> None:
    """Dropout, which the processor's flash kernel refuses: a graph made outside the context would take another."""
    row = trained(tmp_path / "math", "perf.attention=math", "perf.compile=default", "model.dropout=0.1")
    assert row["active"] is True
    run = made(tmp_path / "flash", "perf.attention=flash", "perf.compile=default", "model.dropout=0.1")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's reasons
        with pytest.raises(RuntimeError, match="No available kernel"):
            engine.train(run)


@pytest.mark.gpu
@pytest.mark.parametrize("asked", ["flash", "efficient", "cudnn", "math"])
@pytest.mark.parametrize("compiled", ["eager", "default"])
def test_every_kernel_is_dispatched_on_a_gpu(asked: str, compiled: str, tmp_path: Path) -> None:
    config.register()
    overrides = ["device=cuda", "perf.amp=bf16", f"perf.attention={asked}", f"perf.compile={compiled}"]
    with initialize_config_dir(CONFIGS, version_base="1.3"):
        raw = compose("config", [*TEXT, *SHORT, "data.context=64", *overrides])
    run = build.build(rules.settle(raw, Machine((2, 14), True, 1)), tmp_path)
    engine.train(run)
    row = run.report.summary.switches["attention"]
    assert row["active"] is True, row["evidence"]


@pytest.mark.gpu
@pytest.mark.parametrize("asked", ["flash", "cudnn"])
def test_float32_is_refused_on_a_gpu_where_the_kernel_has_16_bits_only(asked: str) -> None:
    with pytest.raises(UnavailableError, match="does not take float32 on cuda"):
        attention.probe(asked, torch.float32, torch.device("cuda"))
    attention.probe("efficient", torch.float32, torch.device("cuda"))
