"""One file per technique: its card, how it is applied, how we know that it is on, and its record."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Any


class Equivalence(Enum):
    """What a technique may do to the numbers of training."""

    exact = "exact"  # bit-equal losses
    close = "close"  # the same mathematics, other rounding
    reduced = "reduced"  # lower precision by design


@dataclass(frozen=True)
class Technique:
    """The record of a technique. `needs` names other switches, or "cuda".

    `in_all`: perf=all has it. Where not, its card says why.
    """

    name: str
    equivalence: Equivalence
    needs: tuple[str, ...] = ()
    in_all: bool = True


@dataclass(frozen=True)
class Evidence:
    """What took effect, seen in the running program. `active` is None where nothing could be seen."""

    active: bool | None
    seen: dict[str, Any] = field(default_factory=dict)


class UnavailableError(ValueError):
    """This machine or run lacks what a technique needs; the message completes 'perf.x=y ...'."""
