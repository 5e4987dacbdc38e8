"""Why the loop waits for data: what its loader's workers and epochs show, and the costliest line.

The first cause that is found counts. It costs the loop's waiting, which `loader.waiting_for_data`
fills in.
"""

from __future__ import annotations

import math

from labkit.diagnosis import thresholds as limits
from labkit.diagnosis.cause import LATE, cause
from labkit.diagnosis.causes.loader import (
    CHEAPER_ITEMS,
    FETCH_AT_ONCE,
    IN_THE_LOOP,
    cores_full,
    settings,
)
from labkit.diagnosis.evidence import Evidence, asked
from labkit.diagnosis.findings import Finding, Remedy, gain_without
from labkit.diagnosis.hot_lines import MAKING
from labkit.text import counted

WHOSE = {"worker": "of the workers' time", "waiting": "of the waiting, in the loop's own process,"}


def late(name: str, seen: str, *remedies: Remedy) -> Finding:
    """Return a finding that says why the loop waits for data."""
    return Finding("input", name, evidence=seen, remedies=remedies)


# -- one process holds the others up ---------------------------------------------------------------

RAISE_AN_ERROR = Remedy(
    "raise_an_error_instead",
    "Have the loader raise an error instead of waiting for ever, and start workers anew instead of "
    "forking: OpenCV, HDF5 and tokenizers may deadlock after a fork (cv2.setNumThreads(0)).",
    "lines",
    code="DataLoader(..., timeout=60, multiprocessing_context='spawn')\n",
)


@cause(LATE)
def worker_hangs(evidence: Evidence) -> Finding | None:
    """A worker that has an item to make made no progress to the end of the record: "hang".

    It is found where that lasted HANGS_S or longer.
    """
    hang = evidence.workers.hang
    if hang.seconds < limits.HANGS_S:
        return None
    seen = f"{hang.seconds:.0f} s since worker {hang.worker} last made progress."
    return late("hang", seen, RAISE_AN_ERROR)


ONE_THREAD = Remedy(
    "one_thread_a_worker",
    "Let the libraries compute with one thread: OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 "
    "MKL_NUM_THREADS=1 in front of the command, or these lines above all imports (PyTorch limits "
    "only its own threads; OpenCV needs cv2.setNumThreads(0) in the dataset). `labkit tune` tries "
    "it on your script.",
    "workers",
    code='for library in ("OMP", "OPENBLAS", "MKL"):  # above all other imports\n'
    '    os.environ[f"{library}_NUM_THREADS"] = "1"\n',
)


@cause(LATE)
def crowding_threads(evidence: Evidence) -> Finding | None:
    """Libraries in the workers compute with more threads than there are cores: "threads".

    A worker's CPU time over its time tells how many compute, where they were not counted.
    """
    workers = evidence.workers
    cores = evidence.use.cores
    each = max(1 + workers.library_threads, round(workers.cpu_share))
    if not cores or each < 2 or each * workers.workers <= cores:
        return None
    seen = f"Each of {counted(workers.workers, 'worker')} computes with {each} threads"
    seen += f", {each * workers.workers} in all, on {counted(cores, 'core')}."
    return late("threads", seen, ONE_THREAD)


# -- epochs ----------------------------------------------------------------------------------------

KEEP_WORKERS = Remedy(
    "persistent_workers",
    "Keep the workers between epochs, with what they have cached: persistent_workers=True, in a "
    "loader that is made once, above the loop over the epochs.",
    "epochs",
    {"persistent_workers": True},
)
READ_ONCE = Remedy(
    "read_once",
    "Build what the first epoch builds, and read what it reads, once before training. Where the "
    "page cache did it, time later epochs only, or copy the data to a local disk first.",
    "epochs",
)


@cause(LATE)
def epoch_start(evidence: Evidence) -> Finding | None:
    """The first batch of each epoch waits for workers that start anew, or the first epoch waits.

    Cause "workers_restart", where the first batches of later epochs make up half of the waiting;
    "cold_start", where what the first epoch waits longer than later ones does: a cache of the
    system or of the dataset was empty.
    """
    epochs = evidence.epochs
    half = max(evidence.wait_share / 2, 1e-9)
    if evidence.has_workers and epochs.starts >= half:
        seen = f"{epochs.starts:.0%} of the time is the start of later epochs, each "
        seen += f"{epochs.starts_ms:.1f} ms."
        return late("workers_restart", seen, KEEP_WORKERS, *settings(evidence))
    if epochs.first < half:
        return None
    seen = f"{epochs.first:.0%} of the time is what the first epoch waited longer than later ones."
    return late("cold_start", seen, READ_ONCE)


# -- the costliest line ----------------------------------------------------------------------------


@cause(LATE)
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
        return Finding(
            "input",
            lines.frame.within[ours].iloc[0] or "slow_line",
            evidence=f"{part:.0%} {WHOSE[phase]} is in {rows[0].what}.",
            remedies=(CHEAPER_ITEMS,) if is_alone else settings(evidence),
            lines=rows,
            at_most=gain_without(part * evidence.wait_share) if is_alone else None,
        )
    return None


FEWER_PIECES = Remedy(
    "fewer_pieces",
    "Send less from a worker: one tensor for each part of a batch in place of lists, dicts and "
    "many small tensors; images as uint8, which the loop scales; compare pin_memory on and off.",
    "items",
)


@cause(LATE)
def hand_over(evidence: Evidence) -> Finding | None:
    """Sending a batch from a worker to the loop takes longer than making it: "hand_over".

    It is found where the average worker had no batch to make for WORKERS_REST of the time, also
    while the loop waits, and other programs had at most FOREIGN_LOAD of the loop's core.
    """
    idle = evidence.workers.idle_share
    rests = idle >= limits.WORKERS_REST and idle + evidence.wait_share > 1
    if not rests or evidence.crowded_by > limits.FOREIGN_LOAD:
        return None
    seen = f"{idle:.0%} of the time the workers have nothing to do while the loop waits."
    whole = [each for each in settings(evidence) if each in (FETCH_AT_ONCE, IN_THE_LOOP)]
    return late("hand_over", seen, *whole, FEWER_PIECES)


# -- what no single line shows ---------------------------------------------------------------------


@cause(LATE)
def state_of_workers(evidence: Evidence) -> Finding | None:
    """What the workers do all the time, where the waiting does not come in stalls.

    Cause "cores": there are as many as cores, these are full, and each computes for MOSTLY_WAITS of
    its time or more. Else "too_few_workers": each computes for COMPUTES of it. "storage_latency":
    for less than MOSTLY_WAITS; then they wait for storage or a network, each for itself.
    """
    workers = evidence.workers
    cores = evidence.use.cores or math.inf
    computing = workers.computing_share
    if workers.workers >= cores and cores_full(evidence) and computing >= limits.MOSTLY_WAITS:
        name = "cores"
    elif evidence.stalls or limits.MOSTLY_WAITS <= computing < limits.COMPUTES:
        return None
    else:
        name = "too_few_workers" if computing >= limits.COMPUTES else "storage_latency"
    seen = f"{workers.cpu_share:.0%} CPU on average in {counted(workers.workers, 'worker')} on "
    return late(name, f"{seen}{cores} cores.", *settings(evidence))
