"""Notebook 03, DataLoader tuning: its challenges."""

import json
import random
from statistics import median
from time import perf_counter_ns
from types import SimpleNamespace

from labkit.course.task import CLOSE, Goal, KnobTask, Refused, code, difference, faster
from labkit.spec import Pipeline
from labkit.wiring import Later

torch = Later("torch")
SMALL = {"model": "mlp", "width": 32, "depth": 1, "image_px": 16, "seconds": None, "xray": False}
STALLS = Pipeline(
    dataset="sleep", prep_ms=15.0, stall_ms=600.0, stall_every=21, num_workers=4,
    prefetch_factor=1, steps=168, **SMALL,
)  # fmt: skip
DEEP = Pipeline(dataset="sleep", prep_ms=80.0, num_workers=4, prefetch_factor=16, steps=80, **SMALL)
PX, COUNT, ROUNDS = 24, 48, 7


class Slow:
    """A dataset with the habits of many: it parses everything for one item, and loops."""

    def __init__(self, manifest, pixels):
        self.manifest, self.pixels = manifest, pixels

    def __len__(self):
        return len(json.loads(self.manifest))

    def __getitem__(self, index):
        record = [SimpleNamespace(**each) for each in json.loads(self.manifest)][index]
        px = record.px
        raw = self.pixels[record.at : record.at + 3 * px * px]
        rows = range(px)
        image = [[[raw[(c * px + y) * px + x] / 255 for x in rows] for y in rows] for c in range(3)]
        return torch.tensor(image), record.label


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


@code("03-lean",
      "What does __getitem__ do for one item that it could do once for all?",
      "torch.frombuffer makes a tensor of bytes without looking at them one by one.",
      ratio=Goal("times as fast", at_least=4.0, close=CLOSE))  # fmt: skip
class LeanItems:
    """a lean __getitem__.

    Write a dataset class with the same items as this one (labels, and FP32 images of shape (3, px,
    px) in 0 to 1), which takes a quarter of the time at most, its constructor and each item once.
    """

    start, solution = Slow, Lean

    def check(answer):
        ratios = []
        for seed in range(ROUNDS):
            rng, size = random.Random(seed), 3 * PX * PX
            each = [{"at": i * size, "label": rng.randrange(1000), "px": PX} for i in range(COUNT)]
            rng.shuffle(each)
            data = json.dumps(each), rng.randbytes(COUNT * size)
            slow_ns, right = read(Slow, *data)
            fast_ns, items = read(answer, *data)
            ratios.append(slow_ns / fast_ns)
            if len(items) != COUNT:
                raise Refused(f"It has {len(items)} items, not {COUNT}.")
            for index, (image, label) in enumerate(items):
                slow, number = right[index]
                same = type(image) is type(slow) and image.dtype == slow.dtype
                if not same or difference(image, slow) > 1e-6 or label != number:
                    raise Refused(f"Item {index} is not the one the slow dataset has.")
        return {"ratio": median(ratios)}


def read(kind, manifest, pixels):
    """Return the time that making a dataset and reading it takes, ns, and its items."""
    start = perf_counter_ns()
    dataset = kind(manifest, pixels)
    items = [dataset[index] for index in range(len(dataset))]
    return perf_counter_ns() - start, items


KnobTask(
    "03-stalls", "ride over the stalls",
    "The disk stalls for 600 ms in one of 21 batches. Train at least 1.6 times as fast all the "
    "same, with the same four workers.",
    (faster(1.6),),
    ("Batches are handed over in order: while one worker stalls, the others fill the queue.",
     "How many batches can three workers make in 600 ms? So many places the queue needs."),
    STALLS, STALLS.but(prefetch_factor=32), free=("prefetch_factor",),
)  # fmt: skip

KnobTask(
    "03-small-queue", "a quarter of the queue",
    "Four workers keep 64 batches ready. Keep at most 16, and at least 0.8 of the speed.",
    (faster(0.8),
     Goal("num_workers * prefetch_factor",
          lambda run, _: run.pipeline.num_workers * (run.pipeline.prefetch_factor or 0),
          at_most=16)),
    ("Nothing stalls here. What, then, are 64 batches in memory good for?",
     "The workers set the speed; the queue only evens it out."),
    DEEP, DEEP.but(prefetch_factor=2), free=("num_workers", "prefetch_factor"),
)  # fmt: skip
