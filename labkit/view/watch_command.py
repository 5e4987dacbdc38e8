"""`labkit watch -- python train.py`, and `labkit tune`: run a script unchanged, and say what helps.

Its training loop is recorded from inside (`labkit.watching.hook`).
"""

from __future__ import annotations

import os
import shlex
import shutil
import tempfile
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from labkit.diagnosis.hot_lines import lines_of
from labkit.diagnosis.wall_shares import shares_of
from labkit.diagnosis.watched_script import ScriptVerdict, dropped_passes, judge_runs, runs_in
from labkit.instruments.hangs import HangWatch, LiveHang
from labkit.instruments.messages import say
from labkit.instruments.telemetry_process import TELEMETRY_AFTER_NS, telemetry_beside
from labkit.process import folders
from labkit.process.family import exit_name
from labkit.process.leftovers import delete_run
from labkit.results import saving
from labkit.results.privacy import shown_command
from labkit.results.run_data import RunData
from labkit.stamps.events import FILE_NAME, EventLog, events_named, now_ns
from labkit.tuning.script_bench import runnable
from labkit.watching.foreground import Foreground
from labkit.watching.run_folders import folders_in, hooked

if TYPE_CHECKING:
    from labkit.tuning.search_result import Tuning

Values = dict[str, object]  # as JSON types
# What `labkit watch --json` says where nothing was recorded
NOTHING: Values = {
    "seen": None,
    "bottleneck": None,
    "confidence": "none",
    "findings": [],
    "headroom": None,
    "advice": "",
}
MOST_LINES = 20  # of code that are listed
SURE = ((0.9, "high"), (0.6, "medium"), (0.01, "low"))
WRAP = "Wrap what the loop goes over: `for batch in lk.watch(loader):`."
NOT_LOADED = (
    "error: labkit's hook was not loaded. The command starts no Python, or starts it with -I, -E "
    "or -S, or with another PYTHONPATH: leave these out and add to PYTHONPATH what it holds. "
    f"{WRAP}"
)
NOT_TRAINED = "headroom: not measured, as no optimizer made a step within a DataLoader's loop."
TUNES = (
    "runs `{}` again and again, with one change each, and interrupts it (as by "
    "Ctrl-C) after some seconds of training: {:.0f} s at most after the first run. What it writes "
    "by then is written {}."
)
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
    command = runnable(command, "watch")
    stdout = 2 if quiet_stdout else None
    start_ns = now_ns()
    try:
        folder = folders.new_run()
    except Exception as error:
        _say(text := f"not recording: {error}")
        code = Foreground().run(command, dict(os.environ), stdout)
        found = Judged(NOTHING | {"evidence": text}, "")  # that is said already
    else:
        code, found = _recorded(folder, command, stdout, headroom)
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
    folder: Path, command: list[str], stdout: int | None, headroom: bool
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
            code = foreground.run(command, env, stdout)
    finally:
        telemetry.end()
    try:
        for each in folders_in(folder) if foreground.stops_ns else ():
            log = EventLog(each)
            for began, ended in foreground.stops_ns:  # that is no time of its loops
                log.write("paused", began=began, ended=ended)
        return code, _judged(folder, start_ns, code, hangs.last, headroom)
    except (Exception, KeyboardInterrupt) as error:  # the script is over: its exit code counts
        text = f"the verdict failed ({type(error).__name__}: {error}); the script ran to its end."
        return code, Judged(NOTHING | {"bottleneck": "unsure", "evidence": text}, text)


def _judged(
    folder: Path, start_ns: int, code: int, hang: LiveHang | None, headroom: bool
) -> Judged:
    """Judge a script by what was recorded of it; `hang` is what it hung in at last."""
    end_ns = now_ns()
    runs = runs_in(folder)
    if dropped := dropped_passes(runs):
        told = {"bottleneck": "input", "seen": "inside", "evidence": dropped}
        return Judged(NOTHING | told, f"Bottleneck input: {dropped}")
    found = judge_runs(runs, start_ns, end_ns)
    if found is None:
        return _of_nothing(folder, code, hang)
    values = values_inside(found, headroom)
    if hang is not None:
        values["hang"] = hang.to_dict()
    return Judged(values, _text_inside(found, hang, headroom), found.run)


def values_inside(found: ScriptVerdict, headroom: bool) -> Values:
    """Return what `--json` says of a script whose steps were seen; `headroom`: it was asked for."""
    run = found.run
    verdict = found.ranks.verdict
    values = verdict.to_dict() | {
        "evidence": verdict.evidence,
        "advice": verdict.advice,
        "seen": "inside",
        "confidence": next((word for least, word in SURE if verdict.confidence >= least), "none"),
        "record": str(run.path),
        "lines": [line.to_dict() for line in lines_of(run).lines[:MOST_LINES]],
        "ranks": {str(rank): own.bottleneck for rank, own in found.ranks.own.items()},
        "run": {name: value for name, value in run.to_dict().items() if name != "loss"},
        "workers": run.workers.to_dict(),
    }
    shares = shares_of(run)
    if shares is not None:
        values["wall_shares"] = asdict(shares)
    if headroom:
        values["headroom"] = found.headroom
    return values


def _text_inside(found: ScriptVerdict, hang: LiveHang | None, headroom: bool) -> str:
    """Return what is printed of a script whose steps were seen; `hang`, if it ended in one."""
    run = found.run
    texts = [run.numbers, str(found.ranks.verdict)]
    shares = shares_of(run)
    if shares is not None:
        texts.append(f"whole time: {shares}")
    if headroom:
        texts.append(found.headroom["text"] if found.headroom else NOT_TRAINED)
    if hang is not None:
        texts.append(f"a hang: {hang.text}")
    lines = lines_of(run)
    if len(lines):
        texts.append(str(lines))
    texts.append(f"record: {run.path} (lk.load, labkit diagnose)")
    return "\n".join(texts)


def _of_nothing(folder: Path, code: int, hang: LiveHang | None) -> Judged:
    """Say why no step of a script was recorded; `hang` is what kept it from one, if it hung."""
    if hang is not None:
        told = f"before the first step was over, {hang.text}"
        of_hang = {"evidence": told, "record": str(hang.folder), "hang": hang.to_dict()}
        values = NOTHING | {"bottleneck": "unsure"} | of_hang
        return Judged(values, f"{told}\nrecord: {hang.folder}")
    told = _why_nothing(folder)
    delete_run(folder)
    if code:
        name = exit_name(128 - code if code > 128 else code)
        failed = f"the script failed ({name}) before a training step was seen."
        told = f"{failed} {told}" if told == NOT_LOADED else failed
    return Judged(NOTHING | {"evidence": told}, told)


def _why_nothing(folder: Path) -> str:
    """Say why no step was recorded, by the files that the hook leaves on its way."""
    if (failed := folder / "failed").exists():
        error = failed.read_text(encoding="utf-8", errors="replace")
        do = "Install labkit in the environment that the script runs in."
        return f"error: labkit could not be loaded in the script's process ({error}). {do}"
    if not (folder / "python").exists():
        return NOT_LOADED
    if not (folder / "torch").exists():
        return f"error: no process imported torch.utils.data or torch.optim. {WRAP}"
    if not folders_in(folder):
        return f"no DataLoader was iterated, and no optimizer made three steps. {WRAP}"
    return "a loop was seen, but none of its steps was over when it ended: let it run for longer."


class ScriptTelemetry:
    """Samples the instruments beside each loop of a script, by processes of ours, not of its own.

    Each of them ends with the loop's process, and with us.
    """

    def __init__(self, folder: Path):
        self.folder = folder
        self.beside: dict[Path, Path | None] = {}  # of each run, the file that its telemetry needs

    def look(self) -> list[Path]:
        """Start what loops still lack that have known their device for a while; return all."""
        found = folders_in(self.folder)
        for run in set(found) - set(self.beside):
            machine = next(events_named("machine", run / FILE_NAME), None)
            if machine is not None and now_ns() - machine["t_ns"] > TELEMETRY_AFTER_NS:
                self.beside[run] = telemetry_beside(run)
        return found

    def end(self) -> None:
        """End those that are left."""
        for file in filter(None, self.beside.values()):
            file.unlink(missing_ok=True)


def write_report(found: Judged, path: str | None, overwrite: bool) -> None:
    """Write what was found as a page of HTML, where a path is given.

    The script has run: what cannot be written is said, and changes neither verdict nor exit code.
    """
    if path and found.run is None:
        _say(f"{path} is not written: no training step was seen.")
    elif path and found.run:
        from labkit.view import report  # with matplotlib, which a script does not wait for

        try:
            saving.save_text(path, report.html_page(found.run, found.text), overwrite)
        except (OSError, ValueError) as error:
            _say(f"{path} is not written: {error}")


def tune_command(command: list[str], budget: float, in_copy: bool, seconds: float = 3.0) -> Tuning:
    """Tune a script in this folder, or in a copy of it that is removed afterwards."""
    from labkit.view.running import tune_script

    place = "in a copy of this folder, which is removed" if in_copy else "here (see --cwd-copy)"
    say(TUNES.format(shlex.join(runnable(command)), budget, place), by="labkit tune")
    if not in_copy:
        return tune_script(command, seconds=seconds, budget=budget)
    with tempfile.TemporaryDirectory(dir=folders.home()) as scratch:
        copied = Path(scratch, "copy")
        shutil.copytree(Path.cwd(), copied, symlinks=True)
        return tune_script(command, seconds=seconds, budget=budget, cwd=copied)
