"""Frozen garbage collection: from the end of the warm-up to the end of training, whatever ends it."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir

from framework import build, config, engine, rules
from framework.environment import Machine
from framework.techniques import gc_freeze

CONFIGS = str(Path(__file__).parents[1] / "configs")


@pytest.fixture(autouse=True)
def nothing_frozen() -> Iterator[None]:
    gc.unfreeze()
    yield
    gc.unfreeze()


def counts(freeze: gc_freeze.Freeze, items: int) -> list[bool]:
    """Whether anything is frozen in each step."""
    return [gc.get_freeze_count() > 0 for _ in freeze(iter(range(items)))]


def test_all_is_frozen_from_the_last_step_of_the_warmup_until_the_end() -> None:
    freeze = gc_freeze.Freeze(3)
    assert counts(freeze, 5) == [False, False, True, True, True]
    assert gc.get_freeze_count() == 0
    assert freeze.frozen > 1000
    assert gc_freeze.evidence(freeze).active is True


def test_what_was_thrown_away_by_then_is_collected_and_not_frozen(monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []
    monkeypatch.setattr(gc, "collect", lambda: order.append("collect"))
    monkeypatch.setattr(gc, "freeze", lambda: order.append("freeze"))
    assert list(gc_freeze.Freeze(1)(iter("ab"))) == ["a", "b"]
    assert order == ["collect", "freeze"]


def test_an_error_undoes_it() -> None:
    def fails() -> None:
        for item in gc_freeze.Freeze(1)(iter(range(3))):
            assert gc.get_freeze_count() > 0
            raise KeyError(item)

    with pytest.raises(KeyError):
        fails()
    assert gc.get_freeze_count() == 0


def test_a_run_that_ends_within_the_warmup_shows_nothing() -> None:
    freeze = gc_freeze.Freeze(9)
    assert not any(counts(freeze, 3))
    assert gc_freeze.evidence(freeze).active is None


def test_what_does_not_last_to_the_end_is_not_active() -> None:
    freeze = gc_freeze.Freeze(1)
    for _ in freeze(iter(range(3))):
        gc.unfreeze()  # something else undoes it
    assert gc_freeze.evidence(freeze).active is False


def run(folder: Path, *overrides: str) -> engine.Run:
    config.register()
    with initialize_config_dir(CONFIGS, version_base="1.3"):
        raw = compose("config", ["train.max_steps=8", "meter.warmup_steps=3", *overrides])
    return build.build(rules.settle(raw, Machine((2, 14), True, 1 if "device=cuda" in overrides else 0)), folder)


def both(folder: Path, device: str) -> None:
    losses = []
    for on in ("true", "false"):
        done = run(folder / on, f"device={device}", f"perf.gc_freeze={on}")
        engine.train(done)
        assert gc.get_freeze_count() == 0
        row = done.report.summary.switches["gc_freeze"]
        assert row["active"] is (on == "true")
        assert bool(row["evidence"]) is (on == "true")
        losses.append(done.losses.history)
    assert losses[0] == losses[1]


def test_a_run_is_the_same_to_the_bit_and_says_so(tmp_path: Path) -> None:
    both(tmp_path, "cpu")


@pytest.mark.gpu
def test_a_run_on_a_gpu_says_so_too(tmp_path: Path) -> None:
    both(tmp_path, "cuda")
