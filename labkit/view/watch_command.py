"""`labkit watch -- python train.py`: run a script unchanged, and say what helps.

Its training loop is recorded from inside (`labkit.watching.hook`).
"""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path

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
from labkit.stamps.events import FILE_NAME, events_named, now_ns
from labkit.tuning.script_bench import runnable
from labkit.watching.foreground import run_in_foreground
from labkit.watching.headroom import TOO_SOON
from labkit.watching.run_folders import folders_in, hooked

Values = dict[str, object]  # as JSON types
MOST_LINES = 20  # of code that are listed
SURE = ((0.9, "high"), (0.6, "medium"), (0.01, "low"))
WRAP = "Wrap what the loop goes over: `for batch in lk.watch(loader):`."
NOT_LOADED = (
    "error: labkit's hook was not loaded. The command starts no Python, or starts it with -I, -E "
    "or -S, or with another PYTHONPATH: leave these out and add to PYTHONPATH what it holds. "
    f"{WRAP}"
)
TO_TRY = "to try settings on it: labkit tune -- <the same command>"  # which may hold a secret
_say = partial(say, by="labkit watch")


@dataclass(frozen=True)
class Judged:
    """What was found about a script that has ended."""

    # What `labkit watch --json` prints: `exit_code`, `bottleneck`, `confidence`, `evidence`,
    # `advice`, `seen` ("inside", or None where nothing was recorded) and what else is known
    values: Values
    text: str
    run: RunData | None = None  # that the verdict is of; None where no step was seen


def without_verdict(evidence: str, text: str | None = None, **known: object) -> Judged:
    """Return what is said where no step was seen; it is printed as `text`, where that is given."""
    values: Values = {
        "seen": None,
        "bottleneck": None,
        "confidence": "none",
        "findings": [],
        "headroom": None,
        "advice": "",
        "evidence": evidence,
    }
    return Judged(values | known, evidence if text is None else text)


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
        code = run_in_foreground(command, dict(os.environ), stdout)
        found = without_verdict(text, "")  # that is said already
    else:
        more = {"LABKIT_HEADROOM": "1"} if headroom else {}
        with ScriptTelemetry(folder) as telemetry, HangWatch(telemetry.look) as hangs:
            env = hooked(LABKIT_WATCHING=str(folder), **more)
            code = run_in_foreground(command, env, stdout)
        try:
            found = _judged(folder, start_ns, hangs.last, headroom)
            found = found or _of_nothing(folder, code, hangs.last)
        except (Exception, KeyboardInterrupt) as error:  # the script is over: its exit code counts
            text = (
                f"the verdict failed ({type(error).__name__}: {error}); the script ran to its end."
            )
            found = without_verdict(text, bottleneck="unsure")
    of_script: Values = {
        "command": shown_command(command),
        "exit_code": code,
        "seconds": round((now_ns() - start_ns) / 1e9, 3),
    }
    return replace(found, values=of_script | found.values), code


def _judged(folder: Path, start_ns: int, hang: LiveHang | None, headroom: bool) -> Judged | None:
    """Judge a script by what was recorded of it; None where no step was.

    `hang` is what it hung in at last, if it did; `headroom`: it was asked for.
    """
    end_ns = now_ns()
    runs = runs_in(folder)
    if dropped := dropped_passes(runs):
        text = f"Bottleneck input: {dropped}"
        return without_verdict(dropped, text, bottleneck="input", seen="inside")
    found = judge_runs(runs, start_ns, end_ns)
    return None if found is None else _of_run(found, hang, headroom)


def _of_run(found: ScriptVerdict, hang: LiveHang | None, headroom: bool) -> Judged:
    """Return what is said of a script whose steps were seen, and which may have hung."""
    run = found.run
    verdict = found.ranks.verdict
    shares = shares_of(run)
    lines = lines_of(run)
    values = verdict.to_dict() | {
        "evidence": verdict.evidence,
        "advice": verdict.advice,
        "seen": "inside",
        "confidence": next((word for least, word in SURE if verdict.confidence >= least), "none"),
        "record": str(run.path),
        "lines": [line.to_dict() for line in lines.lines[:MOST_LINES]],
        "ranks": {str(rank): own.bottleneck for rank, own in found.ranks.own.items()},
        "run": {name: value for name, value in run.to_dict().items() if name != "loss"},
        "workers": run.workers.to_dict(),
    }
    texts = [run.numbers, str(verdict)]
    if shares is not None:
        values["wall_shares"] = asdict(shares)
        texts.append(f"whole time: {shares}")
    if headroom:
        values["headroom"] = found.headroom
        texts.append(found.headroom["text"] if found.headroom else TOO_SOON)
    if hang is not None:
        values["hang"] = hang.event
        texts.append(f"a hang: {hang.event['text']}")
    texts += [str(lines)] if len(lines) else []
    texts.append(f"record: {run.path} (lk.load, labkit diagnose)")
    texts += [TO_TRY] if verdict.bottleneck == "input" else []
    return Judged(values, "\n".join(texts), run)


def _of_nothing(folder: Path, code: int, hang: LiveHang | None) -> Judged:
    """Say why no step of a script was recorded; `hang` is what kept it from one, if it hung."""
    if hang is not None:
        told = f"before the first step was over, {hang.event['text']}"
        known = {"record": str(hang.folder), "hang": hang.event}
        text = f"{told}\nrecord: {hang.folder}"
        return without_verdict(told, text, bottleneck="unsure", **known)
    told = _why_nothing(folder)
    delete_run(folder)
    if code:
        name = exit_name(128 - code if code > 128 else code)
        failed = f"the script failed ({name}) before a training step was seen."
        told = f"{failed} {told}" if told == NOT_LOADED else failed
    return without_verdict(told)


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
        return f"no loader seen here: no DataLoader was iterated. {WRAP}"
    return "a loop was seen, but none of its steps was over when it ended: let it run for longer."


class ScriptTelemetry:
    """Samples the instruments beside each loop of a script, by processes of ours, not of its own.

    Each of them ends with the loop's process, and with us.
    """

    def __init__(self, folder: Path):
        self.folder = folder
        self.beside: dict[Path, Path | None] = {}  # of each run, the file that its telemetry needs

    def __enter__(self) -> ScriptTelemetry:
        return self

    def look(self) -> list[Path]:
        """Start what loops still lack that have known their device for a while; return all."""
        found = folders_in(self.folder)
        for run in set(found) - set(self.beside):
            machine = next(events_named("machine", run / FILE_NAME), None)
            if machine is not None and now_ns() - machine["t_ns"] > TELEMETRY_AFTER_NS:
                self.beside[run] = telemetry_beside(run)
        return found

    def __exit__(self, *_error: object) -> None:
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
