"""One knob, or several, tried at several values: isolated runs, one at a time on each device."""

from __future__ import annotations

import html
import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from labkit.knobs import check_names
from labkit.results.run import Run
from labkit.spec import KNOBS, Pipeline
from labkit.wiring import above


class Sweep:
    """The runs of a sweep, in the order of the product of its knobs' values.

    `runs` may be shorter than `pipelines`: a sweep that was interrupted keeps what it has.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        knobs: dict[str, list[Any]],
        devices: Sequence[str] | None = None,
    ):
        """Check every combination before anything runs; raises ValueError naming a bad one.

        With `devices`, such as ["cuda:0", "cuda:1"], each has one run at a time, all at once.
        """
        check_names(knobs, KNOBS)
        self.devices = _devices(devices, knobs)
        self.pipeline = pipeline
        self.knobs = {name: _values(name, values) for name, values in knobs.items()}
        products = itertools.product(*self.knobs.values())
        self.settings = [dict(zip(self.knobs, values, strict=True)) for values in products]
        self.pipelines = [pipeline.but(**setting) for setting in self.settings]
        self.runs: list[Run] = []

    def __len__(self) -> int:
        return len(self.runs)

    def __iter__(self) -> Iterator[Run]:
        return iter(self.runs)

    def __getitem__(self, index: int) -> Run:
        return self.runs[index]

    def measure(
        self,
        start: Callable[[Pipeline], Run],
        each: Callable[[Run], None] = lambda run: None,
        begun: Callable[[dict[str, Any]], None] = lambda setting: None,
        period_s: float = 0.05,
    ) -> Sweep:
        """Run what is left of the sweep: a device that is free takes the next setting.

        Args:
            start: Launches a pipeline and returns its Run at once.
            each: Called with every run that goes on, a few times a second.
            begun: Called with a setting when its run has been asked for.
            period_s: Time between two looks at the runs, s.

        An interrupt stops the runs that go on, keeps those that have ended, and is passed on.
        """
        left = list(zip(self.settings, self.pipelines, strict=True))[len(self.runs) :]
        on: dict[str | None, Run] = {}  # the run that each device has
        try:
            while left or on:
                for device in self.devices or (None,):
                    if device not in on and left:
                        setting, pipeline = left.pop(0)
                        begun(setting)
                        run = start(pipeline if device is None else pipeline.but(device=device))
                        on[device] = run
                        self.runs.append(run)
                for device, run in list(on.items()):
                    if run.running:
                        each(run)
                    else:
                        run.wait()  # for its supervisor: the device is free once that is gone
                        del on[device]
                if on:
                    time.sleep(period_s)
        except BaseException:
            for run in on.values():
                run.stop()
            while self.runs and self.runs[-1].outcome == "stopped":
                self.runs.pop()
            raise
        return self

    @property
    def best(self) -> Run | None:
        """The run with the highest throughput; None where none has numbers."""
        measured = [run for run in self.runs if run.throughput]
        return max(measured, key=lambda run: run.throughput, default=None)

    def to_list(self) -> list[dict[str, Any]]:
        """Every run's statistics, as JSON types."""
        return [run.to_dict() for run in self.runs]

    def plot(self) -> Any:
        """Draw throughput and utilization against the knob as a matplotlib Figure."""
        return above("Sweep.plot")(self)

    def rows(self) -> list[tuple[str, ...]]:
        """The table: the knobs, samples/s, busy share, wait and compute, every cell as text."""
        where = ("device",) if self.devices else ()
        rows = [(*self.knobs, *where, "samples/s", "busy", "wait ms", "compute ms", "")]
        for setting, run in zip(self.settings, self.runs, strict=False):
            cells = [repr(value) for value in setting.values()]
            cells += [run.asked.device] if self.devices else []
            if run.throughput is None:
                rows.append((*cells, "-", "-", "-", "-", run.error or run.outcome))
                continue
            best = "best" if run is self.best else ""
            rows.append(
                (
                    *cells,
                    f"{run.throughput:.0f}",
                    run.busy_text,
                    f"{run.wait_ms:.1f}",
                    f"{run.compute_ms:.1f}",
                    f"{best} {'noisy' if run.noisy else ''}".strip(),
                )
            )
        return rows

    def __repr__(self) -> str:
        rows = self.rows()
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = ["  ".join(map(str.rjust, row, widths)).rstrip() for row in rows]
        left = len(self.pipelines) - len(self.runs)
        return "\n".join(lines + ([f"({left} not run)"] if left else []))

    def _repr_html_(self) -> str:
        body = "".join(
            "<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>"
            for row in self.rows()
        )
        return f"<table>{body}</table>"


def _values(name: str, values: Any) -> list[Any]:
    if isinstance(values, (str, bytes)) or not hasattr(values, "__iter__"):
        raise ValueError(f"{name}={values!r}: a sweep needs several values, such as [0, 2, 4].")
    values = list(values)
    if not values:
        raise ValueError(f"{name}=[]: a sweep needs at least one value.")
    return values


def _devices(devices: Sequence[str] | None, knobs: dict[str, Any]) -> tuple[str, ...]:
    """Check the devices of a sweep; () where it has the pipeline's own."""
    if devices is None:
        return ()
    if isinstance(devices, str) or not list(devices):
        raise ValueError(f"devices={devices!r}: give several, such as ['cuda:0', 'cuda:1'].")
    names = tuple(KNOBS["device"].check(device) for device in devices)
    # "auto" and "cuda" may be the same card as another name
    if len(set(names)) < len(names) or (len(names) > 1 and {"auto", "cuda"} & set(names)):
        raise ValueError(f"devices={list(names)!r}: name each device once, such as 'cuda:0'.")
    if "device" in knobs:
        raise ValueError("device: is swept already; leave out devices, or that knob.")
    return names
