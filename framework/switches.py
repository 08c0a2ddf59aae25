"""Which switches are on: what was asked for, what could be tried, and what was seen."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from enum import Enum
from typing import Any, TypeVar

from framework.config import TECHNIQUES, Perf
from framework.rules import Settled, is_on, refuse
from framework.summary import Switch
from framework.techniques import Evidence, Technique, UnavailableError

Value = TypeVar("Value")


class Switches:
    """The switches of one run. `perf` is what is tried; `left_out` grows as machine and run turn out to lack things."""

    def __init__(self, settled: Settled) -> None:
        self.perf, self.requested = settled.config.perf, settled.requested
        self.left_out = dict(settled.left_out)
        self.evidence: dict[str, Callable[[], Evidence]] = {}

    def offered(self, switch: str, attempt: Callable[[], Value], off: Value) -> Value:
        """`attempt()` where `switch` is on and available, else `off`.

        Errors: ConfigError where it is unavailable and `perf.if_unavailable=error`.
        """
        if not is_on(self.perf, switch):
            return off
        try:
            return attempt()
        except UnavailableError as lack:
            refuse(self.perf, switch, str(lack))
            self.left_out[switch] = str(lack)
            return off

    def replaced(self, names: Iterable[str], why: str) -> None:
        """Switches off those of `names` that are on, since they have nothing to do here, and lists them with `why`."""
        for name in names:
            if is_on(self.perf, name):
                setattr(self.perf, name, getattr(Perf(), name))
                self.left_out[name] = why

    def table(self, records: Mapping[str, Technique], look: bool) -> dict[str, Switch]:
        """A row for each technique; with `look`, what took effect is asked too."""
        return {name: self._row(name, records[name], look) for name in TECHNIQUES}

    def _row(self, name: str, record: Technique, look: bool) -> Switch:
        on = is_on(self.perf, name)
        found = Evidence(None)
        if look and name in self.evidence:
            try:
                found = self.evidence[name]()
            except Exception as error:  # a run that went well is not lost because it could not be looked at
                found = Evidence(None, {"why": f"{type(error).__name__}: {error}"})
        return Switch(
            requested=_plain(getattr(self.requested, name)),
            effective=_plain(getattr(self.perf, name)),
            on=on,
            active=found.active if on else (False if look else None),
            equivalence=record.equivalence.value,
            evidence=found.seen,
            left_out=self.left_out.get(name),
        )


def _plain(value: Any) -> Any:
    return value.name if isinstance(value, Enum) else value
