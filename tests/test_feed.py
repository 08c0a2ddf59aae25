"""From a loader to windows: how many, how long, and that none is kept."""

import weakref
from collections.abc import Iterator
from itertools import islice
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.data import IterableDataset

from framework import feed
from framework.data.loader import Loader, LoaderSettings
from framework.schedule import factor


class Numbers(IterableDataset[Tensor]):
    """0, 1, ... as a stream without a length."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __iter__(self) -> Iterator[Tensor]:
        return iter(torch.arange(self.count, dtype=torch.float32))


def loader(count: int, batch_size: int = 2, stream: bool = False, **settings: Any) -> Loader:
    dataset = Numbers(count) if stream else torch.arange(count, dtype=torch.float32)
    return Loader(dataset, LoaderSettings("data.train", batch_size, **settings))


def held(windows: Iterator[Any]) -> list[list[list[float]]]:
    return [[batch.tolist() for batch in window] for window in windows]


@pytest.mark.parametrize("count", [1, 2, 5, 9, 12])
@pytest.mark.parametrize("accumulate", [1, 2, 3, 8])
@pytest.mark.parametrize("drop_last", [False, True])
def test_windows_hold_each_epoch_whole(count: int, accumulate: int, drop_last: bool) -> None:
    if count < 2 and drop_last:
        return  # no batch at all, which the loader refuses
    source = loader(count, drop_last=drop_last)
    windows = held(feed.windows(source, accumulate, epochs=3, max_steps=None))
    assert len(windows) == feed.total_steps(source.batches, accumulate, 3, None)
    kept = [float(n) for n in range(count - count % 2 if drop_last else count)]
    a_third = len(windows) // 3
    for epoch in range(3):
        part = windows[epoch * a_third : (epoch + 1) * a_third]
        assert [row for window in part for batch in window for row in batch] == kept
        assert all(len(window) == accumulate for window in part[:-1])


@pytest.mark.parametrize("stream", [False, True])
def test_B05_max_steps_decides_alone_and_takes_no_more_than_it_needs(stream: bool) -> None:
    source = loader(5, stream=stream)
    asked = []

    def batches(number: int) -> Iterator[Tensor]:
        for batch in Loader.epoch(source, number):
            asked.append(number)
            yield batch

    source.epoch = batches  # type: ignore[method-assign]
    windows = held(feed.windows(source, 2, epochs=1, max_steps=3))
    assert windows == [[[0.0, 1.0], [2.0, 3.0]], [[4.0]], [[0.0, 1.0], [2.0, 3.0]]]
    assert asked == [0, 0, 0, 1, 1]
    assert feed.total_steps(source.batches, 2, 1, 3) == 3


def test_B05_without_a_length_the_number_of_steps_is_not_known() -> None:
    source = loader(5, stream=True)
    assert source.batches is None
    assert len(held(feed.windows(source, 2, epochs=2, max_steps=None))) == 4
    steps = feed.total_steps(source.batches, 2, 2, None)
    assert steps is None
    assert factor("constant", 0, steps)(0) == 1.0
    with pytest.raises(ValueError, match=r"data\.train has no length: set train\.max_steps"):
        factor("cosine", 0, steps)


def test_the_first_batch_is_shown_once_and_let_go() -> None:
    def windows() -> Iterator[list[Tensor]]:
        for number in range(4):
            yield [torch.full((2,), float(number)), torch.zeros(1)]

    shown = []
    source = feed.shown_first(windows(), lambda batch: shown.append(batch.tolist()))
    first = weakref.ref(next(source)[0])
    assert shown == [[0.0, 0.0]]
    assert [window[0][0].item() for window in source] == [1.0, 2.0, 3.0]
    assert len(shown) == 1

    source = feed.shown_first(windows(), lambda batch: None)
    first = weakref.ref(next(source)[0])
    next(source)
    next(source)
    assert first() is None  # it lay on the device to the end of the run once


def test_showing_the_first_of_nothing_is_nothing() -> None:
    assert list(feed.shown_first(iter(()), lambda batch: pytest.fail("nothing to show"))) == []


def test_single_gives_each_pass_the_same_batches() -> None:
    source = loader(5, shuffle=True)
    passes = [[batch.tolist() for batch in feed.single(iter, source)] for _ in range(3)]
    assert passes[0] == passes[1] == passes[2]
    assert sorted(row for batch in passes[0] for row in batch) == [0.0, 1, 2, 3, 4]


def test_work_counts_rows_over_the_window_and_their_tokens() -> None:
    window = [(torch.zeros(3, 2), None), {"x": torch.zeros(2, 7)}]
    assert feed.work(0, window).rows == 5
    assert feed.work(16, window).tokens == 80
    assert next(islice(feed.windows(loader(4), 2, 1, None), 1))[1].tolist() == [2.0, 3.0]
