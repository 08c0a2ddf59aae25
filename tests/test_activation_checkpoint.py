"""Activation checkpointing: which blocks, the same numbers, less memory, and nothing done twice that must be once."""

from __future__ import annotations

import copy
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from hydra import compose, initialize_config_dir
from torch import Tensor, nn

from framework import build, config, engine, rules
from framework.environment import Machine
from framework.forward import forwards
from framework.mistakes import ConfigError
from framework.objective import Classification
from framework.techniques import UnavailableError, activation_checkpoint, attention
from framework.techniques.compile import Compiled
from framework.tree import shapes
from models.convnet import ConvNet
from models.gpt import GPT
from models.vit import ViT

CONFIGS = str(Path(__file__).parents[1] / "configs")
TEXT = ["model=gpt_tiny", "data=synthetic_text", "data.context=16", "data.vocab=32", "data.count=64"]
SHORT = ["data.batch_size=8", "train.max_steps=4", "meter.warmup_steps=2"]


def made(folder: Path, *overrides: str) -> engine.Run:
    config.register()
    with initialize_config_dir(CONFIGS, version_base="1.3"):
        raw = compose("config", [*TEXT, *SHORT, *overrides])
    return build.build(rules.settle(raw, Machine((2, 14), True, 1 if "device=cuda" in overrides else 0)), folder)


def trained(folder: Path, *overrides: str) -> dict[str, Any]:
    run = made(folder, *overrides)
    engine.train(run)
    row = run.report.summary.switches["activation_checkpoint"]
    return row | {"losses": run.losses.history, "memory": run.report.summary.memory}


def gpt(dropout: float = 0.0) -> GPT:
    torch.manual_seed(0)
    return GPT(vocab=32, context=16, width=32, depth=3, heads=2, dropout=dropout)


class Convolutions(nn.Module):
    """Three blocks with batch norm and dropout."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.blocks = nn.Sequential(*(self.block() for _ in range(3)))

    @staticmethod
    def block() -> nn.Sequential:
        return nn.Sequential(nn.Conv2d(3, 3, 3, padding=1), nn.BatchNorm2d(3), nn.ReLU(), nn.Dropout(0.2))

    def forward(self, x: Tensor) -> Tensor:
        return self.blocks(x)  # type: ignore[no-any-return]


def checkpointed(model: nn.Module) -> activation_checkpoint.Checkpointing:
    return activation_checkpoint.apply(model, nullcontext)


def names(model: nn.Module) -> list[str]:
    found = {id(block) for block in activation_checkpoint.blocks(model)}
    return [name for name, module in model.named_modules() if id(module) in found]


def test_blocks_of_our_models() -> None:
    assert names(gpt()) == ["blocks.0", "blocks.1", "blocks.2"]
    vit = ViT(image_size=8, patch_size=4, in_channels=1, num_classes=10, width=16, depth=2, heads=2)
    assert names(vit) == ["blocks.0", "blocks.1"]
    assert names(ConvNet(1, 8, 10, [8, 16], 16)) == ["features.0", "features.1"]


def test_blocks_of_residual_networks_lie_in_their_stages() -> None:
    torchvision = pytest.importorskip("torchvision")
    found = names(torchvision.models.resnet18(weights=None))
    assert found == [f"layer{stage}.{block}" for stage in (1, 2, 3, 4) for block in (0, 1)]


def test_of_nested_blocks_the_outermost_are_taken() -> None:
    stages = nn.Sequential(Convolutions(), Convolutions())
    assert names(stages) == ["0", "1"]


def test_lists_in_lists_are_entered_since_they_have_no_forward() -> None:
    model = nn.ModuleList(nn.ModuleList(Convolutions.block() for _ in range(2)) for _ in range(2))
    assert names(model) == ["0.0", "0.1", "1.0", "1.1"]


def test_single_layers_and_single_blocks_are_no_repeated_blocks() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4), nn.ReLU(), nn.ModuleList([Convolutions.block()]))
    assert names(model) == []
    with pytest.raises(UnavailableError, match=r"^finds no repeated blocks in Sequential$"):
        checkpointed(model)


def test_a_block_that_stands_twice_is_wrapped_once() -> None:
    block = Convolutions.block()
    model = nn.Sequential(block, block)
    assert checkpointed(model).blocks == 1


def gradients(
    model: nn.Module, batch: Tensor, autocast: bool = False, compiled: bool = False
) -> tuple[list[Tensor], dict[str, Tensor]]:
    """Gradients summed over two batches, and the state after them."""
    torch.manual_seed(1)
    forward = torch.compile(lambda part: model(part), dynamic=False) if compiled else model
    for part in batch.chunk(2):
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            loss = forward(part).float().square().mean()
        loss.backward()
    after = torch.rand(3)  # the generator stands where it would have stood
    grads = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    return [*grads, after], model.state_dict()


CASES: dict[str, tuple[Callable[[], nn.Module], Callable[[], Tensor]]] = {
    "gpt": (lambda: gpt(0.1), lambda: torch.randint(0, 32, (4, 16))),
    "convolutions": (Convolutions, lambda: torch.randn(4, 3, 8, 8)),
}


@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("case", CASES)
def test_gradients_statistics_and_generators_are_the_same_to_the_bit(case: str, autocast: bool) -> None:
    make, batch = CASES[case][0], CASES[case][1]()
    plain, wrapped = make(), make()
    done = checkpointed(wrapped)
    (expected, state), (got, same) = gradients(plain, batch, autocast), gradients(wrapped, batch, autocast)
    assert len(expected) == len(got)
    assert all(torch.equal(a, b) for a, b in zip(expected, got, strict=True))
    assert list(state) == list(same)
    assert all(torch.equal(state[name], same[name]) for name in state)
    assert (done.forwards, done.recomputations) == (6, 6)


def test_statistics_would_be_updated_twice_without_care(monkeypatch: pytest.MonkeyPatch) -> None:
    batch = torch.randn(4, 3, 8, 8)
    monkeypatch.setattr(activation_checkpoint, "_statistics_kept", lambda _: nullcontext())
    wrapped = Convolutions()
    checkpointed(wrapped)
    _, state = gradients(wrapped, batch)
    assert int(state["blocks.0.1.num_batches_tracked"]) == 4


def test_a_state_dict_of_one_loads_into_the_other() -> None:
    plain, wrapped = gpt(), gpt()
    checkpointed(wrapped)
    assert list(plain.state_dict()) == list(wrapped.state_dict())
    plain.load_state_dict(wrapped.state_dict())


def saved_bytes(model: nn.Module, batch: Tensor) -> int:
    """Bytes kept for the backward pass, each tensor once."""
    kept: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        kept[tensor.data_ptr()] = tensor.nbytes
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        model(batch).sum()
    return sum(kept.values())


def test_less_is_kept_for_the_backward_pass() -> None:
    batch, plain, wrapped = torch.randint(0, 32, (4, 16)), gpt(), gpt()
    checkpointed(wrapped)
    assert saved_bytes(wrapped, batch) < saved_bytes(plain, batch) / 3


def test_without_gradients_nothing_is_wrapped() -> None:
    model = gpt()
    done = checkpointed(model)
    with torch.no_grad():
        model(torch.randint(0, 32, (4, 16)))
    assert (done.forwards, done.recomputations) == (0, 0)
    assert activation_checkpoint.evidence(done).active is False


def test_a_forward_whose_backward_never_comes_is_no_evidence() -> None:
    model = gpt()
    done = checkpointed(model)
    model(torch.randint(0, 32, (4, 16)))
    assert done.forwards == 3
    assert activation_checkpoint.evidence(done).active is False


class Named(nn.Module):
    """Hands the features to its blocks by name."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.blocks = nn.ModuleList(Convolutions() for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x=x)
        return x


def named_arguments(device: str) -> None:
    plain = Named().to(device)
    wrapped = copy.deepcopy(plain)
    checkpointed(wrapped)
    batch = torch.randn(4, 3, 8, 8, device=device)
    (expected, _), (got, _) = gradients(plain, batch), gradients(wrapped, batch)
    assert all(torch.equal(a, b) for a, b in zip(expected, got, strict=True))


def test_arguments_may_have_names() -> None:
    named_arguments("cpu")


def test_the_kernel_of_attention_holds_in_the_second_forward_too() -> None:
    """Without its context there, the recomputation takes another kernel and keeps other tensors."""
    model = gpt()
    kernels = attention.kernels("math")
    activation_checkpoint.apply(model, kernels)
    with kernels():
        loss = model(torch.randint(0, 32, (4, 16))).sum()
    loss.backward()  # outside the context, as in a step


def test_a_run_counts_recomputations_and_repeats_the_losses(tmp_path: Path) -> None:
    extra = ["device=cpu", "train.accumulate=2", "model.dropout=0.1", "perf.amp=bf16"]
    plain = trained(tmp_path / "plain", *extra)
    row = trained(tmp_path / "wrapped", *extra, "perf.activation_checkpoint=true")
    assert row["losses"] == plain["losses"]
    assert (row["active"], plain["active"]) == (True, False)
    counted = {"blocks": 4, "forwards": 32, "recomputations": 32, "compiled_forwards": 0}
    assert row["evidence"] == counted


def test_a_model_without_blocks_is_refused_or_left_out(tmp_path: Path) -> None:
    other = ["device=cpu", "model=custom", "model._target_=torch.nn.Linear", "+model.in_features=16"]
    other += ["+model.out_features=2", "perf.activation_checkpoint=true"]
    with pytest.raises(ConfigError, match=r"^perf\.activation_checkpoint=true finds no repeated blocks in Linear: set"):
        made(tmp_path, *other)


@pytest.mark.slow
def test_a_compiled_graph_recomputes_and_counts_its_blocks() -> None:
    batch = torch.randint(0, 32, (4, 16)), torch.randint(0, 32, (4, 16))
    kept, losses, wrapped = dict[bool, int](), dict[bool, list[float]](), gpt(0.1)
    done = activation_checkpoint.apply(wrapped, attention.kernels("math"))
    for on, model in {False: gpt(0.1), True: wrapped}.items():
        torch.manual_seed(1)
        forward_loss, _ = forwards(model, Classification(), nullcontext, attention.kernels("math"))
        compiled = Compiled(forward_loss, "default", shapes)
        losses[on] = []
        for _ in range(2):
            loss = compiled(batch)
            kept[on] = sum(tensor.nbytes for tensor in loss.grad_fn.saved_tensors)
            loss.backward()
            losses[on].append(loss.item())
    assert kept[True] < 0.7 * kept[False]
    assert (done.compiled, done.forwards, done.recomputations) == (3, 0, 0)
    assert activation_checkpoint.evidence(done).active is True
    torch.testing.assert_close(losses[True], losses[False], rtol=1e-4, atol=0)


@pytest.mark.slow
def test_a_compiled_graph_updates_running_statistics_once() -> None:
    batch, plain, wrapped = torch.randn(4, 3, 8, 8), Convolutions(), Convolutions()
    done = checkpointed(wrapped)
    states = [gradients(model, batch, compiled=True)[1] for model in (plain, wrapped)]
    assert done.compiled == 3
    assert int(states[1]["blocks.0.1.num_batches_tracked"]) == 2
    for name, expected in states[0].items():
        torch.testing.assert_close(states[1][name], expected)


@pytest.mark.gpu
def test_named_arguments_keep_the_gpu_s_generator() -> None:
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        named_arguments("cuda")
    finally:
        torch.use_deterministic_algorithms(False)


@pytest.mark.gpu
@pytest.mark.parametrize("compiled", ["eager", "default"])
@pytest.mark.parametrize("kernel", ["auto", "flash"])
def test_a_gpu_keeps_less_and_loses_alike(compiled: str, kernel: str, tmp_path: Path) -> None:
    size = ["device=cuda", "model.depth=6", "data.context=256", "data.batch_size=16", "data.count=128"]
    size += ["train.max_steps=8", "perf.amp=bf16", f"perf.compile={compiled}", f"perf.attention={kernel}"]
    plain = trained(tmp_path / "plain", *size)
    row = trained(tmp_path / "wrapped", *size, "perf.activation_checkpoint=true")
    assert row["active"] is True
    torch.testing.assert_close(torch.tensor(row["losses"]), torch.tensor(plain["losses"]), rtol=1e-2, atol=0)
    assert row["memory"]["peak_allocated_gib"] < plain["memory"]["peak_allocated_gib"]
