"""The result of a run: a `Run` reads one event log and derives every number from it when asked."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from labkit.results.event_log import EventLogResult, derived, fact, of_one_moment
from labkit.results.record import Watched, pipeline_of
from labkit.results.result import noise, percent
from labkit.results.step_classes import Timeline, split_steps, unevenness
from labkit.results.steps import Steps, Texts
from labkit.results.sweep import Comparison
from labkit.spec import NOISY, PX, STEPS, Pipeline
from labkit.wiring import above

CPU_VALUES = {"image_px": PX, "steps": STEPS}
SLOW_START_S = 1.0  # a shorter start of the workers needs no word
HIDES = 0.05  # of wall time: fewer gaps than that inside the busy time need no word
MOST_NAMED = 3  # of the programs beside it
BLOCKS = 5  # throughput is compared between so many stretches of the run to judge its noise
# of a run, as `to_dict` and `--json` list them
NUMBERS = (
    "id", "utc", "recorded", "outcome", "error", "steps", "samples", "warmup", "utilization",
    "throughput", "step_ms", "wait_ms", "copy_ms", "compute_ms", "other_ms", "spread", "noisy",
    "no_events", "compile_s", "startup_s", "peak_memory_gib", "energy_j", "mfu", "mbu",
    "not_applied", "busy_at_least", "utilization_is_upper_bound", "tokens_per_s",
    "real_tokens_per_s", "padding", "queued_ms",
)  # fmt: skip


def _mean_ms(columns: slice, doc: str) -> property:
    """Make a property that is the mean of some classes of the measured steps, ms; None if none."""
    return derived(lambda run: None if run.mean_ms is None else float(run.mean_ms[columns].sum()),
                   doc)  # fmt: skip


class Run(EventLogResult):
    """One measured run, live or recorded. Statistics leave out the warm-up."""

    SERIES = (
        "step",
        "telemetry",
        "items",
        "epoch",
        "lines",
        "suspended",
        "beside",
        "on_the_card",
    )
    _clock: Timeline | None = None
    _lines: tuple | None = None  # what `lines` returned last, behind what it was made of
    loader: Any = None  # that `lk.watch` looked at, while this process has it

    def _take(self, event: dict[str, Any]) -> None:
        super()._take(event)
        if event["event"] == "epoch":  # a watched loop goes on: it has not ended after all
            for name in ("done", "error", "end"):
                self._kept.pop(name, None)

    def _pipeline(self, event: str) -> Pipeline | Watched:
        knobs = self._fact(event, "pipeline", {})
        if event == "spec" and self.machine.kind == "cpu":
            plain = CPU_VALUES.items()  # what None stands for there; older logs have the numbers
            knobs = {n: None if (n, v) in plain else v for n, v in knobs.items()}
        return Watched(self.watched, knobs) if self.watched else pipeline_of(knobs)

    def _new_series(self, name: str) -> Any:
        kinds = {"step": Steps, "items": Texts, "lines": Texts}
        return kinds.get(name, list)()

    @of_one_moment
    def _timeline(self) -> Timeline:
        steps, epochs = self._series["step"], self._series["epoch"]
        if self._clock is None or self._clock.size != (len(steps), len(epochs)):
            self._clock = Timeline(steps, [event["step"] for event in epochs])
        return self._clock

    # fmt: off
    asked = derived(lambda run: run._pipeline("spec"),
                    "The pipeline that was asked for; of a watched loop, what is known of it.")
    pipeline = derived(lambda run: run._pipeline("job" if run.event("job") else "spec"),
                       "The pipeline that ran, with every automatic value filled in.")
    watched = derived(lambda run: run._fact("spec", "watched", {}).get("loader"),
                      "The type of the loader that `lk.watch` looked at; None for our own runs.")
    loop_code = derived(lambda run: run._fact("spec", "watched", {}).get("code"),
                        "How the user's script writes its loader; None of our own runs.")
    trainer = derived(lambda run: run._fact("spec", "watched", {}).get("trainer") is True,
                      "Whether Hugging Face's Trainer runs the watched loop.")
    unit = fact("job", "unit", '"batches" of a watched loop that hides its samples.', "samples")
    not_applied = fact("job", "not_applied", "{knob: why it could not act on this device}.", {})
    steps = derived(lambda run: len(run._series["step"]), "Steps done, warm-up included.")
    samples = derived(lambda run: int(run._series["step"].numbers("n").sum()),
                      "Samples trained on, warm-up included.")
    loss = derived(lambda run: run._series["step"].numbers("loss").tolist(),
                   "The loss of every step; NaN where it was not finite.")
    thread_s = derived(lambda run: run._series["step"].numbers("cpu") / 1e9,
                       "CPU time of the computing thread per step (steps,), s; NaN if unknown.")
    exchange_ns = derived(lambda run: run._pair("complete", "averaged"),
                          "Of a rank (steps, 2), ns on the machine's clock, or NaN: the last "
                          "gradient is there; all are averaged.")
    tokens = derived(lambda run: run._pair("tokens", "real"),
                     "Of text (steps, 2): the tokens computed, and the real ones; else NaN.")
    peak_memory_gib = derived(lambda run: (run._fact("memory", "peak_bytes", 0) / 2**30) or None,
                              "Most memory held: allocated on a CUDA GPU; resident on a CPU. On "
                              "Apple's GPU, which tells no peak, what its driver held in the end.")
    no_events = fact("clock", "why", "Why the host's clock timed a device, and the loop waited for "
                     "each step; None where the device's own events did, or on a CPU.")
    suspended_s = derived(lambda run: sum(e["seconds"] for e in run._series["suspended"]),
                          "Time the machine slept in mid-run, s: no part of any step; 0 if never.")
    compile_s = fact("compiled", "seconds", "Time torch.compile took, s; None for an eager run.")
    telemetry = derived(lambda run: run._series["telemetry"],
                        "The instruments' samples, each with `t_ns`; gaps are None.")
    item_events = derived(lambda run: run._series["items"],
                          "What the items cost to prepare, as the loader's processes wrote.")
    samples_of_lines = derived(lambda run: run._series["lines"],
                               "The sampled stacks, as the loop's and the workers' samplers wrote.")
    no_lines = fact("no_lines", "why", "Why no stack was sampled; None where some were, or yet.")
    growth = fact("growth", "found", "Variables of a watched loop that grew, with their line.", [])
    xray_facts = derived(lambda run: run.event("xray"), "What a few profiled steps were made of.")
    no_xray = fact("no_xray", "why", "Why there is no x-ray; None where there is, or not yet.")
    # On one clock, in seconds since the first batch was asked for
    stamps = derived(lambda run: run._timeline().stamps,
                     "Times (steps, 6): asked, ready, copy start and end, busy start and end; "
                     "s. On a CPU copy and compute are what the host did, else the device's own.")
    busy = derived(lambda run: run.stamps[:, 4:6],
                   "The device's busy intervals (steps, 2): start and end, s.")
    length_s = derived(lambda run: float(run._timeline().ends(run.steps - 1)[0]) if run.steps
                       else 0.0, "When the last step was over, s.")
    host_ns = derived(lambda run: run._host_ns(), "The host's stamps (steps, 4), ns on the "
                      "machine's clock: asked, ready, copy issued, compute issued.")
    issued = derived(lambda run: run._timeline().issued,
                     "Time at which the host had issued each step (steps,), s; early on a fed GPU.")
    # fmt: on

    @derived
    def beside(self) -> list[str]:
        """The other programs that used most of the cores meanwhile, as "python (pid 123)"."""
        cores: dict[str, float] = {}
        for event in self._series["beside"]:
            for each in event["processes"]:
                name = f"{each['name']} (pid {each['pid']})"
                cores[name] = cores.get(name, 0.0) + each.get("cores", 0.0)
        return sorted(cores, key=lambda name: -cores[name])[:MOST_NAMED]

    @derived
    def on_the_card(self) -> list[str]:
        """The other processes that were on the same GPU meanwhile, as "python (pid 123)"."""
        named = [each for event in self._series["on_the_card"] for each in event["processes"]]
        return list(dict.fromkeys(f"{each['name']} (pid {each['pid']})" for each in named))

    def _pair(self, *names: str) -> np.ndarray:
        return np.column_stack([self._series["step"].numbers(name) for name in names])

    def _host_ns(self) -> np.ndarray:
        names = ("asked", "ready", "copied", "done")
        return np.column_stack([self._series["step"].moments(name) for name in names])

    def stretch(self, start: int, stop: int) -> np.ndarray:
        """Return the `stamps` (n, 6) of the steps from `start` up to `stop` only."""
        return self._timeline().part(start, stop)

    def stamps_ns(self, rows: slice) -> np.ndarray:
        """Return the `stamps` (n, 6) of some steps on the machine's own clock, ns."""
        return self._now()._series["step"].stamps(rows)

    def steps_since(self, start: int, stop: int | None = None) -> list[dict[str, Any]]:
        """Return the step events from the `start`th on: what a reader has not seen yet."""
        return self._now()._series["step"][start:stop]

    @of_one_moment
    def seconds(self, t_ns: Any) -> Any:
        """Return stamps of this run's clock (a number or an array, ns) in s.

        NaN between passes over a watched loader.
        """
        return self._timeline().seconds(t_ns) if self.steps else np.zeros(np.shape(t_ns))[()]

    def timeline(self, bins: int = 200) -> tuple[np.ndarray, np.ndarray]:
        """Return utilization over the whole run, in equal stretches: (bins,) s, (bins,) 0 to 1."""
        return self._timeline().utilization(bins)

    @derived
    def warmup(self) -> int:
        """Steps left out of the statistics: the prefetched ones, but never over a third."""
        wanted = self._fact("begin", "warmup", 0)
        return max(1, min(wanted, self.steps // 3)) if self.steps else 0

    @derived
    def startup_s(self) -> float | None:
        """Seconds for which the loop waited for the first batch of each loader worker.

        Nearly all of it is the start of the workers. None without workers, or before all began.
        """
        workers = self.pipeline.to_dict().get("num_workers")
        if not isinstance(workers, int) or not 0 < workers <= self.steps:
            return None
        first = self.host_ns[:workers]
        return float((first[:, 1] - first[:, 0]).sum() / 1e9)

    @derived
    def _wall(self) -> float:
        """The time (s) of the measured steps: from the end of the warm-up on; 0.0 before two."""
        if self.steps < 2:
            return 0.0
        return self.length_s - float(self.stretch(self.warmup - 1, self.warmup)[0, 5])

    @derived
    def utilization(self) -> float | None:
        """Device-busy share of wall time, 0 to 1, warm-up excluded; None before two steps.

        The device had work, which need not have used all of it. On a CPU: forward, backward and
        optimizer. On a GPU: from a step's first kernel to its last, gaps included: an upper bound.
        """
        if self._wall <= 0:
            return None
        parts = self._timeline().stretches(self.warmup)
        return sum(float(np.diff(stamps[1:, 4:6]).sum()) for _, stamps in parts) / self._wall

    @derived
    def busy_at_least(self) -> float | None:
        """Share of wall time (0 to 1) in which the device certainly worked, warm-up excluded.

        On a GPU: what was left of each step when the host had issued all of it, so that no gap was
        a wait for the host. Small where launches are slow, and where the loop waits for each step.
        """
        if self._wall <= 0 or self.machine.kind != "gpu":
            return self.utilization
        start, end = self.stamps[self.warmup :, 4:6].T
        queued = end - np.clip(self.issued[self.warmup :], start, end)
        return float(queued.sum() / self._wall)

    @derived
    def queued_ms(self) -> float | None:
        """Mean time from the host's issuing a step's compute to its start on the device, ms.

        Long where the host is ahead of its device, and where something delays a launch. None where
        the device's own times are not known, as on a CPU and of a watched loop.
        """
        measured = slice(self.warmup, self.steps)
        started, issued = (
            self._series["step"].numbers(name, measured) for name in ("busy_start", "copied")
        )
        known = len(issued) and self.machine.kind == "gpu" and not np.isnan(started).any()
        return float((started - issued).mean() / 1e6) if known else None

    @derived
    def utilization_is_upper_bound(self) -> bool:
        """True where gaps between kernels may hide in `utilization`, unlike in `busy_at_least`."""
        if self.utilization is None or self.machine.kind != "gpu" or self.xray_facts is not None:
            return False
        return self.utilization - self.busy_at_least > HIDES

    @derived
    def busy_text(self) -> str:
        """The utilization in words: "17%", "at most 93%" where it is an upper bound, "unknown"."""
        if self.utilization is None:
            return "unknown"
        return f"{'at most ' if self.utilization_is_upper_bound else ''}{self.utilization:.0%}"

    @derived
    def throughput(self) -> float | None:
        """Samples per second of wall time, warm-up excluded."""
        samples = int(self._series["step"].numbers("n", slice(self.warmup, None)).sum())
        return samples / self._wall if self._wall > 0 else None

    @derived
    def steps_ms(self) -> np.ndarray:
        """Wait, copy, compute, launch, other of the measured steps: (steps, 5), ms."""
        if self.steps < 2:
            return np.zeros((0, 5))
        return split_steps(self.stamps[self.warmup - 1 :]) * 1e3  # with the warm-up's last step

    def _token_rate(self, column: str) -> float | None:
        total = self._series["step"].numbers(column, slice(self.warmup, None)).sum()
        return float(total / self._wall) if self._wall > 0 and total == total else None

    # fmt: off
    tokens_per_s = derived(lambda run: run._token_rate("tokens"),
                           "Tokens of text a second, padding included; None for images.")
    real_tokens_per_s = derived(lambda run: run._token_rate("real"),
                                "Tokens of text a second, without padding; None for images.")
    padding = derived(lambda run: 1 - run.real_tokens_per_s / run.tokens_per_s
                      if run.tokens_per_s else run._fact("padding", "share"),
                      "Share of the computed tokens that is padding, 0 to 1; None for images. Of "
                      "a watched loop as far as some of its batches show.")
    mean_ms = derived(lambda run: run._timeline().mean_split(run.warmup) * 1e3
                      if run.steps > 1 else None,
                      "The mean measured step by class (5,), ms; None before there is one.")
    step_ms = _mean_ms(slice(5), "Mean time from one step's end to the next, ms: its parts' sum.")
    wait_ms = _mean_ms(slice(1), "Mean time a step's device stood still for its next batch, ms.")
    copy_ms = derived(lambda run: None if run.watched or run.mean_ms is None
                      else float(run.mean_ms[1]),
                      "Mean host-to-device copy, ms; None for a watched loop, which hides it.")
    compute_ms = _mean_ms(slice(2, 3),
                          "Mean of forward, backward, optimizer (a watched loop's body), ms.")
    other_ms = _mean_ms(slice(3, 5), "Mean rest of a step, ms: launch gaps, host work between.")
    median_compute_ms = derived(lambda run: float(np.median(run.steps_ms[:, 2]))
                                if len(run.steps_ms) else None,
                                "As `compute_ms`, the median: free of the odd interrupted step.")
    spread = derived(lambda run: unevenness(run._timeline().ends(max(0, run.warmup - 1)), BLOCKS),
                     "Unevenness: IQR over median of the throughput of the run's five stretches.")
    noisy = derived(lambda run: (run.spread or 0.0) > NOISY,
                    "True where `spread` is so large that small differences mean nothing.")
    breakdown = derived(lambda run: above("Run.breakdown")(run),
                        "The average step by class (a StepBreakdown); None if too short.")
    lines = derived(lambda run: above("Run.lines")(run),
                    "Where in the user's code the time went: a table of lines (a Lines).")
    peak = derived(lambda run: above("Run.peak")(run),
                   "What `mfu` and `mbu` are held against, with its source (a Peak), or None.")
    mfu = derived(lambda run: above("Run.mfu")(run),
                  "FLOPs that the model needs over those of `peak` in wall time, 0 to 1; None "
                  "where either is unknown. Busy is not MFU.")
    mbu = derived(lambda run: above("Run.mbu")(run),
                  "The same of bytes that have to move (a lower bound); None where they fit into "
                  "the cache.")
    mfu_text = derived(lambda run: ", ".join(f"{name.upper()} {percent(share)}" for name in
                                             ("mfu", "mbu") if (share := getattr(run, name))),
                       '"MFU 26%, MBU 5.6%", or what is known of it; "" where neither is.')
    xray = derived(lambda run: above("Run.xray")(run),
                   "The x-ray's trace as a Breakdown; None where it lies in no folder.")
    # fmt: on

    @derived
    def energy_j(self) -> float | None:
        """Energy the card used while training, from its own counter; None where it has none."""
        if not (steps := self._series["step"]):
            return None
        first = steps[0]["t"][0]
        last = steps[-1]["t"][3]
        inside = [s.get("energy_j") for s in self.telemetry if first <= s["t_ns"] <= last]
        counts = [joules for joules in inside if joules is not None]
        return counts[-1] - counts[0] if len(counts) > 1 else None

    def diagnose(self) -> Any:
        """Name what holds the run back, with evidence and advice (a Diagnosis)."""
        return above("Run.diagnose")(self)

    def mfu_against(self, roof: Any) -> float | None:
        """Return the MFU against a `lk.roofline(...)` of this device, or a rate in FLOP/s."""
        return above("Run.mfu_against")(self, roof)

    def compare(self, other: Run) -> Comparison:
        """Compare this run with `other`, which came before it."""
        return Comparison(other, self)

    def _extra_lines(self) -> list[str]:
        line = above("Run.xray_event")(self) if self.event("xray_trace") is None else None
        return [line] if line else []

    @of_one_moment
    def to_dict(self) -> dict[str, Any]:
        """Return the run's statistics under their attribute names, as JSON types."""
        return {
            **{name: getattr(self, name) for name in NUMBERS},
            "peak": self.peak and str(self.peak),
            "loss": [None if math.isnan(loss) else loss for loss in self.loss],
            "mark": self.mark,
            "machine": self.machine.to_dict(),
            "pipeline": self.pipeline.to_dict(),
        }

    def _what(self) -> str:
        knobs = ", ".join(f"{name}={value!r}" for name, value in self.asked.changed().items())
        return self.alias or knobs or "defaults"

    @derived
    def numbers(self) -> str:
        """The measured numbers in one line, with what was simulated rather than measured."""
        if self.utilization is None:
            return f"{self.steps} steps: too few to measure"
        names = ["wait", *([] if self.watched else ["copy"]), "compute"]
        names += ["other"] if self.other_ms >= 0.05 else []  # else 0.0: it changes no sum
        parts = ", ".join(f"{name} {getattr(self, f'{name}_ms'):.1f}" for name in names)
        parts = parts.replace("compute", "loop body") if self.watched else parts
        text = (
            f"{self.throughput:.0f} {self.unit}/s, {self.machine.kind.upper()} busy "
            f"{self.busy_text}, step {self.step_ms:.1f} ms ({parts})"
        )
        text += f"; {self.mfu_text} of {self.peak}" if self.mfu_text else ""
        if self.tokens_per_s:
            text += f"; {self.real_tokens_per_s:,.0f} real tokens/s, padding {self.padding:.0%}"
        if (self.startup_s or 0.0) > SLOW_START_S:
            text += f"; the loop waited {self.startup_s:.1f} s for its workers to start"
        if self.no_events:
            text += f"; timed on the host's clock, waiting for each step: {self.no_events}"
        if self.suspended_s:
            text += f"; the machine slept for {self.suspended_s:,.0f} s, which no step contains"
        stated = "hidden" if self.alias else self.pipeline.simulated_delay
        text += f"; simulated delay: {stated}" if stated else ""
        return text + (f"; {noise(self.spread)}" if self.noisy else "")
