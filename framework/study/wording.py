"""Figures and verdicts as a reader sees them: one spelling for the terminal, Markdown, the page and the plots."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterable, Mapping
from typing import Any

from framework.study.findings import BreakEven, Interaction, Peak, Row, TechniqueRow
from framework.study.model import Interval

NOTHING = "–"  # noqa: RUF001  # what a table shows where there is no figure; the dash of typesetters
MEMORY = {
    "peak_allocated_gib": "Peak allocated",
    "peak_reserved_gib": "Peak reserved",
    "peak_process_gib": "Peak process memory",
}
_UNPRINTABLE = re.compile("[^\t\n\r\x20-\x7e\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")  # XML forbids most of them
_COLOUR = re.compile("\x1b\\[[0-9;]*[A-Za-z]")


def clean(text: object) -> str:
    """Text of the user on one line, without terminal colours and without characters that no file should hold."""
    return " ".join(_UNPRINTABLE.sub("", _COLOUR.sub("", str(text))).split())


def shell(words: Iterable[str]) -> str:
    """Words as a shell takes them; those that hold single quotes, as Hydra's may, in double ones."""
    return " ".join(
        f'"{word}"' if "'" in word and not set(word) & set('"$`\\!') else shlex.quote(word) for word in words
    )


def figure(value: float | None, unit: str = "", digits: int = 4) -> str:
    """So many digits, thousands set apart."""
    if value is None:
        return NOTHING
    plain = f"{value:,.0f}" if abs(value) >= 1000 else f"{value:#.{digits}g}".rstrip(".")
    return f"{plain} {unit}".rstrip()


def ratio(value: float) -> str:
    """A plain ratio, to a thousandth where that means something."""
    if value >= 1000:
        return ">1000x"
    if 0 < value < 0.001:
        return "<0.001x"
    return f"{value:.3f}x" if value < 10 else f"{value:.4g}x"


def span(interval: Interval) -> str:
    """The interval of a ratio, without its estimate."""
    return f"{ratio(interval.low).removesuffix('x')} to {ratio(interval.high).removesuffix('x')}"


def times(interval: Interval | None) -> str:
    """A ratio with its interval."""
    return NOTHING if interval is None else f"{ratio(interval.estimate)} ({span(interval)})"


def judged(row: Row | None) -> str:
    """The verdict in a word; a dash where the plan has no such arm."""
    return NOTHING if row is None else row.verdict.value


def why(row: Row | None) -> str:
    """What must be known beside the verdict; empty where there is nothing."""
    return clean(row.reason) if row is not None and row.reason else ""


def differs(interaction: Interaction | None) -> tuple[str, str]:
    """Whether a technique is worth the same alone and in company, and the ratio of the two."""
    if interaction is None:
        return "not compared", ""
    said = "no difference shown"
    if interaction.differs:
        said = "worth more alone" if interaction.ratio.estimate > 1 else "worth more in company"
    return said, times(interaction.ratio)


def paid_back(found: BreakEven | None) -> tuple[str, str]:
    """After how many steps the extra warm-up is paid back, and the interval."""
    if found is None or found.steps is None:
        return (found.word if found else None) or NOTHING, ""
    between = f"{_count(found.steps.low)} to {_count(found.steps.high)} steps"
    return f"{_count(found.steps.estimate)} steps", between


def _count(steps: float) -> str:
    return f"{steps:,.0f}" if steps < 1e9 else f"{steps:.2g}"


def seconds_more(found: BreakEven | None) -> str:
    """The extra warm-up, and on a second line its interval."""
    extra = found.extra_warmup_s if found is not None else None
    if extra is None:
        return ""
    return f"{_signed(extra.estimate)} s\n{_signed(extra.low)} to {_signed(extra.high)}"


def _signed(value: float) -> str:
    return f"{value:+.1f}" if abs(value) >= 1 else f"{value:+.2f}"


def gib(peak: Peak | None) -> str:
    """Peak memory."""
    return NOTHING if peak is None else f"{peak.gib:.2f} GiB"


def change(peak: Peak | None) -> str:
    """How far a peak is above that of the reference; empty where it has none."""
    if peak is None or peak.change_gib is None:
        return ""
    return f"{round(peak.change_gib, 2) + 0.0:+.2f} GiB"  # + 0.0: no negative zero


def evidence(seen: Mapping[str, Any]) -> str:
    """What was seen, as `name value` pairs; what was seen of several techniques, one after the other."""
    if seen and all(isinstance(value, Mapping) for value in seen.values()):
        return "; ".join(f"{clean(name)}: {evidence(value) or 'nothing was seen'}" for name, value in seen.items())
    return ", ".join(f"{clean(name)} {_plain(value)}" for name, value in seen.items())


def _plain(value: Any) -> str:
    if isinstance(value, Mapping):
        return f"({evidence(value)})"
    if isinstance(value, float):
        return f"{value:.3g}"
    return clean(value if isinstance(value, str) else json.dumps(value, default=str))


def order(rows: tuple[TechniqueRow, ...]) -> list[TechniqueRow]:
    """By what they are worth, alone or else in company, most first; those without a figure as they are, at the end."""

    def worth(row: TechniqueRow) -> float:
        found = [one.speedup.estimate for one in (row.alone, row.company) if one and one.speedup]
        return found[0] if found else -1.0

    return sorted(rows, key=worth, reverse=True)
