"""The loader: every setting of workers, sets of any kind, and errors that say what to do."""

import contextlib
import dataclasses
import gc
import json
import multiprocessing.process
import os
import pickle
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hydra import compose, initialize_config_dir
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch import Tensor, nn
from torch.utils.data import ChainDataset, Dataset, IterableDataset, get_worker_info

from framework import build, config, engine, rules
from framework.data import imagefolder
from framework.data.collate import Collate
from framework.data.deaths import WorkerError, explained
from framework.data.loader import Loader, LoaderSettings
from framework.environment import Machine
from framework.memory import host_gib
from framework.mistakes import ConfigError
from framework.techniques import pinned, workers

pytestmark = [  # more workers than cores, and Python 3.12's general word on forks, are no fault here
    pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning"),
    pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning"),
]
ROOT = Path(__file__).parents[1]
HERE = "tests.test_loader"


class Rows(Dataset[tuple[Tensor, Tensor]]):
    """Row i is (i, 2 i)."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return torch.tensor([float(index)]), torch.tensor([2.0 * index])


class Stream(IterableDataset[tuple[Tensor, Tensor]]):
    """The same as a stream. `sharing`: it splits itself over workers, the first of which get the longer parts."""

    def __init__(self, count: int, sharing: bool = False) -> None:
        self.rows, self.sharing = Rows(count), sharing

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        worker = get_worker_info() if self.sharing else None
        number, step = (worker.id, worker.num_workers) if worker else (0, 1)
        return (self.rows[index] for index in range(number, self.rows.count, step))


class SizedStream(Stream):
    """A stream that knows its length."""

    def __len__(self) -> int:
        return self.rows.count


class Once(Stream):
    """A stream that gives nothing when it is read again."""

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        count, self.rows.count = self.rows.count, 0
        return (self.rows[index] for index in range(count))


class Dying(Rows):
    """Row 20 kills its own worker process."""

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        if index == 20:
            assert get_worker_info() is not None, "the main process must live"
            os.kill(os.getpid(), signal.SIGKILL)
        return super().__getitem__(index)


class Raising(Rows):
    """Row 20 cannot be read."""

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        if index == 20:
            raise ValueError("row 20")
        return super().__getitem__(index)


class Elsewhere(Rows):
    """Rows that do not lie in the host's memory."""

    def __init__(self, count: int, device: str = "meta") -> None:
        super().__init__(count)
        self.device = device

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return torch.zeros(1, device=self.device), torch.zeros(1, device=self.device)


class ElsewhereStream(IterableDataset[Tensor]):
    """The same as a stream."""

    def __iter__(self) -> Iterator[Tensor]:
        return (torch.zeros(1, device="meta") for _ in range(4))


def loader(dataset: Any, batch_size: int = 4, count: int = 0, name: str = "data.train", **settings: Any) -> Loader:
    function = settings.pop("function", None)
    options = workers.options(count, settings.pop("worker_batches", 2), settings.pop("start_method", None))
    options |= settings.pop("options", {})
    return Loader(dataset, LoaderSettings(name, batch_size, options=options, **settings), function)


def indices(source: Loader, epoch: int = 0) -> list[list[int]]:
    """The first column of each batch."""
    return [batch[0].flatten().int().tolist() for batch in source.epoch(epoch)]


def flat(batches: list[list[int]]) -> list[int]:
    return [index for batch in batches for index in batch]


def settled(folder: Path, *overrides: str, gpus: int = 0) -> rules.Settled:
    config.register()
    linear = ["model=custom", "model._target_=torch.nn.Linear", "+model.in_features=1", "+model.out_features=1"]
    loss = ["objective._target_=framework.objective.Supervised", "+objective.function._target_=hydra.utils.get_method"]
    loss += ["+objective.function.path=torch.nn.functional.mse_loss"]
    with initialize_config_dir(str(ROOT / "configs"), version_base="1.3"):
        raw = compose("config", ["data=custom", *linear, *loss, "optim=sgd", "optim.lr=0.0001", *overrides])
    return rules.settle(raw, Machine((2, 14), gpus > 0, gpus))


# Settings of workers


@pytest.mark.parametrize("count", [0, 1, 2])
@pytest.mark.parametrize("worker_batches", [1, 2, 4])
@pytest.mark.parametrize("start_method", [None, "fork"])
def test_B01_every_combination_of_worker_settings(count: int, worker_batches: int, start_method: str | None) -> None:
    settings: dict[str, Any] = {"count": count, "worker_batches": worker_batches, "start_method": start_method}
    train = loader(Rows(10), shuffle=True, **settings)
    held_out = loader(Rows(5), name="data.eval", **settings)
    for source, size in ((train, 10), (held_out, 5)):
        source.start()
        assert [sorted(flat(indices(source, epoch))) for epoch in range(2)] == [list(range(size))] * 2
        found = workers.evidence(source.processes, os.getpid())
        assert found.active is (count > 0)
        assert found.seen == {"worker_processes": count}


def test_B01_worker_settings_without_workers_are_noted_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    sets = [f"data.train._target_={HERE}.Rows", "+data.train.count=10"]
    sets += [f"+data.eval={{_target_: {HERE}.Rows, count: 5}}", "data.worker_batches=4", "data.start_method=spawn"]
    engine.train(build.build(settled(tmp_path, *sets, "train.epochs=1"), tmp_path))
    assert [text for text in caplog.messages if "perf.workers=0" in text] == [
        "data.worker_batches and data.start_method change nothing here: perf.workers=0."
    ]
    caplog.clear()
    assert workers.options(0, 2, None) == {}
    assert not caplog.messages


def test_workers_are_not_told_of_before_a_batch_was_seen() -> None:
    assert workers.evidence(set(), 1).active is None


@pytest.mark.parametrize("stream", [False, True])
def test_A11_all_that_a_worker_is_given_can_be_pickled(stream: bool) -> None:
    made = loader(Stream(5) if stream else Rows(5), shuffle=True)._loader
    for part in (made.dataset, made.collate_fn, made.sampler, made.batch_sampler, made.worker_init_fn):
        pickle.loads(pickle.dumps(part))
    settings = LoaderSettings("data.train", 4, options=workers.options(2, 2, "spawn"))
    assert pickle.loads(pickle.dumps(settings)) == settings


# Streams


@pytest.mark.parametrize("count", [0, 1, 2, 4])
def test_B04_a_stream_is_delivered_once_in_one_order(count: int) -> None:
    source = loader(Stream(10), batch_size=2, count=count)
    source.start()
    for epoch in range(3):
        assert indices(source, epoch) == [[0, 1], [2, 3], [4, 5], [6, 7], [8, 9]]


@pytest.mark.parametrize("size", [1, 4, 9, 10])
@pytest.mark.parametrize("drop_last", [False, True])
def test_B11_only_the_last_batch_of_a_stream_is_short(size: int, drop_last: bool) -> None:
    if drop_last and size < 4:
        return
    expected = [list(range(start, min(start + 4, size))) for start in range(0, size, 4)]
    if drop_last:
        expected = [batch for batch in expected if len(batch) == 4]
    for count in (0, 3):
        source = loader(SizedStream(size), count=count, drop_last=drop_last)
        assert indices(source) == expected
        assert source.batches == len(expected)


@pytest.mark.parametrize("length", [None, TypeError, NotImplementedError])
def test_B05_a_stream_without_a_length_has_no_number_of_batches(length: type[Exception] | None) -> None:
    class Unknown(Stream):
        """Has `__len__`, as torch's own pipes do, but nothing to say there."""

        def __len__(self) -> int:
            assert length is not None
            raise length("no length")

    source = loader(Stream(10) if length is None else Unknown(10))
    assert source.batches is None
    assert flat(indices(source)) == list(range(10))
    assert loader(ChainDataset([Stream(2), Stream(3)])).batches is None


def test_B11_the_number_of_batches_of_a_set_that_splits_itself_is_not_known() -> None:
    source = loader(SizedStream(10, sharing=True), batch_size=2, count=3, self_sharded=True)
    batches = indices(source)
    assert sorted(flat(batches)) == list(range(10))
    assert [len(batch) for batch in batches] == [2, 2, 2, 2, 1, 1]  # six, where ten rows by twos would be five
    assert source.batches is None
    assert loader(SizedStream(10), batch_size=2, self_sharded=True).batches == 5


def test_B05_a_run_by_steps_needs_no_length(tmp_path: Path) -> None:
    sets = [f"data.train._target_={HERE}.Stream", "+data.train.count=10", "data.batch_size=4", "optim.schedule=cosine"]
    run = build.build(settled(tmp_path, *sets, "train.max_steps=7", "perf.log_every=2"), tmp_path)
    engine.train(run)
    assert run.report.summary.steps == 7
    assert len(run.losses.history) == 7
    assert run.state.lr == pytest.approx(0, abs=1e-12)
    with pytest.raises(ConfigError, match=r"optim\.schedule=cosine needs an end.*train\.max_steps"):
        build.build(settled(tmp_path, *sets, "train.epochs=1"), tmp_path)


@pytest.mark.parametrize("accumulate", [1, 2])
def test_B11_means_are_over_rows_where_short_batches_come_in_the_middle(tmp_path: Path, accumulate: int) -> None:
    sets = [f"data.train._target_={HERE}.Stream", "+data.train.count=10", "+data.train.sharing=true"]
    sets += [f"+data.eval={{_target_: {HERE}.Stream, count: 10, sharing: true}}", "data.self_sharded=true"]
    sizes = ["data.batch_size=2", "perf.workers=3", "train.epochs=2", f"train.accumulate={accumulate}"]
    run = build.build(settled(tmp_path, *sets, *sizes), tmp_path)
    engine.train(run)
    summary = run.report.summary
    assert (summary.rows, summary.steps) == (20, 12 if accumulate == 1 else 6)
    inputs = torch.arange(10.0).view(-1, 1)
    with torch.no_grad():
        expected = nn.functional.mse_loss(run.state.model(inputs), 2 * inputs).item()
    assert summary.evaluation is not None
    assert summary.evaluation["count"] == 10
    assert summary.evaluation["loss"] == pytest.approx(expected, rel=1e-6)


def test_a_stream_that_does_not_start_anew_is_an_error() -> None:
    source = loader(Once(4))
    assert len(indices(source)) == 1
    with pytest.raises(ValueError, match=r"data\.train gave no batch in epoch 1: an iterable set must start anew"):
        indices(source, 1)


def test_a_set_that_is_neither_is_told_what_it_lacks() -> None:
    with pytest.raises(ValueError, match=r"data\.train is a generator, which has no length.*IterableDataset"):
        loader(row for row in Rows(4))


# Sizes


@pytest.mark.parametrize("name", ["data.train", "data.eval"])
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("size", "drop_last"), [(0, False), (0, True), (5, True)])
def test_B08_no_batch_is_an_error(name: str, stream: bool, size: int, drop_last: bool) -> None:
    facts = rf"data\.batch_size=8 and data\.drop_last={str(drop_last).lower()} leave no batch"
    with pytest.raises(ValueError, match=rf"{name} has {size} rows, which with {facts}"):
        loader(SizedStream(size) if stream else Rows(size), 8, name=name, drop_last=drop_last)
    if stream:  # its length is not known before
        with pytest.raises(ValueError, match=rf"{name} gave no batch in epoch 0.*{facts}"):
            indices(loader(Stream(size), 8, name=name, drop_last=drop_last))


@pytest.mark.parametrize("kind", [Rows, SizedStream, Stream])
@pytest.mark.parametrize("count", [0, 2])
def test_B09_a_last_batch_of_one_row_is_left_out_of_training(
    kind: Callable[[int], Any], count: int, caplog: pytest.LogCaptureFixture
) -> None:
    source = loader(kind(9), count=count, shuffle=True, drop_single=True)
    for epoch in range(3):
        batches = indices(source, epoch)
        assert [len(batch) for batch in batches] == [4, 4]
        assert source.batches in (2, None)
    assert len(caplog.messages) == 1
    assert "one row, which batch norm cannot train on: it is left out" in caplog.messages[0]


@pytest.mark.parametrize(("size", "batch_size"), [(8, 4), (10, 4), (3, 1), (1, 4)])
@pytest.mark.parametrize("kind", [Rows, SizedStream])
def test_B09_no_other_batch_is_left_out(kind: Callable[[int], Any], size: int, batch_size: int) -> None:
    if size == 1 and kind is SizedStream:
        return  # a stream's only row is its last
    source = loader(kind(size), batch_size, drop_single=True)
    assert sorted(flat(indices(source))) == list(range(size))
    assert source.batches == -(-size // batch_size)


def test_B09_training_with_batch_norm_ends_and_every_held_out_row_counts(tmp_path: Path) -> None:
    sets = [f"data.train._target_={HERE}.Rows", "+data.train.count=9", "data.batch_size=4", "train.epochs=2"]
    sets += [f"+data.eval={{_target_: {HERE}.Rows, count: 9}}", f"model._target_={HERE}.normed"]
    run = build.build(settled(tmp_path, *sets, "~model.in_features", "~model.out_features"), tmp_path)
    engine.train(run)
    assert run.report.summary.rows == 16
    assert run.report.summary.evaluation is not None
    assert run.report.summary.evaluation["count"] == 9


def normed() -> nn.Module:
    """A model that cannot train on a batch of one row."""
    return nn.Sequential(nn.BatchNorm1d(1), nn.Linear(1, 1))


class Noisy(Rows):
    """Each row draws as often as its index says, so that whoever draws next would notice."""

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        x, y = super().__getitem__(index)
        return x + torch.rand(index + 1)[-1:] + float(np.random.rand()) + random.random(), y


def dropping() -> nn.Module:
    """A model that draws."""
    return nn.Sequential(nn.Linear(1, 8), nn.Dropout(0.5), nn.Linear(8, 1))


def test_C07_losses_are_bit_equal_with_and_without_workers(tmp_path: Path) -> None:
    sets = [f"data.train._target_={HERE}.Noisy", "+data.train.count=22", "data.batch_size=4", "train.epochs=2"]
    sets += [
        f"+data.eval={{_target_: {HERE}.Noisy, count: 9}}",
        "train.eval_every=2",
        f"model._target_={HERE}.dropping",
    ]
    losses = []
    for count in (0, 1, 2):
        asked = settled(tmp_path, *sets, "~model.in_features", "~model.out_features", f"perf.workers={count}")
        run = build.build(asked, tmp_path / str(count))
        engine.train(run)
        losses.append((run.losses.history, run.report.summary.evaluation))
    assert losses[0] == losses[1] == losses[2]
    assert len(losses[0][0]) == 12


# Errors


@pytest.mark.parametrize("busy", [False, True])
def test_B06_a_killed_worker_ends_the_run_with_a_hint(busy: bool) -> None:
    """Also where the main process is not asking for a batch at that moment: torch raises from a signal handler."""
    source = loader(Dying(400), count=2, worker_batches=8)
    limit = time.perf_counter() + 30

    def run() -> None:
        source.start()
        while busy and time.perf_counter() < limit:
            sum(range(1000))
        list(source.epoch(0))

    with pytest.raises(WorkerError, match=r"worker.* died.*perf\.workers.*data\.batch_size.*/dev/shm.*sharing"):
        run()
    assert time.perf_counter() < limit


@pytest.mark.slow
def test_B06_a_killed_worker_ends_the_program_and_leaves_its_results(tmp_path: Path) -> None:
    (tmp_path / "dying.py").write_text(
        "import os, pathlib, signal, torch\n"
        "class Rows(torch.utils.data.Dataset):\n"
        "    def __len__(self): return 64\n"
        "    def __getitem__(self, index):\n"
        "        if index == 60:\n"
        "            pathlib.Path('death').touch()\n"
        "            os.kill(os.getpid(), signal.SIGKILL)\n"
        "        return torch.zeros(1, 8, 8), 0\n",
        encoding="utf-8",
    )
    command = [sys.executable, str(ROOT / "train.py"), "data=custom", "data.train._target_=dying.Rows"]
    facts = ["data.classes=10", "data.channels=1", "data.image_size=8", "data.batch_size=4", "device=cpu"]
    settings = ["perf.workers=2", "data.worker_batches=1", "hydra.run.dir=out", "train.epochs=100"]
    ended = subprocess.run(
        [*command, *facts, *settings], cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False
    )
    assert time.time() - (tmp_path / "death").stat().st_mtime < 30
    assert ended.returncode == 1
    hint = r"a loader worker"
    assert hint in ended.stderr
    assert "/dev/shm" in ended.stderr
    summary = json.loads((tmp_path / "out" / "summary.json").read_text(encoding="utf-8"))
    assert summary["status"] == "failed"
    assert hint in summary["error"]
    events = EventAccumulator(str(tmp_path / "out")).Reload()
    assert events.Scalars("train/loss")


@pytest.mark.parametrize("count", [0, 1, 2])
def test_C04_an_error_of_the_set_arrives_after_the_batches_before_it(count: int) -> None:
    source, seen = loader(Raising(40), count=count), []

    def read(epoch: int) -> None:
        for batch in source.epoch(epoch):
            seen.extend(batch[0].flatten().int().tolist())

    for epoch in range(2):  # the second finds no leftovers of the first
        seen.clear()
        with pytest.raises(ValueError, match="row 20"):
            read(epoch)
        assert seen == list(range(20))


def test_errors_of_the_sets_own_code_are_not_explained_away() -> None:
    assert explained(RuntimeError("Caught RuntimeError in DataLoader worker process 0.\nshapes differ")) is None
    told = explained(RuntimeError("DataLoader worker (pid 7) is killed by signal: Bus error. "), "data.eval")
    assert told is not None
    assert "data.eval died (DataLoader worker (pid 7) is killed by signal: Bus error.)" in str(told)
    assert explained(told) is None  # once is enough


SHARED = "unable to allocate shared memory(shm) for file </torch_1_2_3>: No space left on device (28)"


@pytest.mark.parametrize(
    "said",
    [
        SHARED,
        "unable to open shared memory object </torch_1_2_3> in read-write mode: Too many open files (24)",
        "unable to mmap 1024 bytes from file </torch_1_2_3>: Cannot allocate memory (12)",
        "[Errno 24] Too many open files",
        "received 0 items of ancdata",
    ],
)
def test_B06_full_shared_memory_and_too_many_files_are_told_with_a_hint(said: str) -> None:
    told = explained(RuntimeError(f"Caught RuntimeError in DataLoader worker process 0.\n  {said}\n"), "data.eval")
    assert told is not None
    assert f"workers of data.eval lack shared memory or open files ({said}): use a larger /dev/shm" in str(told)
    assert all(word in str(told) for word in ("perf.workers", "data.worker_batches", "data.batch_size", "ulimit -n"))


class Full(Rows):
    """A set whose worker finds no more room, or no more files."""

    def __getitem__(self, index: int) -> Any:
        raise OSError(24, "Too many open files") if index % 2 else RuntimeError(SHARED)


@pytest.mark.parametrize("first", [0, 1])
def test_B06_a_lack_of_the_workers_ends_the_run_with_a_hint(first: int) -> None:
    rows = torch.utils.data.Subset(Full(4), [first])
    with pytest.raises(WorkerError, match="lack shared memory or open files"):
        list(loader(rows, count=1).epoch(0))
    with pytest.raises((RuntimeError, OSError), match=r"No space left|Too many open files") as own:
        list(loader(rows).epoch(0))
    assert not isinstance(own.value, WorkerError)  # no worker, no hint


@pytest.mark.parametrize("dataset", [Elsewhere(4), ElsewhereStream()])
@pytest.mark.parametrize(("count", "pin"), [(0, False), (0, True), (2, False)])
def test_B10_tensors_elsewhere_are_refused_where_workers_or_pinning_would_meet_them(
    dataset: Any, count: int, pin: bool
) -> None:
    """The meta device stands in for a GPU; the pinning itself comes after the check."""
    source = loader(dataset, count=count)
    collating = Collate("data.train", bool(count) or pin)
    if count:
        with pytest.raises(ValueError, match=r"data\.train gives tensors on meta.*return CPU tensors.*perf\.workers=0"):
            indices(source)
    elif pin:
        with pytest.raises(ValueError, match=r"perf\.pinned=false"):
            collating([torch.zeros(1, device="meta")])
    else:
        assert next(source.epoch(0))[0].device.type == "meta"


def test_B10_a_worker_that_uses_the_gpu_is_told_what_to_do() -> None:
    said = "Cannot re-initialize CUDA in forked subprocess. To use CUDA with multiprocessing, ..."
    told = explained(RuntimeError(f"Caught RuntimeError in DataLoader worker process 0.\n...\nRuntimeError: {said}"))
    assert told is not None
    assert "return CPU tensors" in str(told)


@pytest.mark.gpu
@pytest.mark.parametrize("count", [0, 2])
@pytest.mark.parametrize("pin", [False, True])
def test_B10_a_set_on_the_gpu_works_alone_and_is_refused_with_workers_or_pinning(count: int, pin: bool) -> None:
    torch.zeros(1, device="cuda")
    options = pinned.options() if pin else {}
    if count or pin:
        with pytest.raises(ValueError, match="gives tensors on cuda"):
            loader(Elsewhere(4, "cuda"), count=count, options=options)
    else:
        assert next(loader(Elsewhere(4, "cuda")).epoch(0))[0].is_cuda


def test_B10_nothing_touches_cuda_before_the_workers_are_forked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run is composed for a GPU that is not there, up to the first call that would reach it."""
    happened: list[str] = []
    started = multiprocessing.process.BaseProcess.start

    class TouchedError(Exception):
        pass

    def touch(*_: object) -> None:
        happened.append("cuda")
        raise TouchedError

    def start(process: multiprocessing.process.BaseProcess) -> None:
        happened.append("fork")
        started(process)

    monkeypatch.setattr(torch.cuda, "is_available", touch)  # where torch has no CUDA it would not reach that
    for owner, name in ((torch.cuda, "_lazy_init"), (torch._C, "_cuda_getDeviceCount"), (torch._C, "_cuda_init")):
        monkeypatch.setattr(owner, name, touch)
    monkeypatch.setattr(multiprocessing.process.BaseProcess, "start", start)
    sets = [f"data.train._target_={HERE}.Rows", "+data.train.count=10", "perf.workers=2", "device=cuda"]
    sets += [f"+data.eval={{_target_: {HERE}.Rows, count: 5}}", "perf.tf32=true", "perf.channels_last=true"]
    asked = settled(tmp_path, *sets, "perf.cudnn_benchmark=true", "perf.amp=bf16", "perf.fused_optimizer=true", gpus=1)
    with pytest.raises(TouchedError):
        build.build(asked, tmp_path)
    assert happened == ["fork"] * 4 + ["cuda"]


# Epochs


@pytest.mark.parametrize("count", [0, 1, 2])
@pytest.mark.parametrize("kind", [Rows, Stream])
def test_an_epoch_that_was_left_early_leaves_nothing_behind(count: int, kind: Callable[[int], Any]) -> None:
    source, reference = loader(kind(30), count=count, shuffle=True), loader(kind(30), shuffle=True)
    source.start()
    for number in range(3):
        for _ in zip(range(number + 1), source.epoch(number), strict=False):
            pass
        assert indices(source, number) == indices(reference, number)


def test_workers_live_on_from_epoch_to_epoch() -> None:
    source = loader(Rows(9), count=2)
    source.start()
    for number in range(3):
        indices(source, number)
    assert len(source.processes) == 2


def test_workers_end_by_themselves_where_the_loader_lies_in_a_cycle(monkeypatch: pytest.MonkeyPatch) -> None:
    killed: list[int | None] = []
    terminate = multiprocessing.process.BaseProcess.terminate

    def after_a_timeout(process: multiprocessing.process.BaseProcess) -> None:
        killed.append(process.pid)
        terminate(process)

    monkeypatch.setattr(multiprocessing.process.BaseProcess, "terminate", after_a_timeout)
    source: list[Any] = [loader(Raising(40), count=2)]
    with pytest.raises(ValueError, match="row 20"):  # torch's own error ties one more knot
        indices(source[0])
    processes = source[0]._loader._iterator._workers
    source.append(source)
    del source
    gc.collect()
    assert [process.exitcode for process in processes] == [0, 0]
    assert not killed


# Memory

NAMES = 100_000


class Paths(Dataset[int]):
    """The lengths of many file names, kept by the built-in set or in a plain list."""

    def __init__(self, plain: bool, monkeypatch: pytest.MonkeyPatch, root: Path) -> None:
        samples = [(str(root / "train" / "only" / f"{n:09d}.jpg"), 0) for n in range(NAMES)]
        with monkeypatch.context() as patched:
            patched.setattr(imagefolder, "_scan", lambda *_: samples)
            self.folder = None if plain else imagefolder.ImageFolder(str(root), True, 8)
        self.names = [name for name, _ in samples] if plain else []

    def __len__(self) -> int:
        return NAMES

    def __getitem__(self, index: int) -> int:
        return len(self.names[index]) if self.folder is None else len(self.folder.file(index).name)


@pytest.mark.skipif(host_gib() is None, reason="only Linux tells a process's proportional memory")
@pytest.mark.parametrize("plain", [False, True])
def test_B07_the_built_in_set_does_not_grow_in_its_workers(
    plain: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reading a list's strings changes their reference counts, which copies the list into every worker."""
    for part in ("train", "val"):
        (tmp_path / part / "only").mkdir(parents=True)
    source = loader(Paths(plain, monkeypatch, tmp_path), 2000, count=2, seed_samples=False)
    gc.collect()
    source.start()
    batches = source.epoch(0)
    next(batches)  # the workers are up
    before = _private()
    for _ in batches:
        pass
    grown = _private() - before
    list_mb = NAMES * 120 / 1e6  # a string of this length and its place in a list
    if plain:
        assert grown > list_mb * 2 / 3  # so the check below can fail
    else:
        assert grown < list_mb / 2  # most of it is what any worker comes to own


def _private() -> float:
    """Memory of this process's children that they share with nobody, in MB."""
    children = [pid for task in Path("/proc/self/task").iterdir() for pid in (task / "children").read_text().split()]
    lines = [line for pid in children for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()]
    return sum(int(line.split()[1]) for line in lines if line.startswith("Private_")) / 1e3


def test_B07_host_memory_is_among_the_figures(tmp_path: Path) -> None:
    sets = [f"data.train._target_={HERE}.Rows", "+data.train.count=10", "perf.workers=1", "train.epochs=1"]
    run = build.build(settled(tmp_path, *sets), tmp_path)
    engine.train(run)
    assert (run.report.summary.host_gib is None) == (host_gib() is None)
    assert dataclasses.asdict(run.report.summary)["switches"]["workers"]["active"] is True


@pytest.mark.parametrize(("device", "order"), [("cuda:1", ["set", "fork"]), ("cuda:0", ["fork", "set"])])
def test_the_pinning_thread_finds_the_device_that_was_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, device: str, order: list[str]
) -> None:
    """The first device is the current one anyway, so there the workers are forked first."""
    happened: list[str] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "set_device", lambda _: happened.append("set"))
    monkeypatch.setattr(Loader, "start", lambda _: happened.append("fork"))
    sets = [f"data.train._target_={HERE}.Rows", "+data.train.count=10", "perf.pinned=true", f"device={device}"]
    with contextlib.suppress(RuntimeError, AssertionError):  # there is no such device here
        build.build(settled(tmp_path, *sets, gpus=2), tmp_path)
    assert happened[:2] == order


def test_a_gpu_that_torch_cannot_start_is_told_in_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    asked = settled(tmp_path, f"data.train._target_={HERE}.Rows", "+data.train.count=10", gpus=1)
    with pytest.raises(ConfigError, match=r"^device=cuda:0 does not start: its driver may be too old .*device=cpu\.$"):
        build.build(asked, tmp_path)
