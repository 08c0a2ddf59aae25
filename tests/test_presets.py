"""The contract of a technique, held by every one: its file, its card, its field, its preset, its row, its needs."""

from __future__ import annotations

import functools
import importlib
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from hydra import compose, initialize_config_dir

from framework import config, rules
from framework.config import TECHNIQUES, IfUnavailable, Perf
from framework.environment import Machine
from framework.mistakes import ConfigError
from framework.records import RECORDS
from framework.rules import Settled, is_on, spell
from framework.techniques import Equivalence, Technique

PROJECT = Path(__file__).parents[1]
PRESETS = sorted(path.stem for path in (PROJECT / "configs" / "perf").glob("*.yaml"))
GPU, CPU = Machine((2, 14), True, 1), Machine((2, 14), True, 0)
NAMES = list(TECHNIQUES)


@functools.cache
def settled(machine: Machine, *overrides: str) -> Settled:
    config.register()
    with initialize_config_dir(str(PROJECT / "configs"), version_base="1.3"):
        return rules.settle(compose("config", list(overrides)), machine)


def needed(name: str) -> set[str]:
    """The switches that `name` needs, and those that they need."""
    direct = {need for need in RECORDS[name].needs if need != "cuda"}
    return direct.union(*(needed(need) for need in direct))


def on(name: str) -> str:
    """The override that switches `name` on, as its preset does."""
    stated = yaml.safe_load((PROJECT / "configs" / "perf" / f"{name}.yaml").read_text())
    return f"perf.{name}={spell(stated[name])}"


def test_presets_and_techniques_are_the_same() -> None:
    assert sorted([*NAMES, "all", "baseline"]) == PRESETS
    assert set(RECORDS) == set(NAMES)
    files = {path.stem for path in (PROJECT / "framework" / "techniques").glob("*.py")} - {"__init__"}
    assert files == set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_a_technique_has_its_record_and_its_card(name: str) -> None:
    module = importlib.import_module(f"framework.techniques.{name}")
    assert isinstance(module.RECORD, Technique)
    assert module.RECORD.name == name
    assert RECORDS[name] is module.RECORD
    assert callable(module.evidence)
    card = module.__doc__ or ""
    parts = re.findall(r"^(Helps when|Costs|Needs|Numbers|Source): \S", card, flags=re.MULTILINE)
    assert parts == ["Helps when", "Costs", "Needs", "Numbers", "Source"]
    assert re.search(r"https://|PR \d+", card)


@pytest.mark.parametrize("name", NAMES)
def test_a_card_says_what_the_record_says(name: str) -> None:
    card, record = importlib.import_module(f"framework.techniques.{name}").__doc__ or "", RECORDS[name]
    numbers = re.search(r"^Numbers: (.*)$", card, flags=re.MULTILINE)
    assert numbers is not None
    words = {Equivalence.exact: "the same", Equivalence.close: "close", Equivalence.reduced: "reduced"}
    assert numbers.group(1).startswith(words[record.equivalence])
    needs = re.search(r"^Needs: (.*)$", card, flags=re.MULTILINE)
    assert needs is not None
    assert all(need in needs.group(1) for need in record.needs)


@pytest.mark.parametrize("name", NAMES)
def test_a_record_needs_what_is_there(name: str) -> None:
    assert set(RECORDS[name].needs) <= {"cuda", *NAMES} - {name}


@pytest.mark.parametrize("name", NAMES)
def test_a_preset_switches_on_exactly_its_technique_and_what_that_needs(name: str) -> None:
    perf = settled(GPU, f"perf={name}").requested
    assert {other for other in NAMES if is_on(perf, other)} == {name, *needed(name)}
    assert perf.if_unavailable is IfUnavailable.error
    stated = yaml.safe_load((PROJECT / "configs" / "perf" / f"{name}.yaml").read_text())
    assert set(stated) - {"defaults"} == {name}


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_begins_with_what_it_does(name: str) -> None:
    assert re.match(r"# \S.*\.\n", (PROJECT / "configs" / "perf" / f"{name}.yaml").read_text())


def test_the_baseline_is_all_defaults() -> None:
    assert settled(GPU, "perf=baseline").requested == settled(GPU).requested == Perf()


IN_ALL = [name for name in NAMES if RECORDS[name].in_all]


def test_all_has_every_technique_whose_record_says_so() -> None:
    perf = settled(GPU, "perf=all").requested
    assert [name for name in NAMES if is_on(perf, name)] == IN_ALL
    assert perf.if_unavailable is IfUnavailable.skip
    for name in IN_ALL:
        assert getattr(perf, name) == getattr(settled(GPU, f"perf={name}").requested, name)


@pytest.mark.parametrize("name", NAMES)
def test_a_card_says_why_a_technique_is_not_in_all(name: str) -> None:
    card = importlib.import_module(f"framework.techniques.{name}").__doc__ or ""
    assert bool(re.search(r"^Not in perf=all: \w.*\.$", card, flags=re.MULTILINE)) is not RECORDS[name].in_all


def test_all_on_the_cpu_leaves_out_what_needs_cuda_and_nothing_else() -> None:
    left_out = settled(CPU, "perf=all").left_out
    assert set(left_out) == {name for name in IN_ALL if "cuda" in RECORDS[name].needs}


@pytest.mark.parametrize("name", NAMES)
def test_a_technique_has_its_row_in_the_readme(name: str) -> None:
    rows = [line for line in (PROJECT / "README.md").read_text().splitlines() if line.startswith("| ")]
    assert [row for row in rows if f"perf.{name}`" in row]


def refused(machine: Machine, *overrides: str) -> str:
    with pytest.raises(ConfigError) as raised:
        settled(machine, *overrides)
    sentence = str(raised.value)
    assert "\n" not in sentence
    return sentence


NEEDS_CUDA = [name for name in NAMES if "cuda" in RECORDS[name].needs]
NEEDS_ANOTHER = [(name, need) for name in NAMES for need in sorted(needed(name))]


@pytest.mark.parametrize("name", NEEDS_CUDA)
def test_what_needs_cuda_is_refused_on_the_cpu_in_one_sentence(name: str) -> None:
    alone = on(name)
    sentence = refused(CPU, alone)
    assert sentence.startswith(f"{alone} needs a CUDA device")
    assert f"set perf.{name}={spell(getattr(Perf(), name))}" in sentence


@pytest.mark.parametrize("name", NEEDS_CUDA)
def test_what_needs_cuda_is_left_out_and_listed_where_that_is_allowed(name: str) -> None:
    done = settled(CPU, f"perf={name}", "perf.if_unavailable=skip")
    assert {name} <= set(done.left_out) <= {name, *needed(name)}
    assert not is_on(done.config.perf, name)


@pytest.mark.parametrize("name", [name for name in NAMES if "cuda" not in RECORDS[name].needs])
def test_what_does_not_need_cuda_passes_on_the_cpu(name: str) -> None:
    done = settled(CPU, f"perf={name}")
    assert done.left_out == {}
    assert is_on(done.config.perf, name)


def test_some_technique_needs_another() -> None:
    assert ("prefetch", "pinned") in NEEDS_ANOTHER


@pytest.mark.parametrize(("name", "need"), NEEDS_ANOTHER)
def test_what_needs_another_switch_is_refused_without_it(name: str, need: str) -> None:
    off: Any = spell(getattr(Perf(), need))
    sentence = refused(GPU, f"perf={name}", f"perf.{need}={off}")
    assert sentence.startswith(f"{on(name)} needs perf.{need}")
    assert settled(GPU, f"perf={name}", f"perf.{need}={off}", "perf.if_unavailable=skip").left_out.keys() == {name}
