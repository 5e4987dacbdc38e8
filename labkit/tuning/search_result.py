"""What a search found: one table of its trials, the best knobs, and the code to paste."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from statistics import median

from labkit.diagnosis.loader_code import LoopCode
from labkit.diagnosis.verdict import Diagnosis
from labkit.knobs import Settings, as_typed
from labkit.results.result import Result, Table
from labkit.results.run_text import delays_of
from labkit.results.script import Script, changed_lines, loader_line, script
from labkit.spec import Pipeline
from labkit.tuning.settings import of_loader
from labkit.tuning.trial import Trial, cheapest_of_fastest, is_tie

CELL = 90  # characters of a cell: errors can be long
# What libraries of threads read when they are loaded: OpenMP (torch, scikit-learn), OpenBLAS
# (NumPy), MKL (torch), OpenCV
THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "OPENCV_FOR_THREADS_NUM")


@dataclass(repr=False)
class Tuning(Result):
    """The result of a search for settings: finished, interrupted or still going on."""

    name: str  # what was searched
    start: Settings
    asked: Pipeline | None = None  # the pipeline searched; None for the user's own data
    code: LoopCode = field(default_factory=LoopCode)  # how the user's script makes the loader
    line: str = ""  # the machine in one line
    tried: list[Trial] = field(default_factory=list)  # in the order of their first runs
    latest: Trial | None = None  # run last, or running
    chosen: Trial | None = None  # the trial to take, once that is decided
    pairs: list[float] = field(default_factory=list)  # gains, each of two runs in turn
    stopped: str = ""  # why nothing, or nothing more, is changed
    notes: list[str] = field(default_factory=list)  # what limits the result
    interrupted: bool = False
    done: bool = False
    seconds: float = 0.0  # that it took
    unit: str = "samples/s"  # of all rates
    verdict: Diagnosis | None = None  # of a script's first run, or of the best pipeline
    # Of a script, which is run as it is; "" of a pipeline or a dataset
    command: str = ""
    site: str = ""  # "file:line" where its loader is made
    ready_gain: float | None = None  # throughput with ready batches over that as it is
    limit: str = "loader"  # or what holds it back instead
    epochs: bool = False  # whether whole epochs were timed

    @property
    def baseline(self) -> Trial | None:
        """The trial of the start."""
        return self.tried[0] if self.tried else None

    @property
    def winner(self) -> Trial | None:
        """The trial to take: while it goes on, the cheapest of those that tie with the fastest."""
        return self.chosen or cheapest_of_fastest(self.tried)

    @property
    def best(self) -> Settings:
        """The setting to take (at worst the start's): arguments of a DataLoader or a Pipeline.

        Workers are kept from one epoch to the next: that needs no search, except in a script, where
        it is tried.
        """
        knobs = dict(self.winner.knobs if self.winner else self.start)
        return knobs if self.command else of_loader(knobs | {"persistent_workers": True})

    @property
    def changes(self) -> Settings:
        """The best knobs that differ from the start's."""
        best = self.best
        return {name: value for name, value in best.items() if value != self.start.get(name)}

    @property
    def pipeline(self) -> Pipeline | None:
        """The best pipeline; None for data of the user's own."""
        return self.asked.but(**self.best) if self.asked else None

    @property
    def speedup(self) -> float | None:
        """Throughput of the best over that of the start: of runs in turn, where there are some."""
        if self.pairs and self.winner is not self.baseline:
            return median(self.pairs)
        return self._gain(self.winner)

    def _gain(self, trial: Trial | None) -> float | None:
        """Return the throughput of a trial over that of the start."""
        if not trial or not trial.rates or not self.baseline or not self.baseline.rates:
            return None
        return trial.speed / self.baseline.speed

    @property
    def lines(self) -> str:
        """The statements that make the change."""
        if self.pipeline:
            return loader_line(self.pipeline.to_dict())
        if self.command:
            return self._script_lines()
        return replace(self.code, call=self.code.call or "").loader_line(self.best)

    @property
    def snippet(self) -> str:
        """What to change, as PyTorch to paste; a pipeline's goes into the script of `lk.script`."""
        return self.lines.rstrip("\n")

    @property
    def headline(self) -> str:
        """The result in one line."""
        state = " (interrupted: the best so far)" if self.interrupted else ""
        title = f"{type(self).__name__}({self.name}){state}"
        if not self.winner or not self.winner.rate:
            return f"{title}: nothing measured yet"
        said = as_typed(self.changes) or self.stopped or "nothing faster so far"
        rate = f"{self.winner.rate:,.0f} {self.unit}"
        if self.changes:
            rate += f", {self.speedup:.2f}x the baseline"
            if pairs := self.pairs:
                rate += f" ({min(pairs):.2f}x to {max(pairs):.2f}x in {len(pairs)} pairs)"
        took = f", found in {self.seconds:.0f} s" if self.done else ""
        return f"{title}: {said}: {rate}{took}"

    def verdict_on(self, trial: Trial) -> str:
        """Say in a few words what became of a trial."""
        if trial.error:
            return f"then failed: {trial.error}" if trial.rates else trial.error
        words = ["baseline"] if trial is self.baseline else []
        if trial is self.winner:
            words.append("best" if self.done else "best so far")
        elif self.winner and not trial.is_bound and is_tie(trial, self.winner):
            words.append("a tie")
        seen = trial.outcomes[-1].seen if trial.outcomes else None
        if seen and seen["ended"] == "slow":
            words.append("ended early: clearly slower")
        return ", ".join(filter(None, [*words, trial.said]))

    @property
    def last_line(self) -> str:
        """What the trial that ran last gave, and why it was tried, in one line."""
        trial = self.latest
        if trial is None:
            return self.headline
        rate = "failed" if trial.error or not trial.rates else f"{trial.rates[-1]:,.0f} {self.unit}"
        again = f", run {len(trial.rates)}" if len(trial.rates) > 1 else f" ({trial.why})"
        return "; ".join(filter(None, [f"{trial.what}: {rate}{again}", self.verdict_on(trial)]))

    def script(self) -> Script:
        """Return the best pipeline as a whole script; for data of your own, the lines to change."""
        return script(self.pipeline) if self.pipeline else Script(f"{self.snippet}\n")

    def to_dict(self) -> dict[str, object]:
        """Return the result as JSON types."""
        names = ("best", "changes", "speedup", "seconds", "interrupted", "stopped", "notes")
        values = {name: getattr(self, name) for name in names} | {
            "source": self.name,
            "machine": self.line,
            "snippet": self.snippet,
            "baseline": self.start,
            "baseline_throughput": self.baseline.rate if self.baseline else None,
            "best_throughput": self.winner.rate if self.winner else None,
            "trials": [trial.to_dict() | {"gain": self._gain(trial)} for trial in self.tried],
            "speedup_range": [min(self.pairs), max(self.pairs)] if self.pairs else None,
            "diagnosis": self.verdict.to_dict() if self.verdict else None,
        }
        if self.command:
            values |= {"command": self.command, "loader": self.site, "unit": self.unit}
            values |= {"ready_batches": self.ready_gain, "limit": self.limit}
            values["environment"] = self.environment
        return values

    @property
    def environment(self) -> dict[str, str]:
        """The variables that a script is to be started with."""
        threads = self.changes.get("library_threads")
        return dict.fromkeys(THREADS, str(threads)) if threads else {}

    def table(self, now: str = "") -> Table:
        """Return every trial; below, once it is done, notes and code; `now` is what goes on."""
        foot = [now or "starting"]
        copies = {}
        if self.done and not now:
            foot = [*self._held_back(), *self.notes, *self.snippet.split("\n")]
            copies["PyTorch"] = self.snippet
        if self.line:
            foot.append(f"measured on {self.line}")
        foot.append(delays_of(run for trial in self.tried for run in trial.runs))
        return Table(
            [self._row(trial) for trial in self.tried],
            ["change", self.unit, "gain", "", "why it was tried"],
            self.headline,
            foot,
            left=(0, 3, 4),
            bold=[place for place, trial in enumerate(self.tried) if trial is self.winner],
            copies=copies,
        )

    def _row(self, trial: Trial) -> tuple[str | None, ...]:
        """Return the cells of one trial."""
        again = f" ({len(trial.rates)} runs)" if len(trial.rates) > 1 else ""
        gain = None if trial is self.baseline else self._gain(trial)
        return (
            trial.what,
            f"{trial.rate:,.0f}{again}" if trial.rate else None,
            f"{gain:.2f}x" if gain else None,
            self.verdict_on(trial)[:CELL],
            trial.why,
        )

    def _held_back(self) -> list[str]:
        """Say what holds back a script whose loader is not the limit."""
        verdict = self.verdict
        if not self.command or not self.stopped or not verdict or verdict.bottleneck == "unsure":
            return []
        what, why, do = verdict.three_lines
        if not all(trial.is_bound for trial in self.tried[1:]):  # settings were no cure
            rest = [each.text for each in verdict.findings[0].remedies if not each.changes]
            do = f"Do: {rest[0]}" if rest else ""
        return ["What holds it back, as `labkit watch` says:", what, why, do]

    def _script_lines(self) -> str:
        """Return the lines that change a script; those for its first lines come first."""
        changes = self.changes
        if not changes:
            return ""
        lines = []
        if changes.pop("library_threads", None):
            lines.append("# before NumPy, OpenCV and torch are imported; or set them in the shell")
            lines += [
                f'os.environ["{name}"] = "{value}"' for name, value in self.environment.items()
            ]
        if torch_threads := changes.pop("torch_threads", None):
            lines.append(f"torch.set_num_threads({torch_threads})")
        of_loader = self.code.lines(changes)
        if changes and not of_loader:
            of_loader = f"# {self.site}: DataLoader(..., {as_typed(changes)})"
        return "\n".join([*lines, of_loader])


@dataclass(repr=False)
class Ladder(Tuning):
    """The result of the autopilot: the changes that it kept, one after the other."""

    @property
    def best(self) -> Settings:
        """The knobs to take (at worst the start's)."""
        return dict(self.winner.knobs if self.winner else self.start)

    @property
    def lines(self) -> str:
        """The changes as plain PyTorch."""
        return changed_lines(self.start, self.best) or loader_line(self.start)


class Interrupted(KeyboardInterrupt):
    """An interrupt that ended a search; `found` is what it had measured by then."""

    def __init__(self, found: Tuning):
        super().__init__()
        self.found = found
