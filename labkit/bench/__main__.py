"""One run: `python -m labkit.bench FOLDER SUPERVISOR_PID` measures what FOLDER's spec asks for.

Everything that happens is in the event log; the exit code is 0 if the run finished, 1 if not.
"""

from __future__ import annotations

import faulthandler
import gc
import importlib
import json
import multiprocessing
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from labkit.bench.process import (
    die_with,
    keep_sockets_in,
    planted,
    short_of_files,
    stands_by,
    wait_for_run,
)
from labkit.process.events import SPEC_NAME, EventLog

MAX_TRACEBACK = 8_000  # characters kept of a traceback

WARM = [  # what a run imports
    f"labkit.bench.{name}"
    for name in ("data", "loop", "machine", "model_size", "probes", "profile",
                 "resolve_config", "timeline", "user_dataset", "workbench")
]  # fmt: skip

workers: list[Any] = []  # the loader's processes
held: list[Any] = []  # what would wait, when let go of, up to 5 s for each worker that is not idle


def main(folder: Path, parent: int) -> None:
    """Run the bench in `folder`, tied to the supervisor `parent`; does not return."""
    die_with(parent)
    faulthandler.enable()
    if stands_by():
        warm_up()
        wait_for_run()
    log = EventLog(folder)
    leave_on_stop(log)
    keep_sockets_in(folder)
    log.write("hello", pid=os.getpid())
    finish(log, lambda: run(json.loads((folder / SPEC_NAME).read_text()), folder, log))


def finish(log: EventLog, work: Callable[[], int | None]) -> None:
    """Do the `work`, write how it ended, and leave with the exit code it returns (None: 0)."""
    code = 1
    try:
        try:
            ended = work()
            if ended is None:
                log.write("done")
            code = ended or 0
        except BaseException as error:
            fail(log, error)
    except BaseException as error:  # a worker's death, which torch raises from a signal handler
        fail(log, error)
    sys.stderr.flush()
    os._exit(code)  # workers and threads end with the process; the supervisor sees to it


def warm_up() -> None:
    """Import what a run needs, and touch no device; everything else each run does for itself."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    gc.disable()
    for name in (*WARM, "psutil"):
        importlib.import_module(name)
    torch = sys.modules["torch"]
    torch.optim.AdamW([torch.nn.Parameter(torch.zeros(1))])  # imports half of torch itself
    gc.collect()  # or the run's first collection would look at all of torch: 0.1 s


def fail(log: EventLog, error: BaseException) -> None:
    """Write why the run failed."""
    if hasattr(signal, "SIGCHLD"):
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # torch's handler would raise in here too
    text = "".join(traceback.format_exception(error))[-MAX_TRACEBACK:]
    kind, message = type(error).__name__, str(error)[:MAX_TRACEBACK]
    files = short_of_files([os.getpid(), *(worker.pid for worker in workers)])
    more = {"workers": dead_workers(), "files": files}
    log.write("error", kind=kind, message=message, traceback=text, **more)
    sys.stderr.write(text)


def dead_workers() -> dict[int, int]:
    """Return {pid: exit code} of the loader workers that have died; negative codes are signals."""
    time.sleep(0.05)  # a connection to a worker breaks a moment before the worker can be waited for
    return {worker.pid: worker.exitcode for worker in workers if worker.exitcode}


def leave_on_stop(log: EventLog) -> None:
    """Leave at once when asked to: every finished step is in the log already."""

    def leave(*_: object) -> None:
        log.write("stopped")
        os._exit(130)

    signal.signal(signal.SIGINT, leave)
    if sys.platform == "win32":
        signal.signal(signal.SIGBREAK, leave)


def run(spec: dict, folder: Path, log: EventLog) -> None:
    """Take the device, do what `spec` describes on it, and write what it took."""
    stage = log.stage
    stage("importing torch")
    gc.disable()  # importing torch takes it a sixth of the time
    from labkit.bench import machine, model_size
    from labkit.process.device_lock import hold

    if "source" not in spec:  # the reader's own step has as many threads as it has with them
        machine.use_fixed_threads()
    device = machine.find_device(spec["pipeline"]["device"])
    machine.use(device)
    here = machine.describe(device) | {"unused_gpu": machine.unused_gpu()}
    log.write("machine", **here)
    holder = {"run": spec["run"], "pid": os.getpid(), "since": time.strftime("%H:%M:%S")}
    model_size.kept_in = Path(spec["cache"])
    locks = Path(spec["cache"]) / "locks"
    hold(locks, here.get("uuid") or device.type, holder, waiting=stage)
    if "experiment" in spec:
        from labkit.bench.workbench import perform

        gc.enable()
        perform(spec, device, folder, log, stage)
        log.write("memory", peak_bytes=machine.peak_bytes(device))
    else:
        run_pipeline(spec, device, folder, log, stage)


def run_pipeline(spec: dict, device: Any, folder: Path, log: EventLog, stage: Any) -> None:
    """Set up the pipeline that `spec` describes, and train."""
    from labkit.bench import data, machine, probes, profile, user_dataset
    from labkit.bench.loop import train
    from labkit.bench.resolve_config import resolve_config
    from labkit.bench.timeline import make_timeline

    own = "source" in spec
    job, not_applied = resolve_config(spec["pipeline"], device, own_model=not own)
    knobs = {name: getattr(job, name) for name in user_dataset.KNOBS} if own else vars(job)
    log.write("job", pipeline=knobs, not_applied=not_applied)
    if own:
        stage("loading your dataset")
        trainer, loader = user_dataset.prepare(spec["source"], job, folder)
    elif "module" in spec:
        made = importlib.import_module(spec["module"])
        trainer, loader = made.prepare(spec, job, device, folder, log, stage)
    else:
        trainer, loader = prepare(spec, job, device, folder, log, stage)
    in_flight = job.num_workers * (job.prefetch_factor or 0)
    timeline = make_timeline(log, folder, device)
    gc.enable()  # from here on, all is as in anybody's training
    log.write("begin", warmup=max(3, in_flight))
    iterator = iter(loader)  # starts the workers
    held.append(iterator)
    workers.extend(multiprocessing.active_children())
    log.write("workers", pids=[worker.pid for worker in workers])
    profile.keep_time(job)
    steps = train(trainer, iterator, timeline, job)
    log.write("memory", peak_bytes=machine.peak_bytes(device))
    profile.look(trainer, iterator, job, steps, folder, log)
    batch = iterator.tensors if own else data.like_a_batch(job)
    probes.hand_over(batch, steps, log, None if own else trainer)


def prepare(
    spec: dict, job: Any, device: Any, folder: Path, log: EventLog, stage: Any
) -> tuple[Any, Any]:
    """Return the model's trainer and the loader of a pipeline of our own."""
    from labkit.bench import data
    from labkit.bench.item_times import ItemTimes
    from labkit.bench.loop import Trainer

    cache = Path(spec["cache"]) / "data"
    dataset = data.make_dataset(job, cache, lambda done, total: stage("making images", done, total))
    stage("building the model")
    trainer = Trainer(job, device)
    if job.compile:
        stage("compiling the model")
        log.write("compiled", seconds=trainer.compile_now())
    dataset = planted(spec.get("fault"), dataset, trainer)
    return trainer, data.make_loader(dataset, job, ItemTimes(folder, job.num_workers))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
