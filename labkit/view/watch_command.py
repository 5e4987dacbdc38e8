"""`labkit watch -- python train.py`: run a script unchanged, and say what held it back.

Its training loop is recorded from inside (`labkit.watching.hook`).
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from labkit.diagnosis.watched_script import dropped_passes, judge_runs, runs_in
from labkit.instruments.hangs import HangWatch, LiveHang
from labkit.instruments.messages import say
from labkit.process import folders
from labkit.process.family import exit_name
from labkit.process.run_mark import delete_run
from labkit.results import saving
from labkit.results.privacy import shown_command
from labkit.results.run_data import RunData
from labkit.stamps.events import EventLog, now_ns
from labkit.tuning.script_bench import runnable
from labkit.view import report
from labkit.view.script_words import Values, text_inside, values_inside
from labkit.watching.foreground import Foreground, hold_closed_streams
from labkit.watching.run_folders import folders_in, hooked
from labkit.watching.script_process import NOT_LOADED, ScriptTelemetry, why_nothing

# What `labkit watch --json` says where nothing was recorded
NOTHING: Values = {
    "seen": None,
    "bottleneck": None,
    "confidence": "none",
    "findings": [],
    "headroom": None,
    "advice": "",
}
_say = partial(say, by="labkit watch")


@dataclass(frozen=True)
class Judged:
    """What was found about a script that has ended."""

    # What `labkit watch --json` prints: `exit_code`, `bottleneck`, `confidence`, `evidence`,
    # `advice`, `seen` ("inside", or None where nothing was recorded) and what else is known
    values: Values
    text: str
    run: RunData | None = None  # that the verdict is of; None where no step was seen


def watch_script(
    command: list[str], quiet_stdout: bool = False, headroom: bool = False
) -> tuple[Judged, int]:
    """Run `command` (a first "--" is left out) in our place; return the verdict and the exit code.

    A script that cannot be executed by itself, `train.py`, is run by our own Python. The code is,
    for a signal, 128 and its number, as in a shell. Where nothing can be recorded, it runs all the
    same.

    Args:
        command: The script and its arguments.
        quiet_stdout: Whether the script's stdout goes to stderr.
        headroom: Whether to replay some batches of its training loops.

    Raises:
        ValueError: There is no command, or it cannot be started.
    """
    hold_closed_streams()
    command = runnable(command, "watch")
    start_ns = now_ns()
    try:
        folder = folders.new_run()
    except Exception as error:
        text = f"not recording: {error}"
        _say(text)
        code = Foreground().run(command, dict(os.environ), 2 if quiet_stdout else None)
        found = Judged(NOTHING | {"evidence": text}, "")  # that is said already
    else:
        code, found = _recorded(folder, command, quiet_stdout, headroom)
    of_script: Values = {
        "command": shown_command(command),
        "exit_code": code,
        "seconds": round((now_ns() - start_ns) / 1e9, 3),
    }
    text = found.text
    if found.values["bottleneck"] == "input":
        text += "\nto try settings on it: labkit tune -- <the same command>"  # it may hold a secret
    return replace(found, values=of_script | found.values, text=text), code


def _recorded(
    folder: Path, command: list[str], quiet_stdout: bool, headroom: bool
) -> tuple[int, Judged]:
    """Run a command whose loops are recorded into `folder`; return its exit code and verdict."""
    env = hooked(LABKIT_WATCHING=str(folder))
    env |= {"LABKIT_HEADROOM": "1"} if headroom else {}
    telemetry = ScriptTelemetry(folder)
    hangs = HangWatch(telemetry.look, _say)
    foreground = Foreground()
    start_ns = now_ns()
    try:
        with hangs:
            code = foreground.run(command, env, 2 if quiet_stdout else None)
    finally:
        telemetry.end()
    try:
        end_ns = now_ns()
        _note_stops(folder, foreground.stops_ns)
        runs = runs_in(folder)
        if dropped := dropped_passes(runs):
            told = {"bottleneck": "input", "seen": "inside", "evidence": dropped}
            return code, Judged(NOTHING | told, f"Bottleneck input: {dropped}")
        found = judge_runs(runs, start_ns, end_ns)
        if found is None:
            return code, _of_nothing(folder, code, hangs.last)
        values = values_inside(found, headroom)
        if hangs.last is not None:
            values["hang"] = hangs.last.to_dict()
        return code, Judged(values, text_inside(found, hangs.last, headroom), found.run)
    except (Exception, KeyboardInterrupt) as error:  # the script is over: its exit code counts
        text = f"the verdict failed ({type(error).__name__}: {error}); the script ran to its end."
        return code, Judged(NOTHING | {"bottleneck": "unsure", "evidence": text}, text)


def _note_stops(folder: Path, stops_ns: list[tuple[int, int]]) -> None:
    """Write into each run's log when the script was stopped (Ctrl-Z): that is no time of it."""
    for each in folders_in(folder) if stops_ns else ():
        log = EventLog(each)
        for began, ended in stops_ns:
            log.write("paused", began=began, ended=ended)
        log.close()


def write_report(found: Judged, path: str | None, overwrite: bool) -> None:
    """Write what was found as a page of HTML, where a path is given.

    The script has run: what cannot be written is said, and changes neither verdict nor exit code.
    """
    if path and found.run is None:
        _say(f"{path} is not written: no training step was seen.")
    elif path and found.run:
        try:
            saving.save_text(path, report.html_page(found.run, found.text), overwrite)
        except (OSError, ValueError) as error:
            _say(f"{path} is not written: {error}")


def _of_nothing(folder: Path, code: int, hang: LiveHang | None) -> Judged:
    """Say why no step of a script was recorded; `hang` is what kept it from one, if it hung."""
    if hang is not None:
        told = f"before the first step was over, {hang.text}"
        values = NOTHING | {
            "bottleneck": "unsure",
            "evidence": told,
            "record": str(hang.folder),
            "hang": hang.to_dict(),
        }
        return Judged(values, f"{told}\nrecord: {hang.folder}")
    told = why_nothing(folder)
    delete_run(folder)
    if code:
        name = exit_name(128 - code if code > 128 else code)
        failed = f"the script failed ({name}) before a training step was seen."
        told = f"{failed} {told}" if told.startswith(NOT_LOADED) else failed
    return Judged(NOTHING | {"evidence": told}, told)
