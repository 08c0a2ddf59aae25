"""Prefetch: nothing lost, nothing overwritten too early, nothing kept. On the CPU against a simulated GPU.

The simulation runs streams in time, orders them by events alone, and reuses freed memory at once, as torch's allocator
does: a batch that is read before its copy is done, or overwritten before its last use is over, is a race.
"""

import gc
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from hydra import compose, initialize_config_dir
from torch import Tensor
from torch.utils.data import Dataset

from framework import config, feed, rules
from framework.clock import HostClock
from framework.data.loader import Loader, LoaderSettings
from framework.environment import Machine
from framework.meter import Meter, Work
from framework.mistakes import ConfigError
from framework.techniques import pinned, prefetch, workers
from framework.techniques.prefetch import Prefetch
from framework.transfer import Transfer
from framework.tree import leaves

DEVICE = torch.device("cuda:0")
SIZES = [0, 1, 8, 9, 37]  # rows, in batches of 8: none, one, one whole, one and a short one, many


class Stream:
    """Work in order. `clock` is the time at which all that was queued is done; `knows` the same of other streams."""

    def __init__(self, gpu: "Gpu", device: torch.device | None = None) -> None:
        self.gpu, self.device = gpu, device
        self.clock = 0.0
        self.knows: dict[Stream, int] = {}
        self.done = 0
        gpu.streams.append(self)

    def run(self, seconds: float) -> tuple["Stream", int]:
        """Queues work; returns the point behind it."""
        self.clock += seconds
        self.done += 1
        self.knows[self] = self.done
        return self, self.done

    def wait_event(self, event: "Event") -> None:
        assert event.point is not None, "never recorded"
        self.clock = max(self.clock, event.clock)
        for stream, done in event.point.items():
            self.knows[stream] = max(done, self.knows.get(stream, 0))

    def is_behind(self, point: tuple["Stream", int]) -> bool:
        stream, done = point
        return self.knows.get(stream, 0) >= done


class Event:
    """A point of a stream. `query()` is always true: the simulated GPU is idle whenever it is asked."""

    def __init__(self, gpu: "Gpu", enable_timing: bool = False) -> None:
        self.gpu, self.timed = gpu, enable_timing
        self.point: dict[Stream, int] | None = None

    def record(self, stream: Stream) -> None:
        self.point, self.clock = dict(stream.knows), stream.clock

    def query(self) -> bool:
        return self.gpu.idle

    def elapsed_time(self, end: "Event") -> float:
        assert self.timed
        assert end.timed
        return (end.clock - self.clock) * 1e3


class Block:
    """Device memory: the point of its last write, and those of its reads."""

    def __init__(self) -> None:
        self.written: tuple[Stream, int] | None = None
        self.read: list[tuple[Stream, int]] = []


class OnDevice:
    """A batch on the device. Its block is free for the stream that it came from as soon as nobody holds it."""

    def __init__(self, gpu: "Gpu", source: Any) -> None:
        self.gpu, self.source = gpu, source
        self.block = gpu.allocate()
        gpu.live += 1
        gpu.most = max(gpu.most, gpu.live)
        weakref.finalize(self, gpu.release, gpu.current, self.block)

    def used(self, seconds: float = 1.0) -> Any:
        """The model reads it; returns what it holds."""
        stream = self.gpu.current
        assert self.block.written is not None
        if not stream.is_behind(self.block.written):
            self.gpu.races.append(f"{self.source} was read before its copy was done")
        self.block.read.append(stream.run(seconds))
        return self.source


class Gpu:
    """Streams, an allocator with a pool for each stream, and the races seen."""

    def __init__(self, copy_s: float = 1.0) -> None:
        self.streams: list[Stream] = []
        self.current = Stream(self)
        self.pools: dict[Stream, list[Block]] = {}
        self.races: list[str] = []
        self.reserved = self.live = self.most = 0
        self.copy_s, self.idle = copy_s, True

    def allocate(self) -> Block:
        pool = self.pools.setdefault(self.current, [])
        if pool:
            return pool.pop()
        self.reserved += 1
        return Block()

    def release(self, stream: Stream, block: Block) -> None:
        self.pools[stream].append(block)
        self.live -= 1

    def move(self, batch: Any) -> OnDevice:
        """The copy: writes a block on the current stream."""
        moved = OnDevice(self, batch)
        if not all(self.current.is_behind(point) for point in moved.block.read):
            self.races.append(f"{batch} was written over a batch in use")
        moved.block.read, moved.block.written = [], self.current.run(self.copy_s)
        return moved

    @contextmanager
    def on(self, stream: Stream) -> Iterator[None]:
        before, self.current = self.current, stream
        try:
            yield
        finally:
            self.current = before


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Gpu:
    """torch.cuda's streams and events are those of a simulated GPU."""
    made = Gpu()
    monkeypatch.setattr(torch.cuda, "Stream", lambda device=None: Stream(made, device))
    monkeypatch.setattr(torch.cuda, "Event", lambda enable_timing=False: Event(made, enable_timing))
    monkeypatch.setattr(torch.cuda, "stream", made.on)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device=None: made.current)
    return made


def batches(count: int) -> Iterator[list[int]]:
    """Rows 0 to count - 1 in batches of 8."""
    return (list(range(start, min(start + 8, count))) for start in range(0, count, 8))


def consumed(source: Iterator[OnDevice], step_s: float = 1.0) -> list[Any]:
    """What a loop like the engine's sees: it holds a batch until it has the next one."""
    return [batch.used(step_s) for batch in source]


def dropped(source: Iterator[OnDevice]) -> list[Any]:
    """A loop that lets go of each batch before it asks for the next one."""
    seen = []
    for batch in source:
        seen.append(batch.used())
        del batch
    return seen


# Nothing lost


@pytest.mark.parametrize("count", SIZES)
@pytest.mark.parametrize("depth", [1, 2, 3, 4])
@pytest.mark.parametrize("loop", [consumed, dropped])
def test_C02_the_last_batch_is_not_lost(gpu: Gpu, count: int, depth: int, loop: Callable[..., list[Any]]) -> None:
    ahead = Prefetch(depth, DEVICE, gpu.move)
    for _ in range(3):
        assert loop(ahead(batches(count))) == list(batches(count))
    assert not gpu.races


@pytest.mark.parametrize("depth", [1, 3])
def test_C01_batches_of_any_nesting_are_what_a_plain_move_makes_of_them(gpu: Gpu, depth: int) -> None:
    """The two-field prefetchers of old gave None for a third field, and broke on lists and dicts."""

    def source() -> Iterator[Any]:
        for number in range(5):
            x = torch.full((2,), float(number))
            yield {"x": x, "meta": ["a", str(number)], "mask": None, "pair": (x + 1, 3)}
            yield [x, x, x, None]

    plain = list(map(Transfer(torch.device("cpu"), asynchronous=False), source()))
    ahead = list(Prefetch(depth, DEVICE, Transfer(torch.device("cpu"), asynchronous=False))(source()))
    assert len(plain) == len(ahead) == 10
    for one, other in zip(plain, ahead, strict=True):
        assert type(one) is type(other)
        assert [type(leaf) for leaf in leaves(one)] == [type(leaf) for leaf in leaves(other)]
        for left, right in zip(leaves(one), leaves(other), strict=True):
            assert torch.equal(left, right) if isinstance(left, Tensor) else left == right


class Rows(Dataset[int]):
    """Row i is i; row `bad` cannot be read."""

    def __init__(self, count: int, bad: int = -1) -> None:
        self.count, self.bad = count, bad

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> int:
        if index == self.bad:
            raise ValueError(f"row {index}")
        return index


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
@pytest.mark.parametrize("count", [0, 2])
@pytest.mark.parametrize("depth", [1, 4])
def test_C04_an_error_arrives_in_its_turn(gpu: Gpu, count: int, depth: int) -> None:
    settings = LoaderSettings("data.train", 4, options=workers.options(count, 2, None))
    loader = Loader(Rows(40, bad=20), settings)
    ahead, seen = Prefetch(depth, DEVICE, gpu.move), []

    def train() -> None:
        for batch in ahead(loader.epoch(0)):
            seen.extend(batch.used().tolist())

    with pytest.raises(ValueError, match="row 20"):
        train()
    assert seen == list(range(20))


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_C04_an_error_of_the_copy_arrives_in_its_turn(gpu: Gpu, depth: int) -> None:
    def move(batch: list[int]) -> OnDevice:
        if 16 in batch:
            raise torch.OutOfMemoryError("no room")
        return gpu.move(batch)

    seen: list[list[int]] = []
    with pytest.raises(torch.OutOfMemoryError, match="no room"):
        seen.extend(batch.used() for batch in Prefetch(depth, DEVICE, move)(batches(37)))
    assert seen == [list(range(8)), list(range(8, 16))]
    assert gpu.current is gpu.streams[0]  # the side stream was left


@pytest.mark.parametrize("bad", [-1, 20])
def test_J01_neither_end_nor_error_keeps_a_batch(gpu: Gpu, bad: int) -> None:
    """Without a collection of cycles, which may not come for a long time."""
    ahead = Prefetch(2, DEVICE, gpu.move)

    def train() -> int:
        try:
            for batch in ahead(Rows(40, bad)[number] for number in range(40)):
                batch.used()
        except ValueError:
            return 1
        return 0

    gc.collect()
    gc.disable()
    try:
        assert [train() for _ in range(3)] == [int(bad == 20)] * 3
        assert gpu.live == 0
    finally:
        gc.enable()


def test_what_is_no_error_of_the_data_stops_at_once(gpu: Gpu) -> None:
    def source() -> Iterator[list[int]]:
        yield [0]
        raise KeyboardInterrupt

    seen: list[list[int]] = []
    with pytest.raises(KeyboardInterrupt):
        seen.extend(batch.used() for batch in Prefetch(2, DEVICE, gpu.move)(source()))
    assert seen == []


def test_the_source_is_read_no_further_than_asked_for(gpu: Gpu) -> None:
    asked: list[int] = []

    def source() -> Iterator[int]:
        for number in range(100):
            asked.append(number)
            yield number

    taken = Prefetch(3, DEVICE, gpu.move)(source())
    assert asked == []
    next(taken).used()
    assert asked == [0, 1, 2]
    next(taken).used()
    assert asked == [0, 1, 2, 3]


# Nothing overwritten, nothing kept


@pytest.mark.parametrize("depth", [1, 2, 4])
@pytest.mark.parametrize("step_s", [0.1, 1.0, 10.0])
def test_C03_one_stream_for_life_and_no_memory_left_behind(gpu: Gpu, depth: int, step_s: float) -> None:
    ahead = Prefetch(depth, DEVICE, gpu.move)
    reserved = []
    for _ in range(32):
        consumed(ahead(batches(37)), step_s)
        reserved.append(gpu.reserved)
    assert len(gpu.streams) == 2  # the one that computes, and one for copies
    assert reserved[1:] == reserved[1:2] * 31
    assert gpu.most == depth + 1
    assert gpu.live == 0
    assert not gpu.races


@pytest.mark.parametrize("left_after", [0, 1, 3])
def test_C03_a_pass_that_is_left_early_leaves_no_race_and_no_memory(gpu: Gpu, left_after: int) -> None:
    ahead = Prefetch(2, DEVICE, gpu.move)
    for _ in range(4):
        for number, batch in enumerate(ahead(batches(37))):
            batch.used()
            if number == left_after:
                break
        del batch
    assert gpu.live == 0
    assert gpu.reserved <= 4
    assert not gpu.races


@pytest.mark.parametrize("direction", ["copy", "use"])
def test_the_simulation_finds_a_missing_wait(gpu: Gpu, direction: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Either wait left out is a race, so the tests above can fail."""
    ahead = Prefetch(2, DEVICE, gpu.move)
    waits = Stream.wait_event

    def half(stream: Stream, event: Event) -> None:
        if (stream is ahead.stream) is (direction == "copy"):
            waits(stream, event)

    monkeypatch.setattr(Stream, "wait_event", half)
    consumed(ahead(batches(80)))
    text = "was read before its copy was done" if direction == "copy" else "was written over a batch in use"
    assert gpu.races
    assert all(text in race for race in gpu.races)


def test_C03_the_next_copy_does_not_wait_for_the_step_that_runs(gpu: Gpu) -> None:
    """Else nothing would overlap: a copy starts when the step before the running one is over."""
    ahead = Prefetch(1, DEVICE, gpu.move)
    consumed(ahead(batches(160)), step_s=1.0)
    side, compute = ahead.stream, gpu.streams[0]
    assert isinstance(side, Stream)
    assert compute.clock == pytest.approx(1.0 + 20 * 1.0)  # one copy, then steps without a gap
    assert side.clock <= compute.clock


def test_C03_the_engines_chain_holds_no_batch_longer(gpu: Gpu) -> None:
    """Window by window through every generator between the loader and the loop."""
    loader = Loader(Rows(40), LoaderSettings("data.train", 4))
    place = Prefetch(2, DEVICE, lambda window: [gpu.move(batch.tolist()) for batch in window])
    windows = place(feed.windows(loader, 2, 3, None))
    meter = Meter(HostClock(), 1)
    meter.start()
    seen = []
    for window in meter.waiting(feed.shown_first(windows, lambda batch: batch.used())):
        seen += [row for batch in window for row in batch.used()]
        meter.mark(Work(8))
    del window
    assert seen == list(range(40)) * 3
    assert gpu.most == (2 + 1) * 2  # two batches a window
    assert gpu.reserved == gpu.most
    assert not gpu.races


# The report


@pytest.mark.parametrize(("copy_s", "step_s", "share"), [(1.0, 4.0, 1.0), (4.0, 1.0, 0.25), (4.0, 3.0, 0.75)])
def test_hidden_share_is_what_the_steps_did_not_wait_for(gpu: Gpu, copy_s: float, step_s: float, share: float) -> None:
    gpu.copy_s = copy_s
    ahead = Prefetch(2, DEVICE, gpu.move)
    assert ahead.hidden_share() is None
    consumed(ahead(batches(8 * 100)), step_s)
    assert ahead.hidden_share() == pytest.approx(share, abs=0.02)
    found = prefetch.evidence(ahead)
    assert found.active is True
    assert found.seen["batches"] == 100
    assert found.seen["hidden_share"] == ahead.hidden_share()


def test_hidden_share_leaves_out_what_is_not_done_and_never_waits(gpu: Gpu) -> None:
    ahead = Prefetch(2, DEVICE, gpu.move)
    gpu.idle = False
    consumed(ahead(batches(8 * 100)))
    assert ahead.hidden_share() is None  # nothing could be read yet
    gpu.idle = True
    assert ahead.hidden_share() is not None


def test_prefetch_is_active_only_where_a_side_stream_copied(gpu: Gpu) -> None:
    ahead = Prefetch(2, DEVICE, gpu.move)
    assert prefetch.evidence(ahead).active is None
    with gpu.on(ahead.stream):  # type: ignore[arg-type]
        consumed(ahead(batches(37)))
    assert prefetch.evidence(ahead).active is False
    consumed(ahead(batches(37)))
    assert prefetch.evidence(ahead).active is True


@pytest.mark.parametrize("policy", ["error", "skip"])
def test_C06_prefetch_without_pinning_is_refused_or_left_out(policy: str) -> None:
    config.register()
    configs = str(Path(__file__).parents[1] / "configs")
    asked = ["device=cuda", "perf.prefetch=2", f"perf.if_unavailable={policy}"]
    with initialize_config_dir(configs, version_base="1.3"):
        raw = compose("config", asked)
    if policy == "error":
        with pytest.raises(ConfigError, match=r"perf\.prefetch=2 needs perf\.pinned=true"):
            rules.settle(raw, Machine((2, 14), True, 1))
    else:
        settled = rules.settle(raw, Machine((2, 14), True, 1))
        assert settled.config.perf.prefetch == 0
        assert list(settled.left_out) == ["prefetch"]


# On a GPU

MEGABYTES = 2**18  # float32 numbers


def pinned_batches(count: int, megabytes: int) -> Iterator[Tensor]:
    """Batch i is full of i."""
    for number in range(count):
        yield torch.full((megabytes * MEGABYTES,), float(number)).pin_memory()


def late_reads(ahead: Prefetch, passes: int, count: int) -> int:
    """How many numbers were wrong when the compute stream read them, at the end of a long step."""
    heavy = torch.randn(4096, 4096, device="cuda")
    wrong = torch.zeros((), dtype=torch.int64, device="cuda")
    for _ in range(passes):
        for number, batch in enumerate(ahead(pinned_batches(count, 8))):
            for _ in range(5):
                heavy = torch.tanh(heavy @ heavy)
            wrong += (batch != number).sum()
    return int(wrong)


@pytest.mark.gpu
@pytest.mark.parametrize("depth", [1, 2, 4])
def test_C07_every_batch_equals_its_plain_copy_under_load(depth: int) -> None:
    move = Transfer(torch.device("cuda"), asynchronous=True)
    ahead = Prefetch(depth, torch.device("cuda"), move)
    assert late_reads(ahead, passes=3, count=40) == 0
    assert (move.pinned, move.pageable) == (120, 0)


@pytest.mark.gpu
def test_the_check_under_load_finds_a_missing_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda.Stream, "wait_event", lambda stream, event: None)
    ahead = Prefetch(2, torch.device("cuda"), Transfer(torch.device("cuda"), asynchronous=True))
    assert late_reads(ahead, passes=3, count=40) > 0
    torch.cuda.synchronize()


@pytest.mark.gpu
def test_C03_reserved_memory_does_not_grow_from_epoch_to_epoch() -> None:
    torch.cuda.empty_cache()
    host = [torch.ones(64 * MEGABYTES).pin_memory() for _ in range(4)]
    ahead = Prefetch(2, torch.device("cuda"), Transfer(torch.device("cuda"), asynchronous=True))
    total, reserved = torch.zeros((), device="cuda"), []
    for _ in range(32):
        for batch in ahead(iter(host)):
            total += batch.sum()
        del batch
        reserved.append(torch.cuda.memory_reserved())
    assert reserved[31] == reserved[1]
    assert total.item() == 32 * 4 * 64 * MEGABYTES


class Scene:
    """A batch of the user's own that pins and moves itself."""

    def __init__(self, image: Tensor, names: list[str]) -> None:
        self.image, self.names = image, names

    def pin_memory(self) -> "Scene":
        return Scene(self.image.pin_memory(), self.names)

    def to(self, device: torch.device, non_blocking: bool = False) -> "Scene":
        assert not non_blocking or self.image.is_pinned()
        return Scene(self.image.to(device, non_blocking=non_blocking), self.names)


class Kept(dict[str, Any]):
    """A dict subclass."""


def odd_batches(samples: list[int]) -> Kept:
    names = [f"row {number}" for number in samples]
    return Kept(scene=Scene(torch.tensor(samples), names), ids=torch.tensor(samples), names=names, mask=None)


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
@pytest.mark.parametrize("pin", [False, True])
@pytest.mark.parametrize("depth", [0, 2])
@pytest.mark.parametrize("count", [0, 2])
def test_B02_types_and_strings_are_the_same_with_pinning_and_prefetch(pin: bool, depth: int, count: int) -> None:
    device, found = torch.device("cuda"), []
    options = workers.options(count, 2, "fork") | (pinned.options() if pin else {})
    loader = Loader(Rows(37), LoaderSettings("data.train", 8, options=options), odd_batches)
    transfer = Transfer(device, asynchronous=pin)

    def move(batch: Kept) -> Any:
        assert batch["ids"].is_pinned() is pin
        assert batch["scene"].image.is_pinned() is pin
        return transfer(batch)

    place: Callable[[Iterator[Kept]], Iterator[Any]]
    place = Prefetch(depth, device, move) if depth else lambda source: map(move, source)
    for batch in place(loader.epoch(0)):
        assert type(batch) is Kept
        assert type(batch["scene"]) is Scene
        assert batch["scene"].image.is_cuda
        assert batch["ids"].is_cuda
        assert batch["mask"] is None
        assert batch["names"] == batch["scene"].names == [f"row {number}" for number in batch["ids"].tolist()]
        assert torch.equal(batch["ids"], batch["scene"].image)
        found += batch["ids"].tolist()
    assert found == list(range(37))
    assert (transfer.pinned > 0) is pin


@pytest.mark.gpu
def test_hidden_share_is_reported_for_real_copies() -> None:
    ahead = Prefetch(2, torch.device("cuda"), Transfer(torch.device("cuda"), asynchronous=True))
    assert late_reads(ahead, passes=1, count=60) == 0
    share = ahead.hidden_share()
    assert share is not None
    assert 0.5 < share <= 1.0  # a step is far longer than a copy
    assert prefetch.evidence(ahead).active is True
