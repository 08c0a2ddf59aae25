"""Peak memory: what is reset when, which phase it belongs to, and that the system's own figures are read."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from framework import memory
from framework.memory import CudaMemory, Memory, ProcessMemory

FORWARD, BACKWARD, OPTIMIZER, EVALUATION = "forward", "backward", "optimizer", "evaluation"


class Allocator:
    """A source of peaks: `use(n)` allocates n GiB beside what is held, and frees it."""

    def __init__(self) -> None:
        self.held = self.peak = 1.0
        self.resets = 0

    def use(self, gib: float) -> None:
        self.peak = max(self.peak, self.held + gib)

    def reset(self) -> None:
        self.resets += 1
        self.peak = self.held

    def peaks(self) -> dict[str, float]:
        return {"peak_allocated_gib": self.peak, "peak_reserved_gib": 2 * self.peak}


def stepped(source: Allocator, watched: Memory, number: int, *uses: float) -> None:
    """A step whose forward, backward and optimizer allocate `uses`."""
    enter = watched.step(number)
    for phase, gib in zip((FORWARD, BACKWARD, OPTIMIZER), uses, strict=True):
        enter(phase)
        source.use(gib)


def test_H03_a_peak_inside_one_step_is_seen_although_it_is_freed() -> None:
    source = Allocator()
    watched = Memory(source, warmup_steps=1)
    stepped(source, watched, 1, 0, 0, 0)
    stepped(source, watched, 2, 0, 1.5, 0)
    stepped(source, watched, 3, 0, 0.5, 0)
    assert watched.peaks() == {"peak_allocated_gib": 2.5, "peak_reserved_gib": 5.0}


def test_H03_the_warm_up_is_forgotten_when_it_is_over() -> None:
    source = Allocator()
    source.use(50)  # before the run: making the model
    watched = Memory(source, warmup_steps=3)
    assert source.resets == 1
    assert watched.peaks()["peak_allocated_gib"] == 1.0
    stepped(source, watched, 1, 0, 9, 0)
    stepped(source, watched, 2, 0, 7, 0)
    assert watched.peaks()["peak_allocated_gib"] == 10.0
    stepped(source, watched, 3, 8, 0, 0)
    assert watched.peaks()["peak_allocated_gib"] == 10.0
    stepped(source, watched, 4, 0, 0.5, 0)
    assert watched.peaks()["peak_allocated_gib"] == 1.5
    assert watched.peaks()["peak_reserved_gib"] == 3.0


def test_H03_phases_are_told_apart_in_the_last_step_of_the_warm_up_alone() -> None:
    source = Allocator()
    watched = Memory(source, warmup_steps=2)
    stepped(source, watched, 1, 5, 6, 7)
    assert watched.by_phase == {}
    stepped(source, watched, 2, 2, 3, 1)
    stepped(source, watched, 3, 8, 9, 10)
    assert watched.by_phase == {FORWARD: 3.0, BACKWARD: 4.0, OPTIMIZER: 2.0}
    assert source.resets == 1 + 3 + 1  # at the start, after each phase, after the warm-up: not in other steps


def test_H03_a_phase_keeps_its_highest_peak_over_a_window() -> None:
    source = Allocator()
    watched = Memory(source, warmup_steps=1)
    enter = watched.step(1)
    for gib in (3, 1):
        enter(FORWARD)
        source.use(gib)
        enter(BACKWARD)
        source.use(gib / 2)
    watched.step(2)
    assert watched.by_phase == {FORWARD: 4.0, BACKWARD: 2.5}


def test_H03_the_last_phase_is_known_where_a_run_ends_with_the_warm_up() -> None:
    source = Allocator()
    watched = Memory(source, warmup_steps=1)
    stepped(source, watched, 1, 2, 3, 1)
    assert watched.by_phase == {FORWARD: 3.0, BACKWARD: 4.0, OPTIMIZER: 2.0}


def test_H03_evaluation_has_a_phase_of_its_own_and_is_no_part_of_the_peak_of_training() -> None:
    source = Allocator()
    watched = Memory(source, warmup_steps=1)
    stepped(source, watched, 1, 0, 0, 0)
    stepped(source, watched, 2, 0, 2, 0)
    watched.enter(EVALUATION)
    source.use(4)
    watched.leave()
    stepped(source, watched, 3, 0, 1, 0)
    assert watched.by_phase[EVALUATION] == 5.0
    assert watched.by_phase[OPTIMIZER] == 1.0  # the steps after the warm-up are in no phase
    assert watched.peaks()["peak_allocated_gib"] == 3.0


def test_H03_an_evaluation_before_the_warm_up_is_over_does_not_hide_its_peak() -> None:
    source = Allocator()
    watched = Memory(source, warmup_steps=5)
    stepped(source, watched, 1, 0, 6, 0)
    watched.enter(EVALUATION)
    watched.leave()
    assert watched.peaks()["peak_allocated_gib"] == 7.0


def test_H03_cuda_peaks_are_named_for_what_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    stats = {
        "allocated_bytes.all.peak": 3 * 2**30,
        "reserved_bytes.all.peak": 5 * 2**30,
        "allocated_bytes.all.current": 1,
    }
    calls: list[torch.device] = []
    monkeypatch.setattr(torch.cuda, "memory_stats", lambda device: stats)
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", calls.append)
    source = CudaMemory(torch.device("cuda:1"))
    source.reset()
    assert calls == [torch.device("cuda:1")]
    assert source.peaks() == {"peak_allocated_gib": 3.0, "peak_reserved_gib": 5.0}
    monkeypatch.setattr(torch.cuda, "memory_stats", lambda device: {})  # nothing was allocated yet
    assert source.peaks() == {"peak_allocated_gib": 0.0, "peak_reserved_gib": 0.0}


@pytest.mark.gpu
def test_H03_a_gibibyte_freed_within_a_step_is_in_the_peak() -> None:
    device = torch.device("cuda")
    watched = Memory(CudaMemory(device), warmup_steps=1)
    watched.step(1)(FORWARD)
    torch.empty(2**31, dtype=torch.uint8, device=device)
    watched.step(2)
    base = watched.peaks()["peak_allocated_gib"]
    torch.empty(2**30, dtype=torch.uint8, device=device)
    assert watched.peaks()["peak_allocated_gib"] == pytest.approx(base + 1, abs=0.01)
    assert watched.peaks()["peak_reserved_gib"] >= 1.0
    assert watched.by_phase[FORWARD] == pytest.approx(base + 2, abs=0.01)


def test_the_process_s_peak_is_read() -> None:
    source = ProcessMemory()
    source.reset()
    before = source.peaks()["peak_process_gib"]
    block = bytearray(b"1") * (200 * 2**20)
    after = source.peaks()["peak_process_gib"]
    assert len(block) == 200 * 2**20
    assert 0 < before < 64
    assert after >= before
    if Path("/proc/self/clear_refs").exists():
        assert after - before == pytest.approx(200 / 1024, abs=0.1)


def test_a_system_that_hides_the_process_s_peak_gives_that_since_its_start(monkeypatch: pytest.MonkeyPatch) -> None:
    read = Path.read_text

    def without(path: Path, *arguments: str, **named: str) -> str:
        text = read(path, *arguments, **named)
        return "Name:\tpython\n" if path == Path("/proc/self/status") else text

    monkeypatch.setattr(Path, "read_text", without)
    assert 0 < ProcessMemory().peaks()["peak_process_gib"] < 64


def test_host_memory_is_read_although_threads_end_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    if memory.host_gib() is None:
        assert not Path("/proc/self/smaps_rollup").exists()
        return
    read = Path.read_text

    def gone(path: Path, *arguments: str, **named: str) -> str:
        if path.name == "children":
            raise FileNotFoundError(path)
        return read(path, *arguments, **named)

    monkeypatch.setattr(Path, "read_text", gone)
    held = memory.host_gib()
    assert held is not None
    assert 0 <= held < 64


@pytest.mark.skipif(
    not Path("/proc/self/smaps_rollup").exists() or not Path(f"/proc/self/task/{os.getpid()}/children").exists(),
    reason="the kernel does not tell a process's children or its proportional memory",
)
def test_host_memory_includes_children() -> None:
    before = memory.host_gib()
    code = "block = bytearray(300 * 2**20); block[::4096] = b'1' * len(block[::4096]); print(flush=True); input()"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        after = memory.host_gib()
        child.communicate(b"\n")
    assert before is not None
    assert after is not None
    assert after - before > 0.25
