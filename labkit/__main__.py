"""The labs from a terminal: `python -m labkit --help`. A command is a function here."""

from __future__ import annotations

import argparse
import os
import sys

import labkit as lk
from labkit.terminal import Outcome, add_command, knobs_in_words, main, parse_settings, say


def machine(options: argparse.Namespace) -> Outcome:
    """Name what is here: device, cores, memory, versions."""
    return Outcome(lk.machine())


def run(options: argparse.Namespace) -> Outcome:
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
    return Outcome(done, int(done.outcome == "failed"))


def lab(options: argparse.Namespace) -> Outcome:
    """Copy the course to a folder of yours, and open it in JupyterLab.

    A notebook that is there already is kept as you have it.

    examples:
      labkit lab                        in ./labkit-course
      labkit lab ~/course --copy-only
    """
    from labkit.course.lab import copy_course, open_lab

    found = copy_course(options.folder)
    if options.copy_only:
        return Outcome(found)
    say(str(found.table()))
    return Outcome(found, open_lab(found.folder), is_said=True)


def trace(options: argparse.Namespace) -> Outcome:
    """Read a torch.profiler trace, or compare two.

    the file comes from your own training loop:
      steps = torch.profiler.schedule(wait=5, warmup=2, active=5)
      with torch.profiler.profile(schedule=steps) as prof:
          for batch in loader: train(batch); prof.step()
      prof.export_chrome_trace("trace.json.gz")

    examples:
      labkit trace trace.json.gz --json
      labkit trace before.json.gz after.json.gz     what changed, by class and kernel
      labkit trace traces/                          a file for each rank: who keeps whom waiting
    """
    found = lk.trace(options.path)
    return Outcome(found.compare(lk.trace(options.after)) if options.after else found)


def diagnose(options: argparse.Namespace) -> Outcome:
    """Name the bottleneck of a record or a profiler trace.

    examples:
      labkit diagnose run.jsonl.gz          of `run.save("run.jsonl.gz")`, or a run's folder
      labkit diagnose trace.json.gz         a torch.profiler trace of your own script
    """
    return Outcome(lk.diagnose(options.path))


def tune(options: argparse.Namespace) -> Outcome:
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

    seconds = {} if options.seconds is None else {"seconds": options.seconds}
    try:
        if len(options.what) == 1 and NAMED.fullmatch(options.what[0]):
            sys.path[:0] = [os.getcwd()]  # as a script's own modules
            return Outcome(lk.tune(options.what[0], **seconds))
        where = {"budget": options.budget, "in_copy": options.cwd_copy}
        return Outcome(tune_script(options.what, **where, **seconds))
    except KeyboardInterrupt:
        found = vars(lk.tune).get("last")
        if found is None or found.winner is None:
            raise
        say("\nlabkit: interrupted; this is what was done by then")
        return Outcome(found, code=130)


def watch(options: argparse.Namespace) -> Outcome:
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

    if options.html and not options.html.endswith((".html", ".htm")):
        raise ValueError(f"--html {options.html}: the name of the page has to end in .html")
    found, code = watch_script(options.script, options.json, options.headroom)
    write_report(found, options.html)
    if not options.json:  # stdout is the script's own
        say(f"labkit watch: {found.text}")
    return Outcome(found, code, is_said=True)


add_command(machine)

sub = add_command(run)
sub.epilog = f"{sub.epilog}{knobs_in_words()}"
told = "change knobs: one or more; may be repeated"
sub.add_argument(
    "--set",
    metavar="KNOB=VALUE",
    help=told,
    action="extend",
    nargs="+",
    default=[],
    dest="settings",
)

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
told = "to measure each setting for (1.5; of a script 3)"
sub.add_argument("--seconds", type=float, help=told)
sub.add_argument("--budget", type=float, default=180, help="of a script: for all of it, s")
told = "of a script: run it in a copy of this folder"
sub.add_argument("--cwd-copy", action="store_true", help=told)

sub = add_command(watch)
told = "write the verdict, the pictures and the settings as one self-contained page"
sub.add_argument("--html", metavar="FILE", help=told)
told = "replay some batches, to tell how fast a perfect loader would be"
sub.add_argument("--headroom", action="store_true", help=told)
told = "the command to run"
sub.add_argument("script", nargs=argparse.REMAINDER, metavar="-- COMMAND", help=told)

if __name__ == "__main__":
    sys.exit(main())
