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
    gain_without,
    remedy,
)
from labkit.diagnosis.hot_lines import COLLATE, Line, SlowCode
from labkit.diagnosis.known_calls import known_call
from labkit.diagnosis.symptoms import explains
from labkit.spec import PYTORCH_PREFETCH
from labkit.text import counted

TIMED = "timed in the workers"


def late(
    name: str, *measured: Measured, remedies: tuple[Remedy, ...], lines: tuple[Line, ...] = ()
) -> Finding:
    """Return a cause of the waiting for data, with its numbers."""
    return Finding("input", name, measured=measured, remedies=remedies, lines=lines)


# -- states of the workers -------------------------------------------------------------------------


@remedy
def raise_an_error_instead(evidence: Evidence) -> Remedy:
    """A worker that has made no progress for long."""
    limit_s = max(60, round(evidence.workers.hang.seconds))
    return Remedy(
        "raise_an_error_instead",
        "Have the loader raise an error instead of waiting for ever, and start workers anew "
        "instead of forking: OpenCV, HDF5 and tokenizers may deadlock after a fork "
        "(cv2.setNumThreads(0)).",
        "lines",
        code=f"DataLoader(..., timeout={limit_s}, multiprocessing_context='spawn')\n",
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
    measured = Measured(seen, hang.seconds, "s", TIMED)
    return late("hang", measured, remedies=(raise_an_error_instead,))


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


@remedy
def persistent_workers(evidence: Evidence) -> Remedy:
    """Workers that end with each epoch: by default, or since their loader is made anew."""
    lost = evidence.workers.known("lost_cache") if evidence.known("workers") else None
    if lost is None:
        return Remedy(
            "persistent_workers",
            "Keep the workers between epochs: persistent_workers=True, in a loader that is made "
            "once, above the loop over the epochs.",
            "epochs",
            {"persistent_workers": True},
            cost="the workers' memory between epochs",
        )
    return Remedy(
        "keep_the_cache",
        f"Keep the workers between epochs, and `{lost.name}` with them: persistent_workers=True. "
        "Each worker still fills its own; filled before the first epoch, in the main process, "
        "forked workers share it, and on disk it outlives the script.",
        "epochs",
        {"persistent_workers": True},
        cost="the cache's memory in each worker",
    )


@cause("epoch-start", "lost_cache", when=LATE)
def cache_that_ends(evidence: Evidence) -> Finding | None:
    """What the dataset keeps is gone with the workers of each epoch, and is made anew in the next.

    It is found where the entries that were kept are CACHED of the items or more, and later epochs
    wait as long as the first.
    """
    lost = evidence.workers.lost_cache
    if evidence.epochs.first >= evidence.wait_share / 2:
        return None
    if lost.entries < limits.CACHED * lost.items:
        return None
    kept = f"`{lost.name}` has {lost.entries:.0f} entries when a worker ends with its epoch, after "
    seen = Measured(f"{kept}{lost.items:.0f} items; the next worker begins with none")
    return late("lost_cache", seen, remedies=(persistent_workers,))


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
        remedies=(persistent_workers, *SETTINGS),
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


@remedy
def bridge_slow_items(evidence: Evidence) -> Remedy | None:
    """Workers that rest behind a late batch: a longer queue, or any order, has them go on."""
    workers = evidence.workers
    if workers.workers < 2 or (workers.known("idle_share") or 0) < limits.REST_BEHIND:
        return None
    deeper = 4 * int(evidence.knobs.get("prefetch_factor") or PYTORCH_PREFETCH)
    return Remedy(
        "bridge_slow_items",
        f"Let the other workers go on meanwhile: a longer queue, prefetch_factor={deeper}, or "
        "batches as they are ready, in_order=False (torch 2.6), whose order differs from run to "
        "run.",
        "queue",
        {"prefetch_factor": deeper},
        cost="memory for the batches kept ready",
        check=LESS_WAITING,
    )


SLOW_ITEMS_OFFLINE = Remedy(
    "slow_items_offline",
    "Treat these items before training: shrink, convert, cut or cache them, or leave them out; or "
    "sort the data so that a batch has items of one size.",
    "items",
    check=LESS_WAITING,
)
WHAT_IT_WAITS_FOR = Remedy(
    "what_it_waits_for",
    "Find out what that line waits for (a server, a lock, a disk), and give it a time limit: try "
    "again, or take another item. Until then a longer queue bridges part of it: prefetch_factor=8, "
    "more workers, or in_order=False, whose order differs from run to run.",
    "queue",
    check=LESS_WAITING,
)


@cause("slow-items", "slow_items", "stuck", when=LATE)
def few_slow_items(evidence: Evidence) -> Finding | None:
    """A few items take far longer than the others, and the loop waits for their batches.

    Cause "stuck", where they compute for less than MOSTLY_WAITS of their time, and last STUCK_S or
    longer each; else "slow_items". It is found where they take SLOW_SHARE of the time in which
    items are prepared, or the loop waits that much more for their batches than for others.
    """
    slow = evidence.slow_items
    cost = slow.cost
    if max(cost.share, cost.held_up) < limits.SLOW_SHARE:
        return None
    waits = cost.cpu_share < limits.MOSTLY_WAITS
    named = f" ({', '.join(map(str, slow.indices[:5]))})" if slow.indices else ""
    workers = evidence.known("workers")
    one = cost.worker if workers and workers.workers > 1 else None
    who = "" if one is None else f", all in worker {one}"
    often = f"each, {cost.times:.0f} times as long as the others, 1 item in {cost.one_in}{named}"
    took = (1e3 * cost.seconds, "ms") if cost.seconds < 1 else (cost.seconds, "s")
    measured = (
        Measured(often, *took, by=TIMED, before=f"a few items {'wait' if waits else 'take'}"),
        Measured(f"of the time in which items are prepared goes to them{who}", cost.share),
        *(Measured(f"they are in {line.what}") for line in slow.lines[:1]),
    )
    if waits and cost.seconds >= limits.STUCK_S:
        remedies = (WHAT_IT_WAITS_FOR, bridge_slow_items, set_num_workers)
        return late("stuck", *measured, remedies=remedies, lines=slow.lines)
    remedies = (bridge_slow_items, SLOW_ITEMS_OFFLINE, set_num_workers)
    return late("slow_items", *measured, remedies=remedies, lines=slow.lines)


@remedy
def even_shards(evidence: Evidence) -> Remedy:
    """A loader whose workers were seen: that many shards, or a multiple of it."""
    count = evidence.workers.workers
    return Remedy(
        "even_shards",
        f"Cut the data into shards of one size, a multiple of the {count} workers ({4 * count}, "
        f"say; datasets: to_iterable_dataset(num_shards={4 * count})), and deal them out to the "
        "workers in turn, not in blocks.",
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
    before = "the busiest worker's work is"
    measured = Measured("the mean", uneven, "times", TIMED, before)
    remedies = (even_shards,)
    return Finding("input", "uneven_shards", 0.0, (measured,), remedies, at_most=uneven)


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
    first, *others = code.lines
    row = known_call(first)
    alike = [first, *(line for line in others if row is not None and known_call(line) == row)]
    part = sum(share for line, share in zip(code.lines, code.shares, strict=True) if line in alike)
    is_in_loop = phase == "waiting"
    bounds = [gain_without(evidence.wait_share), evidence.known("headroom") or math.inf]
    bounds.append(gain_without(part * evidence.wait_share if is_in_loop else part))
    better = cheaper_line(first, min(bounds))
    # No number of workers makes a sampler quicker, nor what a loop with workers does by itself
    settings = () if is_in_loop and evidence.has_workers else SETTINGS
    remedies = (better, *settings) if row else (*settings, better)
    seen = _parts_of(code, evidence.worker_count)
    return late(name, *seen, remedies=remedies, lines=code.lines)


def _parts_of(code: SlowCode, workers: int) -> tuple[Measured, ...]:
    """Return what slow code takes of its process's time, line by line, and where it runs."""
    where = WHOSE[code.phase]
    if code.phase == "waiting":
        where += ", in the loop's own process"
        where += f" while its {counted(workers, 'worker')} can do nothing," if workers else ","
    first, *others = zip(code.lines, code.shares, strict=True)
    also = [Measured(f"in {line.what}", part) for line, part in others if part >= WORTH_A_WORD]
    return Measured(f"{where} is {first[0].what}", first[1]), *also


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


def _cpu(workers: WorkerEvidence) -> Measured:
    """Return the CPU time of the workers over the time in which they prepare items."""
    each = "the worker" if workers.workers == 1 else f"each of {workers.workers} workers"
    seen = f"CPU in {each} while it prepares items"
    in_line = workers.known("in_line_share") or 0.0
    if in_line > limits.IN_LINE:
        seen += f", and {in_line:.0%} waiting for a free core"
    return Measured(seen, workers.cpu_share, by=TIMED)


explains("costly-items", "cores")


@cause("too-few-workers", "too_few_workers", when=LATE)
def workers_compute(evidence: Evidence) -> Finding | None:
    """The workers compute all the time.

    Cause "cores", where there are as many workers as cores and each computes for COMPUTES of its
    time; MOSTLY_WAITS is enough where the run used CORES_BUSY of them: there is no core for another
    one. Else "too_few_workers", where each computes for COMPUTES of its time, and the waiting does
    not come in stalls.
    """
    workers = evidence.workers
    cores = evidence.use.cores
    counts = f"{counted(workers.workers, 'worker')} on {counted(cores or 0, 'core')}"
    measured = (_cpu(workers), *([Measured(counts)] if cores else ()))
    full = workers.workers >= (cores or math.inf) and cores_full(evidence)
    if full and workers.computing_share >= limits.MOSTLY_WAITS:
        return late("cores", *measured, remedies=(fetch_at_once, cheaper_items))
    if workers.computing_share < limits.COMPUTES or evidence.stalls:
        return None
    remedies = (fetch_at_once, set_num_workers, cheaper_items)
    return late("too_few_workers", *measured, remedies=remedies)


@cause("slow-storage", "storage_latency", when=LATE)
def storage_latency(evidence: Evidence) -> Finding | None:
    """The workers wait for storage or a network, each for itself.

    It is found where they compute for less than MOSTLY_WAITS of their time, and the waiting does
    not come in stalls.
    """
    workers = evidence.workers
    if workers.computing_share >= limits.MOSTLY_WAITS or evidence.stalls:
        return None
    waits = Measured("of waiting for each item", workers.item_wait_ms, "ms")
    return late("storage_latency", _cpu(workers), waits, remedies=(set_num_workers, cheaper_items))


# -- memory ----------------------------------------------------------------------------------------

ARRAYS = Remedy(
    "index_in_one_array",
    "Keep the dataset's index in one NumPy array or Arrow table instead of Python lists: each "
    "object that a worker touches is copied to it.",
    "items",
    code="self.paths = np.array(self.paths)  # in the dataset's __init__\n",
    check="the workers' memory stays level",
)
KEEP_NO_ITEMS = Remedy(
    "keep_no_items",
    "Bound what the dataset keeps in each worker: a cache of its items is filled once in every "
    "one of them.",
    "items",
    check="the workers' memory stays level",
)


@cause("growth", "memory_growth", when=WARNING)
def memory_growth(evidence: Evidence) -> Finding | None:
    """The workers hold more and more memory: said whatever time it costs.

    It is found where they gained WORKERS_GREW_GIB or more.
    """
    memory = evidence.workers.memory
    if memory.gained < limits.WORKERS_GREW_GIB:
        return None
    more = "more than at their first batch"
    measured = [Measured(more, memory.gained, "GiB", before="the workers hold")]
    remedies = (KEEP_NO_ITEMS, ARRAYS)
    if memory.copied >= memory.gained / 2:
        shared = "of it had been shared with the main process until a worker touched it"
        measured.append(Measured(shared, memory.copied, "GiB"))
        remedies = (ARRAYS,)
    return Finding("host", "memory_growth", measured=tuple(measured), remedies=remedies)
