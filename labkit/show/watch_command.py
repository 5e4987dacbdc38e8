"""`python -m labkit watch -- python train.py`: an unmodified script, seen from outside.

The script keeps its stdin, stdout, stderr, its place in the terminal and its exit code. The verdict
goes to stderr. With --json the verdict is the one thing on stdout, and what the script writes to
its stdout goes to stderr.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import signal
import subprocess
import sys
import time
from typing import Any

from labkit.analysis.outside_verdict import judge
from labkit.bench.outside import Outside

PASSED_ON = ("SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2")  # what a scheduler sends to its child


def arguments(sub: argparse.ArgumentParser) -> None:
    """Add what `labkit watch` takes to its parser."""
    sub.usage = "labkit watch [--json] -- COMMAND [ARGUMENT ...]"
    sub.add_argument("script", nargs=argparse.REMAINDER, metavar="-- COMMAND")


def watch(options: argparse.Namespace) -> int:
    """`labkit watch`: run the command, say what was seen, return the command's exit code.

    A command that a signal ended gives 128 and the signal's number, as a shell says it. Raises
    ValueError where there is no command or it cannot be started.
    """
    command = options.script[1:] if options.script[:1] == ["--"] else options.script
    if not command:
        raise ValueError("give the script to watch: labkit watch -- python train.py")
    start = time.monotonic()
    code, samples = _run(command, quiet_stdout=options.json)
    found = {
        "command": command,
        "exit_code": code,
        "seconds": round(time.monotonic() - start, 3),
        **judge(samples),
    }
    if options.json:
        print(json.dumps(found, allow_nan=False))
    else:
        print(f"labkit watch: {sentence(found)}", file=sys.stderr)
    return code


def sentence(found: dict[str, Any]) -> str:
    """The verdict in words."""
    confidence = "" if found["confidence"] == "none" else f" ({found['confidence']} confidence)"
    return (
        f"bottleneck {found['bottleneck']}{confidence}, seen from outside: {found['evidence']} "
        f"{found['advice']}"
    )


def _run(command: list[str], quiet_stdout: bool) -> tuple[int, list]:
    """Run `command` in our place; return its exit code and what was seen of it."""
    started: list[subprocess.Popen] = []
    # Ctrl-C reaches the script through the terminal: it decides, and we report
    before = {signal.SIGINT: signal.signal(signal.SIGINT, lambda *_: None)}
    for name in PASSED_ON:
        if number := getattr(signal, name, None):
            before[number] = signal.signal(number, lambda n, _: _send(started, n))
    try:
        sys.stdout.flush()
        try:
            child = subprocess.Popen(command, stdout=sys.stderr if quiet_stdout else None)
        except OSError as error:
            raise ValueError(f"cannot start {command[0]!r}: {error.strerror}.") from None
        started.append(child)
        outside = Outside(child.pid)
        code = child.wait()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    return (128 - code if code < 0 else code), outside.stop()


def _send(started: list[subprocess.Popen], number: int) -> None:
    for child in started:
        with contextlib.suppress(OSError):
            child.send_signal(number)
