"""Why the loop waits for data: what its loader's workers and epochs show, and the costliest line.

The first cause that is found counts. It costs the loop's waiting, which `loader.waiting_for_data`
fills in.
"""

from __future__ import annotations

import math

from labkit.diagnosis import thresholds as limits
from labkit.diagnosis.cause import LATE, WARNING, cause
from labkit.diagnosis.causes.loader import (
    SETTINGS,
    WHOSE,
    WORTH_A_WORD,
    batches_in_the_loop,
    cheaper_items,
    cheaper_line,
    cores_full,
    fetch_at_once,
    set_num_workers,
    torchs_share,
)
from labkit.diagnosis.evidence import Evidence, WorkerEvidence
from labkit.diagnosis.findings import (
    LESS_WAITING,
    Finding,
    Measured,
    Remedy,
    explains,
    gain_without,
)
from labkit.diagnosis.hot_lines import COLLATE, Line
from labkit.diagnosis.known_calls import known_call
from labkit.text import counted

TIMED = "timed in the workers"


def late(
    name: str, *measured: Measured, remedies: tuple[Remedy, ...], lines: tuple[Line, ...] = ()
) -> Finding:
    """Return a cause of the waiting for data, with its numbers."""
    return Finding("input", name, measured=measured, remedies=remedies, lines=lines)


# -- one process holds the others up ---------------------------------------------------------------

RAISE_AN_ERROR = Remedy(
    "raise_an_error_instead",
    "Have the loader raise an error instead of waiting for ever, and start workers anew instead of "
    "forking: OpenCV, HDF5 and tokenizers may deadlock after a fork (cv2.setNumThreads(0)).",
    "lines",
    code="DataLoader(..., timeout=60, multiprocessing_context='spawn')\n",
    check="the loop goes on, or the error names the worker",
)


@cause("hang", "hang", when=LATE)
def worker_hangs(evidence: Evidence) -> Finding | None:
    """A worker that has an item to make made no progress to the end of the record.

    It is found where that lasted HANGS_S or longer.
    """
    hang = evidence.workers.hang
    if hang.seconds < limits.HANGS_S:
        return None
    item = "" if hang.index is None else f", at item {hang.index}"
    seen = f"since worker {hang.worker} last made progress{item}"
    return late("hang", Measured(seen, hang.seconds, "s", TIMED), remedies=(RAISE_AN_ERROR,))


ONE_THREAD = Remedy(
    "one_thread_a_worker",
    "Let the libraries compute with one thread: OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 "
    "MKL_NUM_THREADS=1 in front of the command, or these lines above all imports (PyTorch limits "
    "only its own threads; OpenCV needs cv2.setNumThreads(0) in the dataset). `labkit tune` tries "
    "it on your script.",
    "workers",
    code='for library in ("OMP", "OPENBLAS", "MKL"):  # above all other imports\n'
    '    os.environ[f"{library}_NUM_THREADS"] = "1"\n',
    cost="a model on the CPU has one thread, too, until torch.set_num_threads(4), say",
    check="the script itself, which is then faster",
)


@cause("threads", "threads", when=LATE)
def crowding_threads(evidence: Evidence) -> Finding | None:
    """Libraries in the workers compute with several threads each, more than there are cores.

    Where they were not counted, a worker's CPU time over its time tells how many compute; beside
    others that want the cores it tells too few.
    """
    workers = evidence.workers
    cores = evidence.use.cores
    each = max(1 + workers.library_threads, round(workers.cpu_share))
    if not cores or each < 2 or each * workers.workers <= cores:
        return None
    seen = f"each of {counted(workers.workers, 'worker')} computes with {each} threads"
    seen += f", {each * workers.workers} in all, on {counted(cores, 'core')}"
    return late("threads", Measured(seen, by=TIMED), remedies=(ONE_THREAD,))


# -- epochs ----------------------------------------------------------------------------------------

KEEP_WORKERS = Remedy(
    "persistent_workers",
    "Keep the workers between epochs, with what they have cached: persistent_workers=True, in a "
    "loader that is made once, above the loop over the epochs.",
    "epochs",
    {"persistent_workers": True},
    cost="the workers' memory between epochs",
)


@cause("epoch-start", "workers_restart", when=LATE)
def workers_restart(evidence: Evidence) -> Finding | None:
    """The first batch of every epoch waits for workers that start anew.

    It is found where the first batches of later epochs make up half of the waiting.
    """
    epochs = evidence.epochs
    if not evidence.has_workers or not epochs.starts or epochs.starts < evidence.wait_share / 2:
        return None
    return late(
        "workers_restart",
        Measured("of the time is the start of later epochs", epochs.starts),
        Measured("to an epoch's first batch", epochs.starts_ms, "ms"),
        remedies=(KEEP_WORKERS, *SETTINGS),
    )


READ_ONCE = Remedy(
    "read_once",
    "Build what the first epoch builds, and read what it reads, once before training. Where the "
    "page cache did it, time later epochs only, or copy the data to a local disk first.",
    "epochs",
    cost="disk space",
)


@cause("epoch-start", "cold_start", when=LATE)
def cold_start(evidence: Evidence) -> Finding | None:
    """The first epoch waits longer than the later ones: a cache of the system or dataset was empty.

    It is found where that is half of the waiting.
    """
    longer = evidence.epochs.first
    if not longer or longer < evidence.wait_share / 2:
        return None
    seen = "of the time is what the first epoch waited longer than later ones"
    return late("cold_start", Measured(seen, longer), remedies=(READ_ONCE,))


# -- uneven work -----------------------------------------------------------------------------------


EVEN_SHARDS = Remedy(
    "even_shards",
    "Cut the data into shards of one size, a multiple of the number of workers (datasets: "
    "to_iterable_dataset(num_shards=...)), and deal them out to the workers in turn, not in "
    "blocks.",
    "items",
    code="info = torch.utils.data.get_worker_info()  # in the dataset's __iter__\n"
    "files = self.files[info.id :: info.num_workers]\n",
    cost="another order of the items",
    check="every worker is as busy as the next one",
)


@cause("uneven-shards", "uneven_shards", when=LATE)
def uneven_shards(evidence: Evidence) -> Finding | None:
    """One worker has most of the work: its share bounds the gain.

    It is found where the busiest worked for UNEVEN times the mean.
    """
    uneven = evidence.workers.busiest_over_mean
    if uneven < limits.UNEVEN:
        return None
    measured = Measured("the mean", uneven, "times", TIMED, "the busiest worker's work is")
    return Finding("input", "uneven_shards", 0.0, (measured,), (EVEN_SHARDS,), at_most=uneven)


# -- the costliest line ----------------------------------------------------------------------------


@cause("costly-items", "slow_line", "item", "collate", when=LATE)
def slow_code_in_the_loop(evidence: Evidence) -> Finding | None:
    """The loop waits for the user's own code in its own process: sampler, dataset, collate.

    Cause "slow_line", "item" or "collate", where one function has MOST_OF_LOADING of the waiting.
    """
    return _slow_code(evidence, "waiting")


def _slow_code(evidence: Evidence, phase: str) -> Finding | None:
    """Return the finding that the code with most of a phase is slow; None where none has most."""
    code = evidence.loop.lines.slow_code.get(phase)
    if code is None:
        return None
    name = COLLATE if code.within == COLLATE else "item" if code.within else "slow_line"
    parts = [*zip(code.lines, code.shares, strict=True)]
    (first, share), *others = parts
    row = known_call(first)
    cured = [part for line, part in parts if line is first or (row and known_call(line) == row)]
    is_in_loop = phase == "waiting"
    waits = evidence.wait_share
    bounds = [gain_without(waits), evidence.known("headroom") or math.inf]
    bounds.append(gain_without(sum(cured) * waits if is_in_loop else sum(cured)))
    better = cheaper_line(first, min(bounds))
    where = WHOSE[phase]
    settings = SETTINGS
    if is_in_loop:
        where += ", in the loop's own process"
        workers = evidence.worker_count
        where += f" while its {counted(workers, 'worker')} can do nothing," if workers else ","
        # No number of workers makes a sampler quicker, nor what a loop with workers does by itself
        settings = () if workers else SETTINGS
    seen = [Measured(f"{where} is {first.what}", share)]
    seen += [Measured(f"in {line.what}", part) for line, part in others if part >= WORTH_A_WORD]
    remedies = (better, *settings) if row else (*settings, better)
    return late(name, *seen, remedies=remedies, lines=code.lines)


FEWER_PIECES = Remedy(
    "fewer_pieces",
    "Send less from a worker: one tensor for each part of a batch in place of lists, dicts and "
    "many small tensors; images as uint8, which the loop scales; compare pin_memory on and off.",
    "items",
    check=LESS_WAITING,
)


@cause("sending-batches", "hand_over", when=LATE)
def hand_over(evidence: Evidence) -> Finding | None:
    """Sending a batch from a worker to the loop takes longer than making it.

    It is found where the average worker had no batch to make for WORKERS_REST of the time, also
    while the loop waits, and other programs had at most FOREIGN_LOAD of the loop's core; or where
    items are so cheap that they are better taken a whole batch at a time.
    """
    idle = evidence.workers.known("idle_share") or 0.0
    rests = idle >= limits.WORKERS_REST and idle + evidence.wait_share > 1
    rests = rests and evidence.crowded_by <= limits.FOREIGN_LOAD
    is_cheap = evidence.known("loop") is not None and fetch_at_once.for_run(evidence)
    if not rests and not is_cheap:
        return None
    measured = []
    if rests:
        seen = "of the time the workers have nothing to do while the loop waits"
        measured.append(Measured(seen, idle, by=TIMED))
    share = torchs_share(evidence)
    if share and is_cheap:
        seen = "of the workers' time is torch's own: taking items one by one, stacking, sending"
        measured.append(Measured(seen, share))
    remedies = (fetch_at_once, batches_in_the_loop, FEWER_PIECES)
    return late("hand_over", *measured, remedies=remedies)


@cause("costly-items", when=LATE)
def slow_code_in_workers(evidence: Evidence) -> Finding | None:
    """One function of the user's own has most of the time of the workers, whatever the cores do.

    Cause "item" or "collate", where it has MOST_OF_LOADING of it.
    """
    return _slow_code(evidence, "worker")


# -- what no single line shows ---------------------------------------------------------------------


def _cpu_of(workers: WorkerEvidence) -> Measured:
    """Return the CPU time of the workers over the time in which they prepare items."""
    each = "the worker" if workers.workers == 1 else f"each of {workers.workers} workers"
    seen = f"CPU in {each} while it prepares items"
    in_line = workers.known("in_line_share") or 0.0
    if in_line > limits.IN_LINE:
        seen += f", and {in_line:.0%} waiting for a free core"
    return Measured(seen, workers.cpu_share, by=TIMED)


explains("costly-items", "cores")
explains("slow-storage", "storage_latency")


@cause("too-few-workers", "too_few_workers", when=LATE)
def state_of_workers(evidence: Evidence) -> Finding | None:
    """What the workers do all the time, where the waiting does not come in stalls.

    Cause "cores": there are as many as cores, these are full, and each computes for MOSTLY_WAITS of
    its time or more. Else "too_few_workers": each computes for COMPUTES of it. "storage_latency":
    for less than MOSTLY_WAITS; then they wait for storage or a network, each for itself.
    """
    workers = evidence.workers
    cores = evidence.use.cores
    cpu = _cpu_of(workers)
    counts = f"{counted(workers.workers, 'worker')} on {counted(cores or 0, 'core')}"
    computes = (cpu, *([Measured(counts)] if cores else ()))
    computing = workers.computing_share
    full = workers.workers >= (cores or math.inf) and cores_full(evidence)
    if full and computing >= limits.MOSTLY_WAITS:
        return late("cores", *computes, remedies=(fetch_at_once, cheaper_items))
    if evidence.stalls:
        return None
    if computing >= limits.COMPUTES:
        remedies = (fetch_at_once, set_num_workers, cheaper_items)
        return late("too_few_workers", *computes, remedies=remedies)
    if computing >= limits.MOSTLY_WAITS:
        return None
    waits = Measured("of waiting for each item", workers.item_wait_ms, "ms")
    return late("storage_latency", cpu, waits, remedies=(set_num_workers, cheaper_items))


KEEP_NO_ITEMS = Remedy(
    "keep_no_items",
    "Bound what the dataset keeps in each worker, and keep its index in one NumPy array or Arrow "
    "table instead of Python lists: each object that a forked worker touches is copied to it.",
    "items",
    code="self.paths = np.array(self.paths)  # in the dataset's __init__\n",
    check="the workers' memory stays level",
)


@cause("growth", "memory_growth", when=WARNING)
def memory_growth(evidence: Evidence) -> Finding | None:
    """The workers hold more and more memory: said whatever time it costs.

    It is found where they gained WORKERS_GREW_GIB or more.
    """
    gained = evidence.workers.grew_gib
    if gained < limits.WORKERS_GREW_GIB:
        return None
    seen = Measured("more than at their first batch", gained, "GiB", before="the workers hold")
    return Finding("host", "memory_growth", measured=(seen,), remedies=(KEEP_NO_ITEMS,))
