"""How figures are spelled."""

from __future__ import annotations

import shlex

import pytest

from framework.study import wording
from framework.study.findings import BreakEven, Interaction, Peak
from framework.study.model import Interval


@pytest.mark.parametrize(
    ("value", "spelled"),
    [(None, "–"), (374.0, "374.0"), (0.5, "0.5000"), (999.97, "1000"), (1321.6, "1,322"), (12345678.0, "12,345,678")],  # noqa: RUF001
)
def test_figures_have_four_digits(value, spelled):
    assert wording.figure(value) == spelled


@pytest.mark.parametrize(
    ("value", "spelled"),
    [(1.0, "1.000x"), (1.0234, "1.023x"), (12.3456, "12.35x"), (1e300, ">1000x"), (1e-300, "<0.001x")],
)
def test_ratios_are_given_to_a_thousandth(value, spelled):
    assert wording.ratio(value) == spelled


@pytest.mark.parametrize(
    ("found", "spelled"),
    [
        (None, ("–", "")),  # noqa: RUF001
        (BreakEven("never", None, None), ("never", "")),
        (BreakEven("at once", None, None), ("at once", "")),
        (BreakEven(None, Interval(0.0, 0.0, 12.4), None), ("0 steps", "0 to 12 steps")),
        (BreakEven(None, Interval(1254.2, 1168.0, 1346.0), None), ("1,254 steps", "1,168 to 1,346 steps")),
    ],
)
def test_break_even_is_in_steps(found, spelled):
    assert wording.paid_back(found) == spelled


def test_extra_warmup_is_signed():
    found = BreakEven(None, None, Interval(40.8, 39.97, 41.6))
    assert wording.seconds_more(found) == "+40.8 s\n+40.0 to +41.6"


@pytest.mark.parametrize(
    ("ratio", "differs", "said"),
    [(1.1, True, "worth more alone"), (0.9, True, "worth more in company"), (1.1, False, "no difference shown")],
)
def test_interaction_is_a_word(ratio, differs, said):
    assert wording.differs(Interaction(Interval(ratio, 0.8, 1.2), differs))[0] == said


def test_memory_has_its_change():
    assert wording.gib(Peak(12.544, -9.856)) == "12.54 GiB"
    assert wording.change(Peak(12.544, -9.856)) == "-9.86 GiB"
    assert wording.change(Peak(12.544, -0.001)) == "+0.00 GiB"
    assert wording.change(Peak(12.544, None)) == ""


def test_evidence_is_read_aloud():
    assert (
        wording.evidence({"steps": 150, "side_stream": True, "share": 0.98213})
        == "steps 150, side_stream true, share 0.982"
    )
    assert wording.evidence({"amp": {"dtype": "bf16"}, "tf32": {}}) == "amp: dtype bf16; tf32: nothing was seen"


def test_text_is_one_printable_line():
    assert wording.clean("\x1b[31mred\x1b[0m\x00\n next\ud800 é") == "red next é"


@pytest.mark.parametrize(
    "word", ["perf.amp=bf16", "perf.allocator='expandable_segments:True'", "a b", "'$HOME'", "\"'"]
)
def test_a_shell_reads_the_same_words(word):
    assert shlex.split(wording.shell([word, "x"])) == [word, "x"]
