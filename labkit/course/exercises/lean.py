"""Challenge: a dataset whose items cost a fraction, with everything that prepares them timed."""

from __future__ import annotations

import json
import random
from statistics import median
from time import perf_counter_ns
from types import SimpleNamespace
from typing import Any

import torch

from labkit.bench.workbench import Workbench
from labkit.course.exercises.counting import difference
from labkit.experiments.exercise import Refused

PX, COUNT, ROUNDS = 24, 48, 7


def check(answer: Any, bench: Workbench) -> None:
    """Time constructor and items against the slow dataset's, on data neither has seen."""
    compare_items(answer, *data(0))
    ratios = []
    for seed in range(1, ROUNDS + 1):
        fresh = data(seed)
        slow_ns, fast_ns = timed(Slow, *fresh), timed(answer, *fresh)
        ratios.append(slow_ns / fast_ns)
        compare_items(answer, *fresh, some=4)
    bench.write("items", values={"ratio": median(ratios)})


def data(seed: int) -> tuple[str, bytes]:
    """Return a manifest of records, and the pixels they point into."""
    rng = random.Random(seed)
    size = 3 * PX * PX
    records = [{"at": i * size, "label": rng.randrange(1000), "px": PX} for i in range(COUNT)]
    rng.shuffle(records)
    return json.dumps(records), rng.randbytes(COUNT * size)


def timed(kind: Any, manifest: str, pixels: bytes) -> int:
    """Return the time that making the dataset and reading every item takes, ns."""
    start = perf_counter_ns()
    dataset = kind(manifest, pixels)
    for index in range(len(dataset)):
        dataset[index]
    return perf_counter_ns() - start


def compare_items(kind: Any, manifest: str, pixels: bytes, some: int = COUNT) -> None:
    """Refuse a dataset whose items are not those of the slow one."""
    mine, theirs = kind(manifest, pixels), Slow(manifest, pixels)
    if len(mine) != len(theirs):
        raise Refused(f"It has {len(mine)} items, not {len(theirs)}.")
    for index in random.Random(5).sample(range(COUNT), some):
        (image, label), (right, right_label) = mine[index], theirs[index]
        same = type(image) is torch.Tensor and image.dtype == right.dtype
        if not same or difference(image, right) > 1e-6 or label != right_label:
            raise Refused(f"Item {index} is not the one the slow dataset has.")


class Slow:
    """A dataset with the habits of many: it parses everything for one item, and loops."""

    def __init__(self, manifest, pixels):
        self.manifest, self.pixels = manifest, pixels

    def __len__(self):
        return len(json.loads(self.manifest))

    def __getitem__(self, index):
        record = [SimpleNamespace(**each) for each in json.loads(self.manifest)][index]
        size = 3 * record.px * record.px
        raw = self.pixels[record.at : record.at + size]
        image = [
            [[raw[(c * record.px + y) * record.px + x] / 255 for x in range(record.px)]
             for y in range(record.px)]
            for c in range(3)
        ]  # fmt: skip
        return torch.tensor(image), record.label


# -- answers: one that passes, and some that do not ------------------------------------------


class Lean:
    """Parses once, and lets torch loop over the pixels: (3, px, px) FP32 in 0 to 1."""

    def __init__(self, manifest, pixels):
        self.records = json.loads(manifest)
        self.pixels = torch.frombuffer(bytearray(pixels), dtype=torch.uint8)

    def __len__(self):
        return len(self.records)

    def __getitem__(self, index):
        record = self.records[index]
        px = record["px"]
        raw = self.pixels[record["at"] : record["at"] + 3 * px * px]
        return raw.view(3, px, px).float() / 255, record["label"]


class ParsedOnce(Slow):
    """Parses once, and still loops over pixels in Python."""

    def __init__(self, manifest, pixels):
        super().__init__(manifest, pixels)
        self.records = [SimpleNamespace(**each) for each in json.loads(manifest)]

    def __len__(self):
        return len(self.records)

    def __getitem__(self, index):
        record = self.records[index]
        self.manifest = json.dumps([vars(record)])  # the one record that the slow code parses
        return super().__getitem__(0)


class BeforeTheClock(Slow):
    """All the work in the constructor, where nobody seems to look."""

    def __init__(self, manifest, pixels):
        super().__init__(manifest, pixels)
        self.items = [super(BeforeTheClock, self).__getitem__(i) for i in range(len(self))]

    def __getitem__(self, index):
        return self.items[index]


class HalfTheItems(Lean):
    """Every second item is the one before."""

    def __getitem__(self, index):
        return super().__getitem__(index // 2 * 2)


class StoppedClock(Slow):
    """Replaces the clock."""

    def __init__(self, manifest, pixels):
        import time

        super().__init__(manifest, pixels)
        time.perf_counter = time.perf_counter_ns = lambda: 0
