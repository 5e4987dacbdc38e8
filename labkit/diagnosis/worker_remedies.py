"""Remedies for what the workers of a loader show: starts, threads, order, shards, memory, hangs."""

from __future__ import annotations

from labkit.diagnosis import thresholds as limits
from labkit.diagnosis.copy_remedies import SCALED, sends_images
from labkit.diagnosis.evidence import Evidence
from labkit.diagnosis.loader_words import epochs_unseen, remade_said
from labkit.diagnosis.remedies import LESS_WAITING, Fit, Remedy

HUGGING_FACE = {"IterableDataset", "Dataset"}  # classes of its `datasets`


def workers_rest(evidence: Evidence) -> bool:
    """Fit workers that rest after a late batch: others make as many batches in any order."""
    idle = evidence.workers.idle_share if evidence.workers else None
    return idle is None or idle >= limits.REST_BEHIND


def own_init(evidence: Evidence) -> bool:
    """Fit a loader without a worker_init_fn of its own, which this one would replace."""
    arguments = evidence.code and evidence.code.arguments
    return "worker_init_fn" not in (arguments or {})


def cuts_shards(evidence: Evidence) -> bool:
    """Return whether a dataset is one of Hugging Face, which shares out shards that it cuts."""
    return evidence.code is not None and evidence.code.dataset_type in HUGGING_FACE


def shards(evidence: Evidence) -> Fit | None:
    """Return how many shards suit a loader whose workers were seen."""
    count = evidence.workers.workers if evidence.workers else 0
    return Fit(words={"workers": count, "shards": 4 * count}) if count else None


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
RESHARD = Remedy(
    "reshard",
    "Cut the data into shards of one size, a multiple of the $workers workers: $shards, say.",
    "items",
    lambda evidence: shards(evidence) if cuts_shards(evidence) else None,
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
    lambda evidence: None if cuts_shards(evidence) else shards(evidence),
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
