"""torch.compile: what is compiled, what is not, how that is counted, and that its absence is found at the start."""

from __future__ import annotations

import logging
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from torch import Tensor, nn
from torch._dynamo.utils import counters

from framework import build, config, engine, feed, rules
from framework.data.loader import Loader, LoaderSettings
from framework.environment import Machine
from framework.mistakes import ConfigError
from framework.stages import device, loaders
from framework.techniques import UnavailableError, compile
from framework.techniques.compile import Compiled
from framework.tree import shapes

ROOT = Path(__file__).parents[1]
CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def nothing_compiled() -> Iterator[None]:
    """Each test begins and ends with a compiler that has seen nothing."""
    torch._dynamo.reset()
    counters.clear()
    yield
    torch._dynamo.reset()
    counters.clear()


class Net(nn.Module):
    """Linear(8, 16) - ReLU - Linear(16, 1); `factor` is a plain number, which a graph keeps as it was."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers, self.factor = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1)), 1

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x) * self.factor  # type: ignore[no-any-return]


def compiled(function: Callable[[Any], Any]) -> Compiled:
    return Compiled(function, "default", shapes, backend="eager")


def seen(of: Compiled) -> dict[str, Any]:
    return compile.evidence(of).seen


def messages(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == "gearshift"]


def test_E02_a_ragged_batch_runs_uncompiled_and_nothing_is_compiled_again(caplog: pytest.LogCaptureFixture) -> None:
    """37 rows in batches of 8: the fifth batch of each epoch has 5 rows."""
    model = Net()
    rows = [(torch.randn(8), torch.zeros(1)) for _ in range(37)]
    loader = Loader(rows, LoaderSettings("data.train", batch_size=8, shuffle=True))
    loss = compiled(lambda batch: (model(batch[0]) - batch[1]).square().mean())
    after = []
    with caplog.at_level(logging.WARNING, "gearshift"):
        for number, window in enumerate(feed.windows(loader, 1, 2, None), start=1):
            expected = (model(window[0][0]) - window[0][1]).square().mean()
            assert torch.equal(loss(window[0]), expected)
            if number in (1, 5, 10):
                after.append((seen(loss)["frames"], seen(loss)["graphs"], seen(loss)["recompiles"]))
    assert after == [(1, 1, 0)] * 3
    assert (seen(loss)["compiled_calls"], seen(loss)["uncompiled_calls"], seen(loss)["shapes"]) == (8, 2, 2)
    assert compile.evidence(loss).active is True
    assert messages(caplog) == ["perf.compile: a batch differs in shape from the first; such batches run uncompiled."]


def test_E02_gradients_are_those_of_the_plain_function() -> None:
    model = Net()
    loss = compiled(lambda batch: model(batch).square().mean())
    for batch in (torch.randn(8, 8), torch.randn(5, 8)):
        results = []
        for function in (loss, loss.function):
            function(batch).backward()
            results.append([parameter.grad for parameter in model.parameters()])
            model.zero_grad()
        for one, other in zip(*results, strict=True):
            assert one is not None
            assert other is not None
            assert torch.equal(one, other)


def test_E09_many_shapes_are_counted_and_warned_of_once(caplog: pytest.LogCaptureFixture) -> None:
    model = Net()
    loss = compiled(lambda batch: model(batch).mean())
    with caplog.at_level(logging.WARNING, "gearshift"):
        for length in [*range(1, 11), *range(1, 11)]:
            loss(torch.ones(length, 8))
    warned = [message for message in messages(caplog) if "pad the batches" in message]
    assert len(warned) == 1
    assert "perf.compile" in warned[0]
    assert "5 shapes so far" in warned[0]
    found = compile.evidence(loss)
    assert (found.seen["shapes"], found.seen["compiled_calls"], found.seen["uncompiled_calls"]) == (10, 2, 18)
    assert found.active is False  # most of the run was not compiled: no speed-up may be claimed for it


def test_E09_batches_of_one_shape_are_not_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    loss = compiled(lambda batch: batch["x"].sum())
    for _ in range(10):
        loss({"x": torch.ones(3, 8), "name": "text"})
    assert messages(caplog) == []
    assert compile.evidence(loss).active is True


def test_evidence_counts_recompiles() -> None:
    model = Net()
    loss = compiled(lambda batch: model(batch).mean())
    batch = torch.ones(4, 8)
    loss(batch)
    assert (seen(loss)["graphs"], seen(loss)["recompiles"]) == (1, 0)
    for factor in (2, 3, 3):
        model.factor = factor
        loss(batch)
    assert (seen(loss)["graphs"], seen(loss)["recompiles"], seen(loss)["gave_up"]) == (3, 2, False)
    assert compile.evidence(loss).active is True


def test_evidence_says_where_the_compiler_gave_up() -> None:
    """Past its limit torch runs a frame uncompiled, with no more than a line in its own log."""
    model = Net()
    loss = compiled(lambda batch: model(batch).mean())
    limit = torch._dynamo.config.recompile_limit
    for factor in range(limit):
        model.factor = factor
        loss(torch.ones(4, 8))
    assert compile.evidence(loss).active is True
    model.factor = limit
    loss(torch.ones(4, 8))
    found = compile.evidence(loss)
    assert found.seen["gave_up"] is True
    assert found.active is False


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
def test_evidence_counts_graph_breaks() -> None:
    model = Net()

    def broken(batch: Tensor) -> Tensor:
        hidden = model(batch)
        torch._dynamo.graph_break()
        return hidden.mean()

    whole, parts = compiled(lambda batch: model(batch).mean()), compiled(broken)
    whole(torch.ones(4, 8))
    assert seen(whole)["graph_breaks"] == 0
    parts(torch.ones(4, 8))
    assert seen(parts)["graph_breaks"] == 1
    assert seen(parts)["graphs"] == 3
    assert seen(parts)["recompiles"] == 0


def test_evidence_before_any_batch_says_nothing() -> None:
    found = compile.evidence(compiled(torch.sum))
    assert found.active is None
    assert found.seen["shapes"] == 0


def test_a_function_that_was_not_compiled_is_not_active() -> None:
    with torch.compiler.set_stance("force_eager"):
        loss = compiled(lambda batch: batch.sum())
        loss(torch.ones(3))
        assert compile.evidence(loss).active is False


def test_the_probe_leaves_no_trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was compiled before it, by an earlier run in this process, is not this run's evidence."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    model = Net()
    earlier = compiled(lambda batch: model(batch).mean())
    for factor in (1, 2):
        model.factor = factor
        earlier(torch.ones(4, 8))
    compile.probe(CPU, backend="eager")
    later = compiled(lambda batch: model(batch).sum())
    assert (seen(later)["frames"], seen(later)["graphs"], seen(later)["recompiles"]) == (0, 0, 0)
    assert os.environ["TORCHINDUCTOR_CACHE_DIR"] == str(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_E06_a_compiler_that_fails_in_the_backward_alone_is_found() -> None:
    def forward_only(graph: torch.fx.GraphModule, inputs: list[Tensor]) -> Callable[..., Any]:
        class Once(torch.autograd.Function):
            @staticmethod
            def forward(ctx: Any, *arguments: Tensor) -> Any:
                return tuple(output.clone() for output in graph(*arguments))

            @staticmethod
            def backward(ctx: Any, *gradients: Tensor) -> Any:
                raise RuntimeError("no backward here\nmore words")

        return lambda *arguments: Once.apply(*arguments)

    with pytest.raises(UnavailableError, match=r"^cannot compile on cpu \(no backward here\)$"):
        compile.probe(CPU, backend=forward_only)  # type: ignore[arg-type]


def test_E06_the_compilers_own_words_are_passed_on() -> None:
    def broken(graph: torch.fx.GraphModule, inputs: list[Tensor]) -> Callable[..., Any]:
        raise OSError("\nno compiler\nmore words")

    with pytest.raises(UnavailableError, match=r"^cannot compile on cpu \(no compiler\)$"):
        compile.probe(CPU, backend=broken)  # type: ignore[arg-type]


FLATTEN = "{_target_:torch.nn.Flatten}"
LINEAR = "{_target_:torch.nn.Linear,in_features:64,out_features:10}"


def composed(*overrides: str) -> rules.Settled:
    GlobalHydra.instance().clear()
    config.register()
    small = (
        *("data=synthetic", "data.count=37", "data.image_size=8", "data.channels=1", "data.classes=10"),
        *("data.batch_size=8", "optim=sgd", "optim.lr=0.01", "train.max_steps=10", "device=cpu"),
        *("model=custom", "model._target_=torch.nn.Sequential", f"+model._args_=[{FLATTEN},{LINEAR}]"),
    )
    with initialize_config_dir(str(ROOT / "configs"), version_base="1.3"):
        raw = compose("config", overrides=[*small, *overrides])
    return rules.settle(raw, Machine((2, 14), cuda_build=False, gpus=0))


def no_compiler(device: torch.device) -> None:
    raise UnavailableError("cannot compile on cpu (no compiler)")


def test_E06_without_a_compiler_a_run_ends_before_its_first_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device.compiling, "probe", no_compiler)
    with pytest.raises(ConfigError, match=r"^perf\.compile=default cannot compile on cpu \(no compiler\): set perf"):
        build.build(composed("perf.compile=default"), tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_E06_a_lack_is_told_before_any_data_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loaders, "Loader", lambda *_: pytest.fail("data were read"))
    with pytest.raises(ConfigError, match=r"^perf\.fused_optimizer=true is not offered by NAdam"):
        build.build(
            composed("optim=adamw", "optim.optimizer._target_=torch.optim.NAdam", "perf.fused_optimizer=true"), tmp_path
        )
    monkeypatch.setattr(device.compiling, "probe", no_compiler)
    with pytest.raises(ConfigError, match=r"^perf\.compile=default cannot compile"):
        build.build(composed("perf.compile=default"), tmp_path)


def test_E06_without_a_compiler_a_run_may_go_on_and_says_that_it_is_not_compiled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device.compiling, "probe", no_compiler)
    run = build.build(composed("perf.compile=default", "perf.if_unavailable=skip"), tmp_path)
    engine.train(run)
    row = run.report.summary.switches["compile"]
    assert (row["requested"], row["effective"], row["on"], row["active"]) == ("default", "eager", False, False)
    assert row["left_out"] == "cannot compile on cpu (no compiler)"
    assert counters["stats"]["unique_graphs"] == 0


PROBE = """
import torch
from framework.techniques import UnavailableError, compile
try:
    compile.probe(torch.device("cpu"))
    print("compiles")
except UnavailableError as error:
    print(error)
"""


@pytest.mark.slow
def test_E06_a_missing_compiler_is_found_in_a_sentence(tmp_path: Path) -> None:
    nowhere = {"CXX": "/nonexistent", "PATH": str(tmp_path), "PYTHONPATH": str(ROOT)}
    environment = os.environ | nowhere | {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "cache")}
    command = [sys.executable, "-W", "error", "-c", PROBE]
    done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.startswith("cannot compile on cpu (")
    assert done.stdout.count("\n") == 1
    assert "/nonexistent" in done.stdout


COMPILER = """#!/bin/sh
[ -e {broken} ] && [ "$1" != --version ] && echo "this compiler is broken" >&2 && exit 1
exec {real} "$@"
"""


@pytest.fixture(scope="module")
def breaking(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The real compiler behind a script, with empty caches. It works until the file that this names is made."""
    folder = tmp_path_factory.mktemp("compiler")
    script, broken = folder / "g++", folder / "broken"
    real = shutil.which(os.environ.get("CXX", "g++"))
    assert real is not None, "these tests need a C++ compiler, as perf.compile does on the CPU"
    script.write_text(COMPILER.format(broken=broken, real=real))
    script.chmod(0o755)
    with pytest.MonkeyPatch.context() as patch, torch._inductor.config.patch({"cpp.cxx": (None, str(script))}):
        patch.setenv("TORCHINDUCTOR_CACHE_DIR", str(folder / "cache"))
        yield broken


@pytest.mark.slow
@pytest.mark.filterwarnings("default")  # torch's compiler warns of its own inner workings
def test_a_compiled_run_stays_close_to_the_plain_one_and_shows_its_evidence(tmp_path: Path, breaking: Path) -> None:
    eager, run = (build.build(composed(f"perf.compile={mode}"), tmp_path / mode) for mode in ("eager", "default"))
    engine.train(eager)
    engine.train(run)
    assert run.losses.history == pytest.approx(eager.losses.history, rel=1e-4)
    row = run.report.summary.switches["compile"]
    assert (row["requested"], row["effective"], row["active"]) == ("default", "default", True)
    counted = {name: row["evidence"][name] for name in ("graphs", "graph_breaks", "recompiles", "uncompiled_calls")}
    assert counted == {"graphs": 1, "graph_breaks": 0, "recompiles": 0, "uncompiled_calls": 2}
    assert row["evidence"]["compiled_calls"] == 8


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
def test_E06_a_compiler_that_broke_is_found_past_the_caches(breaking: Path) -> None:
    """What the probe compiles lies in the caches on disk: torch alone would find it there and see no fault."""

    def used() -> None:
        torch.compile(lambda x: x * 3)(torch.ones(8, requires_grad=True)).sum().backward()
        torch._dynamo.reset()

    used()
    cache = Path(os.environ["TORCHINDUCTOR_CACHE_DIR"])
    kept = {path.name for path in cache.iterdir()}
    breaking.touch()
    used()
    with pytest.raises(UnavailableError, match=r"^cannot compile on cpu \(.+\)$"):
        compile.probe(CPU)
    assert {path.name for path in cache.iterdir()} == kept  # nothing is left behind
