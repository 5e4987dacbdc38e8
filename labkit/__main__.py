"""The labs from a terminal: `python -m labkit --help`.

With --json each command prints one JSON object on stdout and nothing else there. Errors go to
stderr; the exit code is 2 for bad input and 1 where a run failed.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from typing import Any

from labkit.course import grade_command, record_command
from labkit.show import command_help, ranks_command, tune_command, watch_command
from labkit.spec import Pipeline, parse_settings


class BadInput(Exception):
    """What the user gave cannot be used: shown as one line, exit code 2."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    options = parser().parse_args(arguments)
    try:
        return options.command(options)
    except (ValueError, BadInput) as error:
        print(f"labkit: {error}", file=sys.stderr)
        return 2
    except (RuntimeError, OSError) as error:
        print(f"labkit: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("labkit: interrupted", file=sys.stderr)
        return 130


def parser() -> argparse.ArgumentParser:
    """The whole command line."""
    root = argparse.ArgumentParser(
        prog="labkit",
        description="Why is my GPU idle, and what do I change?",
        epilog=command_help.EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = root.add_subparsers(title="commands", required=True, metavar="COMMAND")

    def command(name: str, function: Any, help: str, **more: Any) -> argparse.ArgumentParser:
        sub = commands.add_parser(
            name,
            help=help,
            description=help,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            **more,
        )
        sub.add_argument("--json", action="store_true", help="print one JSON object on stdout")
        sub.set_defaults(command=function)
        return sub

    command("machine", machine, "what is here: device, cores, memory, versions")

    sub = command(
        "run", run, "measure one pipeline", epilog=command_help.RUN_EXAMPLES + command_help.knobs()
    )
    settings(sub)
    sub.add_argument("--save", metavar="FILE", help="keep the record (.jsonl or .jsonl.gz)")
    sub.add_argument("--plot", metavar="FILE", help="write the figure (.png, .svg, .pdf)")
    sub.add_argument("--wandb", action="store_true", help="log to an offline W&B run afterwards")

    epilog = command_help.SWEEP_EXAMPLES + command_help.knobs()
    sub = command("sweep", sweep, "measure every combination of values", epilog=epilog)
    settings(sub)
    sub.add_argument("--over", action="append", required=True, metavar="KNOB=A,B,C",
                     help="the values of a knob to try; repeated: every combination")  # fmt: skip
    sub.add_argument("--devices", metavar="A,B,C", help="run on each of these at the same time")
    sub.add_argument("--plot", metavar="FILE", help="write the figure (.png, .svg, .pdf)")

    sub = command("trace", trace, "read a torch.profiler trace: where each step's time goes",
                  epilog=command_help.TRACE_EXAMPLES)  # fmt: skip
    sub.add_argument("file", metavar="FILE", help=".json or .json.gz, from torch.profiler")
    sub.add_argument("--plot", metavar="FILE", help="write the figure (.png, .svg, .pdf)")

    sub = command("diagnose", diagnose, "name the bottleneck of a record or a profiler trace",
                  epilog=command_help.DIAGNOSE_EXAMPLES)  # fmt: skip
    sub.add_argument("path", metavar="PATH", help="a run's folder or record, or a trace file")

    sub = command("faults", faults, "run the labelled fault set, score the diagnosis on it",
                  epilog=command_help.FAULTS_EXAMPLES)  # fmt: skip
    sub.add_argument("--half", default="scoring", choices=("scoring", "calibration"),
                     help="scoring (default), or what the thresholds were set on")  # fmt: skip
    sub.add_argument(
        "--seeds", type=int, default=5, choices=range(1, 6), help="seeds of each, 1 to 5"
    )
    sub.add_argument("--only", action="append", metavar="NAME", help="one fault; may be repeated")
    sub.add_argument(
        "--keep", metavar="FILE", help="results so far: what is in it is not run again"
    )
    sub.add_argument("--plot", metavar="FILE", help="write the figure (.png, .svg, .pdf)")

    tune_command.arguments(
        command("tune", tune_command.run, "find loader settings: measure what prediction suggests")
    )

    record_command.arguments(
        command(
            "record",
            record_command.run,
            "make every recorded run of the course on this machine",
            epilog=record_command.EPILOG,
        )
    )

    grade_command.arguments(
        command(
            "grade",
            grade_command.run,
            "run the challenges of submitted notebooks again, and check them",
            epilog=grade_command.EPILOG,
        )
    )

    watch_command.arguments(
        command(
            "watch",
            watch_command.watch,
            "run a script unchanged and judge it from outside",
            epilog=command_help.WATCH_EXAMPLES,
        )  # fmt: skip
    )

    ranks_command.arguments(
        command("distributed", ranks_command.distributed,
                "measure one pipeline on several processes (DistributedDataParallel)")
    )  # fmt: skip

    command("bench-self", bench_self, "what the kit itself costs, measured on this machine")
    return root


def settings(sub: argparse.ArgumentParser) -> None:
    """Add --set, the one way to change knobs."""
    sub.add_argument("--set", action="append", default=[], metavar="KNOB=VALUE", dest="settings",
                     help="change a knob; may be repeated, all knobs are listed below")  # fmt: skip


def machine(options: argparse.Namespace) -> int:
    """`labkit machine`."""
    import labkit as lk

    return answer(options, lk.machine().to_dict(), str(lk.machine()))


def run(options: argparse.Namespace) -> int:
    """`labkit run`."""
    import labkit as lk

    done = lk.run(Pipeline(**parse_settings(options.settings)), wandb=options.wandb)
    if options.save:
        done.save(options.save)
    if options.plot:
        done.plot().savefig(options.plot)
    lines = [repr(done), *(f"not applied: {k}: {why}" for k, why in done.not_applied.items())]
    answer(options, done.to_dict(), "\n".join(lines))
    return 1 if done.outcome == "failed" else 0


def sweep(options: argparse.Namespace) -> int:
    """`labkit sweep`."""
    import labkit as lk

    pipeline = Pipeline(**parse_settings(options.settings))
    devices = options.devices.split(",") if options.devices else None
    swept = lk.sweep(pipeline, devices=devices, **dict(map(values, options.over)))
    if options.plot:
        swept.plot().savefig(options.plot)
    answer(options, swept.to_list(), repr(swept))
    return 1 if any(each.outcome == "failed" for each in swept) else 0


def values(text: str) -> tuple[str, list[Any]]:
    """Read KNOB=A,B,C; raises ValueError where it is not that."""
    name, equals, listed = text.partition("=")
    if not equals or not listed:
        raise BadInput(f"--over {text!r} is not KNOB=A,B,C.")
    return name, [parse_settings([f"{name}={value}"])[name] for value in listed.split(",")]


def trace(options: argparse.Namespace) -> int:
    """`labkit trace FILE`."""
    import labkit as lk

    breakdown = lk.trace(options.file)
    if options.plot:
        breakdown.plot().savefig(options.plot)
    return answer(options, breakdown.to_dict(), str(breakdown))


def diagnose(options: argparse.Namespace) -> int:
    """`labkit diagnose PATH`."""
    import labkit as lk

    diagnosis = lk.diagnose(options.path)
    return answer(options, diagnosis.to_dict(), str(diagnosis))


def faults(options: argparse.Namespace) -> int:
    """`labkit faults`."""
    from labkit.course import faultscore

    def progress(done: int, total: int, case: str) -> None:
        print(f"labkit: {done} of {total} runs done; {case}", file=sys.stderr)

    score = faultscore.run_set(
        options.half,
        seeds=options.seeds,
        only=options.only,
        keep=options.keep,
        progress=progress,
    )
    if options.plot:
        from labkit.course import confusion_figure

        confusion_figure.draw(score).savefig(options.plot)
    return answer(options, score.to_dict(), str(score))


def bench_self(options: argparse.Namespace) -> int:
    """`labkit bench-self`."""
    from labkit.show import own_cost

    costs = own_cost.measure()
    return answer(options, costs, own_cost.table(costs))


def answer(options: argparse.Namespace, values: Any, text: str) -> int:
    """Print the result as asked for and return 0."""
    print(json.dumps(values, allow_nan=False) if options.json else text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
