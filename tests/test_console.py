"""What a person sees, and what a log file gets."""

from __future__ import annotations

import dataclasses
from io import StringIO
from typing import Any

import pytest
from rich.console import Console

from framework.console import Screen
from framework.summary import Summary, Switch


def switch(**fields: Any) -> dict[str, Any]:
    off = Switch(False, False, False, None, "exact", {}, None)
    return dataclasses.asdict(dataclasses.replace(off, **fields))


@pytest.fixture
def summary() -> Summary:
    return Summary(
        name="digits",
        device={"name": "Some GPU", "type": "cuda"},
        parameters=12_345_678,
        switches={
            "workers": switch(requested=4, effective=4, on=True, active=True),
            "amp": switch(requested="bf16", effective="bf16", on=True, active=False),
            "tf32": switch(requested=True, left_out="needs a CUDA device and this run is on the CPU"),
            "pinned": switch(),
        },
    )


def finished(summary: Summary) -> None:
    summary.status, summary.steps, summary.warmup_steps, summary.warmup_s = "completed", 120, 20, 3.21
    summary.step_ms, summary.step_ms_p10, summary.step_ms_p90, summary.data_wait_ms = 12.345, 11.0, 15.0, 0.25
    summary.samples_per_s, summary.tokens_per_s, summary.mfu = 12_345.0, 1_234_567.0, 0.412
    summary.memory, summary.losses = {"peak_allocated_gib": 1.5, "peak_reserved_gib": 2.0}, [2.0, 0.5]
    summary.evaluation = {"loss": 0.25, "accuracy": 0.9876, "count": 10, "step": 120}


def seen(terminal: bool, summary: Summary, folder: str = "outputs/x", total: int | None = 120) -> tuple[str, str]:
    """What was printed at the begin, and at the end."""
    text = StringIO()
    screen = Screen(Console(file=text, force_terminal=terminal, width=100, color_system=None))
    screen.begin(summary, total)
    begun = text.getvalue()
    screen.update(10, 0.5, 12.0)
    screen.update(20, float("nan"), None)
    finished(summary)
    screen.end(summary, folder)
    return begun, text.getvalue()[len(begun) :]


def test_where_nobody_looks_there_is_one_line(summary: Summary) -> None:
    begun, ended = seen(False, summary)
    assert begun == ""
    assert ended == "completed after 120 steps: outputs/x\n"


@pytest.mark.parametrize("terminal", [True, False])
def test_D05_what_was_left_out_is_logged_once(
    summary: Summary, caplog: pytest.LogCaptureFixture, terminal: bool
) -> None:
    summary.switches["amp"] = switch(requested="fp16", left_out="no [amp]")
    summary.switches["pinned"] = summary.switches["tf32"]
    seen(terminal, summary)
    lack = "needs a CUDA device and this run is on the CPU"
    assert caplog.messages == [f"left out: amp (no [amp]); tf32, pinned ({lack})"]


def test_a_person_sees_what_runs_where(summary: Summary) -> None:
    begun, _ = seen(True, summary)
    assert "digits on Some GPU, 12.3M parameters" in begun
    assert "switches on: workers=4 amp=bf16" in begun
    assert "pinned" not in begun


def test_without_switches_a_person_sees_that_too(summary: Summary, caplog: pytest.LogCaptureFixture) -> None:
    summary.switches = {"pinned": switch()}
    begun, _ = seen(True, summary)
    assert "switches on: none" in begun
    assert caplog.messages == []


def test_a_person_sees_the_result_as_a_table(summary: Summary) -> None:
    _, ended = seen(True, summary)
    for words in (
        "12.35 ms median, 11 to 15 (p10 to p90)",
        "12.3k samples/s, 1.23M tokens/s, MFU 41.2%",
        "0.25 ms a step",
        "3.21 s for 20 steps",
        "peak allocated",
        "1.5 GiB",
        "last loss",
        "loss 0.25, accuracy 98.76%",
        "completed after 120 steps: outputs/x",
    ):
        assert words in ended
    assert [line.split()[-1] for line in ended.splitlines() if "not active" in line] == ["amp"]


def test_a_person_sees_what_the_mean_step_is_made_of(summary: Summary) -> None:
    parts = {"data": 0.0, "copy": 0.001, "forward": 3.25, "backward": 6.5, "optimizer": 1.0, "logging": 0.02}
    summary.step_budget_ms = parts | {"left": -0.05}
    _, ended = seen(True, summary)
    assert "forward 3.25 + backward 6.5 + optimizer 1 + logging 0.02 + left -0.05 = 10.72 ms" in ended
    assert "copy" not in ended  # what takes less than a thousandth is not shown


def test_a_short_run_says_why_there_is_no_step_time(summary: Summary) -> None:
    text = StringIO()
    screen = Screen(Console(file=text, force_terminal=True, width=100, color_system=None))
    screen.begin(summary, 2)
    summary.status, summary.missing = "completed", {"step_ms": "not enough steps: 0 after 10 of warm-up"}
    screen.end(summary, "outputs/x")
    assert "not enough steps" in text.getvalue()


@pytest.mark.parametrize("status", ["failed", "interrupted"])
def test_a_run_that_ended_early_shows_no_table(summary: Summary, status: str) -> None:
    text = StringIO()
    screen = Screen(Console(file=text, force_terminal=True, width=100, color_system=None))
    screen.begin(summary, None)
    summary.status, summary.steps = status, 7
    screen.end(summary, "outputs/x")
    assert f"{status} after 7 steps: outputs/x" in text.getvalue()
    assert "median" not in text.getvalue()
    assert screen.progress is None


@pytest.mark.parametrize("terminal", [True, False])
def test_brackets_in_names_are_shown_as_they_are(summary: Summary, terminal: bool) -> None:
    summary.name = "run [bold] [/x]"
    begun, ended = seen(terminal, summary, "/data/[old]/[/x]/outputs")
    assert "completed after 120 steps: /data/[old]/[/x]/outputs\n" in ended
    if terminal:
        assert "run [bold] [/x] on Some GPU" in begun


def test_a_long_path_stays_on_one_line(summary: Summary) -> None:
    folder = "/".join(["long"] * 60)
    assert seen(False, summary, folder)[1] == f"completed after 120 steps: {folder}\n"
