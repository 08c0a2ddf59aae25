"""Data that live on the device: the batches of the loader bit by bit, and sentences for what cannot live there."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hydra import compose, initialize_config_dir
from torch import Tensor
from torch.nn.utils.rnn import pack_sequence
from torch.utils.data import Dataset, IterableDataset

from framework import build, config, engine, rules
from framework.data.loader import Loader, LoaderSettings
from framework.data.resident import Resident
from framework.data.synthetic import SyntheticTokens
from framework.data.whole import UnfitError
from framework.environment import Machine
from framework.mistakes import ConfigError, LackError
from framework.techniques import UnavailableError, resident
from framework.transfer import Transfer, brought
from framework.tree import leaves, rows

CONFIGS = str(Path(__file__).parents[1] / "configs")
HERE = "tests.test_resident"
CPU = torch.device("cpu")


class Pair(NamedTuple):
    x: Tensor
    y: int


@dataclass(frozen=True)
class Record:
    pair: Pair
    weight: float
    nothing: None = None


class Nested(Dataset[dict[str, Any]]):
    """Row i in a nesting of containers."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> dict[str, Any]:
        x = torch.arange(6.0).view(2, 3).t() + index
        return {"record": Record(Pair(x, index), index / 3), "flags": [torch.tensor(index % 2 == 0)]}


class Given(Dataset[Any]):
    """Three rows, made by a function of the index."""

    def __init__(self, make: Callable[[int], Any]) -> None:
        self.make = make

    def __len__(self) -> int:
        return 3

    def __getitem__(self, index: int) -> Any:
        return self.make(index)


def settings(batch_size: int = 4, **more: Any) -> LoaderSettings:
    return LoaderSettings("data.train", batch_size, seed=5, seed_samples=False, **more)


def stored(dataset: Any, at: LoaderSettings, device: torch.device = CPU) -> Resident:
    made = Resident(dataset, at, device, partial(brought, device=device))
    made.start()
    return made


CASES = [
    {},
    {"shuffle": True},
    {"shuffle": True, "drop_last": True},
    {"shuffle": True, "drop_single": True},
    {"shuffle": True, "batch_size": 1},
]


@pytest.mark.parametrize("at", CASES, ids=str)
@pytest.mark.parametrize("count", [9, 10, 12])
@pytest.mark.parametrize("kind", [Nested, partial(SyntheticTokens, context=3, vocab=9)], ids=["items", "whole"])
def test_batches_are_those_of_the_loader(at: dict[str, Any], count: int, kind: Callable[[int], Any]) -> None:
    mine, plain = stored(kind(count), settings(**at)), Loader(kind(count), settings(**at))
    assert mine.batches == plain.batches
    for epoch in (0, 1, 2, 1):
        one, other = list(mine.epoch(epoch)), list(plain.epoch(epoch))
        assert len(one) == len(other) == mine.batches
        for found, expected in zip(one, other, strict=True):
            assert_same(found, expected)


def assert_same(one: Any, other: Any) -> None:
    """Equal types of containers, values, dtypes and strides."""
    assert str(one) == str(other)
    for found, expected in zip(leaves(one), leaves(other), strict=True):
        if expected is not None:
            assert torch.equal(found, expected)
            assert (found.dtype, found.stride()) == (expected.dtype, expected.stride())


def test_a_batch_that_is_changed_in_place_changes_nothing_else() -> None:
    for at in (settings(), settings(shuffle=True)):
        mine = stored(SyntheticTokens(8, 3, 9), at)
        first = [tensor.clone() for tensor in next(mine.epoch(0))]
        for tensor in next(mine.epoch(0)):
            tensor.fill_(-1)
        assert all(map(torch.equal, next(mine.epoch(0)), first))


def test_a_last_batch_of_one_row_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    mine = stored(Nested(9), settings(drop_single=True))
    assert [rows(batch) for batch in mine.epoch(0)] == [4, 4]
    assert len(caplog.messages) == 1


def test_errors_of_the_loader_stay() -> None:
    with pytest.raises(ValueError, match=r"data\.train has 3 rows, which with data\.batch_size=4 and .*leave no batch"):
        stored(Nested(3), settings(drop_last=True))


def test_the_set_is_read_once_and_where_offered_in_whole_batches() -> None:
    class Counting(Nested):
        reads = 0

        def __getitem__(self, index: int) -> Any:
            self.reads += 1
            return super().__getitem__(index)

    class Batching(Counting):
        wholes = 0

        def batch(self, indices: list[int]) -> Any:
            self.wholes += 1
            return torch.utils.data.default_collate([self[index]["flags"] for index in indices])

    counting, batching = Counting(10), SyntheticTokens(10, 3, 9)
    mine = stored(counting, settings(shuffle=True))
    for epoch in range(3):
        list(mine.epoch(epoch))
    assert counting.reads == 11  # the first row once more, for its size
    mine = stored(batching, settings())
    assert (mine._reader.whole, mine._reader.handed) == (3, 3)


def test_bytes_are_known_before_the_set_is_copied() -> None:
    mine = Resident(SyntheticTokens(10, 3, 9), settings(), CPU, lambda order: order)
    assert mine.tensors == []
    assert mine.nbytes == 10 * 2 * 3 * 8
    mine.start()
    found = resident.evidence(mine.tensors, CPU)
    assert (found.active, found.seen) == (True, {"device": "cpu", "bytes": mine.nbytes})
    assert resident.evidence(mine.tensors, torch.device("cuda:0")).active is False
    assert resident.evidence([], CPU).active is False


# What cannot live on a device


class Stream(IterableDataset[Tensor]):
    def __iter__(self) -> Any:
        return iter(torch.arange(8.0).view(-1, 1))


@pytest.mark.parametrize(
    ("dataset", "words"),
    [
        (Stream(), r"needs a set with __getitem__, and data\.train is a stream"),
        (Given(lambda index: (torch.ones(2), "name")), r"data\.train hold something else \(str\)"),
        (Given(lambda index: torch.ones(2, requires_grad=True)), r"data\.train hold something else \(Tensor\)"),
        (
            Given(lambda index: pack_sequence([torch.ones(2, 1)])),
            r"data\.train hold something else \(PackedSequence\)",
        ),
        (Given(lambda index: None), r"those of data\.train hold none"),
        (Given(lambda index: torch.rand(2)), r"those of data\.train draw random numbers"),
        (Given(lambda index: np.random.rand()), r"those of data\.train draw random numbers"),
        (Given(lambda index: random.random()), r"those of data\.train draw random numbers"),
        (Given(lambda index: torch.ones(1 + index // 2)), r"those of data\.train differ"),
        (Given(lambda index: index if index < 2 else 0.5), r"those of data\.train differ"),
        (Given(lambda index: {"a": 1, "b": 2} if index < 2 else {"b": 2, "a": 1}), r"those of data\.train differ"),
    ],
)
def test_a_set_that_cannot_live_there_is_told_what_it_lacks(dataset: Any, words: str) -> None:
    states = torch.get_rng_state(), random.getstate()
    with pytest.raises(UnfitError, match=words):
        stored(dataset, settings(batch_size=2))
    assert torch.equal(torch.get_rng_state(), states[0])
    assert random.getstate() == states[1]


@pytest.mark.parametrize("needed", [2**31, 2**31 + 1])
def test_a_set_that_does_not_fit_is_told_with_its_size_and_the_free_memory(
    needed: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(resident, "_MEMINFO", tmp_path / "meminfo")
    resident.check_room(2**60, CPU)  # a system that does not tell
    (tmp_path / "meminfo").write_text("MemTotal: 9 kB\nMemAvailable:    2097152 kB\n", encoding="ascii")
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (2**31, 2**40))
    for device in (CPU, torch.device("cuda:0")):
        if needed == 2**31:
            resident.check_room(needed, device)
        else:
            with pytest.raises(UnavailableError, match=rf"^needs 2 GiB for the data, and {device} has 2 GiB free$"):
                resident.check_room(needed, device)


@pytest.mark.parametrize(("needed", "told"), [(3 * 2**20, "0.00293 GiB"), (2**34, "16 GiB"), (2**50, "1,048,576 GiB")])
def test_sizes_are_told_as_people_write_them(needed: int, told: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resident, "free_bytes", lambda device: 0)
    with pytest.raises(UnavailableError, match=f"^needs {told} for the data, and cpu has 0 GiB free$"):
        resident.check_room(needed, CPU)


# Whole runs


def run(folder: Path, *overrides: str) -> engine.Run:
    config.register()
    with initialize_config_dir(CONFIGS, version_base="1.3"):
        raw = compose("config", ["device=cpu", "data.batch_size=64", "train.epochs=2", *overrides])
    made = build.build(rules.settle(raw, Machine((2, 14), False, 0)), folder)
    engine.train(made)
    return made


NORMED = ["model=convnet", "model.channels=[4,8]", "model.hidden=16", "data.batch_size=62"]  # the last of an epoch: 11
TOKENS = ["data=synthetic_text", "data.count=33", "data.context=8", "data.vocab=16", "data.batch_size=8"]
TOKENS += ["model=gpt_tiny", "train.max_steps=12", "train.accumulate=2", "train.epochs=1"]


@pytest.mark.parametrize("work", [[], NORMED, TOKENS, ["train.eval_every=5"]], ids=["digits", "batch", "text", "eval"])
def test_losses_and_evaluation_are_bit_equal(tmp_path: Path, work: list[str]) -> None:
    plain, mine = run(tmp_path / "plain", *work), run(tmp_path / "mine", *work, "perf.resident=true")
    assert mine.losses.history == plain.losses.history
    assert mine.report.summary.evaluation == plain.report.summary.evaluation
    assert mine.report.summary.rows == plain.report.summary.rows
    row = mine.report.summary.switches["resident"]
    assert (row["active"], row["evidence"]["device"]) == (True, "cpu")
    assert plain.report.summary.switches["resident"]["active"] is False


def test_both_sets_are_stored_and_counted(tmp_path: Path) -> None:
    found = run(tmp_path, "perf.resident=true").report.summary.switches["resident"]["evidence"]
    assert found == {"device": "cpu", "bytes": 1797 * (64 * 4 + 8)}


def test_what_it_replaces_is_left_out_and_noted_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    beside = ["perf.workers=2", "perf.batch_fetch=true"]
    mine, plain = run(tmp_path / "mine", "perf.resident=true", *beside), run(tmp_path / "plain")
    assert mine.losses.history == plain.losses.history
    notes = [text for text in caplog.messages if "perf.resident" in text]
    assert notes == ["left out: workers, batch_fetch (nothing to do beside perf.resident=true)"]
    switches = mine.report.summary.switches
    for name in ("workers", "batch_fetch"):
        assert (switches[name]["on"], switches[name]["active"]) == (False, False)
        assert switches[name]["left_out"] == resident.WHY_REPLACED
    assert switches["workers"]["requested"] == 2
    assert not switches["prefetch"]["left_out"]


@pytest.mark.parametrize("name", ["data.train", "data.eval"])
def test_a_run_whose_set_does_not_fit_is_refused_or_goes_on_without(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both sets count; nothing is copied before both are known to fit."""
    fits = 1437 * (64 * 4 + 8) if name == "data.eval" else 1000
    monkeypatch.setattr(resident, "free_bytes", lambda device: fits)
    with monkeypatch.context() as patched:
        patched.setattr(Resident, "start", lambda _: pytest.fail("was copied"))
        with pytest.raises(
            LackError, match=r"^perf\.resident=true needs .* GiB for the data, and cpu has .*free: set "
        ):
            run(tmp_path / "refused", "perf.resident=true")
        skipped = run(tmp_path / "skipped", "perf.resident=true", "perf.if_unavailable=skip", "perf.workers=1")
    switches = skipped.report.summary.switches
    assert "GiB free" in switches["resident"]["left_out"]
    assert switches["workers"]["active"] is True  # as nothing replaced it


@pytest.mark.parametrize("make", ["named", "drawing"])
def test_a_run_whose_set_cannot_live_there_is_refused(tmp_path: Path, make: str) -> None:
    sets = ["data=custom", f"data.train._target_={HERE}.{make}", "data.classes=10", "data.channels=1"]
    with pytest.raises(ConfigError, match=r"^perf\.resident=true needs .*: set perf\.resident=false, or "):
        run(tmp_path, *sets, "data.image_size=8", "data.seed_samples=false", "perf.resident=true")


def named() -> Given:
    return Given(lambda index: (torch.ones(1, 8, 8), "name"))


def drawing() -> Given:
    return Given(lambda index: (torch.rand(1, 8, 8), 0))


def test_what_lies_on_a_device_is_no_copy_from_the_host() -> None:
    meta = torch.device("meta")
    transfer = Transfer(meta, asynchronous=False)
    transfer({"x": torch.ones(2, device=meta)})
    assert (transfer.pinned, transfer.pageable) == (0, 0)
    transfer({"x": torch.ones(2)})
    assert (transfer.pinned, transfer.pageable) == (0, 1)


@pytest.mark.gpu
@pytest.mark.parametrize("at", CASES, ids=str)
def test_batches_on_a_gpu_are_those_of_the_loader(at: dict[str, Any]) -> None:
    device = torch.device("cuda:0")
    mine, plain = stored(Nested(9), settings(**at), device), Loader(Nested(9), settings(**at))
    for epoch in (0, 1, 2):
        for found, expected in zip(mine.epoch(epoch), plain.epoch(epoch), strict=True):
            tensors = [leaf for leaf in leaves(found) if leaf is not None]
            assert {tensor.device for tensor in tensors} == {device}
            assert all(
                map(torch.equal, (one.cpu() for one in tensors), (one for one in leaves(expected) if one is not None))
            )
