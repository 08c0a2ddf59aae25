"""The most expensive operations, as a table."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

MOST = 10  # rows
WIDEST = 60  # characters of a name; those of kernels go into the hundreds


@dataclass(frozen=True)
class Operation:
    """An operation's calls and time in one step, the mean over the profiled ones; what it calls is not in it."""

    name: str
    calls: float
    ms: float
    share: float  # of the time of all operations, 0 to 1


def most_expensive(times: Iterable[tuple[str, float]], steps: int) -> list[Operation]:
    """The `MOST` names with the longest sums, longest first. `times` are single calls in microseconds, of `steps`."""
    sums, calls = defaultdict[str, float](float), defaultdict[str, int](int)
    for name, microseconds in times:
        sums[name] += microseconds
        calls[name] += 1
    total = sum(sums.values())
    longest = sorted((name for name in sums if sums[name] > 0), key=lambda name: -sums[name])[:MOST]
    return [Operation(name, calls[name] / steps, sums[name] / 1e3 / steps, sums[name] / total) for name in longest]


def table(rows: Iterable[Mapping[str, Any]], clock: str) -> str:
    """The rows as text; `clock` is the device whose time they are."""
    lines = [f"{'operation':{WIDEST}}  {'calls a step':>12}  {clock.upper() + ' ms a step':>14}  {'share':>6}"]
    for row in rows:
        name = row["name"] if len(row["name"]) <= WIDEST else row["name"][: WIDEST - 3] + "..."
        lines.append(f"{name:{WIDEST}}  {row['calls']:12.4g}  {row['ms']:14.4g}  {row['share']:6.1%}")
    return "\n".join(lines)


def told(profile: Mapping[str, Any]) -> str:
    """The field `profile` of summary.json, as a person reads it at the end of a run."""
    rows = profile.get("operations")
    figures = [table(rows, profile["clock"]), ""] if rows else []
    files = f" See {' and '.join(profile['files'].values())} in the run's folder." if profile["files"] else ""
    return "\n".join([*figures, f"profile={profile['kind']}: {profile['note']}{files}"])
