"""Batches that a set makes at once: what stacking its items gives, in the memory that fits, and counted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from hydra import compose, initialize_config_dir
from torch import Tensor
from torch.utils.data import Dataset, IterableDataset

from framework import build, config, engine, rules
from framework.data import collate as collate_module
from framework.data.buffers import LEAST_BYTES, MOST_BUFFERS
from framework.data.collate import Collate, collate
from framework.data.digits import Digits
from framework.data.images import CACHED_PIXELS
from framework.data.loader import Loader, LoaderSettings
from framework.data.rooms import gathered, room, rooms
from framework.data.synthetic import SyntheticImages, SyntheticTokens
from framework.data.whole import UnfitError, WholeBatches
from framework.environment import Machine
from framework.mistakes import LackError
from framework.techniques import batch_fetch, pinned, workers
from framework.tree import leaves

CONFIGS = str(Path(__file__).parents[1] / "configs")
HERE = "tests.test_batch_fetch"
SETS = [
    Digits(train=True),
    Digits(train=False),
    SyntheticImages(count=40, channels=3, image_size=9, classes=5),
    SyntheticImages(count=20, channels=1, image_size=200, classes=5),
    SyntheticTokens(count=30, context=7, vocab=11),
]


@pytest.mark.parametrize("dataset", SETS, ids=lambda one: type(one).__name__)
@pytest.mark.parametrize("indices", [[3], [5, 0, 5, 2], list(range(19, -1, -1))])
def test_a_whole_batch_is_what_stacking_its_items_gives(dataset: Any, indices: list[int]) -> None:
    whole, stacked = dataset.batch(indices), collate([dataset[index] for index in indices])
    assert type(whole) is type(stacked)
    for one, other in zip(leaves(whole), leaves(stacked), strict=True):
        assert torch.equal(one, other)
        assert (one.dtype, one.shape, one.stride()) == (other.dtype, other.shape, other.stride())


def test_one_of_these_sets_is_normalised_in_several_blocks() -> None:
    assert SETS[3][0][0].numel() * 20 > CACHED_PIXELS > SETS[3][0][0].numel()


def test_images_that_repeat_repeat_in_whole_batches_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("framework.data.synthetic.HELD_BYTES", 5 * 4 * 4)
    dataset = SyntheticImages(count=12, channels=1, image_size=4, classes=3)
    assert torch.equal(dataset.batch([7])[0], dataset[2][0][None])
    with pytest.raises(IndexError):
        dataset.batch([3, 12])


@pytest.mark.parametrize("dataset", SETS[-2:], ids=lambda one: type(one).__name__)
def test_a_batch_keeps_nothing_of_the_set(dataset: Any) -> None:
    before = [tensor.clone() for tensor in leaves(dataset.batch([1, 2]))]
    for tensor in leaves(dataset.batch([1, 2])):
        tensor.zero_()
    assert all(map(torch.equal, leaves(dataset.batch([1, 2])), before))


# Through the loader


class Large(Dataset[tuple[Tensor, Tensor]]):
    """Row i is full of i, as large as a buffer. `own`: its batches lie in memory of its own, as a user's would."""

    def __init__(self, own: bool = False) -> None:
        self.own = own
        self.rows = torch.arange(24.0)[:, None].expand(24, LEAST_BYTES // 4).contiguous()

    def __len__(self) -> int:
        return 24

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return self.rows[index], index

    def batch(self, indices: list[int]) -> tuple[Tensor, Tensor]:
        rows = torch.tensor(indices)
        return (self.rows[rows] if self.own else gathered(self.rows, rows)), rows


def loader(dataset: Any, count: int = 0, options: dict[str, Any] | None = None, **settings: Any) -> Loader:
    options = workers.options(count, 2, None) | (options or {})
    return Loader(dataset, LoaderSettings("data.train", 4, seed_samples=False, options=options, **settings))


@pytest.mark.parametrize("count", [0, 2])
@pytest.mark.parametrize("rows", [24, 22])
def test_a_loader_gives_the_same_batches_and_counts_the_whole_ones(count: int, rows: int) -> None:
    dataset = SyntheticTokens(count=rows, context=7, vocab=11)
    items = loader(dataset, shuffle=True)
    whole = loader(WholeBatches(dataset, "data.train"), count, shuffle=True)
    for epoch in range(2):
        for one, other in zip(items.epoch(epoch), whole.epoch(epoch), strict=True):
            assert all(map(torch.equal, one, other))
    assert (items.handed, items.whole) == (12, 0)
    assert (whole.handed, whole.whole) == (12, 12)
    assert batch_fetch.evidence(items.whole, items.handed).active is False
    assert batch_fetch.evidence(whole.whole, whole.handed) == batch_fetch.Evidence(True, {"whole_batches": 12})
    assert batch_fetch.evidence(0, 0).active is None


def test_a_set_that_offers_batches_gives_items_while_the_switch_is_off() -> None:
    class Refusing(Large):
        def batch(self, indices: list[int]) -> Any:
            raise AssertionError("was asked")

    assert len(list(loader(Refusing()).epoch(0))) == 6


@pytest.mark.parametrize("own", [False, True])
def test_whole_batches_of_a_worker_lie_in_its_buffers_and_hold_their_own_contents(
    own: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a GPU nothing can be pinned: a plain copy stands in for it."""
    monkeypatch.setattr(collate_module, "_pinned", lambda leaf: leaf.clone() if isinstance(leaf, Tensor) else leaf)
    collating = Collate("data.train", True, None, True)
    source = torch.utils.data.DataLoader(
        WholeBatches(Large(own), "data.train"), 4, num_workers=1, collate_fn=collating, persistent_workers=True
    )
    places, seen = set(), []
    for _ in range(3):
        for envelope in source:
            (buffer,) = envelope.lent
            assert envelope.batch[0].untyped_storage().data_ptr() == buffer.untyped_storage().data_ptr()
            places.add(buffer.data_ptr())
            copied = envelope.pin_memory()
            assert copied.whole
            assert (copied.batch[0] == copied.batch[1][:, None]).all()
            seen += copied.batch[1].tolist()
    assert seen == list(range(24)) * 3
    assert len(places) <= MOST_BUFFERS


def test_a_set_that_uses_a_room_is_copied_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Within a worker; here the same code is called with a worker made up."""
    monkeypatch.setattr(collate_module, "get_worker_info", lambda: object())
    copies: list[Any] = []
    copy = Tensor.copy_
    monkeypatch.setattr(Tensor, "copy_", lambda self, *args: copies.append(self.shape) or copy(self, *args))
    for own in (False, True):
        whole = WholeBatches(Large(own), "data.train").__getitems__([1, 2])
        envelope = Collate("data.train", True, None, True)(whole)  # type: ignore[arg-type]
        assert len(envelope.lent) == 1
        assert len(copies) == own
        unpinned = Collate("data.train", True, None, False)(whole)  # type: ignore[arg-type]
        assert unpinned.batch[0].is_shared() is not own
        assert not unpinned.lent


def test_rooms_end_with_their_block() -> None:
    given = torch.empty(6)
    with rooms(lambda shape, dtype: given.view(*shape)):
        assert room((2, 3), torch.float32).data_ptr() == given.data_ptr()
    assert room((2, 3), torch.float32).data_ptr() != given.data_ptr()


# What cannot be made at once


class Stream(IterableDataset[Tensor]):
    def __iter__(self) -> Any:
        return iter(torch.arange(8.0).view(-1, 1))

    def batch(self, indices: list[int]) -> Tensor:
        return torch.tensor(indices)


class Items(Dataset[Tensor]):
    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return torch.zeros(1, 8, 8), index


class Foreign(Items):
    """As the sets of other libraries: their `batch` means something else."""

    def batch(self, batch_size: int) -> Tensor:
        raise AssertionError("was asked")


@pytest.mark.parametrize(
    ("dataset", "words"),
    [
        (Stream(), r"data\.train is a stream \(Stream\)"),
        (Items(), r"data\.train \(Items\) has no method batch\(indices\)"),
        (Foreign(), r"data\.train \(Foreign\) has no method batch\(indices\)"),
    ],
)
def test_a_set_that_cannot_make_batches_is_told_what_it_lacks(dataset: Any, words: str) -> None:
    with pytest.raises(UnfitError, match=words):
        WholeBatches(dataset, "data.train")


def run(folder: Path, *overrides: str) -> engine.Run:
    config.register()
    with initialize_config_dir(CONFIGS, version_base="1.3"):
        raw = compose("config", ["device=cpu", "data.batch_size=64", "train.epochs=2", *overrides])
    made = build.build(rules.settle(raw, Machine((2, 14), False, 0)), folder)
    engine.train(made)
    return made


@pytest.mark.parametrize("more", [[], ["perf.workers=2"]])
def test_losses_and_evaluation_are_bit_equal(tmp_path: Path, more: list[str]) -> None:
    plain, whole = run(tmp_path / "plain"), run(tmp_path / "whole", "perf.batch_fetch=true", *more)
    assert whole.losses.history == plain.losses.history
    assert whole.report.summary.evaluation == plain.report.summary.evaluation
    row = whole.report.summary.switches["batch_fetch"]
    assert (row["active"], row["evidence"]) == (True, {"whole_batches": len(plain.losses.history)})
    assert plain.report.summary.switches["batch_fetch"]["active"] is False


ITEMS = ["data=custom", f"data.train._target_={HERE}.Items", "data.classes=10", "data.channels=1", "data.image_size=8"]


def test_a_run_whose_set_has_no_batches_is_refused_or_goes_on_without(tmp_path: Path) -> None:
    asked = [*ITEMS, "data.seed_samples=false", "perf.batch_fetch=true"]
    with pytest.raises(LackError, match=r"^perf\.batch_fetch=true needs a set that makes whole batches.*Items"):
        run(tmp_path / "refused", *asked)
    skipped = run(tmp_path / "skipped", *asked, "perf.if_unavailable=skip")
    assert "Items" in skipped.report.summary.switches["batch_fetch"]["left_out"]
    assert skipped.report.summary.status == "completed"


@pytest.mark.gpu
@pytest.mark.parametrize("own", [False, True])
@pytest.mark.parametrize("count", [0, 2])
def test_pinned_whole_batches_hold_their_own_contents(own: bool, count: int) -> None:
    source = loader(WholeBatches(Large(own), "data.train"), count, pinned.options())
    for epoch in range(3):
        kept = list(source.epoch(epoch))
        assert all(rows.is_pinned() and (rows == numbers[:, None]).all() for rows, numbers in kept)
        assert [int(number) for _, numbers in kept for number in numbers] == list(range(24))
    assert source.whole == 18
