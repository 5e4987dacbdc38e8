"""What a search found: one table of its trials, the best knobs, and the code to paste."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from statistics import median

from labkit.diagnosis.findings import Diagnosis
from labkit.diagnosis.loader_code import LoopCode
from labkit.knobs import Settings, as_typed
from labkit.results.ranks import delays_of
from labkit.results.result import Result, Table
from labkit.results.script import changed_lines, loader_line
from labkit.spec import Pipeline
from labkit.tuning.trial import Outcome, Trial, cheapest_of_fastest

CELL = 90  # characters of a cell: errors can be long
# What libraries of threads read when they are loaded: OpenMP (torch, scikit-learn), OpenBLAS
# (NumPy), MKL (torch), OpenCV
THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "OPENCV_FOR_THREADS_NUM")
# What stands in `--json` as it is
IN_JSON = (
    "source", "machine", "best", "changes", "speedup", "snippet", "seconds", "interrupted",
    "stopped", "notes",
)  # fmt: skip
OF_SCRIPTS = ("command", "loader", "unit", "ready_batches", "limit", "environment")
BEFORE_IMPORTS = "# before NumPy, OpenCV and torch are imported; or set them in the shell"


def thread_variables(knobs: Settings) -> dict[str, str]:
    """Return the environment variables that set `library_threads`; {} where knobs have none."""
    threads = knobs.get("library_threads")
    return dict.fromkeys(THREADS, str(threads)) if threads else {}


@dataclass(repr=False)
class Tuning(Result):
    """The result of a search for settings: finished, interrupted or still going on."""

    source: str  # what was searched
    start: Settings
    pipeline: Pipeline | None = None  # that was searched; None for the user's own data
    code: LoopCode = field(default_factory=LoopCode)  # how the user's script makes the loader
    machine: str = ""  # in one line
    tried: list[Trial] = field(default_factory=list)  # in the order of their first runs
    chosen: Trial | None = None  # the trial to take, once that is decided
    pairs: list[float] = field(default_factory=list)  # gains, each of two runs in turn
    stopped: str = ""  # why nothing, or nothing more, is changed
    notes: list[str] = field(default_factory=list)  # what limits the result
    interrupted: bool = False
    seconds: float = 0.0  # that it took, once it is over
    unit: str = "samples/s"  # of all rates
    verdict: Diagnosis | None = None  # of a script's first run, or of the best pipeline
    # Of a script, which is run as it is; "" of a pipeline or a dataset
    command: str = ""
    loader: str = ""  # "file:line" where it is made
    ready_batches: float | None = None  # throughput with them over that as it is
    limit: str = "loader"  # or what holds it back instead

    @property
    def outcomes(self) -> list[Outcome]:
        """What all runs came to."""
        return [each for trial in self.tried for each in trial.outcomes]

    @property
    def winner(self) -> Trial | None:
        """The trial to take: while it goes on, the cheapest of those that tie with the fastest."""
        return self.chosen or cheapest_of_fastest(self.tried)

    @property
    def best(self) -> Settings:
        """The setting to take (at worst the start's): arguments of a DataLoader or a Pipeline."""
        return dict(self.winner.knobs if self.winner else self.start)

    @property
    def changes(self) -> Settings:
        """The best knobs that differ from the start's."""
        return {name: value for name, value in self.best.items() if value != self.start.get(name)}

    @property
    def speedup(self) -> float | None:
        """Throughput of the best over that of the start: of runs in turn, where there are some."""
        if self.pairs and self.changes:
            return median(self.pairs)
        return self._gain(self.winner)

    def _gain(self, trial: Trial | None) -> float | None:
        """Return the throughput of a trial over that of the start."""
        if not trial or not trial.rate or not self.tried[0].rate:
            return None
        return trial.rate / self.tried[0].rate

    @property
    def environment(self) -> dict[str, str]:
        """The variables that a script is to be started with."""
        return thread_variables(self.changes)

    @property
    def snippet(self) -> str:
        """What to change, as PyTorch to paste; a pipeline's goes into the script of `lk.script`."""
        if self.pipeline:
            lines = changed_lines(self.start, self.best) or loader_line(self.start)
        elif self.command:
            lines = self._script_lines()
        else:
            code = replace(self.code, call=self.code.call or "")
            lines = code.lines({"batch_size": self.best["batch_size"], **self.changes})
        return lines.rstrip("\n")

    def _script_lines(self) -> str:
        """Return the lines that change a script; those for its first lines come first."""
        changes = self.changes
        changes.pop("library_threads", None)
        lines = [f'os.environ["{name}"] = "{value}"' for name, value in self.environment.items()]
        if lines:
            lines.insert(0, BEFORE_IMPORTS)
        if changes:
            typed = f"# {self.loader}: DataLoader(..., {as_typed(changes)})"
            lines.append(self.code.lines(changes) or typed)
        return "\n".join(lines)

    @property
    def headline(self) -> str:
        """The result in one line."""
        state = " (interrupted: the best so far)" if self.interrupted else ""
        title = f"{type(self).__name__}({self.source}){state}"
        if not self.winner or not self.winner.rate:
            return f"{title}: nothing measured yet"
        change = as_typed(self.changes) or self.stopped or "nothing faster so far"
        rate = f"{self.winner.rate:,.0f} {self.unit}"
        if self.changes:
            rate += f", {self.speedup:.2f}x the baseline"
            if pairs := self.pairs:
                rate += f" ({min(pairs):.2f}x to {max(pairs):.2f}x in {len(pairs)} pairs)"
        took = f", found in {self.seconds:.0f} s" if self.seconds else ""
        return f"{title}: {change}: {rate}{took}"

    def to_dict(self) -> dict[str, object]:
        """Return the result as JSON types."""
        names = IN_JSON + (OF_SCRIPTS if self.command else ())
        return {name: getattr(self, name) for name in names} | {
            "baseline": self.start,
            "baseline_throughput": self.tried[0].rate or None if self.tried else None,
            "best_throughput": self.winner.rate or None if self.winner else None,
            "trials": [
                {
                    "changes": trial.changes,
                    "error": trial.error,
                    "throughput": trial.rate or None,
                    "gain": self._gain(trial),
                }
                for trial in self.tried
            ],
            "speedup_range": [min(self.pairs), max(self.pairs)] if self.pairs else None,
            "diagnosis": self.verdict.to_dict() if self.verdict else None,
        }

    def table(self, now: str = "") -> Table:
        """Return every trial; below, once it is over, notes and code; `now` is what goes on."""
        is_over = self.seconds and not now
        foot = [now or "starting"]
        if is_over:
            foot = [*self._held_back(), *self.notes, *self.snippet.split("\n")]
        if self.machine:
            foot.append(f"measured on {self.machine}")
        foot.append(delays_of(each.run for each in self.outcomes if each.run))
        return Table(
            [self.row(trial) for trial in self.tried],
            ["change", self.unit, "gain", ""],
            self.headline,
            foot,
            left=(0, 3),
            bold=[place for place, trial in enumerate(self.tried) if trial is self.winner],
            code=self.snippet if is_over else "",
        )

    def row(self, trial: Trial) -> tuple[str | None, ...]:
        """Return the cells of one trial."""
        gain = None if trial is self.tried[0] else self._gain(trial)
        remark = trial.error or ("best" if trial is self.winner else "")
        runs = f" ({len(trial.rates)} runs)" if len(trial.rates) > 1 else ""
        return (
            trial.what,
            f"{trial.rate:,.0f}{runs}" if trial.rate else None,
            f"{gain:.2f}x" if gain else None,
            remark[:CELL],
        )

    def _held_back(self) -> list[str]:
        """Say what holds back a script whose loader is not the limit, or that no setting cured."""
        verdict = self.verdict
        if not self.command or not self.stopped or not verdict or verdict.bottleneck == "unsure":
            return []
        lines = verdict.three_lines
        if self.limit == "loader":  # settings were no cure: what to do would name some
            lines = lines[:2]
        return ["What holds it back, as `labkit watch` says:", *lines]
