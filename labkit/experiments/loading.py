"""Loading: what an item costs prepared four ways, a worker's copy of the dataset, and an epoch."""

from __future__ import annotations

import cProfile
import gc
import pstats
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from labkit.experiments.measure import data, page, primitives, style, torch
from labkit.spec import experiment, knob
from labkit.wiring import Later

torch_data, process = Later("torch.utils.data"), Later("labkit.bench.process")
image, psutil = Later("PIL.Image"), Later("psutil")

TOP = 3  # functions that a profile names
READINGS, BATCH = 6, 1000


class Pixel:
    """What an object-oriented dataset makes of every pixel: the channels from 0 to 1."""

    def __init__(self, rgb: bytes):
        self.red, self.green, self.blue = (channel / 255 for channel in rgb)


def decoded(file: str) -> np.ndarray:
    """Return a file's pixels, (px, px, 3) uint8."""
    with image.open(file) as picture:
        return np.array(picture.convert("RGB"))


def to_floats(pixels: np.ndarray) -> torch.Tensor:
    """Return a batch, (B, px, px, 3) uint8, as the model takes it, (B, 3, px, px)."""
    return torch.from_numpy(pixels).permute(0, 3, 1, 2).float().div_(255)


def naive(files: list[str]) -> torch.Tensor:
    """Make an object a pixel, loop over them in Python, and a list becomes a tensor."""
    items = []
    for file in files:
        raw = (picture := decoded(file)).tobytes()
        pixels = [Pixel(raw[i : i + 3]) for i in range(0, len(raw), 3)]
        rows = torch.tensor([(p.red, p.green, p.blue) for p in pixels])  # (px * px, 3)
        items.append(rows.T.reshape(3, *picture.shape[:2]))
    return torch.stack(items)


def vectorised(files: list[str]) -> torch.Tensor:
    """Convert all pixels of an item at once, and stack, as a DataLoader does with single items."""
    return torch.stack([to_floats(decoded(file)[None])[0] for file in files])


def by_the_batch(files: list[str]) -> torch.Tensor:
    """Stack the bytes and convert them once, as `__getitems__` gets a whole batch."""
    return to_floats(np.stack([decoded(file) for file in files]))


@experiment(
    "the same batch of images, prepared in four ways",
    px=knob(64, "edge of an image", unit="px", low=8, high=1024),
    batch_size=knob(16, "images in a batch", low=1, high=1024, reach=256),
)
def item_ladder(job: Any, bench: Any) -> None:
    """Time a batch four ways that return the same tensor, and profile each.

    "offline" is decoded ahead of time into one array on disk, so that a batch is one indexed read.
    """
    bench.stage("making images")
    count = 4 * job.batch_size
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as place:
        files = [f"{place}/{i}.jpg" for i in range(count)]
        for i, file in enumerate(files):
            image.fromarray(data.draw_image(i, job.px)).save(file, quality=90)
        np.save(f"{place}/images.npy", np.stack([decoded(file) for file in files]))
        array = np.load(f"{place}/images.npy", mmap_mode="r", allow_pickle=False)
        indices = torch.randperm(count)[: job.batch_size].tolist()
        chosen = [files[index] for index in indices]
        wanted = vectorised(chosen)
        for name, work in {
            "naive": lambda: naive(chosen), "vectorised": lambda: vectorised(chosen),
            "by the batch": lambda: by_the_batch(chosen),
            "offline": lambda: to_floats(array[indices]),
        }.items():  # fmt: skip
            bench.stage(f"measuring: {name}")
            if not torch.equal(work(), wanted):
                raise RuntimeError(f"{name}: not the same items")
            profile = cProfile.Profile()
            profile.runcall(work)
            own = {key: row[2] for key, row in pstats.Stats(profile).stats.items()}
            total = sum(own.values()) or 1.0
            top = [
                [function if file == "~" else f"{Path(file).name}: {function}", s / total]
                for (file, _, function), s in sorted(own.items(), key=lambda row: -row[1])[:TOP]
            ]
            bench.time(work, of=name, px=job.px)
            bench.write(f"profile of {name}", values={"top": top})


@experiment(
    "the workers' private memory while they read a list, and an array",
    items=knob(300_000, "names in the dataset", low=BATCH, high=1 << 26),
    workers=knob(2, "loader processes", low=1, high=128),
)
def worker_memory(job: Any, bench: Any) -> None:
    """Read through a dataset of `items` names with `workers`; write their unique memory, bytes.

    A forked worker shares the parent's pages until one of the two writes to them. Reading a Python
    object writes to it: its reference count. The array's pages are never written.
    """
    if sys.platform != "linux":
        why = "only Linux tells a process's unique memory, and only there are workers forked"
        return bench.skip("private memory", why)
    names = [f"images/class-{i % 97:02d}/{i:07d}.jpg" for i in range(job.items)]
    for of, kept in {"list of Python objects": names, "one array": np.array(names)}.items():
        bench.stage(f"measuring: {of}")
        gc.collect()
        loader = loader_of(kept, BATCH, job.workers, collate_fn=len)
        marks = {1, *(round(len(loader) * i / READINGS) for i in range(1, READINGS + 1))}
        iterator = iter(loader)
        pids = [worker.pid for worker in iterator._workers]
        for number, _ in enumerate(iterator, 1):
            if number in marks:
                values = {"private_bytes": sum(map(_private, pids))}
                read = round(number / len(loader), 3)
                bench.write(of, values=values, read=read, workers=job.workers)


def loader_of(dataset: Any, batch_size: int, workers: int, **options: Any) -> Any:
    """Return a DataLoader whose workers end with the bench."""
    options["worker_init_fn"] = process.worker_dies_with_bench
    return torch_data.DataLoader(dataset, batch_size, num_workers=workers, **options)


def _private(pid: int) -> int:
    try:
        return psutil.Process(pid).memory_full_info().uss
    except (psutil.Error, OSError):  # it has just finished its share
        return 0


@worker_memory.figure
def draw_memory(measured: Any) -> Any:
    """Draw private memory of all workers together (MiB) against the share of the data read."""
    series = []
    for kind, colour in zip(dict.fromkeys(p.of for p in measured), style.LINES, strict=False):
        mib = {p.case["read"]: p.values["private_bytes"] / 2**20 for p in measured.where(kind)}
        series.append(primitives.Series(kind, [*mib], [*mib.values()], colour))
    ends = ", ".join(f"{line.name}: {line.y[-1]:,.0f} MiB" for line in series)
    title = f"private memory when all is read: {ends}"
    figure, (axes,) = page(measured, [(0.32, 2.2)], title=title)
    primitives.lines(axes, series, "share of the dataset read in this epoch", "private memory, MiB")
    axes.xaxis.set_major_formatter(lambda share, _: f"{share:.0%}")
    return figure


@experiment(
    "from asking for an epoch to its first batch",
    workers=knob(4, "loader processes", low=1, high=128),
    epochs=knob(5, "epochs that are begun", low=2, high=1000),
)
def epoch_start(job: Any, bench: Any) -> None:
    """Time from asking for an epoch to its first batch, with `persistent_workers` and without."""
    dataset = torch_data.TensorDataset(torch.randn(64 * 8, 16))  # (512, 16)
    for persistent in (False, True):
        of = "persistent workers" if persistent else "new workers each epoch"
        loader = loader_of(dataset, 64, job.workers, persistent_workers=persistent)
        took = []
        for epoch in range(job.epochs):
            bench.stage(f"measuring: {of}", epoch, job.epochs)
            start = time.perf_counter()
            iterator = iter(loader)
            next(iterator)
            took.append(time.perf_counter() - start)
            for _ in iterator:
                pass
        bench.write(of, seconds=took[:1], epochs="first")
        bench.write(of, seconds=sorted(took[1:]), epochs="later")
        del iterator, loader
