"""Mixed precision: what is cast, that no gradient is lost, and that a run on the CPU says what it did."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from torch import Tensor, nn
from torch.amp.grad_scaler import GradScaler

from framework import config, rules
from framework.environment import Machine
from framework.mistakes import ConfigError
from framework.rules import Settled
from framework.switches import Switches
from framework.techniques import UnavailableError, amp

CONFIGS = Path(__file__).parents[1] / "configs"
CPU = torch.device("cpu")


def settled(*overrides: str, gpus: int = 0) -> Settled:
    GlobalHydra.instance().clear()
    config.register()
    with initialize_config_dir(str(CONFIGS), version_base="1.3"):
        raw = compose("config", overrides=list(overrides))
    return rules.settle(raw, Machine((2, 14), cuda_build=gpus > 0, gpus=gpus))


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))


class TwoPasses(nn.Module):
    """A model whose forward runs its layers without gradients first, as recycling and self-conditioning do."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = net()

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            first = self.layers(x)
        return self.layers(x + first.float().mean())  # type: ignore[no-any-return]


def test_float32_is_no_autocast_at_all() -> None:
    with amp.autocasts(torch.float32, CPU)():
        assert not torch.is_autocast_enabled("cpu")
        assert net()(torch.ones(2, 8)).dtype is torch.float32


def test_bf16_casts_the_forward_and_keeps_the_weights() -> None:
    model = net()
    with amp.autocasts(torch.bfloat16, CPU)():
        output = model(torch.ones(2, 8))
    assert output.dtype is torch.bfloat16
    output.sum().backward()
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
    assert {parameter.grad.dtype for parameter in model.parameters() if parameter.grad is not None} == {torch.float32}


def test_D06_a_pass_without_gradients_inside_the_forward_loses_none() -> None:
    model = TwoPasses()
    with amp.autocasts(torch.bfloat16, CPU)():
        loss = model(torch.ones(2, 8)).float().mean()
    loss.backward()
    assert [name for name, parameter in model.named_parameters() if parameter.grad is None] == []
    assert all(bool(parameter.grad.any()) for parameter in model.parameters() if parameter.grad is not None)


def test_D06_a_forward_without_gradients_between_two_steps_changes_no_gradient() -> None:
    def gradients(validate: bool) -> list[Tensor]:
        model, autocasts = net(), amp.autocasts(torch.bfloat16, CPU)
        for _ in range(2):
            if validate:
                with torch.no_grad(), autocasts():
                    model(torch.ones(3, 8))
            with autocasts():
                model(torch.ones(2, 8)).float().mean().backward()
        return [parameter.grad for parameter in model.parameters() if parameter.grad is not None]

    plain, validated = gradients(False), gradients(True)
    assert len(validated) == 4
    assert all(torch.equal(one, other) for one, other in zip(plain, validated, strict=True))


@pytest.mark.gpu
def test_D06_a_pass_without_gradients_loses_none_on_the_gpu() -> None:
    device = torch.device("cuda")
    model = TwoPasses().to(device)
    with amp.autocasts(torch.bfloat16, device)():
        loss = model(torch.ones(2, 8, device=device)).float().mean()
    loss.backward()
    assert [name for name, parameter in model.named_parameters() if parameter.grad is None] == []


def test_D05_fp16_on_the_cpu_is_refused_in_a_sentence() -> None:
    with pytest.raises(ConfigError, match=r"perf\.amp=fp16 needs a CUDA device .*perf\.amp=bf16 works there"):
        settled("perf.amp=fp16", "device=cpu")


def test_D05_fp16_left_out_is_on_record_and_not_taken_for_fp16() -> None:
    found = settled("perf.amp=fp16", "perf.if_unavailable=skip", "device=cpu")
    assert found.config.perf.amp is config.Amp.fp32
    row = Switches(found).table(dict.fromkeys(config.TECHNIQUES, amp.RECORD), look=False)["amp"]
    assert (row.requested, row.effective, row.on) == ("fp16", "fp32", False)
    assert row.left_out is not None


def test_D05_no_precision_touches_cuda_on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: object) -> None:
        raise AssertionError("a run on the CPU asked CUDA for something")

    monkeypatch.setattr(torch.cuda, "_lazy_init", refuse)
    monkeypatch.setattr(torch.cuda, "get_device_capability", refuse)
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for dtype in (torch.float32, torch.bfloat16):
            amp.check(dtype, CPU)
            scaler = amp.scaler(dtype, CPU)
            with amp.autocasts(dtype, CPU)():
                loss = model(torch.ones(2, 8)).float().mean()
            scaler.scale(loss).backward()
            assert amp.step(scaler, optimizer)
            assert not scaler.is_enabled()


def test_D07_emulated_bf16_is_refused_whatever_the_permissive_query_says(monkeypatch: pytest.MonkeyPatch) -> None:
    device = torch.device("cuda:0")
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda *arguments, **named: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 5))
    with pytest.raises(UnavailableError, match=r"emulated.*8\.0.*perf\.amp=fp16"):
        amp.check(torch.bfloat16, device)
    amp.check(torch.float16, device)
    amp.check(torch.float32, device)
    for native in ((8, 0), (9, 0), (12, 0)):
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device, native=native: native)
        amp.check(torch.bfloat16, device)


def test_D07_emulated_bf16_is_left_out_and_listed_where_that_is_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 5))
    found = settled("perf.amp=bf16", "perf.if_unavailable=skip", gpus=1)
    switches = Switches(found)
    switches.offered("amp", lambda: amp.check(torch.bfloat16, torch.device("cuda:0")), None)
    assert found.config.perf.amp is config.Amp.fp32
    assert "emulated" in switches.left_out["amp"]


def test_only_fp16_has_a_loss_scale() -> None:
    assert [name for name, dtype in amp.DTYPES.items() if amp.scaler(dtype, CPU).is_enabled()] == ["fp16"]
    assert set(amp.DTYPES) == {choice.name for choice in config.Amp}


@pytest.mark.parametrize(
    ("asked", "met", "active"),
    [
        (torch.bfloat16, torch.bfloat16, True),
        (torch.bfloat16, torch.float32, False),
        (torch.float16, torch.bfloat16, False),
        (torch.bfloat16, None, None),
    ],
)
def test_evidence_is_what_the_first_layer_returned(
    asked: torch.dtype, met: torch.dtype | None, active: bool | None
) -> None:
    assert amp.evidence(asked, met).active is active


@pytest.mark.parametrize("fused", [False, True])
def test_D03_one_number_is_read_in_a_step_with_a_loss_scale(monkeypatch: pytest.MonkeyPatch, fused: bool) -> None:
    """The scaler reads it itself unless the optimizer is fused; a step after an overflow reads no more."""
    model = net()
    optimizer, scaler = torch.optim.SGD(model.parameters(), lr=0.1, fused=fused), GradScaler("cpu", init_scale=4.0)
    reads: list[str] = []
    for name in ("item", "tolist", "__float__", "__bool__"):
        method = getattr(Tensor, name)

        def counting(tensor: Tensor, name: str = name, method: Callable[[Tensor], object] = method) -> object:
            reads.append(name)
            return method(tensor)

        monkeypatch.setattr(Tensor, name, counting)
    for factor, stepped in ((1.0, True), (float("inf"), False), (1.0, True)):
        scaler.scale(model(torch.ones(2, 8)).mean() * factor).backward()
        reads.clear()
        assert amp.step(scaler, optimizer) is stepped
        assert len(reads) == 1
        optimizer.zero_grad()
    monkeypatch.undo()
    assert scaler.get_scale() == 2.0
