"""`labkit watch -- python train.py`: run a script unchanged, and say what held it back.

Its training loop is recorded from inside (`labkit.watching.hook`), its processes from outside.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from labkit.bench.outside import Sample
from labkit.diagnosis import watched_ranks
from labkit.diagnosis.outside_verdict import judge
from labkit.process import folders
from labkit.process.events import EventLog, now_ns
from labkit.results import privacy
from labkit.results.record import Event
from labkit.results.run import Run
from labkit.results.wall_shares import WallShares, trains, wall_shares
from labkit.view import report
from labkit.watching.foreground import run_in_front
from labkit.watching.hangs import HangWatch
from labkit.watching.run_folders import folders_in, process_of, rank_of

Values = dict[str, object]  # as JSON types
SITE = Path(__file__).parents[1] / "watching" / "site"
MOST_LINES = 20  # of code that are listed
SURE = ((0.9, "high"), (0.6, "medium"), (0.01, "low"))
NOT_TRAINED = "headroom: not measured, as no optimizer made a step within a DataLoader's loop."


@dataclass(frozen=True)
class Ended:
    """A script that has run to its end."""

    folder: Path  # of its runs
    exit_code: int  # for a signal 128 and its number, as in a shell
    start_ns: int
    end_ns: int
    samples: list[Sample]  # seen from outside
    hangs: HangWatch


@dataclass(frozen=True)
class Judged:
    """What was found about a script that has ended."""

    # What `labkit watch --json` prints: `exit_code`, `bottleneck`, `confidence`, `evidence`,
    # `advice`, `seen` ("inside" or "outside") and what else is known
    values: Values
    text: str
    run: Run | None = None  # that the verdict is of; None where no step was seen from inside


def watch_script(
    command: list[str],
    quiet_stdout: bool = False,
    outside: bool = False,
    headroom: bool = False,
) -> tuple[Judged, int]:
    """Run `command` (a first "--" is left out) in our place; return the verdict and the exit code.

    A script that cannot be executed by itself, `train.py`, is run by our own Python. The code is,
    for a signal, 128 and its number, as in a shell.

    Args:
        command: The script and its arguments.
        quiet_stdout: Whether the script's stdout goes to stderr.
        outside: Whether to look from outside only.
        headroom: Whether to replay some batches of its training loops.

    Raises:
        ValueError: There is no command, or it cannot be started.
    """
    command = command[1:] if command[:1] == ["--"] else command
    if not command:
        raise ValueError("give the script to watch: labkit watch -- python train.py")
    if command[0].endswith(".py") and Path(command[0]).is_file() and not shutil.which(command[0]):
        command = [sys.executable, *command]
    folder = folders.new_run()
    env = dict(os.environ)
    if not outside:
        paths = filter(None, [str(SITE), env.get("PYTHONPATH")])
        env |= {"LABKIT_WATCHING": str(folder), "PYTHONPATH": os.pathsep.join(paths)}
        env |= {"LABKIT_HEADROOM": "1"} if headroom else {}
    hangs = HangWatch(lambda: folders_in(folder), _say)
    start_ns = now_ns()
    with hangs:
        code, samples = run_in_front(command, env, quiet_stdout)
    code = 128 - code if code < 0 else code
    ended = Ended(folder, code, start_ns, now_ns(), samples, hangs)
    try:
        found = _judged(ended, outside, headroom)
    except (Exception, KeyboardInterrupt) as error:  # the script is over: its exit code counts
        text = f"the verdict failed ({type(error).__name__}: {error}); the script ran to its end."
        found = Judged({**judge([]), "evidence": text, "advice": ""}, text)
    of_script: Values = {
        "command": privacy.without_keys(command),
        "exit_code": code,
        "seconds": round((ended.end_ns - start_ns) / 1e9, 3),
        "seen": "outside",
    }
    return replace(found, values=of_script | found.values), code


def write_reports(found: Judged, html: str | None, markdown: str | None) -> None:
    """Write what was found as a page of HTML and as Markdown, to the paths that are given.

    The script has run: what cannot be written is said, and changes neither verdict nor exit code.
    """
    for path, text_of in ((html, report.html_page), (markdown, report.markdown)):
        if not path:
            continue
        if found.run is None:
            _say(f"{path} is not written: no training step was seen from inside.")
        else:
            try:
                report.write(path, text_of(found.run, found.text))
            except (OSError, ValueError) as error:
                _say(f"{path} is not written: {error}")


def _say(text: str) -> None:
    with contextlib.suppress(Exception):
        print(f"labkit watch: {text}", file=sys.stderr, flush=True)


def _judged(ended: Ended, outside: bool, headroom: bool) -> Judged:
    """Judge a script that has ended by its runs, or else from outside."""
    hang = ended.hangs.last
    runs = _runs_in(ended.folder)
    if runs:
        found = _from_inside(runs, ended, headroom)
    elif hang is not None:
        told = f"before the first step was over, {hang.text}"
        seen: Values = {**judge(ended.samples), "evidence": told, "record": str(hang.folder)}
        found = Judged(seen, f"{told}\nrecord: {hang.folder}")
    else:
        found = _from_outside(ended, outside)
    if hang is not None:
        found.values["hang"] = {
            "seconds": hang.seconds,
            "over": not ended.hangs.hanging,
            "worker": hang.worker,
            "index": hang.index,
            "line": hang.line,
            "text": hang.text,
        }
    return found


def _from_outside(ended: Ended, outside: bool) -> Judged:
    """Judge a script of which no step was seen; `outside`: it was not to be looked into."""
    shutil.rmtree(ended.folder, ignore_errors=True)
    found: Values = {**judge(ended.samples)}
    if 0 < ended.exit_code < 128 and not outside:
        told = f"the script failed (exit code {ended.exit_code}) before a training step was seen."
        found = {**judge([]), "evidence": told, "advice": ""}
    sure = "" if found["confidence"] == "none" else f" ({found['confidence']} confidence)"
    verdict = f"bottleneck {found['bottleneck']}{sure}, seen from outside"
    return Judged(found, f"{verdict}: {found['evidence']} {found['advice']}".rstrip())


def _runs_in(folder: Path) -> list[Run]:
    """Return the runs that have steps."""
    found = []
    for each in folders_in(folder):
        with contextlib.suppress(ValueError, OSError):
            run = Run(each)
            if run.steps:
                found.append(run)
    return found


def _from_inside(runs: list[Run], ended: Ended, headroom: bool) -> Judged:
    """Judge the longest loop that trains; of several ranks, that of all of them.

    Of the loaders that such a loop reads, the one counts that it waits for most.
    """
    runs = sorted(runs, key=lambda run: (trains(run), run.length_s))
    of_loop = _beside(runs)
    chosen = {rank_of(run.path): run for run in (*runs, *of_loop)}
    judged = watched_ranks.diagnose(chosen)
    run = chosen[judged.rank]
    found = _values_of(run, judged)
    texts = [run.numbers, str(judged.verdict)]
    loaders = [each for each in reversed(of_loop) if rank_of(each.path) == judged.rank]
    if len(loaders) > 1:
        has_queue = run.machine.kind == "gpu"  # which may have work while the host waits
        who = "the host" if has_queue else "this loop"
        texts.append(f"loaders that {who} waits for: {', '.join(map(_waiting, loaders))}")
    shares = _whole_time(run, runs, ended)
    if shares is not None:
        found["wall_shares"] = shares.to_dict()
        texts.append(f"whole time: {shares}")
    if headroom:
        replayed = _headroom_of(runs)
        found["headroom"] = replayed
        texts.append(replayed["text"] if replayed else NOT_TRAINED)
    if ended.hangs.last is not None:
        after = "" if ended.hangs.hanging else " It moved again afterwards."
        texts.append(f"a hang: {ended.hangs.last.text}{after}")
    if len(run.lines):
        texts.append(str(run.lines))
    if len(judged.own) > 1:
        named = [f"{rank} {own.headline}" for rank, own in sorted(judged.own.items())]
        texts.append(f"ranks, each judged alone: {', '.join(named)}")
    texts.append(f"record: {run.path} (lk.load, labkit diagnose)")
    return Judged(found, "\n".join(texts), run)


def _values_of(run: Run, judged: watched_ranks.RanksVerdict) -> Values:
    """Return what `--json` says of a run and of the verdict that it shows."""
    verdict = judged.verdict
    return verdict.to_dict() | {
        "seen": "inside",
        "confidence": next((word for least, word in SURE if verdict.confidence >= least), "none"),
        "evidence": verdict.evidence,
        "advice": verdict.advice,
        "record": str(run.path),
        "lines": [line.to_dict() for line in run.lines.lines[:MOST_LINES]],
        "ranks": {str(rank): own.bottleneck for rank, own in judged.own.items()},
        "run": {name: value for name, value in run.to_dict().items() if name != "loss"},
        "workers": run.workers.to_dict(),
    }


def _beside(runs: list[Run]) -> list[Run]:
    """Return the runs of the same loop as the last of `runs`, the one that waited most last."""
    last = runs[-1]
    if not last.place:
        return [last]
    of_loop = [run for run in runs if run.place == last.place and trains(run) == trains(last)]
    return sorted(of_loop, key=_waited_s)


def _waited_s(run: Run) -> float:
    """Return for how long a loop waited for its loader."""
    return float(np.diff(run.host_ns[:, :2]).sum() / 1e9)  # from asking to having it


def _waiting(run: Run) -> str:
    """Return the name of a run's loader, and for which share of the time the loop waits for it."""
    name = (run.loop_code or {}).get("loader") or run.watched
    return f"`{name}` {_waited_s(run) / max(run.length_s, 1e-9):.0%}"


def _whole_time(run: Run, runs: list[Run], ended: Ended) -> WallShares | None:
    """Share out the time of the script among the loops of a run's process, and keep that in it."""
    of_process = [each for each in runs if process_of(each.path) == process_of(run.path)]
    shares = wall_shares(of_process, ended.start_ns, ended.end_ns)
    if shares is not None:
        log = EventLog(run.path)
        log.write("wall", **shares.to_dict())
        log.close()
    return shares


def _headroom_of(runs: list[Run]) -> Event | None:
    """Return what replay found of the longest loop that was replayed; None where none was."""
    known = [event for run in runs if (event := run.event("headroom")) is not None]
    if not known:
        return None
    return {name: value for name, value in known[-1].items() if name not in ("event", "t_ns")}
