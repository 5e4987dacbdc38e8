"""What a search found: one table of its trials, the best knobs, and the code to paste."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from statistics import median

from labkit.diagnosis.loader_code import LoopCode
from labkit.diagnosis.pasted import IMPORTS, names_read, ready_to_paste
from labkit.diagnosis.trainer_code import trainer_lines
from labkit.diagnosis.verdict import Diagnosis
from labkit.knobs import Settings, as_typed
from labkit.results.result import Result, Table
from labkit.results.run import Run
from labkit.results.run_text import delays_of
from labkit.results.script import Script, changed_lines, loader_line, script
from labkit.spec import Pipeline
from labkit.tuning.settings import LoaderSetting
from labkit.tuning.trial import TIE, Trial, cheapest_of_fastest, is_tie

CELL = 90  # characters of a cell: errors can be long
HEAD = ("change", "predicted", "{}", "gain", "losses", "", "why it was tried")
LEFT = (0, 1, 5, 6)  # columns of text
# What libraries of threads read when they are loaded: OpenMP (torch, scikit-learn), OpenBLAS
# (NumPy), MKL (torch), OpenCV
THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "OPENCV_FOR_THREADS_NUM")


@dataclass(repr=False)
class SearchResult(Result):
    """The result of a search over knobs: finished, interrupted or still going on."""

    name: str  # what was searched
    start: Settings
    asked: Pipeline | None = None  # the pipeline searched; None for the user's own data
    code: LoopCode = field(default_factory=LoopCode)  # how the user's script makes the loader
    line: str = ""  # the machine in one line
    tried: list[Trial] = field(default_factory=list)  # in the order of their first runs
    latest: Trial | None = None  # run last, or running
    reasons: dict[str, str] = field(default_factory=dict)  # {knob that was not tried: why}
    notes: list[str] = field(default_factory=list)  # what limits the result
    interrupted: bool = False
    done: bool = False
    seconds: float = 0.0  # that it took
    unit: str = "samples/s"  # of all rates

    @property
    def baseline(self) -> Trial | None:
        """The trial of the start."""
        return self.tried[0] if self.tried else None

    @property
    def winner(self) -> Trial | None:
        """The trial to take."""
        raise NotImplementedError

    @property
    def best(self) -> Settings:
        """The knobs to take (at worst the start's)."""
        return dict(self.winner.knobs if self.winner else self.start)

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
        """Throughput of the best over that of the start, both measured here."""
        if not self.winner or not self.baseline or not self.baseline.rate:
            return None
        return self.winner.speed / self.baseline.rate

    @property
    def lines(self) -> str:
        """The statements that make the change."""
        raise NotImplementedError

    @property
    def snippet(self) -> str:
        """What to change, as PyTorch to paste, with the imports it needs.

        A pipeline's goes into the script of `lk.script`.
        """
        names = names_read(self.lines) if self.asked else self.code.names
        return ready_to_paste(self.lines, names - IMPORTS.keys()).rstrip("\n")

    @property
    def headline(self) -> str:
        """The result in one line."""
        raise NotImplementedError

    def verdict_on(self, trial: Trial) -> str:
        """Say in a few words what became of a trial."""
        return trial.said

    def script(self) -> Script:
        """Return the best pipeline as a whole script; for data of your own, the lines to change."""
        return script(self.pipeline) if self.pipeline else Script(f"{self.snippet}\n")

    def to_dict(self) -> dict[str, object]:
        """Return the result as JSON types."""
        names = ("best", "changes", "speedup", "seconds", "interrupted", "reasons", "notes")
        return {
            **{name: getattr(self, name) for name in names},
            "source": self.name,
            "machine": self.line,
            "snippet": self.snippet,
            "baseline": self.start,
            "baseline_throughput": self.baseline.rate if self.baseline else None,
            "best_throughput": self.winner.rate if self.winner else None,
            "trials": [trial.to_dict() for trial in self.tried],
            "runs": sum(len(trial.runs) for trial in self.tried),
        }

    def table(self, now: str = "") -> Table:
        """Return every trial; below, once it is done, reasons and code; `now` is what goes on."""
        foot = [now or "starting"]
        copies = {}
        if self.done and not now:
            reasons = [f"{name}: {reason}" for name, reason in self.reasons.items()]
            foot = [*reasons, *self.notes, *self.snippet.split("\n")]
            copies["PyTorch"] = self.snippet
            copies["labkit"] = f"lk.{self.pipeline!r}" if self.asked and self.changes else ""
        if self.line:
            foot.append(f"measured on {self.line}")
        foot.append(delays_of(run for trial in self.tried for run in trial.runs))
        return Table(
            [self._row(trial) for trial in self.tried],
            [title.format(self.unit) for title in HEAD],
            self.headline,
            foot,
            left=LEFT,
            bold=[place for place, trial in enumerate(self.tried) if trial is self.winner],
            copies=copies,
        )

    def _row(self, trial: Trial) -> tuple[str | None, ...]:
        """Return the cells of one trial."""
        predicted = str(trial.expected) if trial.expected else "not predicted"
        again = f" ({len(trial.rates)} runs)" if len(trial.rates) > 1 else ""
        return (
            trial.what,
            None if trial is self.baseline else predicted,
            f"{trial.rate:,.0f}{again}" if trial.rate else None,
            f"{trial.gain:.2f}x" if trial.gain else None,
            None if trial.loss_change is None else f"{trial.loss_change:+.1%}",
            self.verdict_on(trial)[:CELL],
            trial.why,
        )


class Interrupted(KeyboardInterrupt):
    """An interrupt that ended a search; `found` is what it had measured by then."""

    def __init__(self, found: SearchResult):
        super().__init__()
        self.found = found


@dataclass(repr=False)
class Tuning(SearchResult):
    """The result of a search over the loader's arguments."""

    loader_alone: bool = False  # whether no step was given: the speed-up is not that of training
    chosen: Trial | None = None  # the trial to take, once the search has ended
    tie: float = TIE  # throughputs this close are the same
    # Of a script, which is run as it is; "" of a pipeline or a dataset
    command: str = ""
    site: str = ""  # "file:line" where its loader is made
    verdict: Diagnosis | None = None  # of its first run, which was watched
    ready_gain: float | None = None  # throughput with ready batches over that as it is
    epochs: bool = False  # whether whole epochs were timed
    pairs: list[float] = field(default_factory=list)  # gains, each of two runs in turn
    stopped: str = ""  # why nothing is recommended

    @property
    def winner(self) -> Trial | None:
        """The trial to take: while it goes on, the cheapest of those that tie with the fastest."""
        return self.chosen or cheapest_of_fastest(self.tried, self.tie)

    @property
    def best(self) -> Settings:
        """The setting to take (at worst the start's): arguments of a DataLoader or a Pipeline.

        Workers, where it has some, are kept from one epoch to the next: that needs no search,
        except in a script, where it is tried.
        """
        if self.winner is None:
            return LoaderSetting.of(self.start).to_dict()
        if self.command:
            return dict(self.winner.knobs)
        return self.winner.setting.but(persistent_workers=True).to_dict()

    @property
    def speedup(self) -> float | None:
        """Throughput of the best over that of the start: of runs in turn, where there are some."""
        if self.pairs and self.winner is not self.baseline:
            return median(self.pairs)
        return super().speedup

    @property
    def lines(self) -> str:
        """The loader with the best setting."""
        if self.pipeline:
            return loader_line(self.pipeline.to_dict())
        if self.command:
            return self._script_lines()
        return replace(self.code, call=self.code.call or "").loader_line(self.best)

    @property
    def headline(self) -> str:
        """The result in one line."""
        state = " (interrupted: the best so far, unconfirmed)" if self.interrupted else ""
        if not self.winner:
            return f"Tuning({self.name}): nothing measured{'' if state else ' yet'}"
        took = f", found in {self.seconds:.0f} s" if self.done else ""
        rate = f"{self.winner.rate:,.0f} {self.unit}"
        if self.command and not self.changes:
            why = self.stopped or "nothing faster so far"
            return f"Tuning({self.name}){state}: {why}; {rate}{took}"
        alone = " (the loader alone: no step was given)" if self.loader_alone else ""
        rate = f"{rate}, {self.speedup:.2f}x the baseline{alone}"
        if self.pairs:
            rate += (
                f" ({min(self.pairs):.2f}x to {max(self.pairs):.2f}x in {len(self.pairs)} pairs)"
            )
        what = as_typed(self.changes) if self.command else self.winner.setting
        return f"Tuning({self.name}){state}: {what}: {rate}{took}"

    def verdict_on(self, trial: Trial) -> str:
        """Say in a few words what became of a trial."""
        if trial.error:
            return f"then failed: {trial.error}" if trial.rates else trial.error
        words = ["baseline"] if trial is self.baseline else []
        if trial is self.winner:
            words.append("best" if self.done else "best so far")
        elif self.winner and trial.rates and is_tie(trial, self.winner, self.tie):
            words.append("" if trial.is_bound else "a tie")
        return ", ".join(filter(None, [*words, trial.remark]))

    def to_dict(self) -> dict[str, object]:
        """Return the result as JSON types."""
        more: dict[str, object] = {"loader_alone": self.loader_alone}
        if self.command:
            more |= {"command": self.command, "ready_gain": self.ready_gain, "unit": self.unit}
            more |= {"pairs": self.pairs, "stopped": self.stopped}
            more["diagnosis"] = self.verdict.to_dict() if self.verdict else None
        return super().to_dict() | more

    def table(self, now: str = "") -> Table:
        """Return every trial; of a script whose loader is not the limit, also what is."""
        found = super().table(now)
        if not self.command:
            return found
        kept = [place for place, title in enumerate(HEAD) if title not in ("predicted", "losses")]
        head, *rows = ([row[place] for place in kept] for row in (found.head, *found.rows))
        foot = found.foot
        verdict = self.verdict if self.done and self.stopped else None
        if verdict is not None and verdict.bottleneck != "unsure":
            what, why, do = verdict.three_lines
            if not all(trial.is_bound for trial in self.tried[1:]):  # settings were no cure
                rest = [each.text for each in verdict.findings[0].remedies if not each.changes]
                do = f"Do: {rest[0]}" if rest else ""
            foot = ["What holds it back, as `labkit watch` says:", what, why, do, *foot]
        return replace(found, rows=rows, head=head, foot=foot, left=(0, 3, 4))

    def _script_lines(self) -> str:
        """Return the lines that change a script; those for its first lines come first."""
        changes = self.changes
        if not changes:
            return ""
        lines = []
        if threads := changes.pop("library_threads", None):
            lines.append("# before NumPy, OpenCV and torch are imported; or set them in the shell")
            lines += [f'os.environ["{name}"] = "{threads}"' for name in THREADS]
        if torch_threads := changes.pop("torch_threads", None):
            lines.append(f"torch.set_num_threads({torch_threads})")
        of_loader = trainer_lines(self.code.training, changes, self.code.cards)
        of_loader = of_loader or ready_to_paste(self.code.loader_line(changes), self.code.names)
        if changes and not of_loader:
            of_loader = f"# {self.site}: DataLoader(..., {as_typed(changes)})"
        return "\n".join([*lines, of_loader])


@dataclass(repr=False)
class Ladder(SearchResult):
    """The result of the autopilot: the changes that it kept, one after the other."""

    verdict: Diagnosis | None = None  # of the best
    stopped: str = ""  # why it ended

    @property
    def kept(self) -> list[Trial]:
        """The trials that were kept, from the start on."""
        return [trial for trial in self.tried if trial.kept]

    @property
    def winner(self) -> Trial | None:
        """The last trial that was kept."""
        return self.kept[-1] if self.kept else None

    @property
    def runs(self) -> dict[str, Run]:
        """The last run of every step that was kept, by the change in words."""
        return {trial.what: trial.runs[-1] for trial in self.kept if trial.runs}

    @property
    def speedup(self) -> float | None:
        """Throughput of the best over the start's best measurement."""
        if not self.winner or not self.winner.rate:
            return None
        return self.winner.rate / max(self.tried[0].rates) if self.changes else 1.0

    @property
    def lines(self) -> str:
        """The changes as plain PyTorch."""
        return changed_lines(self.start, self.best) or loader_line(self.start)

    @property
    def headline(self) -> str:
        """The result in one line."""
        if not self.winner or not self.winner.rate:
            return f"improve({self.name}): nothing measured yet"
        if self.changes:
            said = f"{self.speedup:.2f}x the start"
        elif self.verdict and self.verdict.bottleneck == "compute":
            said = "nothing to change"
        else:
            said = "nothing was changed"
        state = self.stopped or "going on"
        return f"improve({self.name}): {said}, {self.winner.rate:,.0f} samples/s; {state}"

    def to_dict(self) -> dict[str, object]:
        """Return the result as JSON types."""
        return super().to_dict() | {
            "stopped": self.stopped,
            "diagnosis": self.verdict.to_dict() if self.verdict else None,
        }
