"""Faults that break a run, planted by the bench's hook: `launch(..., fault=planted("bench_dies"))`.

The bench imports this file: tests put their folder on its path (see conftest.py).
"""

import ctypes
import mmap
import os
import signal
import subprocess
import sys
import threading
import time
from functools import partial
from pathlib import Path

from labkit import Pipeline

QUICK = Pipeline(dataset="sleep", prep_ms=1, model="mlp", width=32, depth=1, steps=30, xray=False)
TOOLS = {"steps.ring", "launch.json"}  # files of a run that goes on

AT = 5  # the item, batch or step that breaks
HELPERS = ("in the session", "in its own", "daemon")  # what a step may start
HELPER_NAME = "helper"  # its pid
COUNT_NAME = "steps.count"  # how many steps were finished, told past the log and its ring


def planted(name="nothing"):
    """Return the spec's `fault` for the one of that name; "nothing" only counts the steps."""
    return f"planted:plant:{name}"


def counted(folder):
    """How many steps the bench in `folder` says it has finished."""
    file = folder / COUNT_NAME
    return int.from_bytes(file.read_bytes(), "little") if file.exists() else 0


def wait_until(condition, seconds=60.0):
    """Wait until `condition()` is true; fail when it takes too long."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.01)


def no_tools_in(folder):
    """Fail where a run left something that it needs only while it goes on."""
    left = {path.name for path in folder.iterdir()}
    assert not left & TOOLS and not [n for n in left if n.startswith(("listener-", "pym-"))]


def sampled(rows):
    """Return a table of faults as parameters: those without `always` are for .ci/nightly."""
    import pytest

    return [
        pytest.param(
            row, id=row.name.replace(" ", "-"), marks=[] if row.always else pytest.mark.nightly
        )
        for row in rows
    ]


def raises():
    raise ValueError("planted: this sample cannot be read")


def tells_a_key():
    print("printed:", os.environ["HF_TOKEN"])
    raise ValueError(f"no access with {os.environ['HF_TOKEN']}")


def hangs_with_the_gil():
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # it would cut the sleep short
    ctypes.PyDLL(None).sleep(3600)  # PyDLL keeps the GIL: no thread and no handler runs


def ignores_stop():
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    time.sleep(3600)


def floods():
    for _ in range(100):
        os.write(1, b"x" * (1 << 20))


def escapes():
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            time.sleep(3600)
        os._exit(0)
    os.wait()


def starts_helper(way):
    """A helper that inherits no environment, in its session or another, with open files or none."""
    other = {"start_new_session": way != "in the session", "env": {}, "cwd": "/"}
    if way == "daemon":
        code = "import os, sys, time; os.fork() and sys.exit(); print(os.getpid()); "
        code += "[os.dup2(os.open(os.devnull, os.O_RDWR), fd) for fd in range(3)]; time.sleep(3600)"
        started = subprocess.run([sys.executable, "-uc", code], stdout=subprocess.PIPE, **other)
        pid = int(started.stdout)
    else:
        pid = subprocess.Popen(["sleep", "3600"], **other).pid
    Path(HELPER_NAME).write_text(str(pid))  # in the run's folder


def sends(number):
    return lambda: os.kill(os.getpid(), number)


IN_LOADER = {  # in a worker, or in the loop where there is none
    "tells_a_key": tells_a_key,
    "dataset_raises": raises,
    "sample_unpicklable": threading.Lock,
    "worker_dies": sends(9),
}
IN_STEP = {
    "step_raises": raises,
    "bench_dies": sends(9),
    "bench_segfaults": partial(ctypes.string_at, 0),
    "bench_exits": partial(os._exit, 7),
    "bench_hangs": hangs_with_the_gil,
    "bench_is_stopped": sends(signal.SIGSTOP),
    "ignores_stop": ignores_stop,
    "floods_stdout": floods,
    "escapes": escapes,
    **{f"helper {way}": partial(starts_helper, way) for way in HELPERS},
}


def plant(name, dataset, trainer):
    """Plant the fault and count the finished steps; called by the bench."""
    from labkit.bench import data

    with open(COUNT_NAME, "w+b") as file:  # in the run's folder
        file.write(bytes(8))
        file.flush()
        counter = memoryview(mmap.mmap(file.fileno(), 8)).cast("q")

    def count():
        counter[0] += 1

    make = data.make_loader

    def make_loader(*args):
        loader = make(*args)
        once(loader, "collate_fn", IN_LOADER[name])
        return loader

    trainer.after_step = count
    rank, ranks = trainer.job.shard
    if rank < ranks - 1:  # one of several breaks, the others do not
        return dataset
    if name in IN_STEP:
        once(trainer, "compute", IN_STEP[name])
    elif name in IN_LOADER:
        data.make_loader = make_loader
    return dataset


def once(owner, name, breaks):
    """Have call number `AT` of the function do `breaks()` first, or return what that gives."""
    plain = getattr(owner, name)
    calls = iter(range(10**9))

    def broken(*args, **kwargs):
        given = breaks() if next(calls) == AT else None
        return given or plain(*args, **kwargs)

    setattr(owner, name, broken)
