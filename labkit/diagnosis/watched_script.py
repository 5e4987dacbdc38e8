"""What held a watched script back, from the runs of its loops."""

from __future__ import annotations

import contextlib
from dataclasses import asdict, dataclass
from pathlib import Path

from labkit.diagnosis.rank_verdict import RanksVerdict, of_ranks
from labkit.diagnosis.wall_shares import trains, wall_shares
from labkit.process.leftovers import recover_loop
from labkit.results.ranks import rank_times
from labkit.results.run_data import RunData
from labkit.stamps.events import EventLog
from labkit.stamps.record import Event
from labkit.watching.run_folders import folders_in, process_of, rank_of

LEAST_PASSES = 5  # of one batch: fewer look at what a batch is


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
            found.append(run := RunData(each))
            run.follow()
    return found


def dropped_passes(runs: list[RunData]) -> str:
    """Say that a script makes an iterator for each batch, `next(iter(loader))`; "" where none does.

    That is one of which no loop that trains was recorded, but passes that ended before a step.
    """
    passes = max((len(run.all("pass")) for run in runs if not run.steps), default=0)
    if passes < LEAST_PASSES or any(run.steps and trains(run) for run in runs):
        return ""
    return (
        f"a new iterator is made for each batch ({passes} times), which starts the workers and "
        "draws an order. Loop over the loader, or take all batches of an epoch from one iterator."
    )


def judge_runs(runs: list[RunData], start_ns: int, end_ns: int) -> ScriptVerdict | None:
    """Judge the longest loop that trains; of several ranks, that of all of them.

    None where no run has a step. The script ran from `start_ns` to `end_ns`.
    """
    runs = sorted((run for run in runs if run.steps), key=lambda run: (trains(run), run.length_s))
    if not runs:
        return None
    longest = {rank_of(run.path): run for run in runs}
    chosen = {rank: _with_shares(run, runs, start_ns, end_ns) for rank, run in longest.items()}
    judged = of_ranks(chosen, rank_times(chosen))
    replayed = [run.event("headroom") for run in runs]
    headroom = next(filter(None, reversed(replayed)), None)
    return ScriptVerdict(chosen[judged.rank], judged, headroom)


def _with_shares(run: RunData, runs: list[RunData], start_ns: int, end_ns: int) -> RunData:
    """Write into a run's log how the time of its process was shared out; return it as it is now."""
    of_process = [each for each in runs if process_of(each.path) == process_of(run.path)]
    ended_ns = 0 if any(each.event("full") for each in of_process) else end_ns
    shares = wall_shares(of_process, start_ns, ended_ns)
    if shares is not None:
        log = EventLog(run.path)
        log.write("wall", **asdict(shares))
        log.close()
        run.follow()
    return run
