"""What every command of the terminal shares: registering it, printing what it found, exit codes."""

from __future__ import annotations

import argparse
import inspect
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from labkit.knobs import Settings, check_names
from labkit.spec import KNOBS
from labkit.text import printable

START_HERE = """labkit COMMAND --help tells more about each, with examples.

start here:
  labkit lab                            the course, copied to a folder and opened in JupyterLab
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
    """What a command found, which prints and becomes JSON, and the exit code."""

    result: Any
    code: int = 0
    is_said: bool = False  # whether it has been printed, on stderr


def add_command(run: Callable[[argparse.Namespace], Outcome]) -> argparse.ArgumentParser:
    """Register a function as a command, its docstring as the help; return it for its options."""
    summary, _, more = inspect.cleandoc(run.__doc__ or "").partition("\n\n")
    sub = COMMANDS.add_parser(
        run.__name__,
        help=summary,
        description=summary,
        epilog=more,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    sub.add_argument("--json", action="store_true", help="print one JSON object on stdout")
    sub.set_defaults(command=run)
    return sub


def knobs_in_words() -> str:
    """Return what --set takes."""
    text = "\n\nknobs (--set KNOB=VALUE):"
    for knob in KNOBS.values():
        text += f"\n  {knob.name}={knob.default}: {knob.help}\n      {knob.allowed}"
    return text


def say(text: str) -> None:
    """Print a text, which may hold anybody's names, on stderr, where that is open."""
    if sys.stderr is not None:  # else it would be printed on stdout
        print(printable(text), file=sys.stderr, flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    options = PARSER.parse_args(arguments)
    if "command" not in options:
        PARSER.print_help()
        return 0
    try:
        found = options.command(options)
    except (ValueError, RuntimeError, OSError) as error:
        say(f"labkit: {error}")
        return 2 if isinstance(error, ValueError) else 1
    except KeyboardInterrupt:
        say("labkit: interrupted")
        return 130
    if options.json:
        print(json.dumps(found.result.to_dict(), allow_nan=False))
    elif not found.is_said:
        print(printable(str(found.result)))
    return found.code


def parse_settings(settings: list[str]) -> Settings:
    """Read `knob=value` strings from a command line; raise ValueError on a bad one."""
    for setting in settings:
        if "=" not in setting:
            raise ValueError(f"{setting!r} is not a setting: write knob=value.")
    texts = dict(setting.split("=", 1) for setting in settings)
    check_names(texts, KNOBS)
    return {name: KNOBS[name].parse(text) for name, text in texts.items()}
