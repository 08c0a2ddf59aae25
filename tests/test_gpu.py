"""What only a GPU can show: no waiting between log points, and evidence for every switch."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch
from hydra import compose, initialize_config_dir

from framework import build, config, engine, environment, rules
from framework.mistakes import LackError
from framework.records import RECORDS
from framework.update import Window

pytestmark = pytest.mark.gpu
CONFIGS = str(Path(__file__).parents[1] / "configs")
IMAGES = ["model=resnet18", "data=synthetic", "data.image_size=64", "data.batch_size=32", "data.count=512", "optim=sgd"]
TOKENS = ["model=gpt", "data=synthetic_text", "data.context=64", "data.vocab=256", "data.count=512"]


def made(folder: Path, *overrides: str) -> engine.Run:
    config.register()
    with initialize_config_dir(CONFIGS, version_base="1.3"):
        raw = compose("config", ["device=cuda", "meter.warmup_steps=10", *overrides])
    settled = rules.settle(raw, environment.look())
    return build.build(settled, folder)


@pytest.mark.parametrize("work", [IMAGES, TOKENS], ids=["images", "tokens"])
@pytest.mark.parametrize(
    "perf",
    [
        ["perf.amp=bf16"],
        ["perf.amp=bf16", "perf.compile=default", "perf.channels_last=true", "perf.fused_optimizer=true"],
        ["perf.tf32=true", "train.accumulate=2", "train.clip_norm=1.0", "optim.schedule=cosine"],
        ["perf.amp=bf16", "perf.activation_checkpoint=true", "perf.attention=flash", "perf.gc_freeze=true"],
    ],
    ids=["amp", "compiled", "accumulating", "checkpointed"],
)
def test_no_host_sync_between_log_points(
    work: list[str], perf: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loading = ["perf.workers=2", "perf.pinned=true", "perf.prefetch=2", "perf.log_every=0", "train.max_steps=60"]
    run = made(tmp_path, *work, *loading, *perf)
    train_without_waiting(run, monkeypatch)
    assert run.report.summary.switches["pinned"]["evidence"]["pageable_copies"] == 0


@pytest.mark.parametrize("work", [IMAGES, TOKENS], ids=["images", "tokens"])
def test_no_host_sync_with_data_on_the_device(work: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Over the borders of several epochs, each of which brings its order to the device."""
    perf = ["perf.resident=true", "perf.amp=bf16", "perf.log_every=0", "train.max_steps=60"]
    run = made(tmp_path, *work, "data.count=250", *perf)  # of eight batches, the last one short
    train_without_waiting(run, monkeypatch)
    row = run.report.summary.switches["resident"]
    assert row["active"] is True
    assert row["evidence"]["device"] == "cuda:0"
    assert row["evidence"]["bytes"] == 250 * (3 * 64 * 64 * 4 + 8 if work is IMAGES else 64 * 8 * 2)
    assert run.report.summary.switches["pinned"]["evidence"] == {"pinned_copies": 0, "pageable_copies": 0}


def test_a_set_that_does_not_fit_is_told_before_it_is_copied(tmp_path: Path) -> None:
    before = torch.cuda.memory_allocated()
    with pytest.raises(LackError, match=r"^perf\.resident=true needs .* GiB for the data, and cuda:0 has .* GiB free"):
        made(tmp_path, *IMAGES, "data.count=100000000", "perf.resident=true")
    assert torch.cuda.memory_allocated() == before


def train_without_waiting(run: engine.Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Trains for 60 steps, and fails where the host waits between the 20th and the 59th."""

    def forbidden(*_: object) -> None:
        raise AssertionError("the host waited for the device between log points")

    def spy(step: int) -> bool:
        if step == 20:  # warm-up is over: from here on nothing may wait
            torch.cuda.set_sync_debug_mode("error")
            monkeypatch.setattr(torch.cuda, "synchronize", forbidden)
            monkeypatch.setattr(torch.cuda.Event, "synchronize", forbidden)
        if step == 59:
            torch.cuda.set_sync_debug_mode("default")
            monkeypatch.undo()
        return False

    try:
        engine.train(dataclasses.replace(run, log_due=spy))
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert run.report.summary.status == "completed"
    assert run.losses.host_reads == 1


def test_the_sync_check_can_fail(tmp_path: Path) -> None:
    run = made(tmp_path, *IMAGES, "train.max_steps=30", "perf.log_every=0")  # pageable copies wait

    def spy(step: int) -> bool:
        torch.cuda.set_sync_debug_mode("error" if step == 15 else "default")
        return False

    try:
        with pytest.raises(RuntimeError, match="synchronizing CUDA operation"):
            engine.train(dataclasses.replace(run, log_due=spy))
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_every_switch_shows_its_evidence(tmp_path: Path) -> None:
    asked = ["perf=all", "perf.allocator=null", "perf.workers=2", "train.max_steps=60", "perf.log_every=10"]
    run = made(tmp_path, *IMAGES, *asked)  # the allocator needs a process of its own: see below
    engine.train(run)
    switches = run.report.summary.switches
    others = {"allocator", *(name for name, record in RECORDS.items() if not record.in_all)}
    inactive = {name: row for name, row in switches.items() if row["active"] is not True and name not in others}
    assert not inactive
    assert switches["prefetch"]["evidence"]["hidden_share"] is not None


def test_every_switch_off_shows_no_evidence(tmp_path: Path) -> None:
    run = made(tmp_path, *IMAGES, "train.max_steps=20")
    engine.train(run)
    assert not [name for name, row in run.report.summary.switches.items() if row["active"]]


def test_losses_read_late_equal_losses_read_at_once(tmp_path: Path) -> None:
    run = made(tmp_path, *TOKENS, "train.max_steps=40", "perf.log_every=0", "perf.amp=bf16")
    at_once: list[float] = []

    def update(window: Window, enter: object) -> torch.Tensor:
        loss = run.update(window, enter)  # type: ignore[arg-type]
        at_once.append(loss.item())
        return loss

    engine.train(dataclasses.replace(run, update=update))
    assert run.losses.history == at_once


def test_exact_techniques_give_bit_equal_losses(tmp_path: Path) -> None:
    def losses(name: str, *perf: str) -> list[float]:
        run = made(tmp_path / name, *TOKENS, "train.max_steps=30", *perf)
        engine.train(run)
        return run.losses.history

    baseline = losses("baseline")
    if losses("again") != baseline:
        pytest.fail("the baseline does not repeat bit by bit on this device: compare otherwise")
    assert losses("pinned", "perf.pinned=true") == baseline
    assert losses("prefetch", "perf.pinned=true", "perf.prefetch=2") == baseline
    assert losses("workers", "perf.workers=2") == baseline
    assert losses("log_every", "perf.log_every=7") == baseline
    assert losses("gc_freeze", "perf.gc_freeze=true") == baseline
    assert losses("batch_fetch", "perf.batch_fetch=true", "perf.workers=2", "perf.pinned=true") == baseline
    assert losses("resident", "perf.resident=true") == baseline
    beside = ["perf.workers=2", "perf.pinned=true", "perf.prefetch=2", "perf.batch_fetch=true"]
    assert losses("resident_alone", "perf.resident=true", *beside) == baseline


def test_gradients_of_accumulation_under_compile_equal_eager(tmp_path: Path) -> None:
    def losses(name: str, *perf: str) -> torch.Tensor:
        run = made(tmp_path / name, *TOKENS, "train.max_steps=10", "train.accumulate=4", *perf)
        engine.train(run)
        return torch.tensor(run.losses.history)

    torch.testing.assert_close(losses("compiled", "perf.compile=default"), losses("eager"), rtol=1e-4, atol=0)


def test_H03_peaks_show_what_a_step_allocated(tmp_path: Path) -> None:
    run = made(tmp_path, *IMAGES, "train.max_steps=30")

    def update(window: Window, enter: object) -> torch.Tensor:
        loss = run.update(window, enter)  # type: ignore[arg-type]
        if run.meter.steps == 20:
            torch.empty(2**30, dtype=torch.uint8, device="cuda")
        return loss

    engine.train(dataclasses.replace(run, update=update))
    memory = run.report.summary.memory
    assert 1.0 < memory["peak_allocated_gib"] <= memory["peak_reserved_gib"]
    phases = run.report.summary.memory_by_phase
    assert set(phases) == {"forward", "backward", "optimizer"}
    assert max(phases.values()) < 1.0  # read before the large allocation
