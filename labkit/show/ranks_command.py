"""`python -m labkit distributed`: the same pipeline on several ranks, from a terminal."""

from __future__ import annotations

import argparse
import json
from typing import Any

from labkit.spec import RENDEZVOUS, Distributed, Pipeline, parse_settings

EXAMPLES = """examples:
  labkit distributed --ranks 2
  labkit distributed --ranks 4 --baseline --plot scaling.png
  labkit distributed --ranks 2 --set accumulation_steps=4 --no-sync
  labkit distributed --ranks 2 --starve 1:io_ms=10     which rank is it that waits?

on several machines, the same line on each (torchrun's own options, passed through to it):
  labkit distributed --ranks 8 --nnodes 2 --rdzv-backend c10d --rdzv-endpoint HOST:29500 --rdzv-id 1
  srun --ntasks-per-node=1 labkit distributed --ranks 8 --nnodes $SLURM_NNODES \\
      --rdzv-backend c10d --rdzv-id $SLURM_JOB_ID --rdzv-endpoint FIRST_HOST:29500

Each machine prints what its own ranks measured. The knobs of --set are listed by: labkit run --help
"""


def arguments(sub: argparse.ArgumentParser) -> None:
    """Add what `labkit distributed` takes to its parser."""
    sub.epilog = EXAMPLES
    sub.add_argument("--set", action="append", default=[], metavar="KNOB=VALUE", dest="settings",
                     help="change a knob of the pipeline that every rank runs")  # fmt: skip
    sub.add_argument("--ranks", type=int, default=2, help="processes on this machine (default 2)")
    sub.add_argument("--no-sync", action="store_true",
                     help="exchange gradients only before an update")  # fmt: skip
    sub.add_argument("--starve", action="append", default=[], metavar="RANK:KNOB=VALUE",
                     help="give one rank's loader another setting, such as 1:io_ms=10")  # fmt: skip
    sub.add_argument("--baseline", action="store_true",
                     help="run one process as well, for speedup and efficiency")  # fmt: skip
    sub.add_argument("--plot", metavar="FILE", help="write the figure (.png, .svg, .pdf)")
    sub.add_argument("--save", metavar="FILE", help="keep the record (.jsonl or .jsonl.gz)")
    machines = sub.add_argument_group("several machines (torchrun's options)")
    for name, text in RENDEZVOUS.items():
        machines.add_argument(f"--{name.replace('_', '-')}", metavar="VALUE", help=text)


def distributed(options: argparse.Namespace) -> int:
    """`labkit distributed`."""
    import labkit as lk

    pipeline = Pipeline(**parse_settings(options.settings))
    rendezvous = {name: getattr(options, name) for name in RENDEZVOUS}
    rendezvous = {name: value for name, value in rendezvous.items() if value is not None}
    starve = starved(options.starve)
    Distributed(pipeline, options.ranks, options.no_sync, starve, rendezvous)  # tells mistakes now
    ranks = lk.distributed(
        pipeline,
        ranks=options.ranks,
        no_sync=options.no_sync,
        starve=starve,
        rendezvous=rendezvous,
    )
    one = None
    if options.baseline and ranks.outcome == "finished":  # on the device that the ranks had
        one = lk.run(ranks.alone.but(xray=False))
        if one.outcome != "finished":
            raise RuntimeError(f"the run of one process {one.outcome}: {one.error}")
    if options.save:
        ranks.save(options.save)
    if options.plot:
        ranks.plot().savefig(options.plot)
    against = scaling(ranks, one)
    if options.json:
        print(json.dumps(ranks.to_dict() | against, allow_nan=False))
    else:
        lines = [repr(ranks), *([repr(ranks.times)] if ranks.times else []), str(ranks.diagnose())]
        if against:
            lines.append(f"speedup {against['speedup']:.2f}, {against['efficiency']:.0%} a rank")
        print("\n".join(lines))
    return 1 if ranks.outcome == "failed" else 0


def scaling(ranks: Any, one: Any) -> dict[str, Any]:
    """Return speedup and efficiency over one process; {} where there is nothing to compare."""
    if one is None or ranks.throughput is None or one.throughput is None:
        return {}
    return {
        "baseline_throughput": one.throughput,
        "speedup": ranks.speedup(one),
        "efficiency": ranks.efficiency(one),
    }


def starved(texts: list[str]) -> dict[int, dict[str, Any]]:
    """Read RANK:KNOB=VALUE; raises ValueError where it is not that."""
    found: dict[int, dict[str, Any]] = {}
    for text in texts:
        rank, colon, setting = text.partition(":")
        if not colon or not rank.isdigit():
            raise ValueError(f"--starve {text!r} is not RANK:KNOB=VALUE.")
        found.setdefault(int(rank), {}).update(parse_settings([setting]))
    return found
