"""The loop waits for its loader; and what to set of a loader: workers, queue, whole batches."""

from __future__ import annotations

import math
from dataclasses import replace

from labkit.diagnosis import thresholds as limits
from labkit.diagnosis.cause import LATE, cause, found
from labkit.diagnosis.evidence import Evidence, WorkerEvidence
from labkit.diagnosis.findings import LESS_WAITING, Finding, Measured, Remedy, explains, remedy
from labkit.diagnosis.hot_lines import Line
from labkit.diagnosis.known_calls import known_call, remedy_of
from labkit.knobs import Setting, as_typed
from labkit.prediction.prediction import LEAST_MAX_WORKERS
from labkit.spec import PYTORCH_PREFETCH, WITHOUT_WORKERS

FEWEST = 2  # workers to begin with
MOST_AT_FIRST = 4
DEEPEST = 16  # a deeper queue than this takes memory and hides what is wrong
WHOSE = {"worker": "of the workers' time", "waiting": "of the waiting"}  # by phase of a line
SHARE_OUT = (
    " Each worker goes through the whole stream, and every item comes once from each, unless its "
    "__iter__ takes a share by torch.utils.data.get_worker_info()."
)
WORTH_A_WORD = 0.15  # of its process's time: a line with less is not named beside the costliest

# -- what is known of a loader ---------------------------------------------------------------------


def quickly_made(evidence: Evidence) -> bool:
    """Return whether a batch is made, on a core of its own, as fast as a worker sends one."""
    made_us = evidence.known("wait_us")
    if evidence.has_workers:
        lines = evidence.known("lines")
        made_us = lines.made_us if lines else None
    return made_us is not None and 0 < made_us < limits.HANDOFF_US


def torchs_share(evidence: Evidence) -> float:
    """Return the part of making batches that is torch's own; 0 where too little was sampled."""
    lines = evidence.loop.lines if evidence.known("loop") else None
    phase = "worker" if evidence.has_workers else "waiting"
    if lines is None or lines.mask(phase).sum() < limits.FEWEST_LINES:
        return 0.0
    torchs = lines.mask(phase) & (lines.within != "") & ~lines.making(phase)
    return lines.part_of(phase, torchs)


def cores_full(evidence: Evidence) -> bool:
    """Return whether a run has no core for another worker that computes."""
    cores = evidence.use.cores or math.inf
    workers: WorkerEvidence | None = evidence.known("workers")
    is_full = workers and workers.workers >= cores and workers.computing_share >= limits.COMPUTES
    return bool(is_full) or (evidence.use.own or 0.0) >= limits.CORES_BUSY * cores


def workers_to_try(evidence: Evidence) -> int | None:
    """Return how many workers to try; None where no other number may gain.

    A simulation tells of a bench's own pipeline. A loop that was only watched begins with some, and
    doubles them while they leave cores idle.
    """
    if evidence.known("advised") is not None:
        return evidence.advised
    now = evidence.known("num_workers")
    cores = evidence.use.cores or FEWEST
    if now:
        most = max(LEAST_MAX_WORKERS, 2 * cores)
        return None if cores_full(evidence) or 2 * now > most else 2 * now
    trace = evidence.known("trace")
    if now is None and (trace is None or trace.known("has_workers")):
        return None
    return max(FEWEST, min(MOST_AT_FIRST, cores))


# -- what to set -----------------------------------------------------------------------------------


@remedy
def fetch_at_once(evidence: Evidence) -> Remedy | None:
    """Items so cheap that torch's taking them one by one, and stacking them, is the work.

    That is a TensorDataset, any batch that is made as fast as a worker sends one, and items in
    which the user's own code has less than half of the workers' time.
    """
    code = evidence.code
    is_plain = not {"collate_fn", "batch_sampler"} & code.arguments.keys()
    cheap = code.dataset_type == "TensorDataset" and is_plain
    cheap = cheap or torchs_share(evidence) >= limits.MOST_OF_LOADING
    # Without a batch size that is done, as far as a loader goes
    cheap = cheap and evidence.knobs.get("batch_size", 1) is not None
    if not quickly_made(evidence) and not cheap:
        return None
    return Remedy(
        "fetch_at_once",
        "The items are cheap: taking them one by one, stacking them and sending them from a worker "
        "is most of the work. Fetch a batch at once: index the tensors with a batch of indices, "
        "without a DataLoader; where dataset[[0, 1]] works, a BatchSampler as the DataLoader's "
        "sampler does so.",
        "items",
        code="sampler = BatchSampler(RandomSampler(dataset), batch_size=32, drop_last=False)\n"
        "loader = DataLoader(dataset, sampler=sampler, batch_size=None)\n",
        check=LESS_WAITING,
    )


@remedy
def keep_items_in_RAM(evidence: Evidence) -> Remedy | None:
    """A loader without workers that makes its batches on a GPU, as no forked worker could."""
    if not evidence.batch.on_gpu or quickly_made(evidence):
        return None
    return Remedy(
        "keep_items_in_RAM",
        "The loader makes its batches on the GPU, which no forked worker can use. Keep the items "
        "in RAM, move each batch in the loop, and then let workers prepare them.",
        "workers",
        code="inputs = inputs.to(device, non_blocking=True)  # in the loop, with pin_memory=True\n",
        check=LESS_WAITING,
    )


@remedy
def batches_in_the_loop(evidence: Evidence) -> Remedy | None:
    """A loader whose workers cost more than they save."""
    slower = quickly_made(evidence) or evidence.known("advised") == 0
    if not evidence.has_workers or not slower:
        return None
    return Remedy(
        "batches_in_the_loop",
        "Make batches in the loop (num_workers=0): to send them from another process costs more "
        "than it saves.",
        "workers",
        {"num_workers": 0, **WITHOUT_WORKERS},
        cost="the loop waits while it makes a batch",
    )


@remedy
def deeper_queue(evidence: Evidence) -> Remedy | None:
    """Workers that are fast enough on average, and not in the worst steps."""
    if not evidence.has_workers or not evidence.stalls or quickly_made(evidence):
        return None
    ready = int(evidence.knobs.get("prefetch_factor") or PYTORCH_PREFETCH)
    deeper = evidence.known("deeper_queue")
    if evidence.known("advised") is None and 4 * ready <= DEEPEST:
        deeper = 4 * ready
    if deeper is None:
        return None
    batches = evidence.worker_count * ready
    return Remedy(
        "deeper_queue",
        f"Raise prefetch_factor to {deeper}: a queue of {batches} batches does not ride out the "
        "stalls.",
        "queue",
        {"prefetch_factor": deeper},
        cost="memory for the batches kept ready",
        check=LESS_WAITING,
    )


@remedy
def set_num_workers(evidence: Evidence) -> Remedy | None:
    """A loader for which another number of workers may be better, and not 0."""
    number = workers_to_try(evidence)
    now = evidence.worker_count
    if number in (None, 0, now) or evidence.batch.on_gpu or fetch_at_once.for_run(evidence):
        return None
    changes: dict[str, Setting] = {"num_workers": number}
    loop = evidence.known("loop")
    if not now and loop is not None and loop.passes > 1:
        changes["persistent_workers"] = True
    how = "Use fewer workers:" if number < now else "Use more workers, and see:"
    how = how if now else "Prepare batches in other processes:"
    return Remedy(
        "set_num_workers",
        f"{how} {as_typed(changes)}{too_many(number, evidence.use.cores)}."
        + (SHARE_OUT if evidence.code.streams and not now else ""),
        "workers",
        changes,
        cost="a process with its memory for each worker, and their start",
        check=LESS_WAITING,
    )


def too_many(workers: int, cores: int | None) -> str:
    """Say that PyTorch warns of this many workers, to end a sentence with; "" where it does not."""
    if not cores or workers <= cores:
        return ""
    return f"; PyTorch warns above your {cores} cores, since only items that wait gain from more"


@remedy
def some_workers(evidence: Evidence) -> Remedy | None:
    """A loop whose batches no DataLoader makes: another package's loader, or user's code."""
    no_loader = evidence.known("num_workers") is None and evidence.known("trace") is None
    if not no_loader or quickly_made(evidence):
        return None
    return Remedy(
        "some_workers",
        "Prepare batches in other processes: a DataLoader with workers, or more workers or threads "
        "of a loader's own.",
        "workers",
    )


@remedy
def cheaper_items(evidence: Evidence) -> Remedy | None:
    """A loader to which no number of workers brings anything, or of which a trace tells no more."""
    if quickly_made(evidence) or evidence.batch.on_gpu or set_num_workers.for_run(evidence):
        return None
    is_full = evidence.has_workers and cores_full(evidence)
    why = "All cores are busy, so more workers gain nothing. " if is_full else ""
    return Remedy(
        "cheaper_items",
        f"{why}Do less work per item, or do it once before training.",
        "workers",
        check=LESS_WAITING,
    )


SETTINGS = (  # in the order in which they are tried
    fetch_at_once,
    keep_items_in_RAM,
    batches_in_the_loop,
    deeper_queue,
    set_num_workers,
    some_workers,
)
FEED = (*SETTINGS, cheaper_items)


def cheaper_line(line: Line, at_most: float) -> Remedy:
    """Return what makes a line of making batches cheaper: what is known of its call, if it is."""
    row = known_call(line)
    if row is not None:
        return replace(remedy_of(line, row), at_most=at_most)
    return Remedy(
        "cheaper_line",
        f"Make {line.what} cheaper: do it once and keep the result, or before training.",
        "items",
        check=LESS_WAITING,
        at_most=at_most,
    )


# -- causes ----------------------------------------------------------------------------------------


def costliest_lines(evidence: Evidence) -> tuple[Measured, ...]:
    """Return the line with the largest part of making batches in each process, if it has much."""
    lines = evidence.known("lines")
    named = []
    for phase, whose in WHOSE.items():
        rows = lines.rows(lines.making(phase)) if lines else ()
        whole = 1.0 if phase == "worker" else evidence.wait_share
        if rows and rows[0].share >= WORTH_A_WORD * whole > 0:
            named.append(Measured(f"{whose} is {rows[0].what}", min(rows[0].share / whole, 1.0)))
    return tuple(named)


explains("slow-items", "stalls")


@cause("too-few-workers", "waiting_for_data")
def waiting_for_data(evidence: Evidence) -> Finding | None:
    """The loop waits for its next batch.

    Cause: the first that is found in `causes/workers.py`; else "stalls", where the worst tenth of
    the steps has more than STALLS of the waiting; else "waiting_for_data". The costliest line is
    named with each. It costs the share of the time that is spent waiting.
    """
    why = next(found(evidence, LATE), None)
    if why is None:
        name = "stalls" if evidence.stalls else "waiting_for_data"
        why = Finding("input", name, remedies=FEED)
    seen = "of the time is spent waiting for the next batch"
    waits = [Measured(seen, evidence.wait_share, by=evidence.source)]
    if evidence.stalls:
        worst = "of that falls into a tenth of the steps: stalls"
        waits.append(Measured(worst, evidence.stall_share))
        workers: WorkerEvidence | None = evidence.known("workers")
        if workers and workers.slowest:
            waits.append(Measured(f"the slowest items are {workers.slowest}"))
    headroom = evidence.known("headroom")
    if headroom is not None:
        perfect = "a perfect loader would give"
        by = "replayed batches"
        waits.append(Measured("the throughput", headroom, "times", by, before=perfect))
    also = () if why.lines else costliest_lines(evidence)
    return replace(
        why,
        lost_share=evidence.wait_share,
        measured=(*waits, *why.measured, *also),
        lines=why.lines or evidence.loading_lines,
    )


@cause("neighbour", "workers_take_the_device's_cores")
def cores_taken_by_workers(evidence: Evidence) -> Finding | None:
    """Loader workers compute on the cores that a model on the CPU needs.

    It costs the share of the time in which the model's thread had no core since a worker had it.
    """
    lost = evidence.stolen_by_workers
    count = evidence.worker_count
    advised = evidence.known("advised")
    seen = (
        "of the time a loader worker had the core that the model's thread needed, with "
        f"{count} workers on {evidence.use.cores} cores"
    )
    measured = Measured(seen, lost, by="thread CPU time against wall time")
    return Finding(
        "input",
        "workers_take_the_device's_cores",
        lost,
        (measured, *costliest_lines(evidence)),
        FEED if advised is not None and advised < count else (cheaper_items,),
        evidence.loading_lines,
    )
