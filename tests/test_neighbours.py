"""Other processes on the GPU, told by a stand-in for nvidia-smi."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from framework import neighbours as module
from framework.neighbours import listed_besides_this, neighbours


@pytest.fixture
def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The script that answers as nvidia-smi; the only program on PATH."""
    monkeypatch.setenv("PATH", str(tmp_path))
    return tmp_path / "nvidia-smi"


def answers(script: Path, body: str) -> None:
    script.write_text(f'#!/bin/sh\necho "$@" > "{script.parent}/asked"\n{body}\n', encoding="utf-8")
    script.chmod(0o755)


@pytest.mark.parametrize(("pids", "others"), [(["4711"], 0), (["4711", "12"], 1), (["1", "2", "3", "4"], 3)])
def test_all_but_this_process_are_counted(stand_in: Path, pids: list[str], others: int) -> None:
    answers(stand_in, "\n".join(f"echo {pid}" for pid in pids))
    assert listed_besides_this("GPU-1-2") == (others, "")
    asked = (stand_in.parent / "asked").read_text(encoding="utf-8").split()
    assert asked == ["--id=GPU-1-2", "--query-compute-apps=pid", "--format=csv,noheader"]


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ("exit 0", "shows no processes here, not even this one"),
        ("echo No devices were found; exit 6", "nvidia-smi failed: No devices were found"),
        ("while :; do :; done", "did not answer within 0.2 s"),
        (None, "nvidia-smi could not be started: No such file"),
    ],
)
def test_what_is_not_known_has_its_reason(
    stand_in: Path, monkeypatch: pytest.MonkeyPatch, body: str | None, why: str
) -> None:
    monkeypatch.setattr(module, "LONGEST_S", 0.2)
    if body is not None:
        answers(stand_in, body)
    seen, reason = listed_besides_this("GPU-1-2")
    assert seen is None
    assert why in reason


def test_a_program_that_may_not_be_started_stops_no_run(stand_in: Path) -> None:
    stand_in.write_text("", encoding="utf-8")
    assert listed_besides_this("GPU-1-2") == (None, "nvidia-smi could not be started: Permission denied")


def test_a_run_on_the_cpu_has_none_and_asks_nobody(stand_in: Path) -> None:
    answers(stand_in, "echo 1; echo 2")
    assert neighbours(torch.device("cpu")) == (None, "the run is not on a GPU")
    assert not (stand_in.parent / "asked").exists()


def test_the_gpu_of_the_run_is_asked_for(stand_in: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Properties:
        uuid = "aa-bb"

    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: Properties())
    answers(stand_in, "echo 1; echo 2")
    assert neighbours(torch.device("cuda", 1)) == (1, "")
    assert "--id=GPU-aa-bb" in (stand_in.parent / "asked").read_text(encoding="utf-8")
