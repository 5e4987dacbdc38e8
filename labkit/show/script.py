"""`labkit watch -- python train.py`: run a script unchanged, and say what held it back.

Its training loop is recorded from inside (`labkit.bench.hook`), its processes from outside.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from labkit.analysis.outside_verdict import judge
from labkit.bench.telemetry import Outside
from labkit.process import folders
from labkit.results.run import Run

PASSED_ON = ("SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2")  # what a scheduler sends to its child
SITE = Path(__file__).parents[1] / "bench" / "site"
SURE = ((0.9, "high"), (0.6, "medium"), (0.01, "low"))


def watch_script(
    command: list[str], quiet_stdout: bool = False, outside: bool = False
) -> tuple[dict[str, Any], str]:
    """Run `command` (a first "--" is left out) in our place; return what was found, and a text.

    A script that cannot be executed by itself, `train.py`, is run by our own Python.

    The dict has `exit_code` (for a signal 128 and its number, as in a shell), `bottleneck`,
    `confidence`, `evidence`, `advice`, `seen` ("inside" or "outside") and what else is known.
    `quiet_stdout` sends the script's stdout to stderr, `outside` looks from there only. Raises
    ValueError where there is no command, or it cannot be started.
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
    start = time.monotonic()
    code, samples = _run(command, env, quiet_stdout)
    found = {"command": command, "exit_code": 128 - code if code < 0 else code}
    found |= {"seconds": round(time.monotonic() - start, 3), "seen": "outside"}
    runs = []
    for each in sorted(folder.iterdir()):
        with contextlib.suppress(ValueError, OSError):
            runs += [run] if (run := Run(each)).steps else []
    if not runs:
        shutil.rmtree(folder, ignore_errors=True)
        found |= judge(samples)
        if code > 0 and not outside:
            told = f"the script failed (exit code {code}) before a training step was seen."
            found |= judge([]) | {"evidence": told, "advice": ""}
        sure = "" if found["confidence"] == "none" else f" ({found['confidence']} confidence)"
        return found, (
            f"bottleneck {found['bottleneck']}{sure}, seen from outside: {found['evidence']} "
            f"{found['advice']}".rstrip()
        )
    return _from_inside(found, runs)


def _run(command: list[str], env: dict[str, str], quiet_stdout: bool) -> tuple[int, list[Any]]:
    """Run the command to its end; return its exit code, and what was seen from outside."""
    started: list[subprocess.Popen] = []

    def send(number: int, _frame: Any) -> None:
        for child in started:
            with contextlib.suppress(OSError):
                child.send_signal(number)

    # Ctrl-C reaches the script through the terminal: it decides, and we report
    handlers = {signal.SIGINT: lambda *_: None}
    handlers |= {getattr(signal, n): send for n in PASSED_ON if hasattr(signal, n)}
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        sys.stdout.flush()
        stdout = sys.stderr if quiet_stdout else None
        started.append(subprocess.Popen(command, stdout=stdout, env=env))
        seen = Outside(started[0].pid)
        return started[0].wait(), seen.stop()
    except OSError as error:
        remedy = "Give the command as a shell takes it: labkit watch -- python train.py"
        raise ValueError(f"cannot start {command[0]!r}: {error.strerror}. {remedy}") from None
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _from_inside(found: dict[str, Any], runs: list[Run]) -> tuple[dict[str, Any], str]:
    """Judge the loop that took most of the time; of several ranks, each one's."""
    runs = sorted(runs, key=lambda run: run.stamps[-1, 5])  # s that its loop went on
    longest = {run.path.name.split("-")[0]: run for run in runs}
    verdicts = {rank: longest[rank].diagnose() for rank in sorted(longest)}
    rank = min(verdicts, key=lambda rank: int(rank) if rank.isdigit() else 0)
    run, verdict = longest[rank], verdicts[rank]
    sure = next((word for least, word in SURE if verdict.confidence >= least), "none")
    found |= verdict.to_dict() | {
        "seen": "inside", "confidence": sure, "evidence": verdict.evidence,
        "advice": verdict.advice, "record": str(run.path),
        "lines": run.lines.to_dict()["lines"][:20],
        "ranks": {rank: each.bottleneck for rank, each in verdicts.items()},
        "run": {name: value for name, value in run.to_dict().items() if name != "loss"},
    }  # fmt: skip
    text = f"{run.numbers}\n{verdict}"
    if len(run.lines):
        text += f"\n{run.lines}"
    if len(verdicts) > 1:
        text += "\nranks: " + ", ".join(f"{n} {each.headline}" for n, each in verdicts.items())
    return found, f"{text}\nrecord: {run.path} (lk.load, labkit diagnose)"
