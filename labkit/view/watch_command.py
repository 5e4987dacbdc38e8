"""`labkit watch -- python train.py`: run a script unchanged, and say what held it back.

Its training loop is recorded from inside (`labkit.watching.hook`), its processes from outside.
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

from labkit.bench.telemetry import Outside
from labkit.diagnosis.outside_verdict import judge
from labkit.process import folders
from labkit.results import privacy
from labkit.results.run import Run

PASSED_ON = (
    "SIGINT",
    "SIGTERM",
    "SIGHUP",
    "SIGUSR1",
    "SIGUSR2",
)  # what a scheduler sends to its child
SITE = Path(__file__).parents[1] / "watching" / "site"
GROUP_S = 0.3  # in which a signal reaches every process of a group
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
    found = {"command": privacy.masked(command), "exit_code": 128 - code if code < 0 else code}
    found |= {"seconds": round(time.monotonic() - start, 3), "seen": "outside"}
    try:
        return _judged(found, folder, samples, outside)
    except (Exception, KeyboardInterrupt) as error:  # the script is over: its exit code counts
        told = f"the verdict failed ({type(error).__name__}: {error}); the script ran to its end."
        return found | judge([]) | {"evidence": told, "advice": ""}, told


def _judged(
    found: dict[str, Any], folder: Path, samples: list[Any], outside: bool
) -> tuple[dict[str, Any], str]:
    """Judge a script that has ended by its runs in `folder`, or else from outside."""
    runs = []
    for each in sorted(folder.iterdir()):
        with contextlib.suppress(ValueError, OSError):
            runs += [run] if (run := Run(each)).steps else []
    if not runs:
        shutil.rmtree(folder, ignore_errors=True)
        found |= judge(samples)
        if 0 < (code := found["exit_code"]) < 128 and not outside:
            told = f"the script failed (exit code {code}) before a training step was seen."
            found |= judge([]) | {"evidence": told, "advice": ""}
        sure = "" if found["confidence"] == "none" else f" ({found['confidence']} confidence)"
        return found, (
            f"bottleneck {found['bottleneck']}{sure}, seen from outside: {found['evidence']} "
            f"{found['advice']}".rstrip()
        )
    return _from_inside(found, runs)


class Group:
    """Tells a signal sent to our process group, as Ctrl-C is, from one sent to us alone.

    A process of the group that any signal ends stands beside us; it ends with us as well.
    """

    def __init__(self):
        self.other: subprocess.Popen | None = None
        self._start()

    def _start(self) -> None:
        nowhere = subprocess.DEVNULL
        with contextlib.suppress(OSError):  # no such program: signals are sent on
            self.other = subprocess.Popen(
                ["cat"], stdin=subprocess.PIPE, stdout=nowhere, stderr=nowhere
            )

    def had_it_too(self) -> bool:
        """Return whether a signal that we have just received came to the whole group."""
        if self.other is None:
            return False
        try:
            self.other.wait(GROUP_S)
        except subprocess.TimeoutExpired:
            return False
        self.end()
        self._start()
        return True

    def end(self) -> None:
        """End the process beside us."""
        if self.other is not None:
            self.other.kill()
            self.other.stdin.close()
            self.other.wait()
            self.other = None


def _run(command: list[str], env: dict[str, str], quiet_stdout: bool) -> tuple[int, list[Any]]:
    """Run the command to its end; return its exit code, and what was seen from outside."""
    started: list[subprocess.Popen] = []
    group = Group()

    def send(number: int, _frame: Any) -> None:
        if group.had_it_too():  # as by Ctrl-C in a terminal: the script decides, and we report
            return
        for child in started:
            with contextlib.suppress(OSError):
                child.send_signal(number)

    numbers = [getattr(signal, name) for name in PASSED_ON if hasattr(signal, name)]
    before = {}
    for number in numbers:
        if signal.getsignal(number) != signal.SIG_IGN:  # as under nohup: the script inherits that
            before[number] = signal.signal(number, send)
    try:
        sys.stdout.flush()
        stdout = sys.stderr if quiet_stdout else None
        started.append(subprocess.Popen(command, stdout=stdout, env=env))
        seen = None
        with contextlib.suppress(Exception):  # it has ended, or may not be looked at
            seen = Outside(started[0].pid)
        return started[0].wait(), [] if seen is None else seen.stop()
    except OSError as error:
        remedy = "Give the command as a shell takes it: labkit watch -- python train.py"
        raise ValueError(f"cannot start {command[0]!r}: {error.strerror}. {remedy}") from None
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        group.end()


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
