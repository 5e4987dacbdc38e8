"""Text that every machine has: the source of Python's standard library, as bytes, and its order.

A document is a paragraph, in pieces where it is longer than the model's context, and byte 0 in
front. A row of a batch holds one document.
"""

from __future__ import annotations

import functools
import itertools
import re
import sysconfig
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from torch.utils.data import Dataset, Sampler, get_worker_info

from labkit.bench.job import Job

MOST = 3 * 2**20  # bytes that are read


@functools.lru_cache(1)
def paragraphs() -> list[bytes]:
    """Return the paragraphs of the standard library's modules, in the order of their names."""
    folder = Path(sysconfig.get_paths()["stdlib"])
    found: list[bytes] = []
    size = 0
    for file in sorted(folder.glob("*.py")):
        text = file.read_bytes().replace(b"\0", b"")
        found += [part for part in re.split(rb"\n\s*\n", text) if part.strip()]
        size += len(text)
        if size > MOST:
            break
    if not found:
        raise RuntimeError(
            f"dataset='text' reads the modules of Python's standard library and {folder} has no "
            ".py files: use another dataset, or a Python whose library is not in an archive."
        )
    return found


class Text(Dataset):
    """Documents of bytes, fetched by (draw, index)."""

    def __init__(self, job: Job):
        self.item_s = job.io_ms / 1e3
        self.context = job.context
        room = job.context - 1  # the 0 in front is a token, too
        self.documents: list[bytes] = []
        for paragraph in paragraphs():
            for start in range(0, len(paragraph), room):
                self.documents.append(b"\0" + paragraph[start : start + room])
        self.lengths = [len(document) for document in self.documents]

    def __len__(self) -> int:
        return len(self.documents)

    def __getitem__(self, ticket: tuple[int, int]) -> torch.Tensor:
        if self.item_s:
            time.sleep(self.item_s)
        document = bytearray(self.documents[ticket[1]])
        return torch.frombuffer(document, dtype=torch.uint8)  # (tokens,)

    def sampler(self, job: Job, *shard: int) -> EndlessShuffle:
        """Return what orders the documents; `shard` is a rank and the ranks."""
        return EndlessShuffle(len(self), job.seed, *shard)

    def typical(self) -> tuple[int, float]:
        """Return the length of the document that an average token is in, and documents' mean."""
        lengths = np.array(self.lengths, float)
        return round((lengths**2).sum() / lengths.sum()), lengths.mean()

    def collate(self, rows: list[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
        """Pad the rows to (B, T + 1) uint8, the last token a target only; with their lengths."""
        lengths = [len(row) for row in rows]
        batch = torch.zeros(len(rows), max(lengths) + 1, dtype=torch.uint8)
        for row, into in zip(rows, batch, strict=True):
            into[: len(row)] = row
        tokens, counts = in_shared_memory((batch, torch.tensor(lengths)))
        return tokens, counts  # (B, T + 1), (B,) int64


class EndlessShuffle(Sampler):
    """Shuffled epochs without end, as (draw, index): the n-th sample whatever the workers.

    The order is that of DataLoader(shuffle=True) behind torch.manual_seed(seed).
    """

    def __init__(self, count: int, seed: int, rank: int = 0, ranks: int = 1):
        self.count = count
        self.seed = seed
        self.rank = rank
        self.ranks = ranks

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return itertools.islice(enumerate(self._indices()), self.rank, None, self.ranks)

    def _indices(self) -> Iterator[int]:
        drawn = torch.Generator().manual_seed(self.seed)
        while True:  # a loader draws a seed for its workers, then RandomSampler one for its order
            _seed_of_workers = torch.empty((), dtype=torch.int64).random_(generator=drawn)
            seed = torch.empty((), dtype=torch.int64).random_(generator=drawn)
            order = torch.Generator().manual_seed(int(seed))
            yield from torch.randperm(self.count, generator=order).tolist()


def in_shared_memory(batch: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
    """Share a batch here: with /dev/shm full, the queue's own thread would drop it in silence."""
    if get_worker_info() is None:
        return batch
    return tuple(tensor.share_memory_() for tensor in batch)


def counted(tokens: torch.Tensor, lengths: torch.Tensor) -> tuple[int, tuple[int, int]]:
    """Return a batch's documents, its tokens that are computed, and the real ones of them."""
    inputs = tokens[:, :-1]
    real = int(lengths.sum())
    zeros = inputs.numel() - int(inputs.count_nonzero())  # before each document, and the padding
    return zeros - (inputs.numel() - real), (inputs.numel(), real)


def next_bytes(tokens: torch.Tensor, lengths: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return inputs and targets (B, T) int64 of rows (B, T + 1); in the padding they are -100."""
    places = torch.arange(tokens.shape[1] - 1, device=tokens.device)
    targets = tokens[:, 1:].long()
    return tokens[:, :-1].long(), targets.masked_fill(places >= lengths[:, None], -100)
