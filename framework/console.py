"""What a person sees: what runs where, a progress bar, a short table at the end. Quiet where nobody looks."""

from __future__ import annotations

import logging

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from framework.profiling.operations import told
from framework.summary import Summary

log = logging.getLogger("gearshift")


class Screen:
    """Prints to the terminal; where there is none, only where the results lie. Notes go to the log."""

    def __init__(self, console: Console | None = None) -> None:
        self.console = console or Console()
        self.progress: Progress | None = None

    def begin(self, summary: Summary, total_steps: int | None) -> None:
        """Says what runs where; what was left out goes to the log, which is there without a terminal too."""
        left_out: dict[str, list[str]] = {}
        for name, switch in summary.switches.items():
            if switch["left_out"]:
                left_out.setdefault(switch["left_out"], []).append(name)
        if left_out:
            log.warning("left out: %s", "; ".join(f"{', '.join(names)} ({why})" for why, names in left_out.items()))
        if not self.console.is_terminal:
            return
        on = " ".join(f"{name}={s['effective']}" for name, s in summary.switches.items() if s["on"]) or "none"
        self._say(f"{summary.name} on {summary.device['name']}, {_count(summary.parameters)} parameters", "bold")
        self._say(f"switches on: {on}")
        columns = (BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), TextColumn("{task.fields[figures]}"))
        self.progress = Progress(*columns, console=self.console, transient=True)
        self.progress.add_task("steps", total=total_steps, figures="")
        self.progress.start()

    def update(self, step: int, loss: float, step_ms: float | None) -> None:
        """Moves the bar."""
        if self.progress:
            timing = f"  {step_ms:.3g} ms a step" if step_ms else ""
            self.progress.update(self.progress.task_ids[0], completed=step, figures=f"loss {loss:.4g}{timing}")

    def end(self, summary: Summary, folder: str) -> None:
        """Removes the bar and prints the result."""
        if self.progress:
            self.progress.stop()
            self.progress = None
        if self.console.is_terminal and summary.status == "completed":
            self.console.print(_table(summary))
        if summary.profile:
            self._say(told(summary.profile))
        self._say(f"{summary.status} after {summary.steps} steps: {folder}")

    def _say(self, line: str, style: str = "") -> None:
        self.console.print(line, style=style, markup=False, highlight=False, soft_wrap=True)  # names may hold brackets


def _table(summary: Summary) -> Table:
    table = Table(show_header=False, box=None, pad_edge=False)
    if summary.step_ms is not None:
        table.add_row(
            "step",
            f"{summary.step_ms:.4g} ms median, {summary.step_ms_p10:.4g} to {summary.step_ms_p90:.4g} (p10 to p90)",
        )
        table.add_row("throughput", _throughput(summary))
        table.add_row("waiting for data", f"{summary.data_wait_ms:.3g} ms a step")
        if summary.step_budget_ms is not None:
            table.add_row("mean step", _parts(summary.step_budget_ms))
    else:
        table.add_row("step", summary.missing["step_ms"])
    if summary.warmup_s is not None:
        table.add_row("warm-up", f"{summary.warmup_s:.3g} s for {summary.warmup_steps} steps")
    for name, value in summary.memory.items():
        table.add_row(name.removesuffix("_gib").replace("_", " "), f"{value:.3g} GiB")
    if summary.losses and summary.losses[-1] is not None:
        table.add_row("last loss", f"{summary.losses[-1]:.4g}")
    if summary.evaluation:
        accuracy = summary.evaluation["accuracy"]
        right = f", accuracy {accuracy:.2%}" if accuracy is not None else ""
        table.add_row("held out", f"loss {summary.evaluation['loss']:.4g}{right}")
    inactive = [name for name, switch in summary.switches.items() if switch["on"] and switch["active"] is False]
    if inactive:
        table.add_row("[red]not active[/]", ", ".join(inactive))
    return table


def _parts(budget: dict[str, float]) -> str:
    """What adds up to the mean step; parts that take nothing are not shown."""
    total = sum(budget.values())
    shown = (f"{name} {ms:.3g}" for name, ms in budget.items() if abs(ms) >= 1e-3 * total)
    return f"{' + '.join(shown)} = {total:.4g} ms"


def _throughput(summary: Summary) -> str:
    assert summary.samples_per_s is not None
    tokens = f", {_count(summary.tokens_per_s)} tokens/s" if summary.tokens_per_s else ""
    mfu = f", MFU {summary.mfu:.1%}" if summary.mfu is not None else ""
    return f"{_count(summary.samples_per_s)} samples/s{tokens}{mfu}"


def _count(number: float) -> str:
    for unit in ("", "k", "M"):
        if number < 1000:
            return f"{number:.3g}{unit}"
        number /= 1000
    return f"{number:.3g}G"
