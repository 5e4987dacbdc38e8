"""Remedies for what the workers of a loader show: starts, threads, slow items, memory, hangs."""

from __future__ import annotations

from labkit.diagnosis import thresholds as limits
from labkit.diagnosis.copy_remedies import SCALED, sends_images
from labkit.diagnosis.evidence import Evidence
from labkit.diagnosis.remedies import LESS_WAITING, Fit, Remedy
from labkit.spec import PYTORCH_PREFETCH


def workers_rest(evidence: Evidence) -> Fit | None:
    """Fit workers that rest behind a late batch: a longer queue, or any order, has them go on."""
    workers = evidence.workers
    if workers is None or workers.workers < 2 or (workers.idle_share or 0) < limits.REST_BEHIND:
        return None
    now = evidence.knobs.get("prefetch_factor") or PYTORCH_PREFETCH
    return Fit({"prefetch_factor": 4 * int(now)})


def reshardable(evidence: Evidence) -> Fit | None:
    """Fit a loader whose workers were seen: that many shards, or a multiple of it."""
    if evidence.workers is None:
        return None
    count = evidence.workers.workers
    return Fit(words={"workers": count, "shards": 4 * count})


def stuck(evidence: Evidence) -> Fit | None:
    """Fit a worker that has made no progress for long."""
    hang = evidence.workers.hang if evidence.workers else None
    return hang and Fit(words={"limit_s": max(60, round(hang.seconds))})


def kept(_evidence: Evidence) -> Fit:
    """Fit any workers: those that are to be kept already end where their loader is made anew."""
    return Fit({"persistent_workers": True})


def cache_to_keep(evidence: Evidence) -> Fit | None:
    """Fit workers that end with each epoch, and a cache of the dataset's with them."""
    lost = evidence.workers.lost_cache if evidence.workers else None
    return lost and Fit({"persistent_workers": True}, {"cache": lost.name})


PERSISTENT = Remedy(
    "persistent_workers",
    "Keep the workers between epochs: persistent_workers=True, in a loader that is made once, "
    "above the loop over the epochs.",
    "epochs",
    kept,
    cost="the workers' memory between epochs",
)
READ_ONCE = Remedy(
    "read_once",
    "Build what the first epoch builds, and read what it reads, once before training. Where the "
    "page cache did it, time later epochs only, or copy the data to a local disk first.",
    "epochs",
    cost="disk space",
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
UINT8_BATCHES = Remedy(
    "uint8_batches",
    "Send images as uint8, a quarter of the bytes of float32: the dataset returns pixels from 0 to "
    "255, and the loop scales and normalises them.",
    "items",
    sends_images,
    code=SCALED,
    check=LESS_WAITING,
)
FEWER_PIECES = Remedy(
    "fewer_pieces",
    "Send less from a worker: one tensor for each part of a batch in place of lists, dicts and "
    "many small tensors; and compare pin_memory on and off.",
    "items",
    check=LESS_WAITING,
)
EVEN_SHARDS = Remedy(
    "even_shards",
    "Cut the data into shards of one size, a multiple of the $workers workers ($shards, say; "
    "datasets: to_iterable_dataset(num_shards=$shards)), and deal them out to the workers in turn, "
    "not in blocks.",
    "items",
    reshardable,
    code="info = torch.utils.data.get_worker_info()  # in the dataset's __iter__\n"
    "files = self.files[info.id :: info.num_workers]\n",
    cost="another order of the items",
    check="every worker is as busy as the next one",
)
BRIDGE = Remedy(
    "bridge_slow_items",
    "Let the other workers go on meanwhile: a longer queue, prefetch_factor=$prefetch_factor, or "
    "batches as they are ready, in_order=False (torch 2.6), whose order differs from run to run.",
    "queue",
    workers_rest,
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
KEEP_THE_CACHE = Remedy(
    "keep_the_cache",
    "Keep the workers between epochs, and `$cache` with them: persistent_workers=True. Each "
    "worker still fills its own; filled before the first epoch, in the main process, forked "
    "workers share it, and on disk it outlives the script.",
    "epochs",
    cache_to_keep,
    cost="the cache's memory in each worker",
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
