"""Remedies for a loop that waits for data: how many workers, how deep a queue, cheaper items."""

from __future__ import annotations

import math
import re
from functools import partial

from labkit.diagnosis import thresholds as limits
from labkit.diagnosis.evidence import Evidence, Setting
from labkit.diagnosis.loader_simulation import OVERSUBSCRIBED
from labkit.diagnosis.recommendation import threads_beside
from labkit.diagnosis.remedies import LESS_WAITING, Gain, Remedy, Values

DEEPEST = 16  # a deeper queue than this takes memory and hides what is wrong
SET_THREADS = (
    "import torch\n\ntorch.set_num_threads({threads})  # the other cores are for the workers\n"
)
GAIN_ERROR = 0.3  # as of the simulation: 1.62x and 1.65x expected, 1.60x and 1.68x came
# A pass so short is not worth the start of workers: 0.1 s each to fork, some s to spawn
SHORT_PASS_S = 10.0
IN_THE_LOOP = {"num_workers": 0, "prefetch_factor": None, "persistent_workers": False}

# -- conditions ------------------------------------------------------------------------------------


def _made_us(evidence: Evidence) -> float:
    """Return the time to make a batch on a core of its own, µs; infinite where it is not known."""
    count = evidence.num_workers
    if not count:
        return evidence.wait_us or math.inf
    made = (evidence.lines.made_us if evidence.lines else None) or math.inf
    return made * min(1, (evidence.cores or math.inf) / (count + 1))


def quickly_made(evidence: Evidence) -> bool:
    """Return whether a batch is made as fast as a worker hands one over."""
    return _made_us(evidence) < limits.HANDOFF_US and evidence.loader_workers is None


def fetched_at_once(evidence: Evidence) -> Values | None:
    """Fit batches that are made as fast as handed over: no worker brings anything."""
    if not quickly_made(evidence):
        return None
    how = (
        "fetch a batch at once. Index the tensors with a batch of indices; where dataset[[0, 1]] "
        "works, a BatchSampler as the DataLoader's sampler does so"
    )
    if evidence.knobs.get("batch_size", 1) is None:  # that is done, as far as a loader goes
        how = "use larger batches, or index the tensors without a DataLoader"
    return {"ms": round(_made_us(evidence) / 1e3, 1), "how": how}


def made_in_the_loop(evidence: Evidence) -> Values | None:
    """Fit a loader whose workers cost more than they save."""
    advised = evidence.advised and evidence.advised.num_workers == 0
    slower = quickly_made(evidence) or advised
    return IN_THE_LOOP if evidence.num_workers and slower else None


def deeper_queue(evidence: Evidence) -> Values | None:
    """Fit workers that are fast enough on average, and not in the worst steps."""
    count = evidence.num_workers
    if not count or not evidence.stalls or quickly_made(evidence):
        return None
    ready = int(evidence.knobs.get("prefetch_factor") or 2)
    deeper = evidence.deeper_queue
    if deeper is None and evidence.advised is None and 4 * ready <= DEEPEST:
        deeper = 4 * ready
    return None if deeper is None else {"prefetch_factor": deeper, "batches": count * ready}


def other_workers(evidence: Evidence) -> Values | None:
    """Fit a loader for which the one recommended number is another one, and not 0."""
    advised = evidence.advised
    now = evidence.num_workers or 0
    if advised is None or advised.num_workers in (0, now) or quickly_made(evidence):
        return None
    count = advised.num_workers
    how = "Use fewer workers:" if count < now else "Use more workers:"
    if not now:
        how = "Prepare batches in other processes:"
    code = kept = ""
    changes: dict[str, Setting] = {"num_workers": count}
    loop = evidence.loop
    if not now and loop is not None and loop.passes > 1 and loop.pass_s < SHORT_PASS_S:
        changes["persistent_workers"] = True
        kept = ", kept between epochs (persistent_workers=True)"
    if advised.threads is not None:
        code = SET_THREADS.format(threads=advised.threads)
        kept += f", with {advised.threads} thread{'s' * (advised.threads > 1)} for the model"
    warned = too_many(count, evidence.cores)
    return {"how": how, "kept": kept, "warned": warned, "set_threads": code, **changes}


def too_many(workers: int, cores: int | None) -> str:
    """Say why PyTorch warns of so many workers, to end a sentence with; "" where it does not."""
    if not cores or workers <= cores:
        return ""
    return f"; PyTorch warns above your {cores} cores, but workers waiting on I/O use none"


def some_workers(evidence: Evidence) -> Values | None:
    """Fit a loop that has no loader to set, and of which no number is known."""
    unknown = evidence.advised is None and evidence.num_workers is None
    fits = unknown and not evidence.loader_workers and not quickly_made(evidence)
    return {} if fits else None


def behind(evidence: Evidence) -> Values | None:
    """Fit a trace whose loader has workers, of which it tells no more."""
    return {} if evidence.loader_workers else None


def cheaper_items(evidence: Evidence) -> Values | None:
    """Fit a loader to which no number of workers brings anything."""
    count = evidence.num_workers
    if quickly_made(evidence) or other_workers(evidence) or evidence.loader_workers:
        return None
    if evidence.advised is None:
        return {"why": ""} if count is None else {"why": "Try other numbers of workers. "}
    busy = (evidence.own_cores or 0.0) >= limits.CORES_BUSY * (evidence.cores or math.inf)
    if busy:
        return {"why": "All cores are busy, so more workers gain nothing. "}
    return {"why": "Another number of workers is not expected to gain. "}


FETCH_AT_ONCE = Remedy(
    "fetch_at_once",
    "{ms} ms a batch is no more than handing one over from a worker takes, so workers gain "
    "nothing: {how}.",
    "workers",
    fetched_at_once,
)
IN_LOOP = Remedy(
    "in_the_loop",
    "Make batches in the loop (num_workers=0): handing them over costs more than it saves.",
    "workers",
    made_in_the_loop,
    cost="the loop waits while it makes a batch",
)
DEEPER_QUEUE = Remedy(
    "deeper_queue",
    "Raise prefetch_factor to {prefetch_factor}: a queue of {batches} batches does not ride out "
    "the stalls.",
    "queue",
    deeper_queue,
    cost="memory for the batches kept ready",
    check=LESS_WAITING,
)
WORKERS = Remedy(
    "workers",
    "{how} num_workers={num_workers}{kept}{warned}.",
    "workers",
    other_workers,
    code="{set_threads}",
    cost="a process with its memory for each worker, and their start",
    check=LESS_WAITING,
)
SOME_WORKERS = Remedy(
    "some_workers",
    "Prepare batches in other processes: a DataLoader with workers.",
    "workers",
    some_workers,
)
BEHIND = Remedy(
    "workers_behind",
    "The loader's workers do not keep up: do less work per item, or do it once before training; "
    "where CPU cores are idle, try more workers.",
    "workers",
    behind,
)
CHEAPER_ITEMS = Remedy(
    "cheaper_items",
    "{why}Do less work per item, or do it once before training.",
    "workers",
    cheaper_items,
    check=LESS_WAITING,
)
FEED = (IN_LOOP, FETCH_AT_ONCE, DEEPER_QUEUE, WORKERS, SOME_WORKERS, BEHIND, CHEAPER_ITEMS)

# -- cheaper items ---------------------------------------------------------------------------------

STEPS = {  # what the costliest line of preparing an item may be, by its names
    "decode": re.compile(r"(?i)open|decode|convert|imread|load_image|read_image|\bload\b"),
    "augment": re.compile(r"(?i)transform|augment|jitter|rotat|resiz|crop|flip|blur|normaliz"),
}


def item_does(step: str, evidence: Evidence) -> Values | None:
    """Fit items most of whose time goes to one of the `STEPS`."""
    named = [f"{line.call} {line.function}" for line in evidence.loading_lines[:1]]
    return {} if any(STEPS[step].search(name) for name in named) else None


def single_items(evidence: Evidence) -> Values | None:
    """Fit items that are fetched one by one: of a quick batch that is no longer so."""
    return None if quickly_made(evidence) else {}


LEANER_ITEMS = Remedy(
    "leaner_items",
    "Do less work per item, or do it once before training.",
    "items",
    check=LESS_WAITING,
)
DECODE_SMALLER = Remedy(
    "decode_smaller",
    "Decode less: let the JPEG decoder scale the image down, or store the images at the size that "
    "the model takes.",
    "items",
    partial(item_does, "decode"),
    code="image = Image.open(path)\nimage.draft('RGB', (size, size))  # at 1/2, 1/4 or 1/8\n",
    cost="pixels that are rounded otherwise",
    check="the metric, and a smaller share of waiting",
)
AUGMENT_ON_DEVICE = Remedy(
    "augment_on_device",
    "Augment the batch on the device instead of each item in a worker.",
    "items",
    partial(item_does, "augment"),
    code="from torchvision.transforms import v2\n\n"
    "augment = v2.Compose([...])  # the transforms that the dataset has now\n"
    "images = augment(images.to(device, non_blocking=True))  # in the loop\n",
    cost="device time; one draw for the whole batch, unless the transform draws per image",
    check="the metric, and a smaller share of waiting",
)
CHEAPER_LINE = Remedy(
    "cheaper_line",
    "Make that line cheaper: do it once and keep the result, or before training.",
    "items",
    single_items,
    check=LESS_WAITING,
)
LEANER_COLLATE = Remedy(
    "leaner_collate",
    "Let collate_fn stack arrays of one size, and do the rest per item or offline.",
    "items",
    single_items,
    check=LESS_WAITING,
)

# -- what the workers show -------------------------------------------------------------------------


def restarts_saved(evidence: Evidence) -> Gain | None:
    """Return the gain where no later pass waits for workers that start."""
    restart = evidence.loop.restart if evidence.loop else 0.0
    if not restart:
        return None
    most = 1 / (1 - min(restart, 0.9))
    return most, (1 + most) / 2, most


def threads_left(evidence: Evidence) -> Values | None:
    """Fit a model on the CPU whose threads wait for cores that busy workers have."""
    workers = evidence.workers
    threads = evidence.threads or 1
    alone_us = evidence.quick_compute_us
    if workers is None or evidence.code is None or not alone_us or evidence.kind != "cpu":
        return None
    if (evidence.compute_us or 0.0) < limits.HELD_BACK * alone_us:
        return None
    wanted = workers.workers * min(1.0, workers.cpu_share + (workers.in_line_share or 0.0))
    kept = threads_beside(wanted, threads, evidence.cores)
    return {"threads": kept, "now": threads} if kept < threads else None


def cores_returned(evidence: Evidence) -> Gain | None:
    """Return the gain where the workers' items and steps of one thread are all that takes cores."""
    workers = evidence.workers
    if workers is None or workers.item_cpu_ms is None or not evidence.cores:
        return None
    if not evidence.wait_share or not evidence.wait_us:
        return None
    size = evidence.knobs.get("batch_size") or 1
    alone_ms = (evidence.quick_compute_us or 0.0) / 1e3 * (evidence.threads or 1)
    batch_ms = workers.item_cpu_ms * float(size) + alone_ms
    step_ms = evidence.wait_us / evidence.wait_share / 1e3
    gain = OVERSUBSCRIBED * evidence.cores * step_ms / batch_ms
    return gain, gain / (1 + GAIN_ERROR), gain * (1 + GAIN_ERROR)


def workers_rest(evidence: Evidence) -> Values | None:
    """Fit workers that rest behind a late batch: others make as many batches in any order."""
    idle = evidence.workers.idle_share if evidence.workers else None
    return None if idle is not None and idle < limits.REST_BEHIND else {}


def nobody_waits_in_order(evidence: Evidence) -> Gain | None:
    """Return the gain where workers that rest behind a late batch go on.

    Less than the time in which a later batch was ready is saved, and no more than the workers make
    when none of them rests.
    """
    workers = evidence.workers
    if workers is None or workers.late_share is None or workers.idle_share is None:
        return None
    most = 1 / max(1 - evidence.wait_share * workers.late_share, 0.1)
    value = min(most, 1 / max(1 - workers.idle_share, 0.1))
    return value, (1 + value) / 2, min(most, value * (1 + GAIN_ERROR))


def own_init(evidence: Evidence) -> Values | None:
    """Fit a loader without a worker_init_fn of its own, which this one would replace."""
    arguments = (evidence.code and evidence.code.arguments) or {}
    return None if "worker_init_fn" in arguments else {}


def reshardable(evidence: Evidence) -> Values | None:
    """Fit a loader whose workers were seen: that many shards, or a multiple of it."""
    workers = evidence.workers
    return None if workers is None else {"workers": workers.workers, "shards": 4 * workers.workers}


def unpredicted(evidence: Evidence) -> Values | None:
    """Fit a loader whose best number of workers nothing predicts."""
    return {} if evidence.advised is None else None


def stuck(evidence: Evidence) -> Values | None:
    """Fit a worker that has made no progress for long."""
    workers = evidence.workers
    if workers is None or workers.stalled_s is None:
        return None
    return {"limit_s": max(60, round(workers.stalled_s))}


PERSISTENT = Remedy(
    "persistent_workers",
    "Keep the workers between epochs: persistent_workers=True.",
    "epochs",
    sets={"persistent_workers": True},
    cost="the workers' memory between epochs",
    expects=restarts_saved,
)
READ_ONCE = Remedy(
    "read_once",
    "Build what the first epoch builds, and read what it reads, once before training. Where the "
    "page cache did it, time later epochs only, or copy the data to a local disk first.",
    "epochs",
    cost="disk space",
)
FEWER_THREADS = Remedy(
    "fewer_threads",
    "Let the model compute with {threads} of its {now} threads, and leave the other cores to the "
    "workers: each operator waits for the last of its threads, and workers have the cores.",
    "workers",
    threads_left,
    code=SET_THREADS,
    expects=cores_returned,
    check=LESS_WAITING,
)
ONE_THREAD = Remedy(
    "one_thread_a_worker",
    "Let the libraries in each worker compute with one thread; PyTorch limits only its own.",
    "workers",
    own_init,
    arguments={"worker_init_fn": "one_thread"},
    code="def one_thread(worker):  # pip install threadpoolctl\n"
    "    import threadpoolctl\n\n"
    "    threadpoolctl.threadpool_limits(1)  # OpenBLAS, MKL and OpenMP\n"
    "    # cv2.setNumThreads(0)  # where the dataset uses OpenCV\n\n",
    check="CPU time over wall time near 1 in each worker",
)
ONE_THREAD_EVERYWHERE = Remedy(
    "one_thread_everywhere",
    "Limit the libraries to one thread before NumPy is imported, and OpenCV with "
    "cv2.setNumThreads(0).",
    "workers",
    code="import os\n\n"
    'for library in ("OMP", "OPENBLAS", "MKL"):  # above all other imports\n'
    '    os.environ[f"{{library}}_NUM_THREADS"] = "1"\n',
    cost="a model on the CPU has one thread, too, until torch.set_num_threads",
    check="CPU time over wall time near 1 in each worker",
)
MORE_WORKERS = Remedy(
    "more_workers",
    "Try more workers, up to the number of cores: `labkit tune` finds how many.",
    "workers",
    unpredicted,
    check=LESS_WAITING,
)
LARGER_READS = Remedy(
    "larger_reads",
    "Read less often and more at a time: shards (tar, Parquet) instead of a file for each item, "
    "or several reads in flight.",
    "workers",
    check=LESS_WAITING,
)
FEWER_BYTES = Remedy(
    "fewer_bytes",
    "More workers bring nothing, since they share one supply: read fewer bytes (smaller images, "
    "compressed shards), copy the data to a local disk, or keep it in memory.",
    "items",
    code="shutil.copytree(remote, local, dirs_exist_ok=True)  # once, before training\n",
    cost="disk space",
    check=LESS_WAITING,
)
UINT8_BATCHES = Remedy(
    "uint8_batches",
    "Hand over less: uint8 tensors instead of float32, tensors instead of lists, smaller batches; "
    "and compare pin_memory on and off.",
    "items",
    code="# the dataset returns uint8 tensors; in the loop:\n"
    "images = images.to(device, non_blocking=True).float().div_(255)\n",
    check=LESS_WAITING,
)
RESHARD = Remedy(
    "reshard",
    "Cut the data into shards of one size, a multiple of the {workers} workers: {shards}, say.",
    "items",
    reshardable,
    code="dataset = dataset.to_iterable_dataset(num_shards={shards})  # Hugging Face datasets\n",
    cost="writing the data once more",
    check="every worker is as busy as the next one",
)
OUT_OF_ORDER = Remedy(
    "out_of_order",
    "Hand batches out as they are ready: in_order=False (torch 2.6). The order then differs from "
    "run to run.",
    "queue",
    workers_rest,
    arguments={"in_order": "False"},
    cost="batches in an order that is not reproducible",
    expects=nobody_waits_in_order,
    check=LESS_WAITING,
)
SLOW_ITEMS_OFFLINE = Remedy(
    "slow_items_offline",
    "Treat these items before training: shrink them, convert them or leave them out.",
    "items",
    check=LESS_WAITING,
)
GIVE_UP_WAITING = Remedy(
    "timeout",
    "Have the loader raise an error instead of waiting for ever, and start workers anew instead "
    "of forking: OpenCV, HDF5 and tokenizers may deadlock behind a fork (cv2.setNumThreads(0)).",
    "lines",
    stuck,
    arguments={"timeout": "{limit_s}", "multiprocessing_context": "'spawn'"},
    check="the loop goes on, or the error names the worker",
)
ARRAYS = Remedy(
    "arrays",
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
INTO_A_DATASET = Remedy(
    "into_a_dataset",
    "Do it in a Dataset, and read that with a DataLoader that has workers.",
    "workers",
    check=LESS_WAITING,
)
