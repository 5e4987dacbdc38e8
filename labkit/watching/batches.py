"""What the batches of a watched loop are: how many, of how many samples and bytes, how padded."""

from __future__ import annotations

from collections.abc import Sized
from statistics import fmean
from typing import cast

from labkit.instruments.batch_contents import (
    Keys,
    bytes_at,
    counter_for,
    dtype_of_most,
    large_arrays,
    padding_of,
)
from labkit.instruments.before_calls import held
from labkit.instruments.loader_knobs import torch_loader
from labkit.instruments.stack import is_a
from labkit.stamps.events import EventLog
from labkit.stamps.interrupts import OwnErrors

LOOK_EVERY = 16  # batches, for their padding


def length_of(loader: object) -> int | None:
    """Return how many batches a loader has; None where it would be asked of a user's sampler.

    torch's samplers ask a dataset for its own length at each pass.
    """
    if type(loader) in (list, tuple, range):
        return len(cast(Sized, loader))
    kept = held(torch_loader(loader))
    batches = kept.get("batch_sampler")
    batches = kept.get("sampler") if batches is None else batches
    samplers = (batches, held(batches).get("sampler", batches))
    with OwnErrors():
        if all(type(each).__module__.startswith("torch.utils.data.") for each in samplers):
            return len(cast(Sized, batches))
    return None


class BatchFacts:
    """What the first batch of a loop shows of all of them."""

    def __init__(self, size: int | None):
        """`size` is the loader's own batch size, where that is known."""
        self.size = size
        self.unit = "samples"  # or "batches", where they do not show their samples
        self.counted = self.of_full_size  # what counts the samples of a batch
        self.count = self.of_full_size  # the same, where it looks for padding as well
        self.places: list[Keys] = []  # what leads to its large arrays
        self.met = 0  # batches that may be looked at for their padding
        self.padding: list[float] = []  # its share of those
        self.dtype: str | None = None  # of the largest array in it
        self.on_gpu = False  # whether the loader makes them there

    def learn(self, batch: object) -> None:
        """Learn how to count the samples and the bytes of batches like this one."""
        known = counter_for(batch, self.size)
        self.unit = "samples" if known or self.size else "batches"
        self.count = self.counted = known or self.of_full_size
        self.places = []
        with OwnErrors():
            largest, self.places = large_arrays(batch)
            self.dtype = dtype_of_most([largest])
            self.on_gpu = is_a(largest, "torch", "Tensor") and not largest.is_cpu
        with OwnErrors():
            if padding_of(batch) is not None:
                self.count = self.look

    def look(self, batch: object) -> int:
        """Count the samples of a batch, and now and then look how much of it is padding."""
        if self.met % LOOK_EVERY == 0:
            self.padding.append(padding_of(batch) or 0.0)
        self.met += 1
        return self.counted(batch)

    def measure(self, batch: object) -> int:
        """Return the bytes of a batch's large arrays."""
        return bytes_at(batch, self.places)

    def of_full_size(self, _batch: object) -> int:
        """Count a batch that only the user's own code can look into; 1 where that is unknown."""
        return self.size or 1

    def write_padding(self, log: EventLog) -> None:
        """Write how much of the batches is padding, where it was looked for."""
        if self.padding:
            log.write("padding", share=round(fmean(self.padding), 4))
