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

from labkit.diagnosis.outside_verdict import judge
from labkit.diagnosis.verdict import Diagnosis
from labkit.diagnosis.watched_script import ScriptVerdict, judge_runs, one_batch_a_pass, runs_in
from labkit.process import folders
from labkit.process.events import EventLog, now_ns
from labkit.results.privacy import shown_command
from labkit.results.run import Run
from labkit.results.wall_shares import trains
from labkit.view import report
from labkit.view.script_words import Values, text_inside, values_inside, values_of_hang
from labkit.watching.foreground import run_in_front
from labkit.watching.hangs import HangWatch
from labkit.watching.outside import Sample
from labkit.watching.run_folders import folders_in

SITE = Path(__file__).parents[1] / "watching" / "site"


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
        "command": shown_command(command),
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
    is_over = not ended.hangs.hanging
    of_hang = {} if hang is None else {"hang": values_of_hang(hang, is_over)}
    runs = runs_in(ended.folder)
    dropped = None if any(map(trains, runs)) else one_batch_a_pass(ended.folder)
    if dropped is not None:
        shutil.rmtree(ended.folder, ignore_errors=True)  # no step of its training is in it
        return _of_dropped(dropped)
    if runs:
        found = judge_runs(runs, ended.start_ns, ended.end_ns)
        values = values_inside(found, headroom)
        text = text_inside(found, hang, is_over, headroom)
        _keep(found)
        return Judged(values | of_hang, text, found.run)
    if hang is not None:
        told = f"before the first step was over, {hang.text}"
        seen: Values = {**judge(ended.samples), "evidence": told, "record": str(hang.folder)}
        return Judged(seen | of_hang, f"{told}\nrecord: {hang.folder}")
    return _from_outside(ended, outside)


def _of_dropped(found: Diagnosis) -> Judged:
    """Return what was found of a loop whose passes were all dropped after a batch."""
    values: Values = {**found.to_dict(), "evidence": found.evidence, "advice": found.advice}
    return Judged(values | {"seen": "inside", "confidence": "medium"}, "\n".join(found.three_lines))


def _keep(found: ScriptVerdict) -> None:
    """Write into the judged run's log how the time of the script was shared out."""
    if found.shares is not None:
        log = EventLog(found.run.path)
        log.write("wall", **found.shares.to_dict())
        log.close()


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
