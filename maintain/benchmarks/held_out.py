"""Loops of other origin: (dataset, step, batch size).

Datasets as people have them, each with its step: items that wait, with and without a heavy tail;
text and zlib that take the cores; a stream; a database; an interface that is slow now and then.
Five more that took the cores (numpy, JSON, CSV, JPEGs, a spectrogram) are in the repository's
history only. The search of the tuner was mended after it had been measured on them.
"""

import re
import sqlite3
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


class Rows:
    """4000 rows of a database, a batch of them in one query; a process opens its own."""

    def __init__(self):
        self.found = None

    def __len__(self):
        return 4000

    def __getitem__(self, index):
        return self.__getitems__([index])[0]

    def __getitems__(self, indices):
        if self.found is None:
            self.found = sqlite3.connect(":memory:")
            self.found.execute("create table item (id integer primary key, data blob)")
            blobs = ((i, np.full(2048, i % 9, np.float32).tobytes()) for i in range(4000))
            self.found.executemany("insert into item values (?, ?)", blobs)
        time.sleep(0.004)  # the round trip
        marks = ",".join("?" * len(indices))
        rows = self.found.execute(f"select data from item where id in ({marks})", indices)
        return [torch.frombuffer(bytearray(data), dtype=torch.float32) for (data,) in rows]


def interface(index):
    """3 ms of waiting, 50 for one of fifty, and half a millisecond of a core behind it."""
    time.sleep(0.05 if index % 50 == 49 else 0.003)
    found = np.random.default_rng(index).standard_normal(30_000, np.float32)
    return torch.from_numpy(np.sort(found)[:1024])


LOOPS = {
    "9 ms remote": (Items(remote), step, 16),
    "heavy tail": (Items(heavy_tail), step, 16),
    "tokens": (Items(tokens), step, 32),
    "zlib": (Items(unzipped), step, 32),
    "stream": (Stream(), step, 16),
    "database": (Rows(), step, 64),
    "interface": (Items(interface), step, 16),
}
