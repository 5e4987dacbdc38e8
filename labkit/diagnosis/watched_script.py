"""What held a watched script back, from the runs of its loops."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from labkit.diagnosis import watched_ranks
from labkit.diagnosis.watched_ranks import RanksVerdict
from labkit.results.record import Event
from labkit.results.run import Run
from labkit.results.wall_shares import WallShares, trains, wall_shares
from labkit.watching.run_folders import folders_in, process_of, rank_of


@dataclass(frozen=True)
class ScriptVerdict:
    """What was found about the longest loop of a script that trains."""

    run: Run  # whose record says why
    ranks: RanksVerdict
    loaders: list[Run]  # a run for each loader that the loop reads, first what it waits for most
    shares: WallShares | None  # of the whole time, for the loops of the run's process
    headroom: Event | None  # what replay found; None where no loop was replayed


def runs_in(folder: Path) -> list[Run]:
    """Return the runs of a script that have steps."""
    found = []
    for each in folders_in(folder):
        with contextlib.suppress(ValueError, OSError):
            run = Run(each)
            if run.steps:
                found.append(run)
    return found


def judge_runs(runs: list[Run], start_ns: int, end_ns: int) -> ScriptVerdict:
    """Judge the longest loop that trains; of several ranks, that of all of them.

    Of the loaders that such a loop reads, the one counts that it waits for most. The script ran
    from `start_ns` to `end_ns`.
    """
    runs = sorted(runs, key=lambda run: (trains(run), run.length_s))
    of_loop = _beside(runs)
    chosen = {rank_of(run.path): run for run in (*runs, *of_loop)}
    judged = watched_ranks.diagnose(chosen)
    run = chosen[judged.rank]
    of_process = [each for each in runs if process_of(each.path) == process_of(run.path)]
    return ScriptVerdict(
        run,
        judged,
        [each for each in reversed(of_loop) if rank_of(each.path) == judged.rank],
        wall_shares(of_process, start_ns, end_ns),
        _headroom_of(runs),
    )


def waited_s(run: Run) -> float:
    """Return for how long a loop waited for its loader."""
    return float(np.diff(run.host_ns[:, :2]).sum() / 1e9)  # from asking to having it


def _beside(runs: list[Run]) -> list[Run]:
    """Return the runs of the same loop as the last of `runs`, the one that waited most last."""
    last = runs[-1]
    if not last.place:
        return [last]
    of_loop = [run for run in runs if run.place == last.place and trains(run) == trains(last)]
    return sorted(of_loop, key=waited_s)


def _headroom_of(runs: list[Run]) -> Event | None:
    """Return what replay found of the longest loop that was replayed; None where none was."""
    known = [event for run in runs if (event := run.event("headroom")) is not None]
    if not known:
        return None
    return {name: value for name, value in known[-1].items() if name not in ("event", "t_ns")}
