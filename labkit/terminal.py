"""What every command of the terminal shares: registering it, printing what it found, exit codes."""

from __future__ import annotations

import argparse
import inspect
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TextIO

from labkit.knobs import Settings, check_names
from labkit.results import saving
from labkit.results.result import Result
from labkit.spec import KNOBS
from labkit.text import printable

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from labkit.results.log_reader import LiveResult

START_HERE = """labkit COMMAND --help tells more about each, with examples.

start here:
  labkit machine                        the hardware and versions found
  labkit run --set num_workers=4        one pipeline, for a few seconds
  labkit diagnose PATH                  the bottleneck of a saved run or a profiler trace
  labkit watch -- python train.py       your own script, unchanged: what holds it back
  labkit tune -- python train.py        what makes it faster: each change is tried on it

Results go to stdout (--json: one JSON object), progress and errors to stderr. The exit code is 0,
1 where a run failed, 2 where the input was bad, 130 where you interrupted it.
"""
PARSER = argparse.ArgumentParser(
    "labkit",
    description="Why is my GPU idle, and what do I change?",
    epilog=START_HERE,
    formatter_class=argparse.RawDescriptionHelpFormatter,
)
COMMANDS = PARSER.add_subparsers(title="commands", metavar="COMMAND")


@dataclass(frozen=True)
class Outcome:
    """What a command found, how that is shown, and the exit code."""

    result: Result | LiveResult | None = None
    text: str = ""  # to print in place of the result's own
    values: Mapping[str, object] | None = None  # to print as JSON in place of the result's own
    save: Callable[[str, bool], object] | None = None  # of a command with `SAVE`
    plot: Callable[[], Figure] | None = None  # of a command with `PLOT`
    code: int = 0


Command = Callable[[argparse.Namespace], Outcome]
Option = Callable[[argparse.ArgumentParser], object]
"""What adds an option to a command."""


def command(*options: Option) -> Callable[[Command], Command]:
    """Register the decorated function as a command, its docstring as the help."""

    def register(run: Command) -> Command:
        summary, _, more = (inspect.getdoc(run) or run.__name__).partition(".\n\n")
        summary = summary[0].lower() + summary[1:].removesuffix(".")
        if SEVERAL in options:
            more += "\n\nknobs (--set KNOB=VALUE):"
            for knob in KNOBS.values():
                more += f"\n  {knob.name}={knob.default}: {knob.help}\n      {knob.allowed}"
        sub = COMMANDS.add_parser(
            run.__name__,
            help=summary,
            description=summary,
            epilog=more,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        sub.add_argument("--json", action="store_true", help="print one JSON object on stdout")
        sub.set_defaults(command=run, save=None, plot=None)
        if SAVE in options or PLOT in options:
            FORCE(sub)
        for add_to in options:
            add_to(sub)
        return run

    return register


def option(*flags: str, **rules: Any) -> Option:
    """Return an option, as argparse's `add_argument` takes it."""
    return lambda command: command.add_argument(*flags, **rules)


# for commands without arguments of their own: several settings after one --set would take them
SEVERAL = option(
    "--set",
    metavar="KNOB=VALUE",
    help="change knobs: one or more; may be repeated",
    action="extend",
    nargs="+",
    default=[],
    dest="settings",
)
SAVE = option("--save", metavar="FILE", help="keep the record (.jsonl or .jsonl.gz)")
PLOT = option("--plot", metavar="FILE", help="write the figure (.png, .svg, .pdf)")
FORCE = option(
    "--force",
    action="store_true",
    help="replace a file that is there and is not as labkit wrote it",
)


def say(text: str, stream: TextIO | None = None) -> None:
    """Print a text, which may hold anybody's names, on `stream` (stderr if None)."""
    stream = stream or sys.stderr
    if stream is not None:  # a closed stderr; on None it would be printed on stdout
        print(printable(text), file=stream, flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    options = PARSER.parse_args(arguments)
    if "command" not in options:
        PARSER.print_help()
        return 0
    try:
        if options.save:  # before the run, not after it
            saving.check(options.save, options.force)
        if options.plot:
            saving.check(options.plot, options.force)
        return show(options, options.command(options))
    except (ValueError, RuntimeError, OSError) as error:
        say(f"labkit: {error}")
        return 2 if isinstance(error, ValueError) else 1
    except KeyboardInterrupt:
        say("labkit: interrupted")
        return 130


def show(options: argparse.Namespace, found: Outcome) -> int:
    """Save, draw and print what was found, as asked for; return the exit code."""
    result = found.result
    if options.save and found.save:
        found.save(options.save, options.force)
    if options.plot and found.plot:
        saving.save_figure(found.plot(), options.plot, options.force)
    if options.json:
        values = found.values
        if values is None and result is not None:
            values = result.to_dict()
        print(json.dumps(values, allow_nan=False))
    elif found.text or result is not None:
        say(found.text or str(result), sys.stdout)
    return found.code


def parse_settings(settings: list[str]) -> Settings:
    """Read `knob=value` strings from a command line; raise ValueError on a bad one."""
    texts = {}
    for setting in settings:
        if "=" not in setting:
            raise ValueError(f"{setting!r} is not a setting: write knob=value.")
        name, text = setting.split("=", 1)
        texts[name] = text
    check_names(texts, KNOBS)
    return {name: KNOBS[name].parse(text) for name, text in texts.items()}
