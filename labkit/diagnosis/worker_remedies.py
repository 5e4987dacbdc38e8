"""Remedies for what the workers of a loader show: starts, threads, order, shards, memory, hangs."""

from __future__ import annotations

from labkit.diagnosis import thresholds as limits
from labkit.diagnosis.estimate import Estimate
from labkit.diagnosis.evidence import Evidence
from labkit.diagnosis.loader_simulation import OVERSUBSCRIBED
from labkit.diagnosis.loader_words import SET_THREADS, epochs_unseen, remade_said
from labkit.diagnosis.prediction import MODEL_ERROR
from labkit.diagnosis.recommendation import threads_beside
from labkit.diagnosis.remedies import LESS_WAITING, Fit, Remedy

HUGGING_FACE = {"IterableDataset", "Dataset"}  # classes of its `datasets`
ERROR = MODEL_ERROR["input"]  # of these gains: 1.62x and 1.65x expected, 1.60x and 1.68x came


def restarts_saved(evidence: Evidence) -> Estimate | None:
    """Return the gain where no later pass waits for workers that start."""
    restart = evidence.loop.restart if evidence.loop else 0.0
    if not restart:
        return None
    most = 1 / (1 - min(restart, 0.9))
    return Estimate(most, (1 + most) / 2, most)


def threads_kept(evidence: Evidence) -> int | None:
    """Return the threads to leave to a model on the CPU where busy workers have its cores."""
    workers = evidence.workers
    threads = evidence.threads or 1
    alone_us = evidence.quick_compute_us
    if workers is None or evidence.code is None or not alone_us or evidence.kind != "cpu":
        return None
    if (evidence.compute_us or 0.0) < limits.HELD_BACK * alone_us:
        return None
    wanted = workers.workers * min(1.0, workers.cpu_share + (workers.in_line_share or 0.0))
    kept = threads_beside(wanted, threads, evidence.use.cores)
    return kept if kept < threads else None


def fewer_threads(evidence: Evidence) -> Fit | None:
    """Fit a model on the CPU whose threads wait for cores that busy workers have."""
    kept = threads_kept(evidence)
    return None if kept is None else Fit(words={"threads": kept, "now": evidence.threads})


def cores_allow(evidence: Evidence, threads: int | None = None) -> float | None:
    """Return the gain where items and undisturbed steps fill all cores; None where not known.

    A step that computes with fewer `threads` than now takes longer in proportion. What other
    programs take no worker has.
    """
    workers = evidence.workers
    use = evidence.use
    if workers is None or workers.item_cpu_ms is None or not use.cores:
        return None
    if not evidence.wait_share or not evidence.wait_us:
        return None
    size = evidence.knobs.get("batch_size") or 1
    alone_ms = (evidence.quick_compute_us or 0.0) / 1e3 * (evidence.threads or 1)
    batch_ms = workers.item_cpu_ms * float(size) + alone_ms
    cores = max(1.0, use.cores * (1 - use.others_share)) if use.is_shared else use.cores
    least_ms = max(batch_ms / cores, alone_ms / threads if threads else 0.0)
    return evidence.wait_us / evidence.wait_share / 1e3 / least_ms


def cores_returned(evidence: Evidence) -> Estimate | None:
    """Return the gain where the model leaves the workers the cores that they wait for."""
    kept = threads_kept(evidence)
    most = cores_allow(evidence, kept) if kept else None
    if most is None:
        return None
    gain = OVERSUBSCRIBED * most
    return Estimate(gain, gain / (1 + ERROR), gain * (1 + ERROR))


def workers_rest(evidence: Evidence) -> bool:
    """Fit workers that rest after a late batch: others make as many batches in any order."""
    idle = evidence.workers.idle_share if evidence.workers else None
    return idle is None or idle >= limits.REST_BEHIND


def nobody_waits_in_order(evidence: Evidence) -> Estimate | None:
    """Return the gain where workers that rest after a late batch go on.

    Less than the time in which a later batch was ready is saved, and no more than the workers make
    when none of them rests, or than the cores allow.
    """
    workers = evidence.workers
    if workers is None or workers.late_share is None or workers.idle_share is None:
        return None
    most = 1 / max(1 - evidence.wait_share * workers.late_share, 0.1)
    most = min(most, cores_allow(evidence) or most)
    value = min(most, 1 / max(1 - workers.idle_share, 0.1))
    return Estimate(value, (1 + value) / 2, min(most, value * (1 + ERROR)))


def own_init(evidence: Evidence) -> bool:
    """Fit a loader without a worker_init_fn of its own, which this one would replace."""
    arguments = evidence.code and evidence.code.arguments
    return "worker_init_fn" not in (arguments or {})


def reshardable(evidence: Evidence) -> Fit | None:
    """Fit a loader whose workers were seen: that many shards, or a multiple of it."""
    if evidence.workers is None:
        return None
    count = evidence.workers.workers
    return Fit(words={"workers": count, "shards": 4 * count})


def files_to_deal_out(evidence: Evidence) -> Fit | None:
    """Fit a dataset of the user's own class, which shares its data out itself."""
    kind = evidence.code and evidence.code.dataset_type
    return reshardable(evidence) if kind not in HUGGING_FACE else None


def stuck(evidence: Evidence) -> Fit | None:
    """Fit a worker that has made no progress for long."""
    hang = evidence.workers.hang if evidence.workers else None
    return hang and Fit(words={"limit_s": max(60, round(hang.seconds))})


def started_anew(evidence: Evidence) -> Fit | None:
    """Fit workers that end with each epoch: by default, or since their loader does."""
    code = evidence.code
    remade = remade_said(code)
    if evidence.knobs.get("persistent_workers") and not remade:
        return None
    words = {"epochs": epochs_unseen(code), "remade": remade}
    return Fit({"persistent_workers": True}, words)


PERSISTENT = Remedy(
    "persistent_workers",
    "Keep the workers between epochs: persistent_workers=True$remade.$epochs",
    "epochs",
    started_anew,
    cost="the workers' memory between epochs",
    expects=restarts_saved,
)
LONGER_PASSES = Remedy(
    "longer_passes",
    "Draw the items of several epochs in one pass over the loader, and make fewer passes: between "
    "passes its workers have nothing to do, and each pass waits for its first batch anew.",
    "epochs",
    lambda evidence: bool(evidence.num_workers) and started_anew(evidence) is None,
    code="# in place of shuffle=True: a pass is ten epochs, so make a tenth of them\n"
    "sampler = RandomSampler(dataset, num_samples=10 * len(dataset))\n",
    check=LESS_WAITING,
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
    "Let the model compute with $threads of its $now threads, and leave the other cores to the "
    "workers: each operator waits for the last of its threads, and workers have the cores.",
    "workers",
    fewer_threads,
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
    code='for library in ("OMP", "OPENBLAS", "MKL"):  # above all other imports\n'
    '    os.environ[f"{library}_NUM_THREADS"] = "1"\n',
    cost="a model on the CPU has one thread, too, until torch.set_num_threads",
    check="CPU time over wall time near 1 in each worker",
)
MORE_WORKERS = Remedy(
    "more_workers",
    "Try more workers, up to the number of cores: `labkit tune` finds how many.",
    "workers",
    lambda evidence: evidence.advised is None,  # else that number is predicted
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
    "Cut the data into shards of one size, a multiple of the $workers workers: $shards, say.",
    "items",
    reshardable,
    code="dataset = dataset.to_iterable_dataset(num_shards=$shards)\n",
    cost="writing the data once more",
    check="every worker is as busy as the next one",
)
DEAL_FILES_OUT = Remedy(
    "deal_files_out",
    "Deal the files out to the $workers workers in turn, not in blocks. Where their sizes differ, "
    "sort them by size first; where one holds most of the data, cut it into shards of one size, "
    "$shards in all, say.",
    "items",
    files_to_deal_out,
    code="info = torch.utils.data.get_worker_info()  # in the dataset's __iter__\n"
    "files = self.files[info.id :: info.num_workers]\n",
    cost="another order of the items",
    check="every worker is as busy as the next one",
)
OUT_OF_ORDER = Remedy(
    "out_of_order",
    "Shrink the slowest items before training (or decode those JPEGs smaller: draft), or hand "
    "batches out as they are ready: in_order=False (torch 2.6). The order then differs from run to "
    "run.",
    "queue",
    workers_rest,
    arguments={"in_order": "False"},
    cost="batches in an order that is not reproducible",
    expects=nobody_waits_in_order,
    check=LESS_WAITING,
)
SLOW_ITEMS_OFFLINE = Remedy(
    "slow_items_offline",
    "Treat these items before training: shrink them, convert them or leave them out. A large JPEG "
    "is also cheaper to decode smaller: image.draft('RGB', (size, size)).",
    "items",
    check=LESS_WAITING,
)
GIVE_UP_WAITING = Remedy(
    "raise_an_error_instead",
    "Have the loader raise an error instead of waiting for ever, and start workers anew instead "
    "of forking: OpenCV, HDF5 and tokenizers may deadlock after a fork (cv2.setNumThreads(0)).",
    "lines",
    stuck,
    arguments={"timeout": "$limit_s", "multiprocessing_context": "'spawn'"},
    check="the loop goes on, or the error names the worker",
)
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
INTO_A_DATASET = Remedy(
    "into_a_dataset",
    "Do it in a Dataset, and read that with a DataLoader that has workers.",
    "workers",
    check=LESS_WAITING,
)
