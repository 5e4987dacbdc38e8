"""A sweep over the values of some knobs: a run for every combination."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from labkit.knobs import Settings, check_names
from labkit.results.comparison import known, printed
from labkit.results.result import Result, Table
from labkit.spec import KNOBS, Pipeline

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from labkit.results.run import Run

COLUMNS = {  # {statistic: its head}; of those that few runs have, only where one has it
    "throughput": "samples/s",
    "utilization": "busy",
    "mfu": "MFU",
    "padding": "padding",
    "wait_ms": "wait ms",
    "compute_ms": "compute ms",
}
PERIOD_S = 0.05  # s between two looks at the runs that go on


class Sweep(Result):
    """The runs of a sweep: one for each of `settings`, or for the first of them where it ended."""

    def __init__(self, pipeline: Pipeline, knobs: Settings, devices: Sequence[str] | None = None):
        """Check every combination before anything runs; raises ValueError naming a bad one.

        With `devices`, such as ["cuda:0", "cuda:1"], each has one run at a time, beside the others.
        """
        check_names(knobs, KNOBS)
        self.pipeline = pipeline
        self.devices = () if devices is None else _devices(devices, knobs)
        self.knobs = {name: _values(name, values) for name, values in knobs.items()}
        if not knobs:
            raise ValueError("a sweep needs a knob and its values: num_workers=[0, 2, 4].")
        products = itertools.product(*self.knobs.values())
        self.settings: list[Settings] = [
            dict(zip(self.knobs, values, strict=True)) for values in products
        ]
        for setting in self.settings:
            pipeline.but(**setting)
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
        each: Callable[[Run], object],
        begun: Callable[[Settings], object],
    ) -> None:
        """Run every setting: a device that is free takes the next one.

        `start` launches a pipeline; `each` is called with every run that goes on, `begun` with a
        setting whose run is asked for. An interrupt stops what goes on and keeps what has ended.
        """
        left = list(self.settings)
        going_on: dict[str | None, Run] = {}  # the run that each device has
        try:
            while left or going_on:
                for device in self.devices or (None,):
                    if device not in going_on and left:
                        setting = left.pop(0)
                        begun(setting)
                        changes = setting | ({"device": device} if device else {})
                        going_on[device] = start(self.pipeline.but(**changes))
                        self.runs.append(going_on[device])
                for device, run in list(going_on.items()):
                    if run.running:
                        each(run)
                    else:
                        run.wait_or_raise()  # for its supervisor: then the device is free
                        del going_on[device]
                if going_on:
                    time.sleep(PERIOD_S)
        except BaseException:
            for run in going_on.values():
                run.stop()
            pairs = zip(self.settings, self.runs, strict=False)
            ended = [setting for setting, run in pairs if run.outcome != "stopped"]
            self.settings = ended + [each for each in self.settings if each not in ended]
            self.runs = [run for run in self.runs if run.outcome != "stopped"]
            raise

    @property
    def best(self) -> Run | None:
        """The Run with the highest throughput; None where none has numbers."""
        measured = [run for run in self.runs if run.throughput]
        return max(measured, key=lambda run: run.throughput or 0.0, default=None)

    def plot(self) -> Figure:
        """Draw throughput and utilization over the first knob, a line for each other setting."""
        from labkit.view.several_figures import draw_sweep

        return draw_sweep(self)

    def table(self) -> Table:
        """Return the knobs, samples/s, busy share, wait and compute of each run."""
        shown = known(COLUMNS, self.runs)
        where = ("device",) if self.devices else ()
        head = (*self.knobs, *where, *(COLUMNS[name] for name in shown), "")
        rows = []
        for setting, run in zip(self.settings, self.runs, strict=False):
            places = [run.asked.device] if self.devices else []
            numbers = [printed(run, name) for name in shown]
            rows.append([*map(repr, setting.values()), *places, *numbers, self._note(run)])
        left = len(self.settings) - len(self.runs)
        return Table(rows, head, foot=(f"({left} not run)",) if left else (), left=())

    def _note(self, run: Run) -> str:
        """Return what stands behind a run's numbers, or why it has none."""
        if run.throughput is None:
            return run.error or run.outcome
        notes = {"best": run is self.best, "noisy": run.noisy}
        return " ".join(note for note, holds in notes.items() if holds)


def _values(name: str, values: object) -> list[object]:
    """Return the values of a swept knob as a list; raise ValueError where there are none."""
    if isinstance(values, Iterable) and not isinstance(values, (str, bytes)):
        listed = list(values)
        if listed:
            return listed
    raise ValueError(f"{name}={values!r}: a sweep needs several values, such as [0, 2, 4].")


def _devices(devices: Sequence[str], knobs: Settings) -> tuple[str, ...]:
    """Check the devices of a sweep; raise ValueError where one is named twice."""
    names = () if isinstance(devices, str) else tuple(map(KNOBS["device"].check, devices))
    # "auto" and "cuda" may be the same card as another name
    is_clear = len(names) == 1 or not {"auto", "cuda"} & set(names)
    if not names or len(set(names)) < len(names) or not is_clear:
        raise ValueError(f"devices={devices!r}: name each once, as in ['cuda:0', 'cuda:1'].")
    if "device" in knobs:
        raise ValueError("device: is swept already; leave out devices, or that knob.")
    return names
