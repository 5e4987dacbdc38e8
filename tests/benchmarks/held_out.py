"""Six loops of other origin, on which nothing of the kit was set: for the tuner and the autopilot.

Datasets as people have them, each with its step: items that wait, with and without a heavy tail;
numpy, text and zlib that take the cores; a stream. `LOOPS` has (dataset, step, batch size).
"""

import re
import time
import zlib

import numpy as np
import torch

WORDS = [f"{first}{last}" for first in "bcdfghlmnprst" for last in ("at", "en", "ill", "ore")]


class Items:
    """4000 items, each made by `item(number)`."""

    def __init__(self, item):
        self.item = item

    def __len__(self):
        return 4000

    def __getitem__(self, index):
        return self.item(index)


def remote(index):
    """9 ms of latency, as from object storage."""
    time.sleep(0.009)
    return torch.full((256,), index / 4000)


def heavy_tail(index):
    """1 ms; 4 % of the items take 80 ms."""
    time.sleep(0.08 if hash((index, 7)) % 25 == 0 else 0.001)
    return torch.full((256,), index / 4000)


def numpy_items(index):
    """110 kB arrays, made and normalised by numpy: about 0.8 ms of a core."""
    image = np.random.default_rng(index).random((96, 96, 3), dtype=np.float32)
    image = (image - image.mean((0, 1))) / image.std((0, 1))
    return torch.from_numpy(np.ascontiguousarray(image[:, ::-1]))


def tokens(index):
    """A text of 2000 words, cut by a regular expression and numbered: Python that holds the GIL."""
    text = " ".join(WORDS[(index + i * i) % len(WORDS)] for i in range(2000))
    table: dict[str, int] = {}
    found = [table.setdefault(word, len(table)) for word in re.findall(r"\w+", text.lower())]
    return torch.tensor(found[:256]).float() / 100


BLOBS = [
    zlib.compress(np.random.default_rng(n).integers(0, 9, 300_000, np.uint8)) for n in range(8)
]


def unzipped(index):
    """300 kB out of a zlib stream: about 1.5 ms of a core, outside of the GIL."""
    return torch.frombuffer(bytearray(zlib.decompress(BLOBS[index % 8])), dtype=torch.uint8)[:9000]


class Stream(torch.utils.data.IterableDataset):
    """A stream in shards, each worker its own, with 3 ms of waiting for an item."""

    def __iter__(self):
        worker = torch.utils.data.get_worker_info()
        start, by = (worker.id, worker.num_workers) if worker else (0, 1)
        for index in range(start, 100_000, by):
            time.sleep(0.003)
            yield torch.full((256,), index % 100 / 100)


WEIGHTS = torch.randn(256, 256) / 16


def step(batch):
    """About 1 ms on a core: products with one matrix; returns a number, as a loss."""
    x = batch.float().flatten(1)[:, :256].repeat(8, 1)
    for _ in range(6):
        x = torch.tanh(x @ WEIGHTS)
    return x.square().mean()


LOOPS = {
    "9 ms remote": (Items(remote), step, 16),
    "heavy tail": (Items(heavy_tail), step, 16),
    "numpy": (Items(numpy_items), step, 32),
    "tokens": (Items(tokens), step, 32),
    "zlib": (Items(unzipped), step, 32),
    "stream": (Stream(), step, 16),
}
