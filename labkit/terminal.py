"""What every command of the terminal shares: registering it, printing what it found, exit codes."""

from __future__ import annotations

import argparse
import contextlib
import inspect
import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
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
HOW = {"formatter_class": argparse.RawDescriptionHelpFormatter}
ABOUT = "Why is my GPU idle, and what do I change?"
PARSER = argparse.ArgumentParser("labkit", description=ABOUT, epilog=START_HERE, **HOW)
COMMANDS = PARSER.add_subparsers(title="commands", required=True, metavar="COMMAND")


def command(*options: Any) -> Callable:
    """Register the decorated function as a command of its name, its docstring as its help.

    It is given the options and returns what `show` takes (a result, or also a dict of keywords), or
    an exit code where it has said all.
    """

    def register(run: Callable[[argparse.Namespace], Any]) -> Callable:
        help, _, more = inspect.getdoc(run).partition(".\n\n")
        help = help[0].lower() + help[1:].removesuffix(".")
        if SET in options:
            knobs = [f"  {k.name}={k.default}: {k.help}\n      {k.allowed}" for k in KNOBS.values()]
            more = "\n".join([more, "", "knobs (--set KNOB=VALUE):", *knobs])
        name = run.__name__.replace("_", "-")
        sub = COMMANDS.add_parser(name, help=help, description=help, epilog=more, **HOW)
        sub.add_argument("--json", action="store_true", help="print one JSON object on stdout")
        sub.set_defaults(command=run)
        for flags, rules in options:
            sub.add_argument(*flags, **rules)
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
    options = PARSER.parse_args(arguments)
    try:
        found = options.command(options)
        if isinstance(found, int):
            return found
        result, how = found if type(found) is tuple else (found, {})
        return show(options, result, **how)
    except (ValueError, RuntimeError, OSError) as error:
        print(f"labkit: {error}", file=sys.stderr)
        return 2 if isinstance(error, ValueError) else 1
    except KeyboardInterrupt:
        print("labkit: interrupted", file=sys.stderr)
        return 130


def show(
    options: argparse.Namespace, result: Any, values: Any = None, text: str = "", code: int = 0
) -> int:
    """Save, draw and print what was found, as asked for; return the exit code.

    `values` (else the result's `to_dict()`) are printed as JSON, `text` (else its `str`) as text.
    """
    if getattr(options, "save", None):
        result.save(options.save)
    if getattr(options, "plot", None):
        result.plot().savefig(options.plot)
    if options.json:
        print(json.dumps(result.to_dict() if values is None else values, allow_nan=False))
    else:
        print(text or str(result))
    return code or int(getattr(result, "outcome", "") == "failed")


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
    from labkit.bench.outside import Outside

    command = command[1:] if command[:1] == ["--"] else command
    if not command:
        raise ValueError("give the script to watch: labkit watch -- python train.py")
    started: list[subprocess.Popen] = []

    def send(number: int, _frame: Any) -> None:
        for child in started:
            with contextlib.suppress(OSError):
                child.send_signal(number)

    # Ctrl-C reaches the script through the terminal: it decides, and we report
    handlers = {signal.SIGINT: lambda *_: None}
    handlers |= {getattr(signal, n): send for n in PASSED_ON if hasattr(signal, n)}
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    start = time.monotonic()
    try:
        sys.stdout.flush()
        started.append(subprocess.Popen(command, stdout=sys.stderr if quiet_stdout else None))
        outside = Outside(started[0].pid)
        code = started[0].wait()
    except OSError as error:
        raise ValueError(f"cannot start {command[0]!r}: {error.strerror}.") from None
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    seconds = round(time.monotonic() - start, 3)
    found = {"command": command, "exit_code": 128 - code if code < 0 else code}
    found |= {"seconds": seconds, **judge(outside.stop())}
    sure = "" if found["confidence"] == "none" else f" ({found['confidence']} confidence)"
    verdict = f"bottleneck {found['bottleneck']}{sure}, seen from outside"
    return found, f"{verdict}: {found['evidence']} {found['advice']}"
