"""The record of a study: nothing that was measured is lost, and no two studies are mixed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from framework.mistakes import ConfigError
from framework.study.arms import control_arms
from framework.study.model import RunRecord, StudySettings
from framework.study.plan import RUNS, append, claim, read_plan, read_runs


def run(block: int) -> RunRecord:
    return RunRecord("baseline", block, block, "ok", None, 1.0, 2.0, 0, {"name": "né"})


def test_a_line_that_was_cut_off_costs_that_run_alone(tmp_path: Path) -> None:
    for block in range(3):
        append(tmp_path, run(block))
    path = tmp_path / RUNS
    path.write_bytes(path.read_bytes()[:-9])
    assert [one.block for one in read_runs(tmp_path)] == [0, 1]
    for block in (2, 3):
        append(tmp_path, run(block))
    assert list(read_runs(tmp_path)) == [run(block) for block in range(4)]


def test_a_first_line_that_was_cut_off_gives_way(tmp_path: Path) -> None:
    (tmp_path / RUNS).write_text('{"arm": "base', encoding="utf-8")
    append(tmp_path, run(0))
    assert list(read_runs(tmp_path)) == [run(0)]


@pytest.mark.parametrize(("key", "other"), [("seed", 3), ("compile_cache", "warm")])
def test_a_study_goes_on_as_it_began(tmp_path: Path, key: str, other: object) -> None:
    settings = StudySettings()
    claim(tmp_path, control_arms(1), settings, [])
    with pytest.raises(ConfigError, match=rf"^study\.{key}={other} would mix two studies .* go on with study\.{key}="):
        claim(tmp_path, control_arms(1), replace(settings, **{key: other}), [])
    assert read_plan(tmp_path)[1] == settings


def test_more_blocks_and_another_confidence_are_no_other_study(tmp_path: Path) -> None:
    claim(tmp_path, control_arms(1), StudySettings(), [])
    append(tmp_path, run(0))
    more = StudySettings(blocks=9, confidence=0.9)
    assert claim(tmp_path, control_arms(1), more, []) == [run(0)]
    assert read_plan(tmp_path)[1] == more
