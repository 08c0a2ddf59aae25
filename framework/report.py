"""Where the figures go: TensorBoard, the terminal and summary.json, closed on every way out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from types import TracebackType
from typing import Protocol

from framework.budget import Parts
from framework.console import Screen
from framework.events import Events
from framework.losses import Losses
from framework.memory import Memory, host_gib
from framework.meter import Meter, Timing
from framework.neighbours import neighbours
from framework.summary import Summary, Switch, end, nulls, write
from framework.update import State
from framework.utilisation import UNKNOWN_PEAK, Utilisation


class Evaluated(Protocol):
    """Held-out figures."""

    @property
    def loss(self) -> float: ...

    @property
    def accuracy(self) -> float | None: ...

    @property
    def count(self) -> int: ...


@dataclass(frozen=True)
class Sources:
    """Where the figures come from. `switches(True)` also looks at what took effect, which a run must have ended for."""

    state: State
    losses: Losses
    meter: Meter
    memory: Memory
    utilisation: Utilisation
    switches: Callable[[bool], dict[str, Switch]]
    total_steps: int | None


class Report:
    """A context around training. `summary` comes with the fields that are known before."""

    def __init__(self, folder: Path, config_text: str, summary: Summary, sources: Sources) -> None:
        self.folder, self.config_text, self.summary, self.sources = folder, config_text, summary, sources
        self.screen = Screen()
        self.last_step = 0
        self.why_unseen = ""

    def __enter__(self) -> Report:
        self.events = Events(self.folder)
        self.events.config(self.config_text)
        self._take_switches(False)
        self._look_around()
        self.screen.begin(self.summary, self.sources.total_steps)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if error is not None:
                end(self.summary, error)
                self.summary.steps = self.sources.meter.steps
                self._counts()
            self._give_reasons()
            self.events.close()
        finally:
            write(self.folder, self.summary)
            self.screen.end(self.summary, str(self.folder))

    def log(self, step: int) -> None:
        """A log point: reads the losses from the device and writes the figures since the last one."""
        losses = self.sources.losses.read()
        timing = self.sources.meter.recent()
        self.last_step = step
        mean = sum(losses) / len(losses)
        state = self.sources.state
        figures = {"train/loss": mean, "train/lr": state.lr_used, **self._timing(timing)}
        figures |= {f"memory/{name}": value for name, value in self.sources.memory.peaks().items()}
        if state.scaler.is_enabled():
            figures |= {"train/skipped_steps": state.skipped, "train/loss_scale": state.read_scale()}
        self.events.scalars(figures, step)
        self.screen.update(step, mean, timing.step_ms if timing else None)
        self.sources.meter.logged()

    def _timing(self, timing: Timing | None) -> dict[str, float]:
        if timing is None:
            return {}
        figures = {
            "time/step_ms": timing.step_ms,
            "time/step_ms_p90": timing.step_ms_p90,
            "time/data_wait_ms": timing.data_wait_ms,
            "throughput/samples_per_s": timing.samples_per_s,
        }
        if timing.tokens_per_s:
            figures["throughput/tokens_per_s"] = timing.tokens_per_s
        mfu = self.sources.utilisation.mfu(timing.samples_per_s)
        return figures if mfu is None else figures | {"throughput/mfu": mfu}

    def evaluated(self, step: int, evaluation: Evaluated | None) -> None:
        """Writes held-out figures. What that costs is in no step."""
        if evaluation is None:
            return
        with self.sources.meter.paused():
            self._write_evaluation(step, evaluation)
        self.summary.evaluation = {
            "loss": evaluation.loss,
            "accuracy": evaluation.accuracy,
            "count": evaluation.count,
            "step": step,
        }

    def _write_evaluation(self, step: int, evaluation: Evaluated) -> None:
        figures = {"eval/loss": evaluation.loss}
        if evaluation.accuracy is not None:
            figures["eval/accuracy"] = evaluation.accuracy
        if (held := host_gib()) is not None:
            figures["memory/host_gib"] = held
        self.events.scalars(figures, step)

    def finish(self, step: int) -> None:
        """Ends a run that went well: the last figures, the evidence, and hyperparameters with final metrics."""
        if step != self.last_step:
            self.log(step)
        summary, sources = self.summary, self.sources
        summary.status, summary.steps = "completed", step
        self._counts()
        if (timing := sources.meter.result()) is not None:
            self._take_timing(timing)
        if (parts := sources.meter.parts()) is not None:
            self._take_parts(parts, step)
        summary.memory, summary.memory_by_phase = sources.memory.peaks(), sources.memory.by_phase
        summary.host_gib = host_gib()
        self._look_around()
        self._take_switches(True)
        self._hyperparameters(step)

    def _counts(self) -> None:
        """Asks nothing of the device: the error that ended a run may have left it unable to answer."""
        summary, state, meter = self.summary, self.sources.state, self.sources.meter
        summary.optimizer_steps, summary.skipped_steps = state.steps, state.skipped
        summary.loss_scale = state.scale if state.scaler.is_enabled() else None
        summary.rows, summary.tokens, summary.warmup_s = meter.total_rows, meter.total_tokens, meter.warmup_s
        summary.losses = list(self.sources.losses.history)
        utilisation = self.sources.utilisation
        summary.flops_per_row, summary.peak_tflops = utilisation.flops_per_row, utilisation.peak_tflops

    def _take_timing(self, timing: Timing) -> None:
        figures = asdict(timing)
        self.summary.measured_steps = figures.pop("steps")
        for name, value in figures.items():
            setattr(self.summary, name, value)
        self.summary.tokens_per_s = timing.tokens_per_s or None
        self.summary.mfu = self.sources.utilisation.mfu(timing.samples_per_s)

    def _take_parts(self, parts: Parts, step: int) -> None:
        summary = self.summary
        summary.step_budget_ms, summary.step_budget_steps = parts.ms, parts.steps
        summary.step_budget_sampled_ms = parts.sampled_ms
        self.events.scalars({f"budget/{name}_ms": ms for name, ms in parts.ms.items()}, step)

    def _give_reasons(self) -> None:
        """Every figure that is null gets its reason."""
        summary, sources = self.summary, self.sources
        completed = summary.status == "completed"
        ending = "failed" if summary.status == "failed" else "was interrupted"
        unfinished = f"the run {ending} before its figures were taken"
        untimed = sources.meter.why_no_figures() if completed else unfinished
        uncounted = sources.utilisation.why or "no batch was counted"
        unparted = untimed if sources.meter.budget.on else "switched off by meter.budget=false"
        timed = summary.step_ms is not None
        reasons = dict.fromkeys((f.name for f in fields(Timing)), untimed) | {
            "step_budget_ms": unparted,
            "step_budget_sampled_ms": unparted,
            "loss_scale": "only perf.amp=fp16 has one",
            "warmup_s": f"the run ended within the {summary.warmup_steps} steps of the warm-up",
            "flops_per_row": uncounted,
            "peak_tflops": UNKNOWN_PEAK,
            "mfu": uncounted if timed else untimed,
            "gpu_neighbours": self.why_unseen,
            "memory": unfinished,
            "memory_by_phase": f"the run ended before step {summary.warmup_steps}, in which the phases are told apart"
            if completed
            else unfinished,
            "host_gib": "the system does not tell" if completed else unfinished,
            "evaluation": "data.eval names no set" if completed else unfinished,
        }
        if timed:
            reasons["tokens_per_s"] = "the data are not text"
        summary.missing = {name: reasons[name] for name in nulls(summary)}

    def _look_around(self) -> None:
        seen, self.why_unseen = neighbours(self.sources.losses.device)
        if seen is not None:
            self.summary.gpu_neighbours = max(seen, self.summary.gpu_neighbours or 0)

    def _take_switches(self, look: bool) -> None:
        self.summary.switches = {name: asdict(switch) for name, switch in self.sources.switches(look).items()}

    def _hyperparameters(self, step: int) -> None:
        summary = self.summary
        finals = {"step_ms": summary.step_ms, "samples_per_s": summary.samples_per_s, **summary.memory}
        if summary.evaluation:
            finals |= {f"eval_{name}": summary.evaluation[name] for name in ("loss", "accuracy")}
        known = {f"final/{name}": value for name, value in finals.items() if value is not None}
        self.events.hyperparameters(summary.config, known, step)
