"""`labkit watch -- python train.py`: run a script unchanged, and say what helps.

Its training loop is recorded from inside (`labkit.watching.hook`).
"""

from __future__ import annotations

import os
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from labkit.diagnosis.findings import Diagnosis
from labkit.diagnosis.hot_lines import sampled_lines
from labkit.diagnosis.several_runs import dropped_passes, judge_runs, runs_in
from labkit.diagnosis.wall_shares import shares_of
from labkit.instruments.hangs import HangWatch, say
from labkit.process import folders
from labkit.process.family import exit_name
from labkit.process.leftovers import delete_run
from labkit.results import saving
from labkit.results.run_data import RunData
from labkit.stamps.events import FILE_NAME, events_named, now_ns
from labkit.tuning.script_bench import runnable
from labkit.view.display import loop_summary
from labkit.watching.headroom import TOO_SOON
from labkit.watching.run_folders import (
    TELEMETRY,
    folders_in,
    run_in_foreground,
    telemetry_beside,
    watched_environment,
)

Report = dict[str, Any]
"""What `labkit watch --json` prints; its `text` is what is printed without it."""
WRAP = "Wrap what the loop goes over: `for batch in lk.watch(loader):`."
# Why no step was recorded
NO_HOOK = (
    "error: labkit's hook was not loaded. The command starts no Python, or starts it with -I, -E "
    "or -S, or with another PYTHONPATH: leave these out and add to PYTHONPATH what it holds. "
    f"{WRAP}"
)
NO_LOOP = f"no loader seen here: no step of a loop over a DataLoader was recorded. {WRAP}"
TO_TRY = "to try settings on it: labkit tune -- <the same command>"  # which may hold a secret


def no_verdict(text: str, bottleneck: str | None = None) -> Report:
    """Return the report where no step was seen."""
    found = {"bottleneck": bottleneck, "confidence": 0.0, "findings": []}
    return found | {"headroom": None, "record": None, "text": text}


def watch_script(
    command: list[str], quiet_stdout: bool = False, headroom: bool = False
) -> tuple[Report, int]:
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
    command = runnable(command, "watch")
    stdout = 2 if quiet_stdout else None
    start_ns = now_ns()
    try:
        folder = folders.new_run()
    except Exception as error:
        code = run_in_foreground(command, dict(os.environ), stdout)
        report = no_verdict(f"not recorded: {error}")
    else:
        more = {"LABKIT_HEADROOM": "1"} if headroom else {}
        with HangWatch(partial(runs_with_telemetry, folder)) as hangs:
            env = watched_environment(LABKIT_WATCHING=str(folder), **more)
            code = run_in_foreground(command, env, stdout)
        for file in folder.glob(f"*/{TELEMETRY}"):
            file.unlink(missing_ok=True)  # which ends it
        try:
            hang = hangs.last[1]["text"] if hangs.last else ""
            report = report_of(folder, start_ns, code, hang, headroom)
        except (Exception, KeyboardInterrupt) as error:  # the script is over: its exit code counts
            why = f"{type(error).__name__}: {error}"
            report = no_verdict(f"the verdict failed ({why}); the script ran to its end.")
    return report, code


def runs_with_telemetry(folder: Path) -> list[Path]:
    """Return the runs of a script's loops; each has its telemetry once its device is known.

    The processes that sample it are ours, not the script's, and end with us.
    """
    runs = folders_in(folder)
    for run in runs:
        if not (run / TELEMETRY).exists() and any(events_named("machine", run / FILE_NAME)):
            telemetry_beside(run)
    return runs


def report_of(folder: Path, start_ns: int, code: int, hang: str, headroom: bool) -> Report:
    """Judge a script that has ended by what was recorded of it.

    `hang` says what it hung in at last, if it did; `headroom`: it was asked for.
    """
    end_ns = now_ns()
    runs = runs_in(folder)
    if dropped := dropped_passes(runs):
        return no_verdict(dropped, "input")
    if verdict := judge_runs(runs, start_ns, end_ns):
        return report_of_steps(*verdict, headroom)
    if hang:
        return no_verdict(f"before the first step was over, {hang}")
    why = why_nothing(folder)
    delete_run(folder)
    if code:
        name = exit_name(128 - code if code > 128 else code)
        why = f"the script failed ({name}) before a training step was seen."
    return no_verdict(why)


def report_of_steps(run: RunData, verdict: Diagnosis, headroom: bool) -> Report:
    """Return the report on a script whose steps were seen."""
    shares, replayed = shares_of(run), run.event("headroom")
    more = [f"whole time: {shares}"] if shares else []
    if headroom:
        more.append(replayed["text"] if replayed else TOO_SOON)
    return verdict.to_dict() | {
        "text": loop_summary(run, verdict, TO_TRY, *more),
        "headroom": replayed,
        "record": str(run.path),
        "lines": [*map(asdict, sampled_lines(run).lines)],
        "wall_shares": shares and asdict(shares),
    }


def why_nothing(folder: Path) -> str:
    """Say why no step was recorded, by the files that the hook leaves on its way."""
    if (failed := folder / "failed").exists():
        error = failed.read_text(encoding="utf-8", errors="replace")
        do = "Install labkit in the environment that the script runs in."
        return f"error: labkit could not be loaded in the script's process ({error}). {do}"
    return NO_LOOP if (folder / "python").exists() else NO_HOOK


def write_report(report: Report, path: str | None) -> None:
    """Write the report as a page of HTML, where a path is given; it replaces an earlier one.

    The script has run: what cannot be written is said, and changes neither verdict nor exit code.
    """
    if path is None:
        return
    try:
        if report["record"] is None:
            raise ValueError("no training step was seen.")
        from labkit.view import run_figure  # with matplotlib, which a script does not wait for

        run = RunData(Path(report["record"]))
        run.follow()
        saving.save_text(path, run_figure.html_page(run, report["text"]), overwrite=True)
    except (OSError, ValueError) as error:
        say(f"{path} is not written: {error}", by="labkit watch")
