"""The challenges of notebooks 00 to 03."""

import json
import random
from statistics import median
from time import perf_counter_ns
from types import SimpleNamespace

from labkit.course.task import Goal, KnobTask, Refused, code, counting, difference, faster, ratio
from labkit.spec import Pipeline

# -- Notebook 00, start here -----------------------------------------------------------------------

NETWORK = Pipeline(io_ms=10.0, xray=False)

KnobTask(
    "00-first", "your first improvement",
    "The images of this pipeline come from a network drive. Make it train at least 1.7 times as "
    "many samples a second, by its loader settings alone.",
    (faster(1.7),),
    ("Who prepares the batches while the device computes? With num_workers=0, nobody.",
     "Each worker takes a share of the waiting: try num_workers=4."),
    NETWORK, NETWORK.but(num_workers=6),
    free=("num_workers", "prefetch_factor", "persistent_workers", "pin_memory"),
)  # fmt: skip


class Simulated:
    """A device whose calls return at once, and whose first call is slow."""

    def __init__(self, first_ms, each_ms):
        self.now, self.free_at, self.calls = 0.0, 0.0, 0
        self.next_ms, self.each_ms = first_ms, each_ms

    def work(self):
        self.now += 0.02  # what a call costs the caller
        self.free_at = max(self.free_at, self.now) + self.next_ms
        self.next_ms, self.calls = self.each_ms, self.calls + 1

    def wait(self):
        self.now = max(self.now, self.free_at)


@code("00-stopwatch",
      "What does clock() - start measure while the device is still at work?",
      "One call and one wait() before the clock starts; one wait() before it stops.",
      error=Goal("error, as a share", at_most=0.02), calls=Goal("calls", at_least=10))  # fmt: skip
class Stopwatch:
    """an honest stopwatch.

    A device's work() returns at once, its wait() when all is done, and the very first call is slow.
    Write a function of (work, wait, clock) that returns the milliseconds of one call, from at least
    ten calls; clock() tells the time in ms.
    """

    def solution(work, wait, clock):
        work()  # warm up
        wait()
        start = clock()
        for _ in range(20):
            work()
        wait()
        return (clock() - start) / 20

    def check(answer):
        errors, calls, rng = [], [], random.Random(7)
        for _ in range(6):
            each_ms = rng.uniform(1, 20)
            device = Simulated(rng.uniform(100, 500), each_ms)
            said = answer(device.work, device.wait, lambda device=device: device.now)
            errors.append(abs(said / each_ms - 1))
            calls.append(device.calls)
        return {"error": max(errors), "calls": min(calls)}


# -- Notebook 01, GPU anatomy ----------------------------------------------------------------------


@code("01-one-crossing",
      "One contiguous block holds them all: flatten and torch.cat.",
      "Views cost nothing: cut the block up again on the other side with split and view.",
      crossings=Goal("crossings", at_most=1),
      bytes=Goal("bytes sent, over those of the pieces", at_most=1.0))  # fmt: skip
class OneCrossing:
    """one crossing instead of three hundred.

    Write a function of (pieces, send): pieces is a list of 300 small FP32 tensors of shapes (rows,
    5), and send(tensor) returns a tensor on the other side. Return the same list, all of it sent,
    with one crossing and no byte more than the pieces have.
    """

    def solution(pieces, send):
        import torch

        block = send(torch.cat([piece.flatten() for piece in pieces]))
        parts = block.split([piece.numel() for piece in pieces])
        return [part.view(piece.shape) for part, piece in zip(parts, pieces, strict=True)]

    def check(answer):
        import torch

        pieces = [torch.randn(1 + i % 7, 5) for i in range(300)]
        sent = []

        def send(tensor):
            sent.append(tensor.detach().clone())
            return sent[-1]

        arrived = list(answer([piece.clone() for piece in pieces], send))
        if any(difference(a, b) > 0 for a, b in zip(arrived, pieces, strict=True)):
            raise Refused("It does not return the tensors as they were, in their order.")
        crossed = {tensor.untyped_storage().data_ptr() for tensor in sent}
        if any(tensor.untyped_storage().data_ptr() not in crossed for tensor in arrived):
            raise Refused("It returns tensors that were never sent.")
        extra = sum(t.nbytes for t in sent) / sum(t.nbytes for t in pieces)
        return {"crossings": len(sent), "bytes": extra}


@code("01-batched", "torch.bmm, and @ too, take a whole batch of matrices.",
      operations=Goal("operations", at_most=10),
      flops=Goal("FLOPs over those needed", at_least=1.0, at_most=1.01))  # fmt: skip
class Batched:
    """five hundred products in a few calls.

    Write a function of (a, b), two tensors (500, 24, 24), that returns the 500 products with at
    most ten operations, and no more FLOPs than the products need.
    """

    def start(a, b):
        import torch

        return torch.stack([x @ y for x, y in zip(a, b, strict=True)])

    def solution(a, b):
        return a @ b

    def check(answer):
        import torch
        from torch.utils.flop_counter import FlopCounterMode

        a, b = torch.randn(2, 500, 24, 24)
        given = a.clone(), b.clone()
        with FlopCounterMode(display=False) as flops, counting() as counted:
            found = answer(*given)
        if difference(found, a @ b) > 1e-5:
            raise Refused("It does not return all the products, as (count, n, n).")
        needed = 2 * 500 * 24**3
        return {"operations": len(counted.names), "flops": flops.get_total_flops() / needed}


@code("01-intensity",
      "Each of the m n results takes k multiplications and k additions.",
      "The bytes: m k and k n numbers are read, m n are written.",
      error=Goal("largest error, as a share", at_most=1e-6))  # fmt: skip
class Intensity:
    """intensity by arithmetic.

    Write a function of (m, k, n, bytes_per_number) that returns the FLOP per byte of an (m, k)
    times (k, n) product: inputs read once, the result written once, a multiply-add counted as two.
    """

    def solution(m, k, n, bytes_per_number):
        return 2 * m * k * n / ((m * k + k * n + m * n) * bytes_per_number)

    def check(answer):
        cases = ((1024, 1024, 1024, 4), (1, 4096, 4096, 2), (64, 512, 2048, 4), (7, 3, 5, 8))
        return {"error": max(abs(answer(*case) / Intensity.solution(*case) - 1) for case in cases)}


# -- Notebook 02, sawtooth diagnosis ---------------------------------------------------------------

BUSY = Pipeline(
    dataset="sleep", prep_ms=10.0, num_workers=1, model="cnn", width=48, depth=6, xray=False
)

KnobTask(
    "02-feed", "the cheapest cure",
    "Feed this pipeline with at most three workers, so that it trains at least 1.7 times as fast "
    "as with none.",
    (faster(1.7), Goal("workers", lambda run, _: run.pipeline.num_workers, at_most=3)),
    ("Take wait_ms and compute_ms of the run without workers: w workers divide the wait.",
     "1.7 times as fast means 0.59 of the step: how many workers bring the wait below that?"),
    NETWORK, NETWORK.but(num_workers=3), free=("num_workers", "prefetch_factor"),
)  # fmt: skip


@code("02-busy-share", "Two kernels at once do not make the device twice as busy.",
      "Sort the intervals; count of each only what lies beyond the end of those before.",
      error=Goal("largest error", at_most=1e-6))  # fmt: skip
class BusyShare:
    """what nvidia-smi computes.

    Write a function of (intervals, start, end) that returns the share of the window from start to
    end, 0 to 1, in which a kernel ran: at times (begin, stop) in ms, in any order, overlapping.
    """

    def solution(intervals, start, end):
        busy, until = 0, start
        for begin, stop in sorted(intervals):
            begin, stop = max(begin, until), min(stop, end)
            busy += max(0, stop - begin)
            until = max(until, stop)
        return busy / (end - start)

    def check(answer):
        rng, worst = random.Random(3), 0.0
        for _ in range(50):
            starts = [rng.randrange(0, 1000) for _ in range(rng.randrange(0, 12))]
            intervals = [(start, start + rng.randrange(1, 200)) for start in starts]
            start = rng.randrange(0, 500)
            end = start + rng.randrange(100, 500)
            busy = sum(any(a <= ms < b for a, b in intervals) for ms in range(start, end))
            worst = max(worst, abs(answer(list(intervals), start, end) - busy / (end - start)))
        return {"error": worst}


KnobTask(
    "02-less-busy", "less busy, and faster",
    "This pipeline is busy nearly all the time. Change its model so that the busy share falls to "
    "four fifths of what this pipeline has, or less, and yet at least twice as many samples are "
    "trained a second.",
    (faster(2.0),
     ratio("busy share over the baseline's", "utilization", at_most=0.8)),
    ("What does the device do when it has finished a batch before the next one is ready?",
     "A model that needs less than prep_ms for a batch has to wait for the loader."),
    BUSY, BUSY.but(width=4, depth=1), free=("model", "width", "depth"), cpu_only=True,
)  # fmt: skip


# -- Notebook 03, DataLoader tuning ----------------------------------------------------------------

SMALL = {"model": "mlp", "width": 32, "depth": 1, "image_px": 16, "seconds": None, "xray": False}
STALLS = Pipeline(
    dataset="sleep", prep_ms=15.0, stall_ms=600.0, stall_every=21, num_workers=4,
    prefetch_factor=1, steps=168, **SMALL,
)  # fmt: skip
DEEP = Pipeline(dataset="sleep", prep_ms=80.0, num_workers=4, prefetch_factor=16, steps=80, **SMALL)
PX, COUNT, ROUNDS = 24, 48, 7


def queue(at_most: int) -> Goal:
    """Return the goal to keep so few batches ready."""

    def places(run, _baseline):
        return run.pipeline.num_workers * (run.pipeline.prefetch_factor or 0)

    return Goal("num_workers * prefetch_factor", places, at_most=at_most)


class Slow:
    """A dataset with the habits of many: it parses everything for one item, and loops."""

    def __init__(self, manifest, pixels):
        self.manifest, self.pixels = manifest, pixels

    def __len__(self):
        return len(json.loads(self.manifest))

    def __getitem__(self, index):
        import torch

        record = [SimpleNamespace(**each) for each in json.loads(self.manifest)][index]
        px = record.px
        raw = self.pixels[record.at : record.at + 3 * px * px]
        rows = range(px)
        image = [[[raw[(c * px + y) * px + x] / 255 for x in rows] for y in rows] for c in range(3)]
        return torch.tensor(image), record.label


class Lean:
    """Parses once, and lets torch loop over the pixels: (3, px, px) FP32 in 0 to 1."""

    def __init__(self, manifest, pixels):
        import torch

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
      ratio=Goal("times as fast", at_least=4.0, close=0.1))  # fmt: skip
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
    "same, with the same four workers. Batches that wait take memory: keep at most 64 ready.",
    (faster(1.6), queue(64)),
    ("Batches are handed over in order: while one worker stalls, the others fill the queue.",
     "21 batches keep four workers busy for 230 ms, a stall included. How many is that in 600 ms? "
     "So many places ride over a stall."),
    STALLS, STALLS.but(prefetch_factor=14), free=("prefetch_factor",),
)  # fmt: skip

KnobTask(
    "03-small-queue", "a quarter of the queue",
    "Four workers keep 64 batches ready. Keep at most 16, and at least 0.8 of the speed.",
    (faster(0.8), queue(16)),
    ("Nothing stalls here. What, then, are 64 batches in memory good for?",
     "The workers set the speed; the queue only evens it out."),
    DEEP, DEEP.but(prefetch_factor=2), free=("num_workers", "prefetch_factor"),
)  # fmt: skip
