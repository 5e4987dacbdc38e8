"""The loop waits for its loader: why, and what to set of it: workers, queue, whole batches.

Of what the workers, the epochs and the costliest line show, the first that is found counts. It
costs the loop's waiting, which `waiting_for_data` fills in.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from labkit.diagnosis import thresholds as limits
from labkit.diagnosis.evidence import Evidence
from labkit.diagnosis.findings import (
    LATE,
    LOSS,
    Finding,
    Remedy,
    cause,
    evaluate,
    findings_of,
    gain_without,
)
from labkit.diagnosis.hot_lines import MAKING, Line
from labkit.knobs import Setting, as_typed
from labkit.spec import WITHOUT_WORKERS
from labkit.text import counted

WHOSE = {"worker": "of the workers' time", "waiting": "of the waiting, in the loop's own process,"}
SHARE_OUT = (
    " Each worker goes through the whole stream, and every item comes once from each, unless its "
    "__iter__ takes a share by torch.utils.data.get_worker_info()."
)

# -- what is known of a loader ---------------------------------------------------------------------


def has_cheap_items(evidence: Evidence) -> bool:
    """Return whether torch's taking the items one by one, and stacking them, is the work.

    Torch's own code then has MOST_OF_LOADING of the time, or the loop alone makes a batch in under
    HANDOFF_US. Without a batch size they are no more.
    """
    if evidence.knobs.get("batch_size", 1) is None:
        return False
    lines = evidence.known("lines")
    if not evidence.num_workers and 0 < evidence.wait_us < limits.HANDOFF_US:
        return True
    if lines is None:
        return False
    there = lines.frame[lines.mask("worker" if evidence.num_workers else "waiting")]
    torchs = there.of_phase[(there.within != "") & ~there.own].sum()
    return len(there) >= limits.FEWEST_LINES and torchs >= limits.MOST_OF_LOADING


def cores_full(evidence: Evidence) -> bool:
    """Return whether a run has no core for another worker that computes."""
    return (evidence.use.own or 0.0) >= limits.CORES_BUSY * (evidence.use.cores or math.inf)


def workers_to_try(evidence: Evidence) -> int | None:
    """Return how many workers to try; None where no other number may gain.

    A simulation tells of a bench's own pipeline. A loop that was only watched begins with 2 to
    4, as it has cores, and doubles them while they leave cores idle.
    """
    now, advised = evidence.num_workers, evidence.known("advised")
    trace = evidence.known("trace")
    if advised is not None:
        return advised
    if now:
        return None if cores_full(evidence) else 2 * now
    if now is None and (trace is None or trace.loader_workers):
        return None
    return max(2, min(4, evidence.use.cores or 2))


# -- what to set -----------------------------------------------------------------------------------

FETCH_AT_ONCE = Remedy(
    "fetch_at_once",
    "The items are cheap: taking them one by one, stacking them and sending them from a worker is "
    "most of the work. Fetch a batch at once: index the tensors with a batch of indices, without a "
    "DataLoader; where dataset[[0, 1]] works, a BatchSampler as the DataLoader's sampler does so.",
    code="# sampler = BatchSampler(RandomSampler(dataset), batch_size=32, drop_last=False)\n"
    "# loader = DataLoader(dataset, sampler=sampler, batch_size=None)\n",
)
IN_THE_LOOP = Remedy(
    "batches_in_the_loop",
    "Make batches in the loop (num_workers=0): to send them from another process costs more than "
    "it saves.",
    {"num_workers": 0, **WITHOUT_WORKERS},
)
INTO_A_DATASET = Remedy(
    "into_a_dataset",
    "Prepare batches in a Dataset that a DataLoader with workers reads, or with more workers or "
    "threads of a loader's own.",
)
CHEAPER_ITEMS = Remedy("cheaper_items", "Do less work per item, or do it once before training.")


def settings(evidence: Evidence) -> tuple[Remedy, ...]:
    """Return what to set of a loader, in the order in which it is tried; else cheaper items."""
    now, number = evidence.num_workers, workers_to_try(evidence)
    deeper = evidence.known("deeper_queue")
    is_cheap = has_cheap_items(evidence)
    remedies = [FETCH_AT_ONCE] if is_cheap else []
    if now and number == 0:
        remedies.append(IN_THE_LOOP)
    if deeper and deeper != evidence.knobs.get("prefetch_factor") and evidence.stalls:
        text = f"Raise prefetch_factor to {deeper}: the queue does not ride out the stalls."
        remedies.append(Remedy("deeper_queue", text, {"prefetch_factor": deeper}))
    if number and number != now and not is_cheap and not evidence.batch_on_gpu:
        changes: dict[str, Setting] = {"num_workers": number}
        if evidence.watched and not now:
            changes["persistent_workers"] = True
        text = f"Prepare batches in other processes: {as_typed(changes)}."
        text += SHARE_OUT if evidence.code.streams else ""
        remedies.append(Remedy("set_num_workers", text, changes))
    elif now is None and evidence.known("trace") is None:
        remedies.append(INTO_A_DATASET)
    return tuple(remedies) or (CHEAPER_ITEMS,)


# -- the loss --------------------------------------------------------------------------------------


@cause(LOSS, "waiting_for_data", "stalls")
def waiting_for_data(evidence: Evidence) -> Finding | None:
    """The loop waits for its next batch.

    Cause: the first of those below that is found; else "stalls", where the worst tenth of
    the steps has more than STALLS of the waiting; else "waiting_for_data". It costs the share of
    the time that is spent waiting.
    """
    why = next(findings_of(LATE, evidence), None)
    if why is None:
        name = "stalls" if evidence.stalls else "waiting_for_data"
        page = "symptoms/slow-items.md" if evidence.stalls else "symptoms/too-few-workers.md"
        why = Finding("input", page, name, remedies=settings(evidence))
    wait = evidence.wait_share
    seen = f"{wait:.0%} of the time is spent waiting for the next batch ({evidence.source}). "
    if evidence.stalls:
        seen += f"{evidence.stall_share:.0%} of that falls into a tenth of the steps: stalls. "
    lines = why.lines or loading_lines(evidence)
    if lines and not why.lines:
        seen += f"Most of making a batch is in {lines[0].what}. "
    evidence_of_it = (seen + why.evidence).strip()
    return replace(why, lost_share=wait, evidence=evidence_of_it, lines=lines)


def loading_lines(evidence: Evidence) -> tuple[Line, ...]:
    """Return the costliest lines that make batches, where enough was sampled: workers' go first."""
    lines = evidence.known("lines")
    if lines is None:
        return ()
    return (lines.rows(lines.making("worker")) or lines.rows(lines.making("waiting")))[:3]


def reason(page: str, seen: str, *remedies: Remedy, **more: Any) -> Finding:
    """Return a finding that says why the loop waits for data, `more` of whose fields are given."""
    return Finding("input", page, evidence=seen, remedies=remedies, **more)


# -- one process holds the others up ---------------------------------------------------------------

ONE_THREAD = Remedy(
    "one_thread_a_worker",
    "Let the libraries compute with one thread: OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 "
    "MKL_NUM_THREADS=1 in front of the command, or these lines above all imports (PyTorch limits "
    "only its own threads; OpenCV needs cv2.setNumThreads(0) in the dataset). `labkit tune` tries "
    "it on your script.",
    code='# for library in ("OMP", "OPENBLAS", "MKL"):  # above all other imports\n'
    '#     os.environ[f"{library}_NUM_THREADS"] = "1"\n',
)


@cause(LATE, "threads")
def crowding_threads(evidence: Evidence) -> Finding | None:
    """Libraries in the workers compute with more threads than there are cores: "threads".

    A worker's CPU time over its time tells how many compute, where they were not counted.
    """
    workers, cores = evidence.workers, evidence.use.cores
    each = max(1 + evidence.library_threads, round(evidence.worker_cpu))
    if not cores or each < 2 or each * workers <= cores:
        return None
    seen = f"Each of {counted(workers, 'worker')} computes with {each} threads"
    seen += f", {each * workers} in all, on {counted(cores, 'core')}."
    return reason("symptoms/threads.md", seen, ONE_THREAD)


# -- epochs ----------------------------------------------------------------------------------------

KEEP_WORKERS = Remedy(
    "persistent_workers",
    "Keep the workers between epochs, with what they have cached: persistent_workers=True, in a "
    "loader that is made once, above the loop over the epochs.",
    {"persistent_workers": True},
)
READ_ONCE = Remedy(
    "read_once",
    "Build what the first epoch builds, and read what it reads, once before training. Where the "
    "page cache did it, time later epochs only, or copy the data to a local disk first.",
)


@cause(LATE, "workers_restart", "cold_start")
def epoch_start(evidence: Evidence) -> Finding | None:
    """The first batch of each epoch waits for workers that start anew, or the first epoch waits.

    Cause "workers_restart", where the first batches of later epochs make up half of the waiting;
    "cold_start", where the waiting that the first epoch has beyond later ones makes up half: a
    cache of the system or of the dataset was empty.
    """
    starts, first = evidence.epoch_starts, evidence.first_epoch
    half = max(evidence.wait_share / 2, 1e-9)
    if evidence.num_workers and starts >= half:
        seen = f"{starts:.0%} of the time is the start of later epochs."
        remedies = KEEP_WORKERS, *settings(evidence)
        return reason("symptoms/epoch-start.md", seen, *remedies, cause="workers_restart")
    if first < half:
        return None
    seen = f"{first:.0%} of the time is what the first epoch waited longer than later ones."
    return reason("symptoms/epoch-start.md", seen, READ_ONCE, cause="cold_start")


# -- the costliest line ----------------------------------------------------------------------------


@cause(LATE, "slow_line", "item", "collate")
def slow_code(evidence: Evidence) -> Finding | None:
    """The loop waits for a function of the user's own: a sampler, a dataset, a collate function.

    Cause "slow_line", "item" or "collate", where it has MOST_OF_LOADING of the waiting, or of the
    time of workers that do not rest while the loop waits.
    """
    if not evidence.watched:
        return None
    lines = evidence.lines
    for phase in MAKING:
        made = lines.making(phase)
        shares = lines.frame[made].groupby("code", observed=True).of_phase.sum()
        is_in_loop = phase == "waiting"
        part = shares.max() if is_in_loop or not evaluate(hand_over, evidence) else 0.0
        if not part >= limits.MOST_OF_LOADING:  # NaN: no line
            continue
        ours = made & (lines.frame.code == shares.idxmax())
        rows = lines.rows(ours)[:3]
        # No number of workers makes a sampler quicker, nor what a loop with workers does by itself
        is_alone = is_in_loop and bool(evidence.num_workers)
        return reason(
            "symptoms/costly-items.md",
            f"{part:.0%} {WHOSE[phase]} is in {rows[0].what}.",
            *((CHEAPER_ITEMS,) if is_alone else settings(evidence)),
            cause=lines.frame.within[ours].iloc[0] or "slow_line",
            lines=rows,
            at_most=gain_without(part * evidence.wait_share) if is_alone else None,
        )
    return None


FEWER_PIECES = Remedy(
    "fewer_pieces",
    "Send less from a worker: one tensor for each part of a batch in place of lists, dicts and "
    "many small tensors; images as uint8, which the loop scales; compare pin_memory on and off.",
)


@cause(LATE, "hand_over")
def hand_over(evidence: Evidence) -> Finding | None:
    """Sending a batch from a worker to the loop takes longer than making it: "hand_over".

    It is found where the average worker had no batch to make for WORKERS_REST of the time, also
    while the loop waits, and other programs had at most FOREIGN_LOAD of the cores.
    """
    idle = evidence.workers and evidence.worker_idle
    rests = idle >= limits.WORKERS_REST and idle + evidence.wait_share > 1
    if not rests or evidence.use.others_share > limits.FOREIGN_LOAD:
        return None
    seen = f"{idle:.0%} of the time the workers have nothing to do while the loop waits."
    whole = [each for each in settings(evidence) if each in (FETCH_AT_ONCE, IN_THE_LOOP)]
    return reason("symptoms/sending-batches.md", seen, *whole, FEWER_PIECES)


# -- what no single line shows ---------------------------------------------------------------------


@cause(LATE, "cores", "too_few_workers", "storage_latency")
def state_of_workers(evidence: Evidence) -> Finding | None:
    """What the workers do all the time, where the waiting does not come in stalls.

    Cause "cores": these are full. Else "too_few_workers": each computes for COMPUTES of its time;
    "storage_latency": for less than MOSTLY_WAITS, and waits for storage or a network.
    """
    workers, computing = evidence.workers, evidence.worker_cpu
    name, page = "storage_latency", "symptoms/slow-storage.md"
    if cores_full(evidence):
        name, page = "cores", "symptoms/costly-items.md"
    elif computing >= limits.COMPUTES and not evidence.stalls:
        name, page = "too_few_workers", "symptoms/too-few-workers.md"
    elif evidence.stalls or computing >= limits.MOSTLY_WAITS:
        return None
    seen = f"{computing:.0%} CPU on average in {counted(workers, 'worker')} on "
    seen += f"{evidence.use.cores} cores."
    return reason(page, seen, *settings(evidence), cause=name)
