"""Remedies for a loop that waits for data: how many workers, how deep a queue, cheaper items."""

from __future__ import annotations

import math
from dataclasses import replace

from labkit.diagnosis import thresholds as limits
from labkit.diagnosis.evidence import Evidence
from labkit.diagnosis.hot_lines import Line
from labkit.diagnosis.known_calls import known_call, remedy_of
from labkit.diagnosis.loader_code import LoopCode
from labkit.diagnosis.loader_words import AT_ONCE, LARGER, other_number
from labkit.diagnosis.recommendation import LEAST_MAX_WORKERS
from labkit.diagnosis.remedies import LESS_WAITING, Fit, Remedy
from labkit.knobs import Setting
from labkit.spec import PYTORCH_PREFETCH, WITHOUT_WORKERS

FEWEST = 2  # workers to begin with
MOST_AT_FIRST = 4
DEEPEST = 16  # a deeper queue than this takes memory and hides what is wrong
NO_WORKERS = {"num_workers": 0, **WITHOUT_WORKERS}

# -- conditions ------------------------------------------------------------------------------------


def quickly_made(evidence: Evidence) -> bool:
    """Return whether a batch is made, on a core of its own, as fast as a worker sends one."""
    count = evidence.num_workers
    made_us = evidence.wait_us
    if count:
        made_us = evidence.lines.made_us if evidence.lines else None
        made_us = (made_us or math.inf) * min(1, (evidence.use.cores or math.inf) / (count + 1))
    return (made_us or math.inf) < limits.HANDOFF_US and evidence.trace_has_workers is None


def at_once(evidence: Evidence) -> Fit | None:
    """Fit items so cheap that torch's taking them one by one, and stacking them, is the work.

    That is a TensorDataset, any batch that is made as fast as a worker sends one, and items in
    which the user's own code has less than half of the workers' time.
    """
    code = evidence.code or LoopCode()
    arguments = code.arguments or {}
    if evidence.knobs.get("batch_size", 1) is None and "batch_sampler" not in arguments:
        # that is done, as far as a loader goes
        return Fit(words={"how": LARGER}) if quickly_made(evidence) else None
    known = code.dataset_type == "TensorDataset"
    known = known and not {"collate_fn", "batch_sampler"} & arguments.keys()
    stacks = (torchs_share(evidence) or 0.0) >= limits.MOST_OF_LOADING
    return Fit(words={"how": AT_ONCE}) if known or stacks or quickly_made(evidence) else None


def torchs_share(evidence: Evidence) -> float | None:
    """Return the part of making batches that is torch's own; None where too little was sampled."""
    lines = evidence.loop.lines if evidence.loop else None
    phase = "worker" if evidence.num_workers else "waiting"
    if lines is None or lines.mask(phase).sum() < limits.FEWEST_LINES:
        return None
    torchs = lines.mask(phase) & (lines.within != "") & ~lines.making(phase)
    return float(lines.share[torchs].sum() / lines.share[lines.mask(phase)].sum())


def made_in_the_loop(evidence: Evidence) -> Fit | None:
    """Fit a loader whose workers cost more than they save."""
    slower = quickly_made(evidence) or evidence.advised == 0
    return Fit(NO_WORKERS) if evidence.num_workers and slower else None


def deeper_queue(evidence: Evidence) -> Fit | None:
    """Fit workers that are fast enough on average, and not in the worst steps."""
    count = evidence.num_workers
    if not count or not evidence.stalls or quickly_made(evidence):
        return None
    ready = int(evidence.knobs.get("prefetch_factor") or PYTORCH_PREFETCH)
    deeper = evidence.deeper_queue
    if deeper is None and evidence.advised is None and 4 * ready <= DEEPEST:
        deeper = 4 * ready
    if deeper is None:
        return None
    return Fit({"prefetch_factor": deeper}, {"batches": count * ready})


def _workers_to_try(evidence: Evidence) -> int | None:
    """Return how many workers to try; None where no other number may gain.

    A simulation tells of a bench's own pipeline. A loop that was only watched begins with some, and
    doubles them while they leave cores idle.
    """
    if evidence.advised is not None:
        return evidence.advised
    now = evidence.num_workers
    cores = evidence.use.cores or FEWEST
    if now:
        most = max(LEAST_MAX_WORKERS, 2 * cores)
        return None if cores_full(evidence) or 2 * now > most else 2 * now
    if evidence.trace_has_workers or (now is None and evidence.trace is None):
        return None
    return max(FEWEST, min(MOST_AT_FIRST, cores))


def cores_full(evidence: Evidence) -> bool:
    """Return whether a run has no core for another worker that computes."""
    cores = evidence.use.cores or math.inf
    if (evidence.use.own or 0.0) >= limits.CORES_BUSY * cores:
        return True
    workers = evidence.workers
    if workers is None or workers.workers < cores:
        return False
    return workers.computing_share >= limits.COMPUTES


def other_workers(evidence: Evidence) -> Fit | None:
    """Fit a loader for which another number of workers may be better, and not 0."""
    number = _workers_to_try(evidence)
    now = evidence.num_workers or 0
    if number in (None, 0, now) or evidence.batch.on_gpu:
        return None
    if at_once(evidence):
        return None
    changes: dict[str, Setting] = {"num_workers": number}
    loop = evidence.loop
    if not now and loop is not None and loop.passes > 1:
        changes["persistent_workers"] = True
    return Fit(changes, other_number(evidence, number, "persistent_workers" in changes))


def no_loader_to_set(evidence: Evidence) -> Fit | None:
    """Fit a loop whose batches no DataLoader makes: another package's loader, or user's code."""
    if evidence.num_workers is not None or evidence.trace or quickly_made(evidence):
        return None
    loader = evidence.own_loader
    more = f"Give the {loader} more workers or threads of its own; if it has none, p"
    return Fit(words={"how": more if loader else "P"})


def cheaper_items(evidence: Evidence) -> Fit | None:
    """Fit a loader to which no number of workers brings anything."""
    count = evidence.num_workers
    if quickly_made(evidence) or other_workers(evidence) or evidence.trace_has_workers:
        return None
    if evidence.batch.on_gpu:
        return None  # `KEEP_IN_RAM` says what comes first
    why = ""
    if evidence.advised is not None:
        why = "Another number of workers is not expected to gain. "
    if count and cores_full(evidence):
        why = "All cores are busy, so more workers gain nothing. "
    return Fit(words={"why": why})


KEEP_IN_RAM = Remedy(
    "keep_items_in_RAM",
    "The loader makes its batches on the GPU, which no forked worker can use. Keep the items in "
    "RAM, move each batch in the loop, and then let workers prepare them.",
    "workers",
    lambda evidence: evidence.batch.on_gpu and not quickly_made(evidence),
    code="# in the loop, and no longer in the dataset or in collate_fn; with pin_memory=True:\n"
    "inputs = inputs.to(device, non_blocking=True)\n"
    "labels = labels.to(device, non_blocking=True)\n",
    check=LESS_WAITING,
)
FETCH_AT_ONCE = Remedy(
    "fetch_at_once",
    "The items are cheap: taking them one by one, stacking them and sending them from a worker is "
    "most of the work. $how.",
    "items",
    at_once,
    code="# sampler = BatchSampler(RandomSampler(dataset), batch_size=32, drop_last=False)\n"
    "# loader = DataLoader(dataset, sampler=sampler, batch_size=None)\n",
    check=LESS_WAITING,
)
IN_LOOP = Remedy(
    "batches_in_the_loop",
    "Make batches in the loop (num_workers=0): to send them from another process costs more than "
    "it saves.",
    "workers",
    made_in_the_loop,
    cost="the loop waits while it makes a batch",
)
DEEPER_QUEUE = Remedy(
    "deeper_queue",
    "Raise prefetch_factor to $prefetch_factor: a queue of $batches batches does not ride out "
    "the stalls.",
    "queue",
    deeper_queue,
    cost="memory for the batches kept ready",
    check=LESS_WAITING,
)
WORKERS = Remedy(
    "set_num_workers",
    "$how num_workers=$num_workers$kept$warned.$shares$guarded",
    "workers",
    other_workers,
    cost="a process with its memory for each worker, and their start",
    check=LESS_WAITING,
)
SOME_WORKERS = Remedy(
    "some_workers",
    "${how}repare batches in other processes: a DataLoader with workers.",
    "workers",
    no_loader_to_set,
)
BEHIND = Remedy(
    "less_work_per_item",
    "The loader's workers do not keep up: do less work per item, or do it once before training; "
    "where CPU cores are idle, try more workers.",
    "workers",
    lambda evidence: evidence.trace_has_workers,  # of a trace, which tells no more of them
)
CHEAPER_ITEMS = Remedy(
    "cheaper_items",
    "${why}Do less work per item, or do it once before training.",
    "workers",
    cheaper_items,
    check=LESS_WAITING,
)
SETTINGS = (  # in the order in which they are tried
    FETCH_AT_ONCE,
    KEEP_IN_RAM,
    IN_LOOP,
    DEEPER_QUEUE,
    WORKERS,
    SOME_WORKERS,
)
FEED = (*SETTINGS, BEHIND, CHEAPER_ITEMS)


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
