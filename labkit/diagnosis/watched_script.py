"""What held a watched script back, from the runs of its loops."""

from __future__ import annotations

import contextlib
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from labkit.diagnosis import thresholds as limits
from labkit.diagnosis.evidence import Evidence
from labkit.diagnosis.findings import LESS_WAITING, Finding, Measured, Remedy
from labkit.diagnosis.loader_code import LoopCode
from labkit.diagnosis.rank_verdict import RanksVerdict, of_ranks
from labkit.diagnosis.verdict import Diagnosis
from labkit.diagnosis.wall_shares import trains, wall_shares
from labkit.diagnosis.wording import worded
from labkit.process.leftovers import recover_loop
from labkit.results.log_reader import read
from labkit.results.rank_times import rank_times
from labkit.results.run_data import RunData
from labkit.stamps.events import EventLog
from labkit.stamps.record import Event
from labkit.watching.run_folders import folders_in, process_of, rank_of

LEAST_PASSES = 5  # of one batch: fewer look at what a batch is
KEEP_THE_ITERATOR = Remedy(
    "keep_the_iterator",
    "Loop over the loader, or make one iterator an epoch and take every batch from that.",
    "epochs",
    code="batches = iter(loader)  # before the loop, and again when it is exhausted\n"
    "batch = next(batches)  # in the loop, in place of next(iter(loader))\n",
    check=LESS_WAITING,
)


@dataclass(frozen=True)
class ScriptVerdict:
    """What was found about the longest loop of a script that trains."""

    run: RunData  # whose record says why
    ranks: RanksVerdict
    headroom: Event | None  # what replay found; None where no loop was replayed


def runs_in(folder: Path) -> list[RunData]:
    """Return the runs of a script that can be read."""
    found = []
    for each in folders_in(folder):
        with contextlib.suppress(ValueError, OSError):
            recover_loop(each)
            found.append(read(RunData, each))
    return found


def one_batch_a_pass(runs: list[RunData]) -> Diagnosis | None:
    """A script makes a new iterator over its loader for each batch: `next(iter(loader))`.

    Cause "one_batch_a_pass", where LEAST_PASSES or more passes over a loader were dropped before a
    step was over, and no loop that was recorded trains. It costs the share of the time from the
    first of them to the last in which the script waited for them: for the start of workers, a new
    order, and a first batch. None where that is not worth a name.
    """
    if any(run.steps and trains(run) for run in runs):
        return None
    found = [run for run in runs if not run.steps and len(run.passes_ended) >= LEAST_PASSES]
    lost = max(map(_dropped, found), default=0.0)
    if lost < limits.WORTH_NAMING["input"]:
        return None
    run = max(found, key=_dropped)
    passes = len(run.passes_ended)
    where = f"{Path(str(run.place[0])).name}:{run.place[1]}, " if run.place else ""
    again = (
        f"a new iterator is made for each batch ({where}{passes} times): each starts the workers, "
        "draws an order, and drops what it has prepared ahead"
    )
    waits = Measured("of the time is spent in iter(loader) and on its first batch", lost)
    cause = Finding(
        "input", "one_batch_a_pass", lost, (waits, Measured(again)), (KEEP_THE_ITERATOR,)
    )
    told = worded(cause, Evidence("cpu", code=LoopCode.of(run.loop_code)))
    return Diagnosis((told,), 0.0, "passes over the loader")  # how sure was not resampled


def _dropped(run: RunData) -> float:
    """Return the share of the time between passes that were dropped after a batch spent in them."""
    passes = run.passes_ended
    spent = sum(each["ended"] - each["began"] for each in passes)
    return spent / max(passes[-1]["ended"] - passes[0]["began"], 1)


def judge_runs(runs: list[RunData], start_ns: int, end_ns: int) -> ScriptVerdict | None:
    """Judge the longest loop that trains; of several ranks, that of all of them.

    None where no run has a step.

    Of the loaders that such a loop reads, the one counts that it waits for most. The script ran
    from `start_ns` to `end_ns`.
    """
    runs = sorted((run for run in runs if run.steps), key=lambda run: (trains(run), run.length_s))
    if not runs:
        return None
    last = runs[-1]
    of_loop = [
        run for run in runs if last.place and (run.place, trains(run)) == (last.place, trains(last))
    ]
    longest = {rank_of(run.path): run for run in (*runs, *sorted(of_loop, key=waited_s))}
    chosen = {rank: _with_shares(run, runs, start_ns, end_ns) for rank, run in longest.items()}
    judged = of_ranks(chosen, rank_times(chosen))
    replayed = (run.event("headroom") for run in reversed(runs))
    return ScriptVerdict(chosen[judged.rank], judged, next(filter(None, replayed), None))


def _with_shares(run: RunData, runs: list[RunData], start_ns: int, end_ns: int) -> RunData:
    """Write into a run's log how the time of its process was shared out; return it as it is now."""
    of_process = [each for each in runs if process_of(each.path) == process_of(run.path)]
    ended_ns = None if any(each.is_cut_short for each in of_process) else end_ns
    shares = wall_shares(of_process, start_ns, ended_ns)
    if shares is not None:
        log = EventLog(run.path)
        log.write("wall", **asdict(shares))
        log.close()
    return read(RunData, run.path)


def waited_s(run: RunData) -> float:
    """Return for how long a loop waited for its loader."""
    return float(np.diff(run.host_ns[:, :2]).sum() / 1e9)  # from asking to having it
