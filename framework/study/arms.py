"""The arms of a study: baseline and control, each technique alone, all together, all without each one."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

from framework.mistakes import ConfigError, nearest
from framework.study.model import Arm, Kind
from framework.study.process import quoted

Switches = Mapping[str, str]  # name of a switch to its value, spelled as on a command line
_ARM = re.compile(r"(\+{0,2}study\.arms\.\w+=)\[(.*)\]", re.DOTALL)
BASELINE, CONTROL, ALL = "baseline", "control", "all"


def overrides(switches: Switches) -> tuple[str, ...]:
    """The command-line overrides that switch exactly these on."""
    return ("perf=baseline", *(f"perf.{name}={value}" for name, value in sorted(switches.items())))


def on_top_of(base: Switches, arms: Sequence[Arm]) -> list[Arm]:
    """`arms` with the switches of `base` in each of them, the baseline too; an arm's own overrides come after."""
    own = tuple(f"perf.{name}={value}" for name, value in sorted(base.items()))
    return [replace(arm, overrides=_groups_first((*own, *arm.overrides))) for arm in arms]


def _groups_first(given: Sequence[str]) -> tuple[str, ...]:
    return tuple(sorted(given, key=lambda one: not one.startswith("perf=")))


def both() -> list[Arm]:
    """The baseline, and the control: the same again under another name."""
    return [Arm(BASELINE, Kind.baseline, overrides({})), Arm(CONTROL, Kind.control, overrides({}), BASELINE)]


def technique_arms(presets: Mapping[str, Switches], chosen: Sequence[str] | None, here: Sequence[str]) -> list[Arm]:
    """The arms of `study=techniques`.

    `presets` are the switches that each technique sets, what it needs included; `chosen` limits the study (None: every
    technique); only those in `here`, which the machine has, enter the arms of several techniques.
    Errors: ConfigError for an unknown name.
    """
    for name in chosen or ():
        if name not in presets:
            raise ConfigError(f"study.techniques: {name} is not a technique: {nearest(name, presets)}")
    names = [name for name in presets if chosen is None or name in chosen]
    together = [name for name in names if name in here]
    alone = [arm for name in names for arm in _alone(name, presets, names)]
    return _unique([*both(), *alone, *(_company(together, presets) if len(together) > 1 else [])])


def _alone(name: str, presets: Mapping[str, Switches], names: Sequence[str]) -> list[Arm]:
    """A technique on top of the baseline, and where it brings others along, those alone as its fair reference."""
    brought = {switch: value for switch, value in presets[name].items() if switch != name}
    if not brought:
        return [Arm(name, Kind.alone, overrides(presets[name]), BASELINE, name)]
    same = [other for other in names if dict(presets[other]) == brought]
    reference = same[0] if same else f"needs_of_{name}"
    extra = [] if same else [Arm(reference, Kind.needs, overrides(brought), BASELINE)]
    return [*extra, Arm(name, Kind.alone, overrides(presets[name]), reference, name, tuple(brought))]


def _company(together: Sequence[str], presets: Mapping[str, Switches]) -> list[Arm]:
    """All together, and all without each one in turn.

    What needs the missing one goes with it, on both sides; what the missing one needs stays, on both sides.
    """
    everything = _union(together, presets)
    arms = [Arm(ALL, Kind.all, overrides(everything), BASELINE)]
    for name in together:
        dependents = [other for other in together if other != name and name in presets[other]]
        reference = ALL
        if dependents:
            reference = f"without_{'_'.join(dependents)}"
            arms.append(Arm(reference, Kind.needs, overrides(_less(everything, dependents)), ALL))
        without = _less(everything, [name, *dependents])
        arms.append(Arm(f"without_{name}", Kind.without, overrides(without), reference, name))
    return arms


def _less(switches: Switches, missing: Sequence[str]) -> dict[str, str]:
    return {switch: value for switch, value in switches.items() if switch not in missing}


def _union(names: Sequence[str], presets: Mapping[str, Switches]) -> dict[str, str]:
    return {switch: value for name in names for switch, value in presets[name].items()}


def _unique(arms: Sequence[Arm]) -> list[Arm]:
    """One arm for each name; an arm of a technique replaces the plain reference of the same name."""
    kept: dict[str, Arm] = {}
    for arm in arms:
        if arm.name not in kept or kept[arm.name].kind is Kind.needs:
            kept[arm.name] = arm
    return list(kept.values())


def named_arms(named: Mapping[str, Sequence[str]]) -> list[Arm]:
    """The arms of `study=arms`: those that the user names, each against the baseline.

    Errors: ConfigError where there is none, or one has a name of ours.
    """
    if not named:
        raise ConfigError("study=arms needs arms: add one with '+study.arms.bf16=[perf.amp=bf16]'.")
    for name in named:
        if name in (BASELINE, CONTROL) or not name.replace("_", "").isalnum():
            raise ConfigError(
                f"study.arms.{name} is no name for an arm: use letters, digits and _, and no name of ours."
            )
    return [*both(), *(Arm(name, Kind.named, _with_group(own), BASELINE) for name, own in named.items())]


def _with_group(own: Sequence[str]) -> tuple[str, ...]:
    return _groups_first(own if any(one.startswith("perf=") for one in own) else ("perf=baseline", *own))


def with_arms_quoted(arguments: Sequence[str]) -> list[str]:
    """`arguments` with `study.arms.NAME=[key=value,...]` as Hydra's grammar wants it: each override in quotes."""
    return [
        f"{found[1]}[{','.join(map(_in_quotes, _parts(found[2])))}]" if (found := _ARM.fullmatch(one)) else one
        for one in arguments
    ]


def _in_quotes(override: str) -> str:
    return override if override[:1] in ("'", '"') else quoted(override)


def _parts(listed: str) -> list[str]:
    """`listed` cut at its commas, but not at those within brackets or quotes."""
    cut = [""]
    depth, quote = 0, ""
    for sign in listed:
        if sign == "," and not depth and not quote:
            cut.append("")
            continue
        cut[-1] += sign
        if quote:
            quote = "" if sign == quote else quote
        elif sign in "'\"":
            quote = sign
        else:
            depth += (sign in "[{(") - (sign in ")}]")
    return [part.strip() for part in cut if part.strip()]


def control_arms(controls: int) -> list[Arm]:
    """The arms of `study=control`: the baseline and nothing but controls."""
    first, control = both()
    more = [Arm(f"{CONTROL}_{n}", Kind.named, overrides({}), BASELINE) for n in range(2, controls + 1)]
    return [first, control, *more]
