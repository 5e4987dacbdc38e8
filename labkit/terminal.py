"""What every command of the terminal shares: registering it, printing what it found, exit codes.

With --json a command prints one JSON object on stdout and nothing else there. Errors go to stderr;
the exit code is 2 for bad input, 1 where a run failed, 130 after an interrupt.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from labkit.spec import KNOBS

PASSED_ON = ("SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2")  # what a scheduler sends to its child
START_HERE = """labkit COMMAND --help tells more about each, with examples.

start here:
  labkit machine                        the hardware and versions found
  labkit run --set num_workers=4        one pipeline, for a few seconds
  labkit diagnose PATH                  the bottleneck of a saved run or a profiler trace
  labkit watch -- python train.py       your own script, unchanged

Results go to stdout (--json: one JSON object), progress and errors to stderr. The exit code is 0,
1 where a run failed, 2 where the input was bad, 130 where you interrupted it.
"""


@dataclass
class Answer:
    """What a command found: `result` prints as text, `values` (else its `to_dict()`) as JSON."""

    result: Any
    values: Any = None
    text: str = ""
    code: int = 0


@dataclass(frozen=True)
class Command:
    """A command of the terminal; `run` returns an Answer or an exit code."""

    run: Callable[[argparse.Namespace], Answer | int]
    help: str
    options: tuple
    examples: str
    lists_knobs: bool


COMMANDS: dict[str, Command] = {}


def command(help: str, *options: Any, examples: str = "", lists_knobs: bool = False) -> Callable:
    """Register the decorated function as a command of its name."""

    def register(run: Callable) -> Callable:
        name = run.__name__.replace("_", "-")
        COMMANDS[name] = Command(run, help, options, examples, lists_knobs)
        return run

    return register


def option(*flags: str, **how: Any) -> tuple[tuple, dict]:
    """Return an option, as argparse's `add_argument` takes it."""
    return flags, how


def repeated(flag: str, metavar: str, help: str, **how: Any) -> tuple[tuple, dict]:
    """Return an option that may be given several times."""
    return option(flag, action="append", metavar=metavar, help=help, **how)


SET = repeated("--set", "KNOB=VALUE", "change a knob; may be repeated", default=[], dest="settings")
SAVE = option("--save", metavar="FILE", help="keep the record (.jsonl or .jsonl.gz)")
PLOT = option("--plot", metavar="FILE", help="write the figure (.png, .svg, .pdf)")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    options = parser().parse_args(arguments)
    try:
        answer = options.command(options)
        return answer if isinstance(answer, int) else show(answer, options)
    except (ValueError, RuntimeError, OSError) as error:
        print(f"labkit: {error}", file=sys.stderr)
        return 2 if isinstance(error, ValueError) else 1
    except KeyboardInterrupt:
        print("labkit: interrupted", file=sys.stderr)
        return 130


def parser() -> argparse.ArgumentParser:
    """Return the parser of the whole command line."""
    how = {"formatter_class": argparse.RawDescriptionHelpFormatter}
    about = "Why is my GPU idle, and what do I change?"
    root = argparse.ArgumentParser("labkit", description=about, epilog=START_HERE, **how)
    below = root.add_subparsers(title="commands", required=True, metavar="COMMAND")
    for name, each in COMMANDS.items():
        epilog = each.examples + (f"\n{knobs()}" if each.lists_knobs else "")
        sub = below.add_parser(name, help=each.help, description=each.help, epilog=epilog, **how)
        sub.add_argument("--json", action="store_true", help="print one JSON object on stdout")
        sub.set_defaults(command=each.run)
        for flags, rules in each.options:
            sub.add_argument(*flags, **rules)
    return root


def knobs() -> str:
    """Return the knobs as help text: name, default, what it does, what is allowed."""
    listed = (f"  {k.name}={k.default}: {k.help}\n      {k.allowed}" for k in KNOBS.values())
    return "\n".join(["knobs (--set KNOB=VALUE):", *listed])


def show(answer: Answer, options: argparse.Namespace) -> int:
    """Save, draw and print what was found, as asked for; return the exit code."""
    if getattr(options, "save", None):
        answer.result.save(options.save)
    if getattr(options, "plot", None):
        answer.result.plot().savefig(options.plot)
    if options.json:
        values = answer.result.to_dict() if answer.values is None else answer.values
        print(json.dumps(values, allow_nan=False))
    else:
        print(answer.text or str(answer.result))
    return answer.code


def so_far(function: Callable, *arguments: Any, **more: Any) -> Answer:
    """Call `function`; where it is interrupted, answer with what it has by then (its `last`)."""
    try:
        return Answer(function(*arguments, **more))
    except KeyboardInterrupt:
        last = getattr(function, "last", None)
        if last is None or getattr(last, "winner", last) is None:
            raise
        print("\nlabkit: interrupted; this is what was done by then", file=sys.stderr)
        return Answer(last, code=130)


def progress(what: str) -> Callable[[int, int, str], None]:
    """Return what a long command calls with (done, total, what is next)."""

    def tell(done: int, total: int, name: str) -> None:
        shown = "".join(c if c.isprintable() else " " for c in name)
        print(f"labkit: {done} of {total} {what}; {shown}", file=sys.stderr)

    return tell


def watched(command: list[str], quiet_stdout: bool) -> tuple[dict[str, Any], str]:
    """Run `command` in our place, seen from outside; return what was found, and that in words.

    It keeps stdin, stdout, stderr and its place in the terminal; with `quiet_stdout` its stdout
    goes to stderr. `exit_code` is the command's; for a signal 128 and its number, as a shell has
    it. Raises ValueError where there is no command or it cannot be started.
    """
    from labkit.analysis.outside_verdict import judge

    command = command[1:] if command[:1] == ["--"] else command
    if not command:
        raise ValueError("give the script to watch: labkit watch -- python train.py")
    start = time.monotonic()
    code, samples = _run_in_our_place(command, quiet_stdout)
    seconds = round(time.monotonic() - start, 3)
    found = {"command": command, "exit_code": code, "seconds": seconds, **judge(samples)}
    sure = "" if found["confidence"] == "none" else f" ({found['confidence']} confidence)"
    return found, (
        f"bottleneck {found['bottleneck']}{sure}, seen from outside: {found['evidence']} "
        f"{found['advice']}"
    )


def _run_in_our_place(command: list[str], quiet_stdout: bool) -> tuple[int, list]:
    """Return the command's exit code and the samples taken of it."""
    from labkit.bench.outside import Outside

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
