"""The labs from a terminal: `python -m labkit --help`. A command is a function here.

It returns what it found, which prints and becomes JSON, and the exit code.
"""

from __future__ import annotations

import argparse
import inspect
import json
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any

import labkit as lk
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

Found = tuple[Any, int]


def machine(options: argparse.Namespace) -> Found:
    """Name what is here: device, cores, memory, versions."""
    return lk.machine(), 0


def run(options: argparse.Namespace) -> Found:
    """Measure one pipeline.

    Its record is the folder that is named last: `labkit diagnose FOLDER`.

    examples:
      labkit run --set num_workers=4 --set precision=bf16
      labkit run --json --set dataset=array io_ms=0 > numbers.json
    """
    done = lk.run(**parse_settings(options.settings))
    for knob, why in done.not_applied.items():
        say(f"not applied: {knob}: {why}")
    say(f"record: {done.path}")
    return done, int(done.outcome == "failed")


def lab(options: argparse.Namespace) -> Found:
    """Copy the course to a folder of yours, and open it in JupyterLab.

    A notebook that is there already is kept as you have it.

    examples:
      labkit lab                        in ./labkit-course
      labkit lab ~/course --copy-only
    """
    from labkit.course.lab import copy_course, open_lab

    found = copy_course(options.folder)
    if options.copy_only:
        return found, 0
    say(str(found))
    return None, open_lab(found.folder)


def trace(options: argparse.Namespace) -> Found:
    """Read a torch.profiler trace, or compare two.

    the file comes from your own training loop:
      steps = torch.profiler.schedule(wait=5, warmup=2, active=5)
      with torch.profiler.profile(schedule=steps) as prof:
          for batch in loader: train(batch); prof.step()
      prof.export_chrome_trace("trace.json.gz")

    examples:
      labkit trace trace.json.gz --json
      labkit trace before.json.gz after.json.gz     what changed, by class
      labkit trace traces/                          a file for each rank: who keeps whom waiting
    """
    from labkit.traces.breakdown import TraceComparison

    traces: list[Any] = [lk.trace(path) for path in (options.path, options.after) if path]
    return TraceComparison(*traces) if options.after else traces[0], 0


def diagnose(options: argparse.Namespace) -> Found:
    """Name the bottleneck of a record or a profiler trace.

    examples:
      labkit diagnose run.jsonl.gz          of `run.save("run.jsonl.gz")`, or a run's folder
      labkit diagnose trace.json.gz         a torch.profiler trace of your own script
    """
    return lk.diagnose(options.path), 0


def tune(options: argparse.Namespace) -> Found:
    """Find loader settings by measuring them: of a script, or of a dataset.

    A script is run several times, each time with one change, and interrupted (as by Ctrl-C) once
    some seconds of its training have been timed. Files that it writes until then are written, here
    unless --cwd-copy is given; $LABKIT_TUNE_DIR is a scratch folder for them. Its stdin is closed.
    Ctrl-C ends the search and keeps what is known.

    examples:
      labkit tune -- python train.py --epochs 1
      labkit tune my_package.data:train_set
    """
    from labkit.tuning.set_up import NAMED
    from labkit.view.running import tune_script

    try:
        if len(options.what) == 1 and NAMED.fullmatch(options.what[0]):
            sys.path[:0] = [os.getcwd()]  # as a script's own modules
            return lk.tune(options.what[0], seconds=options.seconds), 0
        where = {"budget": options.budget, "in_copy": options.cwd_copy}
        return tune_script(options.what, seconds=options.seconds, **where), 0
    except KeyboardInterrupt:
        found = vars(lk.tune).get("last")
        if found is None or found.winner is None:
            raise
        say("\nlabkit: interrupted; this is what was done by then")
        return found, 130


def watch(options: argparse.Namespace) -> Found:
    """Run a script unchanged, and say what held its training loop back, down to the line.

    The script keeps its arguments, streams, signals and exit code; the verdict goes to stderr in
    the end. Loops over a torch DataLoader are recorded in its own process and in the loader's
    workers.

    examples:
      labkit watch -- python train.py --epochs 1
      labkit watch --headroom -- python train.py
      labkit watch --html report.html -- python train.py
      labkit watch --json -- torchrun --nproc-per-node=2 train.py > verdict.json
    """
    from labkit.view.watch_command import watch_script, write_report

    found, code = watch_script(options.script, options.json, options.headroom)
    write_report(found, options.html)
    if options.json:
        return found, code
    say(f"labkit watch: {found['text']}")  # stdout is the script's own
    return None, code


def parse_settings(settings: list[str]) -> Settings:
    """Read `knob=value` strings from a command line; raise ValueError on a bad one."""
    for setting in settings:
        if "=" not in setting:
            raise ValueError(f"{setting!r} is not a setting: write knob=value.")
    texts = dict(setting.split("=", 1) for setting in settings)
    check_names(texts, KNOBS)
    return {name: KNOBS[name].parse(text) for name, text in texts.items()}


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


PARSER = argparse.ArgumentParser(
    "labkit",
    description="Why is my GPU idle, and what do I change?",
    epilog=START_HERE,
    formatter_class=argparse.RawDescriptionHelpFormatter,
)
COMMANDS = PARSER.add_subparsers(title="commands", metavar="COMMAND")


def add_command(run: Callable[[argparse.Namespace], Found]) -> argparse.ArgumentParser:
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


add_command(machine)

sub = add_command(run)
sub.epilog = f"{sub.epilog}{knobs_in_words()}"
told = "change knobs: one or more; may be repeated"
many = {"action": "extend", "nargs": "+", "default": []}
sub.add_argument("--set", metavar="KNOB=VALUE", dest="settings", help=told, **many)

sub = add_command(lab)
sub.add_argument("folder", metavar="FOLDER", nargs="?", default="labkit-course", help="where to")
sub.add_argument("--copy-only", action="store_true", help="do not open it")

sub = add_command(trace)
sub.add_argument("path", metavar="PATH", help="a file from torch.profiler, or a folder of them")
sub.add_argument("after", metavar="AFTER", nargs="?", help="a second one, later: what changed")

sub = add_command(diagnose)
sub.add_argument("path", metavar="PATH", help="a run's folder or record, or a trace file")

sub = add_command(tune)
told = "a function that returns your dataset; or your script, as a shell takes it"
sub.add_argument("what", nargs="*", metavar="MODULE:FUNCTION | -- COMMAND", help=told)
sub.add_argument("--seconds", type=float, default=3, help="to measure each setting for (3)")
sub.add_argument("--budget", type=float, default=180, help="of a script: for all of it, s")
told = "of a script: run it in a copy of this folder"
sub.add_argument("--cwd-copy", action="store_true", help=told)

sub = add_command(watch)
told = "write the verdict, the pictures and the settings as one self-contained page"
sub.add_argument("--html", metavar="FILE", help=told)
told = "replay some batches, to tell how fast a perfect loader would be"
sub.add_argument("--headroom", action="store_true", help=told)
sub.add_argument(
    "script", nargs=argparse.REMAINDER, metavar="-- COMMAND", help="the command to run"
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    options = PARSER.parse_args(arguments)
    if "command" not in options:
        PARSER.print_help()
        return 0
    try:
        found, code = options.command(options)
    except (ValueError, RuntimeError, OSError) as error:
        say(f"labkit: {error}")
        return 2 if isinstance(error, ValueError) else 1
    except KeyboardInterrupt:
        say("labkit: interrupted")
        return 130
    if options.json:
        values = found if isinstance(found, dict) else found.to_dict()
        print(json.dumps(values, allow_nan=False))
    elif found is not None:
        print(printable(str(found)))
    return code


if __name__ == "__main__":
    sys.exit(main())
