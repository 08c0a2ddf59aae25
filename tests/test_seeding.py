"""Order and random draws of samples: functions of seed, epoch and index alone, whatever the loader's settings."""

import random
from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, IterableDataset, get_worker_info

from framework.data.loader import Loader, LoaderSettings
from framework.data.seeding import generators_kept, mixed, seed_generators, seed_process
from framework.techniques import workers

pytestmark = [  # more workers than cores, and Python 3.12's general word on forks, are no fault here
    pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning"),
    pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning"),
]
COUNT, EPOCHS = 22, 3
Draw = tuple[int, float, float, float]


def drawn(index: int) -> Draw:
    """The index with what each of the three generators gives."""
    return index, random.random(), float(np.random.rand()), float(torch.rand((), dtype=torch.float64))


class Drawing(Dataset[Draw]):
    """Each sample draws from all three generators."""

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, index: int) -> Draw:
        return drawn(index)


class Stream(IterableDataset[Draw]):
    """The same as a stream that knows nothing of workers."""

    def __iter__(self) -> Iterator[Draw]:
        return (drawn(index) for index in range(COUNT))


class Shuffled(IterableDataset[Draw]):
    """A stream that draws its order before the first item is asked for."""

    def __iter__(self) -> Iterator[Draw]:
        order = list(range(COUNT))
        random.shuffle(order)
        return (drawn(index) for index in order)


class Buffered(IterableDataset[Draw]):
    """A stream that shuffles through a buffer, with a draw for each item."""

    def __iter__(self) -> Iterator[Draw]:
        held: list[int] = []
        for index in range(COUNT):
            held.append(index)
            if len(held) > 5:
                yield drawn(held.pop(int(torch.randint(len(held), ()))))
        for index in held:
            yield drawn(index)


class Sharing(IterableDataset[Draw]):
    """A stream that splits itself over workers."""

    def __iter__(self) -> Iterator[Draw]:
        worker = get_worker_info()
        first, step = (worker.id, worker.num_workers) if worker else (0, 1)
        return (drawn(index) for index in range(first, COUNT, step))


SETS: dict[str, type[Dataset[Draw]]] = {
    "map": Drawing,
    "stream": Stream,
    "shuffled": Shuffled,
    "buffered": Buffered,
}


def flow(
    dataset: Any, count: int = 0, batch_size: int = 4, start_method: str | None = None, **settings: Any
) -> list[list[Draw]]:
    """What three epochs deliver, sample by sample."""
    options = workers.options(count, 2, start_method)
    settings = {"seed": 7, "shuffle": True, "options": options} | settings
    loader = Loader(dataset, LoaderSettings("data.train", batch_size, **settings))
    loader.start()
    return [
        [row for batch in loader.epoch(number) for row in zip(*(column.tolist() for column in batch), strict=True)]
        for number in range(EPOCHS)
    ]


@pytest.fixture(scope="module")
def expected() -> dict[str, list[list[Draw]]]:
    return {name: flow(kind()) for name, kind in SETS.items()}


@pytest.mark.parametrize(("count", "batch_size"), [(0, 3), (1, 4), (2, 4), (2, 5), (3, 1)])
@pytest.mark.parametrize("name", SETS)
def test_B03_order_and_draws_depend_on_seed_epoch_and_index_alone(
    expected: dict[str, list[list[Draw]]], name: str, count: int, batch_size: int
) -> None:
    assert flow(SETS[name](), count, batch_size) == expected[name]


@pytest.mark.parametrize(("start_method", "name"), [("fork", "map"), ("spawn", "map"), ("forkserver", "shuffled")])
def test_A11_workers_started_by_any_method_give_the_same(
    expected: dict[str, list[list[Draw]]], start_method: str, name: str
) -> None:
    """What they are given is pickled, and the epoch's number reaches those that live on."""
    assert flow(SETS[name](), 1, 4, start_method) == expected[name]


def test_B03_draws_never_repeat_and_another_seed_gives_others(expected: dict[str, list[list[Draw]]]) -> None:
    for name, kind in SETS.items():
        seen = [row for epoch in expected[name] for row in epoch]
        assert [sorted(row[0] for row in epoch) for epoch in expected[name]] == [list(range(COUNT))] * EPOCHS
        for generator in (1, 2, 3):
            other = {row[generator] for epoch in flow(kind(), seed=8) for row in epoch}
            values = {row[generator] for row in seen}
            assert len(values) == len(seen), name
            assert not values & other, name


def test_L01_each_epoch_has_an_order_of_its_own(expected: dict[str, list[list[Draw]]]) -> None:
    for name in ("map", "shuffled", "buffered"):
        orders = [tuple(row[0] for row in epoch) for epoch in expected[name]]
        assert len(set(orders)) == EPOCHS, name
        assert list(range(COUNT)) not in map(list, orders), name
    assert [row[0] for row in flow(Drawing(), shuffle=False)[1]] == list(range(COUNT))


def test_an_epoch_by_itself_equals_the_same_epoch_in_a_row(expected: dict[str, list[list[Draw]]]) -> None:
    for count in (0, 2):
        options = workers.options(count, 2, None)
        loader = Loader(Drawing(), LoaderSettings("data.train", 4, seed=7, shuffle=True, options=options))
        loader.start()
        for number in (2, 0, 2):  # as after a resume
            rows = [r for b in loader.epoch(number) for r in zip(*(c.tolist() for c in b), strict=True)]
            assert rows == expected["map"][number]


def test_a_set_that_splits_itself_draws_by_worker() -> None:
    one, again, other = (flow(Sharing(), 2, self_sharded=True, seed=seed) for seed in (7, 7, 8))
    assert one == again
    for generator in (1, 2, 3):
        values = {row[generator] for epoch in one for row in epoch}
        assert len(values) == COUNT * EPOCHS
        assert not values & {row[generator] for epoch in other for row in epoch}
    assert [sorted(row[0] for row in epoch) for epoch in one] == [list(range(COUNT))] * EPOCHS


def test_unseeded_samples_in_workers_still_follow_the_seed() -> None:
    one, again, other = (flow(Drawing(), 2, seed_samples=False, seed=seed) for seed in (7, 7, 8))
    assert one == again
    assert not {row[3] for epoch in one for row in epoch} & {row[3] for epoch in other for row in epoch}


def next_draws() -> tuple[float, float, float]:
    return drawn(0)[1:]


class Failing(Drawing):
    """Draws, then raises at sample 20."""

    def __getitem__(self, index: int) -> Draw:
        sample = super().__getitem__(index)
        if index == 20:
            raise ValueError("row 20")
        return sample


def collate_with_draws(samples: list[Draw]) -> torch.Tensor:
    return torch.tensor([[*sample, *next_draws()] for sample in samples])


@pytest.mark.parametrize("count", [0, 2])
@pytest.mark.parametrize("kind", [*SETS.values(), Failing])
def test_the_loader_leaves_the_main_process_its_generators(kind: type[Any], count: int) -> None:
    seed_process(3)
    expected = [next_draws() for _ in range(6)]
    seed_process(3)
    options = workers.options(count, 2, None)
    loader = Loader(kind(), LoaderSettings("data.train", 4, shuffle=True, options=options), collate_with_draws)
    loader.start()
    found = [next_draws()]
    for number in range(2):
        with pytest.raises(ValueError, match="row 20") if kind is Failing else nullcontext():
            for step, _ in enumerate(loader.epoch(number)):
                if step == 0:
                    found.append(next_draws())  # between two batches too
        found.append(next_draws())
    assert found == expected[: len(found)]
    assert len(found) >= 3


def test_generators_are_put_back_after_an_error_too() -> None:
    seed_process(3)
    expected = next_draws()
    seed_process(3)

    def draws_and_fails() -> None:
        with generators_kept():
            seed_generators(1, 2)
            next_draws()
            raise KeyError

    with pytest.raises(KeyError):
        draws_and_fails()
    assert next_draws() == expected


def test_seeds_mix_every_number_and_their_order() -> None:
    numbers = [(0,), (0, 0), (0, 0, 0), (1, 0), (0, 1), (1, 2, 3), (3, 2, 1), (2**40, 1), (1, 2**40)]
    assert len({mixed(*n) for n in numbers}) == len(numbers)
    grid = {mixed(seed, epoch, index) for seed in range(10) for epoch in range(10) for index in range(200)}
    assert len(grid) == 20_000
    assert all(0 <= value < 2**64 for value in grid)
    ones = sum(bin(value).count("1") for value in grid) / (64 * len(grid))
    assert 0.49 < ones < 0.51
    seed_generators(2**70, 5)  # any number is a seed


def test_seeding_a_sample_touches_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("manual_seed", "manual_seed_all"):
        monkeypatch.setattr(torch.cuda, name, lambda *_: pytest.fail("a GPU's generator was seeded"))
    seed_generators(1, 2, 3)
    with pytest.raises(pytest.fail.Exception):
        seed_process(1)  # the process's own seed is for the GPUs too
