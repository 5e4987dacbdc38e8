"""What the course claims of its pipelines, on stand-in cards: does each card show it?

    python tests/card_claims.py T4 H200    {"T4 record workers-0": ["input", "input"], ...}

Prints what is claimed and what is named. Each pipeline trains for some steps on the stand-in's
virtual clock and is diagnosed as any run. It guards the sizes of the course's GPU pipelines: what
is a lesson of the device on one card is a matter of launches on a faster one.
"""

import json
import os
import sys
import tempfile
from collections.abc import Iterator
from types import SimpleNamespace

import faultset
import standin_gpu
from standin_run import run_on

from labkit.course import record as course_records
from labkit.course.task import all_tasks
from labkit.spec import Pipeline

STEPS = 20  # as many as an x-ray needs
CLAIMS = {  # what the diagnosis names; "device": the card is the limit, in whatever way
    "record workers-0": "input", "record decode-0": "input", "record textbook-0": "input",
    "record textbook-1": "input", "record batch-64": "device", "record batch-256": "device",
    "record precision-fp32": "precision", "record precision-tf32": "device",
    "record precision-fp16": "device", "record precision-bf16": "device",
    "record compile-off": "launch", "exercise 00-first": "input", "exercise 02-feed": "input",
}  # fmt: skip
# Those that the device shows; faults of the loader, and of the host's own Python, it does not
FAULTS = (
    "pageable copies", "many small copies", "tiny batches", "sync every step", "launch storm",
    "foreach off", "evaluation stalls", "elementwise chain", "unfused optimizer",
    "FP32 where BF16 would do", "healthy CNN", "healthy transformer", "healthy MLP",
)  # fmt: skip


def claimed(gpu: standin_gpu.StandIn) -> Iterator[tuple[str, str, Pipeline, dict]]:
    """Yield the name of each pipeline, what is claimed of it, itself, and how it is run."""
    pipelines = {f"record {record.name}": record.spec for record in course_records.wanted("gpu")}
    for key, task in all_tasks().items():
        pipelines[f"exercise {key}"] = getattr(task, "base", None)
    for name, claim in CLAIMS.items():
        yield name, claim, pipelines[name], {}
    faultset.machine = lambda: SimpleNamespace(kind="gpu")
    faultset.finished = lambda pipeline: run_on(gpu, pipeline)
    here = faultset.base_here()
    for name in FAULTS:
        fault = faultset.named(name).on("gpu")
        if not here.cannot_show(fault):
            for severity in (1, 4):  # the mildest and the worst
                case = faultset.Case(fault, severity, 0, here.base)
                how = {"prep_ms": 0.5, "fault": case.planted}
                yield f"fault {name}, severity {severity}", fault.expected, case.pipeline, how


if __name__ == "__main__":
    os.chdir(tempfile.mkdtemp())  # some faults write files
    os.environ["LABKIT_HOME"] = os.getcwd()
    named = {}
    for card in sys.argv[1:]:
        with standin_gpu.installed(standin_gpu.CARDS[card], numbers=False) as gpu:
            for name, claim, pipeline, how in claimed(gpu):
                run = run_on(gpu, pipeline.but(steps=STEPS, seconds=None, compile=None), **how)
                named[f"{card} {name}"] = claim, run.diagnose().bottleneck
                gpu.kernels.clear()
    print(json.dumps(named))
