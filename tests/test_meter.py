"""The meter on a device whose work is done later than the host asks for it, and on the host's own clock."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import astuple, replace

import pytest
import torch

from framework import feed, meter
from framework.clock import CudaClock, HostClock
from framework.data.loader import Loader, LoaderSettings
from framework.meter import Meter, Timing, Work

ROWS = Work(8)


class Device:
    """A device with deferred work, and the clock that measures it: launching returns at once, finishing takes its time.

    Points lie on the device's own time line; one has passed when the host has spent as much time elsewhere.
    """

    def __init__(self) -> None:
        self.host = 0.0  # the host's time
        self.busy_until = 0.0  # when the device will have done all that was queued
        self.waits = 0

    def launch(self, seconds: float) -> None:
        self.busy_until = max(self.busy_until, self.host) + seconds

    def mark(self) -> float:
        return max(self.busy_until, self.host)

    def passed(self, point: float) -> bool:
        return point <= self.host

    def seconds(self, start: float, end: float) -> float:
        assert self.passed(end), "only points that have passed can be read"
        return end - start

    def finish(self) -> None:
        self.waits += 1
        self.host = max(self.host, self.busy_until)


def measured(device: Device, steps: list[float], warmup_steps: int, work: Work = ROWS) -> Meter:
    """A meter after `steps`, each of which launched that many seconds of work in no time."""
    gauge = Meter(device, warmup_steps)
    gauge.start()
    for seconds in steps:
        device.launch(seconds)
        gauge.mark(work)
    return gauge


def result_of(gauge: Meter) -> Timing:
    timing = gauge.result()
    assert timing is not None
    return timing


def test_H01_deferred_work_is_charged_to_its_own_step() -> None:
    device = Device()
    steps = [0.5] * 2 + [0.25, 0.75] * 10
    gauge = measured(device, steps, warmup_steps=2)
    assert device.host == 0.0  # all was queued in no time: a host clock would show nothing
    assert device.waits == 0  # and no step was waited for
    assert gauge.recent() is None
    timing = result_of(gauge)
    assert timing.steps == 20
    assert timing.step_ms_mean == pytest.approx(500)
    assert (timing.step_ms_p10, timing.step_ms_p90) == pytest.approx((250, 750))
    assert timing.samples_per_s == pytest.approx(8 / 0.5)
    assert gauge.warmup_s == pytest.approx(1.0)


def test_H01_steps_are_told_once_they_have_passed_and_only_once() -> None:
    device = Device()
    gauge = Meter(device, warmup_steps=1)
    gauge.start()
    counts = []
    for _ in range(10):
        device.launch(0.1)
        gauge.mark(ROWS)
        device.host += 0.05  # the host runs ahead, twice as fast as the device
        recent = gauge.recent()
        counts.append(recent.steps if recent else 0)
    assert device.waits == 0
    assert 0 < sum(counts) < 9
    assert result_of(gauge).steps == 9
    last = gauge.recent()
    assert last is not None
    assert sum(counts) + last.steps == 9


def test_H02_warm_up_is_kept_apart() -> None:
    timing = result_of(gauge := measured(Device(), [0.5] * 3 + [0.005] * 27, warmup_steps=3))
    assert timing.steps == 27
    assert timing.step_ms == pytest.approx(5)
    assert timing.step_ms_mean == pytest.approx(5)
    assert gauge.warmup_s == pytest.approx(1.5)


@pytest.mark.parametrize(("steps", "given"), [(3, False), (10, False), (14, False), (15, True)])
def test_H02_too_few_steps_give_no_figure_and_a_reason(steps: int, given: bool) -> None:
    gauge = measured(Device(), [0.1] * steps, warmup_steps=10)
    assert (gauge.result() is not None) is given
    if not given:
        reason = gauge.why_no_figures()
        assert reason.startswith(f"not enough steps: {max(0, steps - 10)} after 10 of warm-up")
        assert "train.max_steps" in reason
        assert "meter.warmup_steps" in reason
    assert (gauge.warmup_s is None) is (steps < 10)


@pytest.mark.parametrize("accumulate", [1, 2, 4])
def test_H04_throughput_counts_the_rows_of_every_batch(accumulate: int) -> None:
    """11 batches of 2 rows and one of 1; a row costs 10 ms wherever it is counted."""
    loader = Loader([(torch.zeros(3), 0)] * 23, LoaderSettings("data.train", batch_size=8 // accumulate))
    device = Device()
    gauge = Meter(device, warmup_steps=1)
    gauge.start()
    for window in feed.windows(loader, accumulate, 6, None):
        work = feed.work(5, window)
        device.launch(0.01 * work.rows)
        gauge.mark(work)
    timing = result_of(gauge)
    assert gauge.total_rows == 6 * 23
    assert gauge.total_tokens == 6 * 23 * 5
    assert timing.samples_per_s == pytest.approx(100)
    assert timing.tokens_per_s == pytest.approx(500)


@pytest.mark.parametrize("paused", [False, True])
def test_a_step_that_is_left_out_is_in_the_counts_alone(paused: bool) -> None:
    device = Device()
    gauge = Meter(device, warmup_steps=3)
    gauge.start()
    for step in range(1, 13):
        if step in (5, 8):
            if paused:
                with gauge.paused():
                    device.launch(100.0)
            gauge.leave_out()
        device.launch(50.0 if step in (5, 8) else 0.1)
        gauge.mark(ROWS)
    timing = result_of(gauge)
    assert timing.steps == 12 - 3 - 2
    assert timing.step_ms_mean == pytest.approx(100)
    assert timing.samples_per_s == pytest.approx(80)
    assert (gauge.steps, gauge.total_rows) == (12, 12 * 8)


@pytest.mark.parametrize("at", [1, 2, 3, 7])
def test_paused_time_is_in_no_step_and_not_in_the_warm_up(at: int) -> None:
    device, gauge = Device(), None
    gauge = Meter(device, warmup_steps=3)
    gauge.start()
    for step in range(1, 11):
        device.launch(0.1)
        gauge.mark(ROWS)
        if step == at:
            with gauge.paused():
                assert device.host == device.busy_until  # the device is idle when it begins
                device.launch(100.0)
    timing = result_of(gauge)
    assert timing.steps == 7
    assert timing.step_ms_mean == pytest.approx(100)
    if at >= 3:  # a pause is taken off by the host's clock, which this device does not move
        assert gauge.warmup_s == pytest.approx(0.3)


def test_paused_time_is_in_no_warm_up_on_the_host_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr(meter.time, "perf_counter", lambda: now)
    gauge = Meter(HostClock(), warmup_steps=3)
    gauge.start()
    for step in range(1, 9):
        now += 0.1
        gauge.mark(ROWS)
        if step == 1:
            with gauge.paused():
                now += 100.0
    assert gauge.warmup_s == pytest.approx(0.3)
    assert result_of(gauge).step_ms == pytest.approx(100)


def test_a_pause_before_the_first_step_is_in_no_warm_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first batch is looked at while the loop waits for it."""
    now = 0.0
    monkeypatch.setattr(meter.time, "perf_counter", lambda: now)
    gauge = Meter(HostClock(), warmup_steps=1)

    def batches() -> Iterator[int]:
        nonlocal now
        for number in range(6):
            now += 0.01
            if number == 0:
                with gauge.paused():
                    now += 100.0
            yield number

    gauge.start()
    for _ in gauge.waiting(batches()):
        now += 0.1
        gauge.mark(ROWS)
    assert gauge.warmup_s == pytest.approx(0.11)
    timing = result_of(gauge)
    assert timing.step_ms == pytest.approx(110)
    assert timing.data_wait_ms == pytest.approx(10)


def test_waiting_for_data_is_part_of_its_step(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr(meter.time, "perf_counter", lambda: now)

    def slow() -> Iterator[int]:
        nonlocal now
        for number in range(11):
            now += 0.03 if number % 2 else 0.01
            yield number

    gauge = Meter(HostClock(), warmup_steps=1)
    gauge.start()
    for _ in gauge.waiting(slow()):
        now += 0.1
        gauge.mark(ROWS)
    timing = result_of(gauge)
    assert timing.data_wait_ms == pytest.approx(20)
    assert timing.step_ms_mean == pytest.approx(120)


def test_rates_are_over_the_whole_time_slow_steps_included() -> None:
    timing = result_of(measured(Device(), [0.1] * 10 + [1.0] * 2, warmup_steps=1, work=Work(4, 40)))
    assert timing.step_ms == pytest.approx(100)
    assert timing.samples_per_s == pytest.approx(4 * 11 / 2.9)
    assert timing.tokens_per_s == pytest.approx(40 * 11 / 2.9)


def test_figures_of_a_single_step_are_its_own() -> None:
    device = Device()
    gauge = measured(device, [0.1, 0.2], warmup_steps=1)
    device.finish()
    recent = gauge.recent()
    assert recent is not None
    assert astuple(replace(recent, data_wait_ms=0)) == pytest.approx((1, 200, 200, 200, 200, 0, 40, 0))
    assert gauge.recent() is None


@pytest.mark.gpu
def test_H01_cuda_events_measure_the_device() -> None:
    """Steps that the host queues in microseconds sum to the time between two synchronizations."""
    device = torch.device("cuda")
    matrix = torch.randn(4096, 4096, device=device)
    gauge = Meter(CudaClock(device), warmup_steps=5)
    for _ in range(5):
        matrix @ matrix
    torch.cuda.synchronize()
    gauge.start()
    for step in range(30):
        if step == 5:
            torch.cuda.synchronize()
            begin = time.perf_counter()
        for _ in range(4):
            matrix @ matrix
        gauge.mark(ROWS)
    torch.cuda.synchronize()
    true = (time.perf_counter() - begin) / 25
    assert result_of(gauge).step_ms_mean / 1e3 == pytest.approx(true, rel=0.1)
