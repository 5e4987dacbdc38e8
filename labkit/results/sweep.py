"""Runs side by side: one against the run before, and a sweep over the values of some knobs."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

import numpy as np

from labkit.knobs import check_names
from labkit.results.result import Result, Table, percent
from labkit.results.step_classes import CLASSES
from labkit.spec import KNOBS, Pipeline

COMPARED = (
    "throughput", "utilization", "step_ms", "wait_ms", "copy_ms", "compute_ms", "other_ms",
)  # fmt: skip

WHERE_KNOWN = {  # of any run: how it is written
    "mfu": percent, "mbu": percent, "padding": percent,
    "real_tokens_per_s": lambda rate: None if rate is None else f"{rate:,.0f}",
}  # fmt: skip
OF_SWEEP = {"MFU": "mfu", "real tokens/s": "real_tokens_per_s", "padding": "padding"}
TINY = 0.01  # share of a step: of what is below it on both sides the ratio says nothing
# Neighbouring steps are alike, so BLOCKS stretches of a run are drawn anew, not steps; differences
# of a part below LEAST of the step are not worth a word
BLOCKS, DRAWS, LEAST = 20, 1000, 0.02


@dataclass(frozen=True)
class Part:
    """A part of the average step before and after, ms."""

    name: str  # "step", or a class of its time
    before_ms: float
    after_ms: float
    low_ms: float  # 95 % interval of the difference (bootstrap over stretches of both runs)
    high_ms: float
    slower: bool  # beyond the noise
    faster: bool

    change_ms = property(lambda p: p.after_ms - p.before_ms, doc="How much longer it takes, ms.")

    def __str__(self) -> str:
        what = CLASSES.get(self.name, "a step")
        return f"{what} {self.change_ms:+.2f} ms (95%: {self.low_ms:+.2f} to {self.high_ms:+.2f})"

    def to_dict(self) -> dict[str, Any]:
        """Return the part as JSON types."""
        return {k: round(v, 4) if isinstance(v, float) else v for k, v in asdict(self).items()}


class Comparison(Result):
    """The Run `after` against the Run `before`: what was changed, and what it brought."""

    def __init__(self, before: Any, after: Any):
        self.before, self.after = before, after

    @property
    def changed(self) -> dict[str, tuple[Any, Any]]:
        """{knob: (before, after)} of the knobs that differ in what ran, and were asked for."""
        old, new = self.before.pipeline.to_dict(), self.after.pipeline.to_dict()
        then, now = self.before.asked.to_dict(), self.after.asked.to_dict()
        chosen = [n for n in old if then[n] is not None or now[n] is not None]
        return {name: (old[name], new[name]) for name in chosen if old[name] != new[name]}

    @property
    def speedup(self) -> float | None:
        """Throughput after over before; None where either has none."""
        old, new = self.before.throughput, self.after.throughput
        return new / old if old and new else None

    @property
    def significant(self) -> bool:
        """True where the difference is larger than the two runs' own unevenness."""
        noise = max(self.before.spread or 0.0, self.after.spread or 0.0, 0.02)
        return self.speedup is not None and abs(self.speedup - 1) > noise

    @property
    def verdict(self) -> str:
        """One sentence on what the change brought."""
        if self.speedup is None:
            return "One of the runs has no numbers to compare."
        where = {r.machine.name for r in (self.before, self.after) if r.recorded}
        mark = f" RECORDED numbers are from {', '.join(sorted(where))}." if where else ""
        if not self.significant:
            return f"No difference beyond the noise ({self.speedup:.2f}x).{mark}"
        word = "faster" if self.speedup > 1 else "slower"
        return f"{max(self.speedup, 1 / self.speedup):.2f}x {word}.{mark}"

    @cached_property
    def parts(self) -> tuple[Part, ...]:
        """The step and the classes of its time, before and after; () where a run is too short.

        Steps of other batch sizes are scaled to the samples of `before`.
        """
        old, new = blocks = [_blocks(run) for run in (self.before, self.after)]
        if not all(map(len, blocks)):
            return ()
        then, now = (run.samples / run.steps for run in (self.before, self.after))
        new *= then
        new /= max(now, 1e-9)
        rng = np.random.default_rng(0)
        rows = [rng.integers(0, len(block), (DRAWS, len(block))) for block in blocks]
        drawn = [block[row].mean(axis=1) for block, row in zip(blocks, rows, strict=True)]
        low, high = np.percentile(drawn[1] - drawn[0], [2.5, 97.5], axis=0)
        old, new = old.mean(axis=0), new.mean(axis=0)
        least = LEAST * old[0]
        slower, faster = (low > 0) & (new - old > least), (high < 0) & (old - new > least)
        columns = (each.tolist() for each in (old, new, low, high, slower, faster))
        return tuple(map(Part, ("step", *CLASSES), *columns))

    def slower_by(self, limit: float) -> bool:
        """Return whether a step takes over `limit` (0.05 is 5 %) longer, beyond the noise."""
        step = next(iter(self.parts), None)
        return step is not None and step.slower and step.change_ms > limit * step.before_ms

    def plot(self, **drawing: Any) -> Any:
        """Draw the later run beside the earlier one, as a matplotlib Figure."""
        return self.after.plot(before=self.before, **drawing)

    def to_dict(self) -> dict[str, Any]:
        """Return the comparison as JSON types."""
        return {
            "speedup": self.speedup, "significant": self.significant, "verdict": self.verdict,
            "changed": self.changed, "parts": [part.to_dict() for part in self.parts],
            "slower": [part.name for part in self.parts if part.slower],
        }  # fmt: skip

    def table(self) -> Table:
        """Return the changed knobs and the numbers, before and after, with the verdict below."""
        rows = [(name, repr(old), repr(new), "") for name, (old, new) in self.changed.items()]
        runs = (self.before, self.after)
        for name in (*COMPARED, *WHERE_KNOWN):
            both = [getattr(run, name) for run in runs]
            if name in WHERE_KNOWN and both == [None, None]:
                continue
            write = WHERE_KNOWN.get(name, lambda value: None if value is None else f"{value:.1f}")
            texts = list(map(write, both))
            if name == "utilization" and None not in both:
                texts = [self.before.busy_text, self.after.busy_text]
            ratio = f"{both[1] / both[0]:.2f}x" if all(both) else ""
            if name.endswith("_ms") and None not in both:
                shares = [ms / run.step_ms for ms, run in zip(both, runs, strict=True)]
                ratio = None if max(shares) < TINY else ratio
            rows.append((name, *texts, ratio))
        said = []
        for word in ("slower", "faster"):
            if found := [str(part) for part in self.parts if getattr(part, word)]:
                said.append(f"{word} beyond the noise: {', '.join(found)}")
        micro = [run.pipeline.accumulation_steps for run in runs]
        if micro[0] != micro[1]:
            said.append(f"step_ms and its parts: of a micro-batch ({micro[0]} → {micro[1]} each)")
        return Table(rows, ("", "before", "after", "ratio"), foot=(self.verdict, *said))


def _blocks(run: Any) -> np.ndarray:
    """Return (stretches, 1 + classes): ms per step, all of it and by class; none if too short."""
    matrix = run.steps_ms
    cut = np.array_split(matrix, min(BLOCKS, len(matrix))) if len(matrix) >= 5 else []
    rows = np.array([part.mean(axis=0) for part in cut]).reshape(-1, len(CLASSES))
    return np.column_stack([rows.sum(axis=1), rows])


class Sweep(Result):
    """The runs of a sweep, in the order of its knobs' product: of all `pipelines`, or the first."""

    def __init__(
        self, pipeline: Pipeline, knobs: dict[str, Any], devices: Sequence[str] | None = None
    ):
        """Check every combination before anything runs; raises ValueError naming a bad one.

        With `devices`, such as ["cuda:0", "cuda:1"], each has one run at a time, all at once.
        """
        check_names(knobs, KNOBS)
        self.pipeline = pipeline
        self.devices = () if devices is None else _devices(devices, knobs)
        self.knobs = {name: _values(name, values) for name, values in knobs.items()}
        products = itertools.product(*self.knobs.values())
        self.settings = [dict(zip(self.knobs, values, strict=True)) for values in products]
        self.pipelines = [pipeline.but(**setting) for setting in self.settings]
        self.runs: list[Any] = []  # each a Run

    def __len__(self) -> int:
        return len(self.runs)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.runs)

    def __getitem__(self, index: int) -> Any:
        return self.runs[index]

    def measure(
        self,
        start: Callable[[Pipeline], Any],
        each: Callable[[Any], None] = lambda run: None,
        begun: Callable[[dict[str, Any]], None] = lambda setting: None,
        period_s: float = 0.05,
    ) -> Sweep:
        """Run what is left: a device that is free takes the next setting.

        `start` launches a pipeline; `each` is called with every run that goes on, `begun` with a
        setting whose run is asked for. An interrupt stops what goes on and keeps what has ended.
        """
        left = list(zip(self.settings, self.pipelines, strict=True))[len(self.runs) :]
        on: dict[str | None, Any] = {}  # the run that each device has
        try:
            while left or on:
                for device in self.devices or (None,):
                    if device not in on and left:
                        setting, pipeline = left.pop(0)
                        begun(setting)
                        on[device] = start(pipeline.but(device=device) if device else pipeline)
                        self.runs.append(on[device])
                for device, run in list(on.items()):
                    if run.running:
                        each(run)
                    else:
                        run.wait_or_raise()  # for its supervisor: then the device is free
                        del on[device]
                if on:
                    time.sleep(period_s)
        except BaseException:
            for run in on.values():
                run.stop()
            measured = [run.outcome != "stopped" for run in self.runs]
            measured += [False] * (len(self.settings) - len(measured))
            order = sorted(range(len(measured)), key=lambda i: not measured[i])  # the rest is left
            self.settings, self.pipelines = (
                [each[i] for i in order] for each in (self.settings, self.pipelines)
            )
            self.runs = [run for run in self.runs if run.outcome != "stopped"]
            raise
        return self

    @property
    def best(self) -> Any:
        """The Run with the highest throughput; None where none has numbers."""
        measured = [run for run in self.runs if run.throughput]
        return max(measured, key=lambda run: run.throughput, default=None)

    def table(self) -> Table:
        """Return the knobs, samples/s, busy share, wait and compute of each run."""
        where, rows = ("device",) if self.devices else (), []
        more = {head: n for head, n in OF_SWEEP.items() if any(getattr(r, n) for r in self.runs)}
        for setting, run in zip(self.settings, self.runs, strict=False):
            numbers = [None] * (4 + len(more)) + [run.error or run.outcome]
            if run.throughput is not None:
                note = [run is self.best and "best", run.noisy and "noisy"]
                times = f"{run.wait_ms:.1f}", f"{run.compute_ms:.1f}", " ".join(filter(None, note))
                known = [WHERE_KNOWN[name](getattr(run, name)) for name in more.values()]
                numbers = [f"{run.throughput:.0f}", run.busy_text, *known, *times]
            device = [run.asked.device for _ in where]
            rows.append([*map(repr, setting.values()), *device, *numbers])
        left = len(self.pipelines) - len(self.runs)
        head = (*self.knobs, *where, "samples/s", "busy", *more, "wait ms", "compute ms", "")
        return Table(rows, head, foot=(f"({left} not run)",) if left else (), left=())


def _values(name: str, values: Any) -> list[Any]:
    several = hasattr(values, "__iter__") and not isinstance(values, (str, bytes))
    if not several or not (listed := list(values)):
        raise ValueError(f"{name}={values!r}: a sweep needs several values, such as [0, 2, 4].")
    return listed


def _devices(devices: Sequence[str], knobs: dict[str, Any]) -> tuple[str, ...]:
    names = () if isinstance(devices, str) else tuple(map(KNOBS["device"].check, devices))
    # "auto" and "cuda" may be the same card as another name
    once = len(set(names)) == len(names) and (len(names) == 1 or not {"auto", "cuda"} & set(names))
    if not names or not once:
        raise ValueError(f"devices={devices!r}: name each once, as in ['cuda:0', 'cuda:1'].")
    if "device" in knobs:
        raise ValueError("device: is swept already; leave out devices, or that knob.")
    return names
