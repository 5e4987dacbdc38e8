"""What `labkit COMMAND --help` says below the options: examples, and every knob."""

from __future__ import annotations

from labkit.spec import KNOBS

EPILOG = """labkit COMMAND --help tells more about each, with examples.

start here:
  labkit machine                        what is there to measure on
  labkit run --set num_workers=4        one pipeline, for a few seconds
  labkit diagnose PATH                  what holds a saved run or a profiler trace back
  labkit watch -- python train.py       your own script, unchanged

Results go to stdout (--json: one JSON object), progress and errors to stderr. The exit code is 0,
1 where a run failed, 2 where the input was bad, 130 where you interrupted it.
"""

RUN_EXAMPLES = """examples:
  labkit run
  labkit run --set num_workers=4 --set precision=bf16 --plot run.png
  labkit run --set dataset=array --save before.jsonl.gz && labkit diagnose before.jsonl.gz
  labkit run --set device=cpu --json | python -m json.tool

"""

SWEEP_EXAMPLES = """examples:
  labkit sweep --over num_workers=0,2,4,8 --plot workers.png
  labkit sweep --over batch_size=16,32,64 --over precision=fp32,bf16 --set num_workers=4
  labkit sweep --over batch_size=64,128,256 --devices cuda:0,cuda:1   one run at a time on each

"""

TRACE_EXAMPLES = """the file comes from your own training loop:
  with torch.profiler.profile(schedule=torch.profiler.schedule(wait=5, warmup=2, active=5)) as prof:
      for batch in loader: train(batch); prof.step()
  prof.export_chrome_trace("trace.json.gz")

examples:
  labkit trace trace.json.gz
  labkit trace trace.json.gz --plot trace.png --json
"""

DIAGNOSE_EXAMPLES = """examples:
  labkit run --save run.jsonl.gz && labkit diagnose run.jsonl.gz
  labkit diagnose trace.json.gz         a torch.profiler trace of your own script
"""

FAULTS_EXAMPLES = """\
Pipelines with a known fault planted in each, and healthy ones, run one after the other; the
table says how often the diagnosis named the fault. It takes a quarter of
an hour on a CPU: --keep lets you stop.

examples:
  labkit faults --seeds 1 --keep faults.jsonl
  labkit faults --only "no workers" --seeds 1
"""

WATCH_EXAMPLES = """\
The script keeps its stdin, stdout, stderr and exit code; the verdict goes to stderr in the end.

examples:
  labkit watch -- python train.py --epochs 1
  labkit watch --json -- torchrun --nproc-per-node=2 train.py > verdict.json
"""


def knobs() -> str:
    """The knobs as help text: name, default, what it does, what is allowed."""
    lines = ["knobs (--set KNOB=VALUE):"]
    for knob in KNOBS.values():
        lines.append(f"  {knob.name}={knob.default}: {knob.help}")
        lines.append(f"      {knob.allowed}")
    return "\n".join(lines)
