"""Logs written by hand: of a training loop on a CPU, or on a GPU that is played through.

A kernel starts when it has been launched and the one before is over; the host goes on meanwhile.
"""

import itertools
import json
from collections.abc import Sequence

import numpy as np

import labkit as lk

MS = 1_000_000
GPU = {"device": "cuda:0", "kind": "gpu", "name": "NVIDIA H200", "cpu_cores": 16, "versions": {}}
CPU = {"device": "cpu", "kind": "cpu", "name": "Test", "cpu_cores": 2, "threads": 1, "versions": {}}
KERNELS = 10  # of a step
END = ({"event": "done"}, {"event": "end", "stop": None, "code": 0})
count = itertools.count()


def written(file, lines):
    """Write the events of a log; return the file."""
    file.write_text("".join(json.dumps({"t_ns": 0, **line}) + "\n" for line in lines))
    return file


def load(folder, lines):
    """Write the events of a log and load it."""
    return lk.load(written(folder / f"{next(count)}.jsonl", lines))


def lines_of(machine, knobs, *events, spec=(), end=END):
    """Return the events of a finished run, from its first step on in `events`."""
    return [
        {"event": "spec", "version": 1, "run": "r", "pipeline": knobs, **dict(spec)},
        {"event": "machine", **machine},
        {"event": "job", "pipeline": knobs, "not_applied": {}},
        {"event": "begin", "warmup": 3},
        *events,
        *end,
    ]


def log(folder, *what, **more):
    """Write the log of a run, as `lines_of` takes it, and load it."""
    return load(folder, lines_of(*what, **more))


def host_steps(wait, compute, count=60, *, copy=0.0, other=0.0, **more):
    """Return the events of steps that have the host's stamps alone; times in ms.

    `other` is what the host does between two steps.
    """
    steps = []
    now = 1000 * MS
    for i in range(count):
        stamps = [now]
        for ms in (wait, copy, compute):
            stamps.append(stamps[-1] + round(ms * MS))
        steps.append({"event": "step", "i": i, "t": stamps, "n": 16, "loss": 1.0, **more})
        now = stamps[-1] + round(other * MS)
    return steps


def watched_log(folder, machine, called, steps, rows, read=(), *, knobs, events=(), **watched):
    """Write and load the log of a watched loop whose host was in `called[n]` as `rows` say, ms.

    A step has its moments, in ms, and may have how many `bytes` its batch has.
    """
    site = ["train.py", 57, "train"]
    places = {str(n): [kind, "", *site, call, site] for n, (kind, call) in enumerate(called)}
    events = list(events)
    for i, step in enumerate(steps):
        event = {"event": "step", "i": i, "n": 256}
        for name, value in step.items():
            event[name] = value if name == "bytes" else [round(ms * MS) for ms in value]
        events.append(event)
    samples = []
    for n, begin, end in rows:
        samples += [[round(at * MS), 5 * MS, n] for at in np.arange(begin, end, 5.0)]
    events += ({"event": "telemetry", **sample} for sample in read)
    lines = {"event": "lines", "pid": 0, "places": places, "rows": samples}
    about = {"watched": {"loader": "DataLoader", **watched}}
    return log(folder, machine, knobs, *events, lines, spec=about)


def play(
    *,
    steps=60,
    prep=0.1,
    copy=0.5,
    launch=2.0,
    compute=10.0,
    after=0.0,
    gap=0.0,
    waits=True,
    sync=False,
    side_stream=False,
):
    """Play a loop without loader workers; return its step events, and its kernels (n, 2) in ms.

    Times are in ms: to prepare a batch, to copy it, to launch a step's kernels, to compute them (a
    sequence is gone through again and again), `after` a step, and the `gap` between the copy and
    the first event of the compute. The host `waits` for the copy where it is blocking or from
    pageable memory, and with `sync` for the end of each step.
    """
    host = 1000.0
    free = 0.0
    copied = 0.0
    events: list[dict] = []
    kernels: list[tuple[float, float]] = []
    lengths = compute if isinstance(compute, Sequence) else [compute]
    for i in range(steps):
        asked = host
        ready = host + prep
        first = max(ready, copied if side_stream else free)
        copied = first + copy
        after_copy = max(ready, copied) if waits else ready
        host = after_copy + gap
        free = begin = max(free, copied, host)
        for _ in range(KERNELS):
            host += launch / KERNELS
            start = max(free, host)
            free = start + lengths[i % len(lengths)] / KERNELS
            kernels.append((start, free))
        host = max(host, free) if sync else host
        free = max(host, free)  # the event at the end
        times = {
            "t": [asked, ready, after_copy, host],
            "copy": [first, copied],
            "busy": [begin, free],
        }
        events.append({name: [round(ms * MS) for ms in each] for name, each in times.items()})
        events[-1] |= {"event": "step", "i": i, "n": 16, "loss": 1.0}
        host += after
    return events, np.array(kernels)
