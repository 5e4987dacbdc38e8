"""Why the loop waits for data: what its loader's workers and epochs show, and the costliest line.

The first cause that is found counts. It costs the loop's waiting, which `loader.waiting_for_data`
fills in.
"""

from __future__ import annotations

import math

from labkit.diagnosis import thresholds as limits
from labkit.diagnosis.cause import LATE, WARNING, cause
from labkit.diagnosis.causes.loader import (
    CHEAPER_ITEMS,
    FETCH_AT_ONCE,
    IN_THE_LOOP,
    cores_full,
    settings,
)
from labkit.diagnosis.evidence import Evidence, asked
from labkit.diagnosis.findings import (
    LESS_WAITING,
    Finding,
    Measured,
    Remedy,
    explains,
    gain_without,
)
from labkit.diagnosis.hot_lines import MAKING
from labkit.text import counted

TIMED = "timed in the workers"
WHOSE = {"worker": "of the workers' time", "waiting": "of the waiting, in the loop's own process,"}


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
    return Finding(
        "input", "hang", 0.0, (Measured(seen, hang.seconds, "s", TIMED),), (RAISE_AN_ERROR,)
    )


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
    return Finding("input", "threads", 0.0, (Measured(seen, by=TIMED),), (ONE_THREAD,))


# -- epochs ----------------------------------------------------------------------------------------

KEEP_WORKERS = Remedy(
    "persistent_workers",
    "Keep the workers between epochs, with what they have cached: persistent_workers=True, in a "
    "loader that is made once, above the loop over the epochs.",
    "epochs",
    {"persistent_workers": True},
    cost="the workers' memory between epochs",
)


READ_ONCE = Remedy(
    "read_once",
    "Build what the first epoch builds, and read what it reads, once before training. Where the "
    "page cache did it, time later epochs only, or copy the data to a local disk first.",
    "epochs",
    cost="disk space",
)


@cause("epoch-start", "workers_restart", "cold_start", when=LATE)
def epoch_start(evidence: Evidence) -> Finding | None:
    """The first batch of each epoch waits for workers that start anew, or the first epoch waits.

    Cause "workers_restart", where the first batches of later epochs make up half of the waiting;
    "cold_start", where what the first epoch waits longer than later ones does: a cache of the
    system or of the dataset was empty.
    """
    epochs = evidence.epochs
    half = max(evidence.wait_share / 2, 1e-9)
    if evidence.has_workers and epochs.starts >= half:
        seen = "of the time is the start of later epochs"
        measured = (Measured(seen, epochs.starts),)
        remedies = (KEEP_WORKERS, *settings(evidence))
        return Finding("input", "workers_restart", 0.0, measured, remedies)
    if epochs.first >= half:
        seen = "of the time is what the first epoch waited longer than later ones"
        measured = (Measured(seen, epochs.first),)
        return Finding("input", "cold_start", 0.0, measured, (READ_ONCE,))
    return None


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
    seen = Measured("the mean", uneven, "times", TIMED, "the busiest worker's work is")
    return Finding("input", "uneven_shards", 0.0, (seen,), (EVEN_SHARDS,), at_most=uneven)


# -- the costliest line ----------------------------------------------------------------------------


@cause("costly-items", "slow_line", "item", "collate", when=LATE)
def slow_code(evidence: Evidence) -> Finding | None:
    """The loop waits for a function of the user's own: a sampler, a dataset, a collate function.

    Cause "slow_line", "item" or "collate", where it has MOST_OF_LOADING of the waiting, or of the
    time of workers that do not rest while the loop waits.
    """
    lines = evidence.loop.lines
    for phase in MAKING:
        made = lines.making(phase)
        shares = lines.frame[made].groupby("code", observed=True).of_phase.sum()
        ours = made & (lines.frame.code == shares.idxmax()) if len(shares) else made
        part = lines.frame.of_phase[ours].sum()
        is_in_loop = phase == "waiting"
        if part < limits.MOST_OF_LOADING or (asked(hand_over, evidence) and not is_in_loop):
            continue
        rows = lines.rows(ours)[:3]
        # No number of workers makes a sampler quicker, nor what a loop with workers does by itself
        is_alone = is_in_loop and evidence.has_workers
        most = gain_without(part * evidence.wait_share if is_in_loop else part)
        return Finding(
            "input",
            lines.frame.within[ours].iloc[0] or "slow_line",
            measured=(Measured(f"{WHOSE[phase]} is in {rows[0].what}", part),),
            remedies=(CHEAPER_ITEMS,) if is_alone else settings(evidence),
            lines=rows,
            at_most=most if is_alone else None,
        )
    return None


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
    while the loop waits, and other programs had at most FOREIGN_LOAD of the loop's core.
    """
    idle = evidence.workers.idle_share
    rests = idle >= limits.WORKERS_REST and idle + evidence.wait_share > 1
    if not rests or evidence.crowded_by > limits.FOREIGN_LOAD:
        return None
    seen = "of the time the workers have nothing to do while the loop waits"
    whole = [each for each in settings(evidence) if each in (FETCH_AT_ONCE, IN_THE_LOOP)]
    measured = (Measured(seen, idle, by=TIMED),)
    return Finding("input", "hand_over", 0.0, measured, (*whole, FEWER_PIECES))


# -- what no single line shows ---------------------------------------------------------------------


explains("costly-items", "cores")
explains("slow-storage", "storage_latency")


@cause("too-few-workers", "too_few_workers", when=LATE)
def state_of_workers(evidence: Evidence) -> Finding | None:
    """What the workers do all the time, where the waiting does not come in stalls.

    Cause "cores": there are as many as cores, and these are full. Else "too_few_workers": each
    computes for COMPUTES of its time. "storage_latency": for less than MOSTLY_WAITS; then they wait
    for storage or a network, each for itself.
    """
    workers = evidence.workers
    cores = evidence.use.cores or math.inf
    computing = workers.cpu_share
    if workers.workers >= cores and cores_full(evidence):
        name = "cores"
    elif evidence.stalls or limits.MOSTLY_WAITS <= computing < limits.COMPUTES:
        return None
    else:
        name = "too_few_workers" if computing >= limits.COMPUTES else "storage_latency"
    seen = f"CPU on average in {counted(workers.workers, 'worker')} on {cores} cores"
    measured = (Measured(seen, workers.cpu_share, by=TIMED),)
    return Finding("input", name, 0.0, measured, settings(evidence))


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
