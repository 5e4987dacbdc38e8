"""The labs from a terminal: `python -m labkit --help`. A command is a function here."""

from __future__ import annotations

import argparse
import os
import sys
from typing import Any

import labkit as lk
from labkit.spec import RENDEZVOUS, Pipeline, parse_settings
from labkit.terminal import (
    PLOT,
    SAVE,
    SET,
    SEVERAL,
    command,
    main,
    option,
    progress,
    repeated,
    say,
    share,
)


def pipeline_of(options: argparse.Namespace) -> Pipeline:
    """Return the pipeline that --set asks for."""
    return Pipeline(**parse_settings(options.settings))


def own_dataset(options: argparse.Namespace) -> str | None:
    """Return MODULE:FUNCTION, to be imported from here as a script's own modules are."""
    sys.path[:0] = [] if os.getcwd() in sys.path else [os.getcwd()]
    return options.dataset


@command()
def machine(options: argparse.Namespace) -> Any:
    """Name what is here: device, cores, memory, versions."""
    return lk.machine()


@command(SEVERAL, SAVE, PLOT)
def run(options: argparse.Namespace) -> Any:
    """Measure one pipeline.

    examples:
      labkit run --set num_workers=4 --set precision=bf16 --plot run.png
      labkit run --set dataset=array --save before.jsonl.gz && labkit diagnose before.jsonl.gz
    """
    done = lk.run(pipeline_of(options))
    lines = [repr(done), *(f"not applied: {k}: {why}" for k, why in done.not_applied.items())]
    return done, {"text": "\n".join(lines)}


@command(SET, option("--out", metavar="FILE", help="write it to this file, such as train.py"))
def script(options: argparse.Namespace) -> Any:
    """Print a pipeline as a whole training script in plain PyTorch.

    It needs torch, numpy and Pillow, and trains the losses that `labkit run` does.

    examples:
      labkit script --set num_workers=4 --out train.py && python train.py
    """
    code = lk.script(pipeline_of(options))
    if options.out is None:
        return code, {"text": repr(code)}
    return code, {"text": f"written: {code.save(options.out, options.force)}"}


@command(
    SET, PLOT,
    repeated("--over", "KNOB=A,B,C", "the values of a knob to try; repeated: every combination",
             required=True),
    option("--devices", metavar="A,B,C", help="run on each of these at the same time"),
)  # fmt: skip
def sweep(options: argparse.Namespace) -> Any:
    """Measure every combination of values.

    examples:
      labkit sweep --over batch_size=16,32,64 --over precision=fp32,bf16 --plot sweep.png
      labkit sweep --over batch_size=64,128,256 --devices cuda:0,cuda:1   one run at a time on each
    """
    over = {}
    for text in options.over:
        name, _, values = text.partition("=")
        if not values:
            raise ValueError(f"--over {text!r} is not KNOB=A,B,C.")
        values = [parse_settings([f"{name}={value}"])[name] for value in values.split(",")]
        over[name] = over.get(name, []) + values
    devices = options.devices.split(",") if options.devices else None
    swept = lk.sweep(pipeline_of(options), devices=devices, **over)
    failed = any(each.outcome == "failed" for each in swept)
    return swept, {"values": [run.to_dict() for run in swept], "code": int(failed)}


@command(
    PLOT,
    option("path", metavar="TRACE", help="a file from torch.profiler; a folder or archive of them"),
    option("after", metavar="AFTER", nargs="?", help="a second file: what changed"),
)
def trace(options: argparse.Namespace) -> Any:
    """Read a torch.profiler trace: where each step's time goes.

    the file comes from your own training loop:
      steps = torch.profiler.schedule(wait=5, warmup=2, active=5)
      with torch.profiler.profile(schedule=steps) as prof:
          for batch in loader: train(batch); prof.step()
      prof.export_chrome_trace("trace.json.gz")

    examples:
      labkit trace trace.json.gz --plot trace.png --json
      labkit trace before.json.gz after.json.gz     what changed, by class, kernel and operator
      labkit trace traces/                          a file for each rank: who keeps whom waiting
    """
    found = lk.trace(options.path)
    return found.compare(options.after) if options.after else found


@command(option("path", metavar="PATH", help="a run's folder or record, or a trace file"))
def diagnose(options: argparse.Namespace) -> Any:
    """Name the bottleneck of a record or a profiler trace.

    examples:
      labkit run --save run.jsonl.gz && labkit diagnose run.jsonl.gz
      labkit diagnose trace.json.gz         a torch.profiler trace of your own script
    """
    return lk.diagnose(options.path)


@command(
    option("--seeds", type=int, default=5, choices=range(1, 6), help="seeds of each, 1 to 5"),
    repeated("--only", "NAME", "one fault; may be repeated"),
    option("--keep", metavar="FILE", help="append results here, and skip those that it holds"),
)
def faults(options: argparse.Namespace) -> Any:
    """Run the labelled fault set, score the diagnosis on it.

    A quarter of an hour on a CPU: with --keep you can stop and resume.

    examples:
      labkit faults --only "no workers" --seeds 1 --keep faults.jsonl
    """
    from labkit.course.faultset import run_set

    how = {"seeds": options.seeds, "only": options.only, "keep": options.keep}
    return run_set("scoring", **how, progress=progress("runs done"))


@command(
    option("dataset", nargs="?", metavar="MODULE:FUNCTION",
           help="a function that returns your dataset"),
    option("--collate", metavar="MODULE:NAME", help="your collate_fn"),
    option("--step", metavar="MODULE:NAME", help="what your loop does with a batch"),
    option("--batch-size", metavar="N[,N...]", help="to tune for; several: to search among"),
    option("--max-workers", type=int, metavar="N", help="the most workers to try"),
    option("--seconds", type=float, default=1.5, help="to measure each setting for"),
    repeated("--set", "KNOB=VALUE", "without MODULE:FUNCTION: the pipeline; with it: the loader "
             "settings you have now", default=[], dest="settings"),
)  # fmt: skip
def tune(options: argparse.Namespace) -> Any:
    """Find loader settings: measure what prediction suggests.

    examples:
      labkit tune my_package.data:train_set --batch-size 64 --set num_workers=2
    """
    settings = parse_settings(options.settings)
    sizes = [int(size) for size in options.batch_size.split(",")] if options.batch_size else None
    more = {"batch_size": sizes, "max_workers": options.max_workers, "seconds": options.seconds}
    own = {"collate_fn": options.collate, "step": options.step}
    if options.dataset:
        more |= {**own, "baseline": settings}
    elif any(own.values()):
        raise ValueError("--collate and --step go with MODULE:FUNCTION, a dataset of your own.")
    try:
        return lk.tune(own_dataset(options) or Pipeline(**settings), **more)
    except KeyboardInterrupt:
        last = getattr(lk.tune, "last", None)
        if getattr(last, "winner", None) is None:
            raise
        say("\nlabkit: interrupted; this is what was done by then")
        return last, {"code": 130}


@command(
    option("dataset", nargs="?", metavar="MODULE:FUNCTION",
           help="a function that returns your dataset; without it a pipeline (--set)"),
    *(option(f"--{name}", metavar="MODULE:NAME", help=text) for name, text in {
        "step": "step(batch), or step(model, optimizer, batch); returns the loss",
        "model": "its model, or a function that makes it",
        "optimizer": "its optimizer, or a function of the parameters that makes it",
        "collate": "your collate_fn"}.items()),
    option("--batch-size", type=int, metavar="N", help="of your dataset (default 32)"),
    repeated("--may-change", "NAME", "batch_size or precision: they change what is trained",
             default=[], dest="may_change"),
    option("--seconds", type=float, help="time budget"),
    SET, PLOT,
)  # fmt: skip
def improve(options: argparse.Namespace) -> Any:
    """Fix what is on top, measure, ask again, until nothing is worth it.

    A change stays only where it gains beyond the noise and the losses hold.

    examples:
      labkit improve --set io_ms=5 --may-change precision
      labkit improve train:make_dataset --step train:step --model train:model --seconds 90
    """
    settings, size = parse_settings(options.settings), options.batch_size
    more = {name: getattr(options, name) for name in ("step", "model", "optimizer")}
    more |= {"collate_fn": options.collate, "batch_size": size}
    if options.dataset and settings:
        raise ValueError("--set goes with a pipeline, not with a dataset of your own.")
    how = {"may_change": options.may_change, "seconds": options.seconds}
    found = lk.improve(own_dataset(options) or Pipeline(**settings), **more, **how)
    return found, {"code": 130 if found.climb.interrupted else 0}


@command(
    option("--out", metavar="DIR", required=True, help="where the records go"),
    repeated("--only", "NAME", "record this one; may be repeated"),
)
def record(options: argparse.Namespace) -> Any:
    """Make every recorded run of the course on this machine.

    Records go to DIR/<machine>/<name>.jsonl.gz, without host name, user name, paths or keys;
    lk.recorded(folder="DIR") lists them. Run it again to go on after an interrupt.
    """
    from labkit.course.record import record

    done = record(options.out, options.only)
    return done, {"code": 130 if done.interrupted else 0}


@command(
    option("notebooks", nargs="+", metavar="NOTEBOOK", help="a notebook, or a folder"),
    repeated("--only", "KEY", "grade this challenge, as 02-feed; may be repeated"),
    option("--timeout", metavar="S", type=float, default=60.0,
           help="seconds for each cell of a challenge, and for each run of its check"),
)  # fmt: skip
def grade(options: argparse.Namespace) -> Any:
    """Run the challenges of submitted notebooks again, and check them.

    Each runs in a clean notebook with a kernel of its own, in a copy of its folder, with limits:
      passed, not yet, no answer, crashed, timed out, not a notebook (then the exit code is 2)
    Submissions run with your rights: grade strangers' code in a container. --json prints
    {"rows": [{notebook, challenge, verdict, passed, why, lines}], "bad": N}.

    examples:
      labkit grade submitted/ --only 02-feed --json      nbgrader's folder: all students' notebooks
    """
    from labkit.course import grading

    how = {"only": options.only, "timeout_s": options.timeout}
    grades = grading.grade(options.notebooks, **how, progress=progress("notebooks graded"))
    return grades, {"code": 2 if grades.bad else 0}


@command(
    option("before", metavar="BEFORE", help="a saved run (.jsonl, .jsonl.gz, or a run's folder)"),
    option("after", metavar="AFTER", help="the same, later"),
    option("--fail-if-slower", type=share, metavar="5%", dest="limit",
           help="exit with 1 where a step takes this share (0.05, 5%%) longer, beyond the noise"),
)  # fmt: skip
def diff(options: argparse.Namespace) -> Any:
    """Compare two runs: which part of a step got slower, beyond the noise of both.

    examples:
      labkit diff main.jsonl branch.jsonl
      labkit diff --fail-if-slower 5% main.jsonl branch.jsonl    in a CI: the exit code is 1
    """
    before, after = lk.load(options.before), lk.load(options.after)
    for run in (before, after):
        if not hasattr(run, "compare"):
            raise ValueError(f"{run.path} is no training run: diff compares two runs.")
    found = after.compare(before)
    slower = options.limit is not None and found.slower_by(options.limit)
    return found, {"code": int(slower), "values": found.to_dict() | {"failed": slower}}


@command(
    option("--outside", action="store_true", help="look from outside only"),
    option("script", nargs=argparse.REMAINDER, metavar="-- COMMAND", help="the command to run"),
)
def watch(options: argparse.Namespace) -> Any:
    """Run a script unchanged, and say what held its training loop back, down to the line.

    The script keeps its arguments, streams, signals and exit code; the verdict goes to stderr in
    the end. Loops over a torch DataLoader (or else an optimizer's steps) are recorded in its own
    process and in the loader's workers; --outside leaves the process alone.

    examples:
      labkit watch -- python train.py --epochs 1
      labkit watch --json -- torchrun --nproc-per-node=2 train.py > verdict.json
    """
    from labkit.show.script import watch_script

    found, text = watch_script(options.script, options.json, options.outside)
    if not options.json:
        say(f"labkit watch: {text}")
        return found["exit_code"]
    return None, {"values": found, "code": found["exit_code"]}


@command(
    SET, SAVE, PLOT,
    option("--ranks", type=int, default=2, help="processes on this machine (default 2)"),
    option("--no-sync", action="store_true", help="exchange gradients only before an update"),
    repeated("--starve", "RANK:KNOB=VALUE", "give one rank's loader another setting: 1:io_ms=10",
             default=[]),
    option("--baseline", action="store_true",
           help="run one process as well, for speedup and efficiency"),
    *(option(f"--{name.replace('_', '-')}", metavar="VALUE", help=f"several machines: {text}")
      for name, text in RENDEZVOUS.items()),
)  # fmt: skip
def distributed(options: argparse.Namespace) -> Any:
    """Measure one pipeline on several processes (DistributedDataParallel).

    examples:
      labkit distributed --ranks 4 --baseline --set accumulation_steps=4 --no-sync
      labkit distributed --ranks 2 --starve 1:io_ms=10     which rank is it that waits?

    on several machines, the same line on each (torchrun's own options), for its own ranks:
      labkit distributed --nnodes 2 --rdzv-backend c10d --rdzv-endpoint HOST:29500 --rdzv-id 1
    """
    starve: dict[int, dict[str, Any]] = {}
    for text in options.starve:
        rank, colon, setting = text.partition(":")
        if not colon or not rank.isdigit():
            raise ValueError(f"--starve {text!r} is not RANK:KNOB=VALUE.")
        starve.setdefault(int(rank), {}).update(parse_settings([setting]))
    given = {name: getattr(options, name) for name in RENDEZVOUS if getattr(options, name)}
    asked = {"ranks": options.ranks, "no_sync": options.no_sync, "rendezvous": given}
    ranks = lk.distributed(pipeline_of(options), starve=starve, **asked)
    lines, against = [ranks, ranks.times, ranks.diagnose()], {}
    if options.baseline and ranks.outcome == "finished":  # on the device that the ranks had
        one = lk.run(ranks.alone.but(xray=False))
        if one.outcome != "finished":
            raise RuntimeError(f"the run of one process {one.outcome}: {one.error}")
        if ranks.throughput and one.throughput:
            speedup, share = ranks.speedup(one), ranks.efficiency(one)
            against = {"speedup": speedup, "efficiency": share}
            lines.append(f"speedup {speedup:.2f}, {share:.0%} a rank")
    text = "\n".join(str(line) for line in lines if line is not None)
    return ranks, {"values": ranks.to_dict() | against, "text": text}


@command()
def bench_self(options: argparse.Namespace) -> Any:
    """Measure what the kit itself costs on this machine."""
    from labkit.experiments import own_cost

    costs = own_cost.measure()
    return own_cost.table(costs), {"values": costs}


if __name__ == "__main__":
    sys.exit(main())
