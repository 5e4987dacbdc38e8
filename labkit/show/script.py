"""`labkit watch -- python train.py`: run a script unchanged, and say what held it back.

The script is a process like any other: arguments, stdin, output, signals and exit code are its own.
Where it is Python with a training loop, that loop is recorded from inside (`labkit.bench.hook`);
its processes are looked at from outside in any case.
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
    """Run `command` in our place; return what was found, as JSON types and in words.

    Args:
        command: The script with its arguments; a first "--" is left out.
        quiet_stdout: Send the script's stdout to stderr.
        outside: Look from outside only.

    Returns:
        A dict with `exit_code` (for a signal 128 and its number, as a shell has it), `bottleneck`,
        `confidence`, `evidence`, `advice`, `seen` ("inside" or "outside") and what else is known;
        and a text.

    Raises:
        ValueError: There is no command, or it cannot be started.
    """
    command = command[1:] if command[:1] == ["--"] else command
    if not command:
        raise ValueError("give the script to watch: labkit watch -- python train.py")
    folder = folders.new_run()
    env = dict(os.environ)
    if not outside:
        paths = filter(None, [str(SITE), env.get("PYTHONPATH")])
        env |= {"LABKIT_WATCHING": str(folder), "PYTHONPATH": os.pathsep.join(paths)}
    start = time.monotonic()
    code, samples = _run(command, env, quiet_stdout)
    found = {"command": command, "exit_code": 128 - code if code < 0 else code}
    found |= {"seconds": round(time.monotonic() - start, 3), "seen": "outside"}
    runs = [_loaded(each) for each in sorted(folder.iterdir())]
    runs = [run for run in runs if run is not None]
    if not runs:
        shutil.rmtree(folder, ignore_errors=True)
        found |= judge(samples)
        sure = "" if found["confidence"] == "none" else f" ({found['confidence']} confidence)"
        return found, (
            f"bottleneck {found['bottleneck']}{sure}, seen from outside: {found['evidence']} "
            f"{found['advice']}"
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
        raise ValueError(f"cannot start {command[0]!r}: {error.strerror}.") from None
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _loaded(folder: Path) -> Run | None:
    """Return the run of a loop that made a step; None where there was none."""
    with contextlib.suppress(ValueError, OSError):
        if (run := Run(folder)).steps:
            return run
    return None


def _from_inside(found: dict[str, Any], runs: list[Run]) -> tuple[dict[str, Any], str]:
    """Judge the loop that took most of the time; of several ranks, each one's."""
    longest: dict[str, Run] = {}
    for run in runs:
        rank = run.path.name.split("-")[0]
        if rank not in longest or _wall(run) > _wall(longest[rank]):
            longest[rank] = run
    verdicts = {rank: run.diagnose() for rank, run in longest.items()}
    rank = min(longest, key=lambda rank: int(rank) if rank.isdigit() else 0)
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


def _wall(run: Run) -> float:
    """Return how long the loop of a run went on, s."""
    return float(run.stamps[-1, 5]) if run.steps else 0.0
