"""What was asked for, what could be tried, what was seen."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
from hydra import compose, initialize_config_dir
from omegaconf import DictConfig, OmegaConf

from framework import config, rules
from framework.config import TECHNIQUES
from framework.environment import Machine
from framework.mistakes import ConfigError
from framework.records import RECORDS
from framework.switches import Switches
from framework.techniques import Evidence, UnavailableError

CONFIGS = str(Path(__file__).parents[1] / "configs")
GPU, CPU = Machine((2, 14), True, 1), Machine((2, 14), True, 0)


@pytest.fixture(scope="module")
def base() -> DictConfig:
    config.register()
    with initialize_config_dir(CONFIGS, version_base="1.3"):
        return compose("config", [])


def switches(base: DictConfig, machine: Machine = GPU, **perf: Any) -> Switches:
    raw = copy.deepcopy(base)
    for name, value in perf.items():
        raw.perf[name] = value
    return Switches(rules.settle(OmegaConf.create(raw), machine))


def lacking() -> int:
    raise UnavailableError("is not offered here")


def test_there_is_a_row_for_every_technique(base: DictConfig) -> None:
    table = switches(base).table(RECORDS, True)
    assert tuple(table) == TECHNIQUES
    assert not any(row.on or row.active or row.left_out for row in table.values())
    assert {row.equivalence for row in table.values()} == {"exact", "close", "reduced"}


def test_what_is_off_is_not_attempted(base: DictConfig) -> None:
    assert switches(base).offered("compile", lacking, 7) == 7


def test_what_is_on_is_attempted(base: DictConfig) -> None:
    assert switches(base, compile="default").offered("compile", lambda: 3, 7) == 3


def test_what_turns_out_to_be_unavailable_is_refused(base: DictConfig) -> None:
    with pytest.raises(ConfigError, match=r"^perf\.compile=default is not offered here: set perf\.compile=eager, or"):
        switches(base, compile="default").offered("compile", lacking, 7)


def test_or_left_out_and_listed_where_that_is_allowed(base: DictConfig) -> None:
    mine = switches(base, compile="default", if_unavailable="skip")
    assert mine.offered("compile", lacking, 7) == 7
    row = mine.table(RECORDS, True)["compile"]
    assert (row.requested, row.effective, row.on, row.active) == ("default", "eager", False, False)
    assert row.left_out == "is not offered here"


def test_what_the_rules_left_out_is_listed_too(base: DictConfig) -> None:
    mine = switches(base, CPU, tf32=True, if_unavailable="skip")
    row = mine.table(RECORDS, False)["tf32"]
    assert (row.requested, row.effective, row.on) == (True, False, False)
    assert "CPU" in (row.left_out or "")


@pytest.mark.parametrize("active", [True, False, None])
def test_the_evidence_decides_what_is_active(base: DictConfig, active: bool | None) -> None:
    mine = switches(base, workers=2)
    mine.evidence["workers"] = lambda: Evidence(active, {"worker_processes": 2})
    row = mine.table(RECORDS, True)["workers"]
    assert (row.on, row.active, row.evidence) == (True, active, {"worker_processes": 2})


def test_before_the_end_nothing_is_looked_at(base: DictConfig) -> None:
    mine = switches(base, workers=2)
    mine.evidence["workers"] = lambda: pytest.fail("was asked")
    table = mine.table(RECORDS, False)
    assert {row.active for row in table.values()} == {None}


def test_an_off_switch_is_never_active_whatever_is_seen(base: DictConfig) -> None:
    mine = switches(base)
    mine.evidence["tf32"] = lambda: Evidence(True, {"matmul": "tf32"})
    assert mine.table(RECORDS, True)["tf32"].active is False


def test_evidence_that_cannot_be_taken_costs_no_run(base: DictConfig) -> None:
    def broken() -> Evidence:
        raise RuntimeError("could not look")

    mine = switches(base, workers=2)
    mine.evidence["workers"] = broken
    row = mine.table(RECORDS, True)["workers"]
    assert (row.on, row.active, row.evidence) == (True, None, {"why": "RuntimeError: could not look"})
