"""The labs from a terminal: `python -m labkit --help`. A command is a function here."""

from __future__ import annotations

import argparse
import os
import sys

import labkit as lk
from labkit.results import saving
from labkit.results.record import is_record
from labkit.spec import Pipeline
from labkit.terminal import (
    FORCE,
    PLOT,
    SAVE,
    SEVERAL,
    Outcome,
    command,
    main,
    option,
    parse_settings,
    say,
    share,
)


@command()
def machine(options: argparse.Namespace) -> Outcome:
    """Name what is here: device, cores, memory, versions."""
    return Outcome(lk.machine())


@command(SEVERAL, SAVE, PLOT)
def run(options: argparse.Namespace) -> Outcome:
    """Measure one pipeline.

    examples:
      labkit run --set num_workers=4 --set precision=bf16 --plot run.png
      labkit run --set dataset=array --save before.jsonl.gz && labkit diagnose before.jsonl.gz
    """
    done = lk.run(**parse_settings(options.settings))
    lines = [repr(done)]
    for knob, why in done.not_applied.items():
        lines.append(f"not applied: {knob}: {why}")
    return Outcome(
        done,
        text="\n".join(lines),
        save=done.save,
        plot=done.plot,
        code=int(done.outcome == "failed"),
    )


@command(
    PLOT,
    option(
        "path",
        metavar="PATH",
        help="a file from torch.profiler, a folder or archive of them; or, with AFTER, a saved run",
    ),
    option("after", metavar="AFTER", nargs="?", help="a second one, later: what changed"),
    option(
        "--fail-if-slower",
        type=share,
        metavar="5%",
        dest="limit",
        help="of two runs: exit with 1 where a step takes this share (0.05, 5%%) longer, beyond "
        "the noise",
    ),
)
def trace(options: argparse.Namespace) -> Outcome:
    """Read a torch.profiler trace, or compare two traces or two runs.

    the file comes from your own training loop:
      steps = torch.profiler.schedule(wait=5, warmup=2, active=5)
      with torch.profiler.profile(schedule=steps) as prof:
          for batch in loader: train(batch); prof.step()
      prof.export_chrome_trace("trace.json.gz")

    examples:
      labkit trace trace.json.gz --plot trace.png --json
      labkit trace before.json.gz after.json.gz     what changed, by class, kernel and operator
      labkit trace traces/                          a file for each rank: who keeps whom waiting
      labkit trace main.jsonl branch.jsonl --fail-if-slower 5%      in a CI: the exit code is 1
    """
    if options.after and is_record(options.path):
        return compared_runs(options)
    if options.limit is not None:
        raise ValueError("--fail-if-slower compares two saved runs: BEFORE.jsonl AFTER.jsonl.")
    if is_record(options.path):
        raise ValueError(f"{options.path} is a saved run: diagnose it, or give a second one.")
    found = lk.trace(options.path)
    if options.after:
        found = found.compare(lk.trace(options.after))
    return Outcome(found, plot=found.plot)


def training_run(path: str) -> lk.Run:
    """Load a saved run; raises ValueError where it is another record."""
    run = lk.load(path)
    if not isinstance(run, lk.Run):
        raise ValueError(f"{path} is no training run: two runs are compared.")
    return run


def compared_runs(options: argparse.Namespace) -> Outcome:
    """Say which part of a step got slower, beyond the noise of both."""
    found = training_run(options.after).compare(training_run(options.path))
    slower = options.limit is not None and found.slower_by(options.limit)
    values = found.to_dict() | {"failed": slower}
    return Outcome(found, values=values, plot=found.plot, code=int(slower))


@command(option("path", metavar="PATH", help="a run's folder or record, or a trace file"))
def diagnose(options: argparse.Namespace) -> Outcome:
    """Name the bottleneck of a record or a profiler trace.

    examples:
      labkit run --save run.jsonl.gz && labkit diagnose run.jsonl.gz
      labkit diagnose trace.json.gz         a torch.profiler trace of your own script
    """
    return Outcome(lk.diagnose(options.path))


@command(
    option(
        "what",
        nargs="*",
        metavar="MODULE:FUNCTION | -- COMMAND",
        help="a function that returns your dataset; or your script, as a shell takes it",
    ),
    option("--collate", metavar="MODULE:NAME", help="your collate_fn"),
    option("--step", metavar="MODULE:NAME", help="what your loop does with a batch"),
    option("--batch-size", type=int, metavar="N", help="to tune for"),
    option("--max-workers", type=int, metavar="N", help="the most workers to try"),
    option("--seconds", type=float, help="to measure each setting for (1.5; of a script 3)"),
    option("--budget", type=float, default=180, help="of a script: for all of it, s"),
    option("--cwd-copy", action="store_true", help="of a script: run it in a copy of this folder"),
    option("--html", metavar="FILE", help="write the table as a page"),
    FORCE,
    option(
        "--set",
        action="append",
        metavar="KNOB=VALUE",
        help="without MODULE:FUNCTION: the pipeline; with it: the loader settings you have now",
        default=[],
        dest="settings",
    ),
)
def tune(options: argparse.Namespace) -> Outcome:
    """Find loader settings by measuring them: of a script, a dataset or a pipeline.

    A script is run several times, each time with one change, and interrupted (as by Ctrl-C) once
    some seconds of its training have been timed. Files that it writes until then are written, here
    unless --cwd-copy is given; $LABKIT_TUNE_DIR is a scratch folder for them. Its stdin is closed.
    Ctrl-C ends the search and keeps what is known.

    examples:
      labkit tune -- python train.py --epochs 1
      labkit tune my_package.data:train_set --batch-size 64 --set num_workers=2
    """
    from labkit.tuning.search_result import Interrupted
    from labkit.tuning.source import NAMED

    settings = parse_settings(options.settings)
    own = {"collate_fn": options.collate, "step": options.step}
    seconds = {} if options.seconds is None else {"seconds": options.seconds}
    if options.html:
        saving.check(options.html, options.force)
    is_script = bool(options.what) and not NAMED.fullmatch(options.what[0])
    if is_script:
        if any(own.values()) or settings or options.batch_size or options.max_workers:
            raise ValueError(
                "--collate, --step, --batch-size, --max-workers and --set go with a "
                "dataset or a pipeline, not with a script."
            )
    elif len(options.what) > 1:
        raise ValueError(f"{options.what[1]!r}: one MODULE:FUNCTION, or `-- python train.py`.")
    elif options.what:
        own["baseline"] = settings
        sys.path[:0] = [] if os.getcwd() in sys.path else [os.getcwd()]  # as a script's own modules
    elif any(own.values()):
        raise ValueError("--collate and --step go with MODULE:FUNCTION, a dataset of your own.")
    code = 0
    try:
        if is_script:
            from labkit.view.tune_command import tune_command

            found = tune_command(options.what, options.budget, options.cwd_copy, **seconds)
        else:
            found = lk.tune(
                options.what[0] if options.what else Pipeline(**settings),
                batch_size=options.batch_size,
                max_workers=options.max_workers,
                **seconds,
                **own,
            )
    except Interrupted as stopped:
        if stopped.found.winner is None:
            raise
        say("\nlabkit: interrupted; this is what was done by then")
        found, code = stopped.found, 130
    if options.html:
        from labkit.view import report

        saving.save_text(options.html, report.page_of(found), options.force)
    return Outcome(found, code=code)


@command(
    option(
        "--html",
        metavar="FILE",
        help="write the verdict, the pictures and the settings as one self-contained page",
    ),
    option("--markdown", metavar="FILE", help="write the verdict for an issue or a pull request"),
    FORCE,
    option(
        "--headroom",
        action="store_true",
        help="replay some batches, to tell how fast a perfect loader would be",
    ),
    option(
        "--whole-command",
        action="store_true",
        help="tell it with its arguments, which may be secrets, in --json",
    ),
    option("script", nargs=argparse.REMAINDER, metavar="-- COMMAND", help="the command to run"),
)
def watch(options: argparse.Namespace) -> Outcome:
    """Run a script unchanged, and say what held its training loop back, down to the line.

    The script keeps its arguments, streams, signals and exit code; the verdict goes to stderr in
    the end. Loops over a torch DataLoader (or else an optimizer's steps) are recorded in its own
    process and in the loader's workers.

    examples:
      labkit watch -- python train.py --epochs 1
      labkit watch --headroom -- python train.py
      labkit watch --html report.html -- python train.py
      labkit watch --json -- torchrun --nproc-per-node=2 train.py > verdict.json
    """
    from labkit.view.watch_command import watch_script, write_reports

    found, code = watch_script(options.script, options.json, options.headroom)
    write_reports(found, options.html, options.markdown, options.force)
    if options.whole_command:
        found.values["command"] = options.script[options.script[0] == "--" :]  # without that mark
    if found.text and not options.json:  # stdout is the script's own
        say(f"labkit watch: {found.text}")
    return Outcome(values=found.values, code=code)


if __name__ == "__main__":
    sys.exit(main())
