"""What a user holds: a Run, Ranks, Measurements, a Sweep; live, with what can be asked of them.

Each stands on a snapshot of its log (`.data`), which the rooms below read: what they compute is of
one moment, and they know nothing of how it is drawn, judged or waited for.
"""

from __future__ import annotations

import copy
import itertools
import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from labkit.instruments.record_head import spec_event
from labkit.knobs import Settings, check_names
from labkit.process import folders, launcher
from labkit.process.leftovers import recover_loop
from labkit.results.failures import with_remedy
from labkit.results.hardware import check_device
from labkit.results.log_reader import LiveResult
from labkit.results.measurements import MeasurementsData, table_of
from labkit.results.payload import Source
from labkit.results.ranks import RanksData
from labkit.results.result import Result, Table
from labkit.results.run_data import RunData
from labkit.spec import KNOBS, LOADER_KNOBS, Pipeline
from labkit.stamps.events import FILE_NAME
from labkit.stamps.record import RecordError, Tail, head_of
from labkit.text import one_line

if TYPE_CHECKING:
    import pandas
    from matplotlib.figure import Figure

    from labkit.diagnosis.findings import Diagnosis
    from labkit.diagnosis.hot_lines import Lines
    from labkit.traces.read import Breakdown, RankTraces

COMPARED = ("throughput", "step_ms", "wait_ms", "copy_ms", "compute_ms", "other_ms")
SWEPT = ("throughput", "utilization", "wait_ms", "compute_ms")
RECORDS = Path(__file__).parent / "records"
SUFFIX = ".jsonl.gz"
LISTED = ["name", "title", "hardware"]  # of the recorded runs
LEAST_TOLD = 0.05  # of a COMPARED number: less is printed as 0.0, and has no ratio to tell
LEAST_NOISE = 0.02  # relative difference of throughput that two runs may always have


class Run(LiveResult[RunData], RunData):
    """One measured run, live or recorded. Statistics leave out the warm-up, and are of now."""

    KIND = RunData

    @property
    def lines(self) -> Lines:
        """Where in the user's code the time went: a table of lines."""
        from labkit.diagnosis.hot_lines import sampled_lines

        return sampled_lines(self.data)

    def diagnose(self) -> Diagnosis:
        """Name what holds the run back, with evidence and advice."""
        return diagnose(self)

    def compare(self, other: RunData) -> Comparison:
        """Compare this run with `other`, which came before it."""
        return Comparison(other.data, self.data)

    def plot(self, before: RunData | None = None) -> Figure:
        """Draw the run; some steps and the mean step of `before` beside it, where given."""
        from labkit.view.run_figure import draw_run

        return Comparison(before.data, self.data).plot() if before else draw_run(self.data)

    def export(self, path: str | os.PathLike[str], overwrite: bool = False) -> Path:
        """Write the run as .html, .csv, .png, .svg or .pdf; return the path.

        Raises ValueError on another suffix, and where a file is there.
        """
        from labkit.view.run_figure import export

        return export(self.data, path, str(self.diagnose()), overwrite)

    def extra_lines(self) -> list[str]:
        """Return what was read from the x-ray, whose trace stays in the folder."""
        from labkit.traces.read import xray_lines

        return xray_lines(self.data)


class RankRun(Run):
    """A rank of a distributed run, whose log the whole reads.

    Its device counts as busy while it waits for others, as in nvidia-smi: see `Ranks.times`.
    """

    def __init__(self, whole: Ranks, rank: int):
        self.rank = rank
        path = whole.data.runs[rank].path
        super().__init__(path, whole._process, whole.recorded, lambda: whole.data.runs[rank])


class Ranks(LiveResult[RanksData], RanksData):
    """A distributed run: `ranks[1]` is a Run, `len(ranks)` how many have begun."""

    KIND = RanksData

    def __len__(self) -> int:
        return len(self.data.runs)

    def __getitem__(self, index: int) -> RankRun:
        return RankRun(self, list(self.data.runs)[index])

    def diagnose(self) -> Diagnosis:
        """Name what holds the ranks back, and which of them does."""
        return diagnose(self)

    def plot(self) -> Figure:
        """Draw where each rank's time went."""
        from labkit.view.run_figure import draw_ranks

        return draw_ranks(self.data, self.diagnose().headline)

    def extra_lines(self) -> list[str]:
        """Return the events of every rank's own log, each with the rank it is of."""
        if not self.path.is_dir():
            return []
        return [
            json.dumps({**event, "of_rank": number}, separators=(",", ":"))
            for number, run in self.data.runs.items()
            for event in Tail(run.path / FILE_NAME).read()
        ]


class Measurements(LiveResult[MeasurementsData], MeasurementsData):
    """The rows that `lk.measure` measured. Live or recorded, like a Run."""

    KIND = MeasurementsData

    _added: tuple[Measurements, ...] = ()

    @property
    def data(self) -> MeasurementsData:
        """What was measured by now, also of the points that were added."""
        data = copy.copy(super().data)
        data.added = [each.data for each in self._added]
        return data

    def add(self, point: Measurements) -> None:
        """Take over the rows of a point that was measured afterwards."""
        self._added += (point,)

    def plot(self, x: str, y: str, by: str | None = None, **drawing: Any) -> Figure:
        """Draw column `y` over column `x`, a line for each value of column `by`; see `lk.plot`."""
        from labkit.view.rows_figure import plot

        return plot(self, x, y, by, **drawing)


class Sweep(Result):
    """The runs of a sweep: one for each of `settings`, or for the first of them where it ended."""

    def __init__(self, pipeline: Pipeline, knobs: Settings):
        """Check every combination before anything runs; raises ValueError naming a bad one."""
        check_names(knobs, KNOBS)
        if not knobs:
            raise ValueError("a sweep needs a knob and its values: num_workers=[0, 2, 4].")
        for name, values in knobs.items():
            if not isinstance(values, (list, tuple, range)) or not values:
                raise ValueError(
                    f"{name}={values!r}: a sweep needs several values, such as [0, 2, 4]."
                )
        self.pipeline = pipeline
        self.knobs = {name: list(values) for name, values in knobs.items()}
        self.settings: list[Settings] = [
            dict(zip(self.knobs, values, strict=True))
            for values in itertools.product(*self.knobs.values())
        ]
        for setting in self.settings:
            pipeline.but(**setting)
        self.runs: list[Run] = []

    def __len__(self) -> int:
        return len(self.runs)

    def __getitem__(self, index: int) -> Run:
        return self.runs[index]

    @property
    def frame(self) -> pandas.DataFrame:
        """A row for each setting: its knobs, what was measured, and the `error` of one without."""
        import pandas

        rows = []
        for setting, run in itertools.zip_longest(self.settings, self.runs):
            measured = {name: getattr(run, name, None) for name in SWEPT}
            rows.append({**setting, **measured, "error": run.error if run else "not run"})
        return pandas.DataFrame(rows, dtype=object).infer_objects()  # None is a knob's value too

    def table(self) -> Table:
        """Return the knobs, samples/s, busy share, wait and compute of each run."""
        return table_of(self.frame)

    def measure(self, start: Callable[[Pipeline], Run], each: Callable[[Run], object]) -> None:
        """Run every setting, one after the other.

        `start` launches a pipeline, `each` is called with its run while that goes on. An interrupt
        stops the run and keeps those before it.
        """
        for setting in self.settings:
            self.runs.append(start(self.pipeline.but(**setting)).wait_or_raise(each))

    def plot(self) -> Figure:
        """Draw throughput over the first knob, a line for each other setting."""
        from labkit.view.run_figure import draw_sweep

        return draw_sweep(self.frame, [*self.knobs], self.runs)


class Comparison(Result):
    """The run `after` against the run `before`: what was changed, and what it brought."""

    def __init__(self, before: RunData, after: RunData):
        self.before = before
        self.after = after
        asked = before.asked.to_dict()
        old = before.pipeline.to_dict()
        new = after.pipeline.to_dict()
        self.changed: dict[str, tuple[object, object]] = {
            name: (old[name], new[name])
            for name, value in after.asked.to_dict().items()
            if value != asked[name] and old[name] != new[name]
        }
        """{knob: (before, after)} of the knobs that were asked for, and ran, with other values."""

    @property
    def speedup(self) -> float | None:
        """Throughput after over before; None where either has none."""
        old = self.before.throughput
        new = self.after.throughput
        return new / old if old and new else None

    @property
    def verdict(self) -> str:
        """One sentence on what the change brought, if more than the two runs' own unevenness."""
        if self.speedup is None:
            return "One of the runs has no numbers to compare."
        mark = f" {where}." if (where := self.before.mark or self.after.mark) else ""
        noise = max(self.before.spread or 0.0, self.after.spread or 0.0, LEAST_NOISE)
        if abs(self.speedup - 1) <= noise:
            return f"No difference beyond the noise ({self.speedup:.2f}x).{mark}"
        word = "faster" if self.speedup > 1 else "slower"
        return f"{max(self.speedup, 1 / self.speedup):.2f}x {word}.{mark}"

    def table(self) -> Table:
        """Return the changed knobs and the numbers, before and after, with the verdict below."""
        rows = [[name, *map(repr, pair), ""] for name, pair in self.changed.items()]
        rows.append(["utilization", self.before.busy_text, self.after.busy_text, ""])
        for name in COMPARED:
            pair = [getattr(run, name) for run in (self.before, self.after)]
            is_told = all(number and number > LEAST_TOLD for number in pair)
            ratio = f"{pair[1] / pair[0]:.2f}x" if is_told else ""
            rows.append([name, *(each and f"{each:,.1f}" for each in pair), ratio])
        return Table(rows, ("", "before", "after", "ratio"), foot=(self.verdict,))

    @property
    def what(self) -> str:
        """Which knobs differ: "num_workers 0 → 6". The code of the two may still differ."""
        changed = [f"{knob} {old} → {new}" for knob, (old, new) in self.changed.items()]
        return ", ".join(changed) or "the same settings"

    def plot(self) -> Figure:
        """Draw both runs on one time scale, the earlier one above, as a matplotlib Figure."""
        from labkit.view.run_figure import draw_run

        brought = f"{self.what}: {self.speedup:.1f}x the throughput; " if self.speedup else ""
        return draw_run(self.after, self.before, brought)


Loaded = Run | Measurements | Ranks


def _live(spec: Mapping[str, object]) -> type[Loaded]:
    """Return what a log becomes whose first event holds `spec`."""
    if spec.get("measure"):
        return Measurements
    return Ranks if spec.get("ranks") else Run


def load(path: str | os.PathLike[str]) -> Loaded:
    """Load a saved or recorded run; raises RecordError (a ValueError) on anything else."""
    if os.path.isdir(path):
        recover_loop(Path(path))
    return _live(head_of(path).get("spec", {}))(Path(path), recorded=True)


def recorded(name: str | None = None) -> pandas.DataFrame | Loaded:
    """List the recorded runs, or load the one called `name`; ValueError where it is not there.

    They are `<machine>/<name>.jsonl.gz` in the package. Of several machines a GPU's comes first;
    `"<machine>/<name>"` asks for one.
    """
    import pandas

    rows = [row for row in map(_recorded_row, RECORDS.rglob(f"*{SUFFIX}")) if row]
    rows.sort(key=lambda row: (row["kind"] != "gpu", row["hardware"], row["name"]))
    if name is None:
        return pandas.DataFrame(rows, columns=LISTED)
    for row in rows:
        if name in (row["name"], row["full"]):
            return load(row["path"])
    available = ", ".join(row["full"] for row in rows)
    raise ValueError(f"Unknown record {name!r}; available: {available or 'none'}.")


def _recorded_row(file: Path) -> dict[str, Any] | None:
    """Return what a record's first events say of it; None where it is none."""
    head = head_of(file)
    if not head.keys() >= {"spec", "machine"}:
        return None
    spec, machine = head["spec"], head["machine"]
    name = one_line(file.name.removesuffix(SUFFIX))
    return {
        "name": name,
        "full": f"{file.parent.name}/{name}",
        "title": spec.get("title", ""),
        "hardware": machine["name"],
        "kind": machine["kind"],
        "path": file,
    }


def diagnose(
    what: Loaded | Breakdown | RankTraces | str | os.PathLike[str],
) -> Diagnosis:
    """Name the bottleneck of a Run, Ranks, a record's path (.jsonl, .jsonl.gz or a run's folder).

    Or of a torch.profiler trace (.json, .json.gz), a folder or archive of one for each rank, or
    what `lk.trace` or `lk.public_trace` made of them. Raises RecordError or TraceError (both are a
    ValueError) on one that cannot be used.
    """
    from labkit.diagnosis import judge
    from labkit.diagnosis.several_runs import of_ranks
    from labkit.traces.read import Breakdown, RankTraces, trace

    if isinstance(what, (str, os.PathLike)):
        path = Path(what)
        is_record = path.name.endswith((".jsonl", ".jsonl.gz")) or (path / FILE_NAME).exists()
        return diagnose(load(path) if is_record else trace(path))
    if isinstance(what, (Breakdown, RankTraces)):
        return judge.of_traced(what)
    data = what.data
    if isinstance(data, MeasurementsData):
        raise RecordError(
            f"{data.path}: a measured function has rows and no training steps, so there "
            "is nothing to diagnose: lk.load(path) shows its numbers; diagnose a training run."
        )
    if isinstance(data, RanksData):
        return of_ranks(data.runs or {0: RunData(data.path)}, data.times)[1]
    return judge.of_run(data)


def launch(
    spec: Any,
    *,
    fault: str | None = None,
    source: Source | None = None,
) -> Any:
    """Start what a spec describes apart from the kernel; return its Run, Measurements or Ranks.

    Args:
        spec: A Pipeline, a Grid, Distributed ranks.
        fault: Planted in the bench (`labkit.bench.carry_out.prepare`).
        source: The user's own dataset, or function, that the bench is to use.

    Raises:
        ValueError: The device that it names is not here.
        OSError: No process could be started.
    """
    described = spec.to_spec()
    check_device(described["pipeline"]["device"], described.get("ranks", 0))
    logged = described
    if source is not None and "measure" not in described:  # other knobs act on no part of theirs
        knobs = {name: described["pipeline"][name] for name in LOADER_KNOBS}
        logged = {"pipeline": knobs, "watched": {"loader": f"DataLoader({source.name})"}}
    try:
        with launcher.starting() as handle:
            run = handle.folder.name
            order = {"run": run, "cache": str(folders.home()), "fault": fault, **described}
            if source is not None:
                order["source"] = source.place(handle.folder)
            handle.begin(order, spec_event(run, **logged))
    except OSError as error:
        raise OSError(with_remedy(f"No run could be started: {error}.")) from error
    return _live(described)(handle.folder, handle)
