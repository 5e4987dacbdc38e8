"""Plausible answers to every challenge that must fail, at least one of them a cheat.

Those of a knob challenge are changes of what was given. A cheat does less work, or other work.
"""

import json
from types import SimpleNamespace

import torch
from torch.nn.functional import cross_entropy, gelu, pad

from labkit.course import nb03

KNOBS = {
    "00-first": {
        "pinned memory": {"pin_memory": True},
        "cheat: no storage wait": {"num_workers": 1, "io_ms": 0.0},
        "cheat: fewer samples": {"num_workers": 4, "steps": 10},
    },
    "02-feed": {
        "one worker": {"num_workers": 1, "prefetch_factor": 8},
        "too many": {"num_workers": 8},
        "cheat: no augmentation": {"num_workers": 1, "augment": 0},
    },
    "02-less-busy": {"a larger model": {"depth": 8}, "cheat: smaller images": {"image_px": 8}},
    "03-stalls": {
        "PyTorch's usual 2": {"prefetch_factor": 2},
        "cheat: fewer stalls": {"prefetch_factor": 32, "stall_every": 100},
    },
    "03-small-queue": {
        "one worker with it all": {"num_workers": 1},
        "still too deep": {"prefetch_factor": 8},
        "cheat: less to prepare": {"num_workers": 1, "prep_ms": 20.0},
    },
    "04-knee": {
        "past the limit": {"batch_size": 256},
        "cheat: a smaller model": {"batch_size": 64, "width": 32},
    },
    "04-fit": {
        "still too large": {"batch_size": 512, "accumulation_steps": 2, "steps": 2},
        "a smaller update": {"batch_size": 64, "accumulation_steps": 4, "steps": 16},
        "cheat: fewer samples": {"batch_size": 64, "accumulation_steps": 16, "steps": 1},
    },
    "08-two-fixes": {
        "what a GPU is bought for": {"fixes": ("precision", "memory")},
        "cheat: all at once": {"fixes": ("data", "items", "copies", "launches", "memory")},
        "cheat: fewer samples": {"fixes": ("data",), "steps": 4},
    },
    "08-flat": {
        "one worker, deep queue": {"num_workers": 1, "prefetch_factor": 16},
        "cheat: a slower device": {"num_workers": 2, "width": 2048},
    },
    "09-no-sync": {
        "accumulation alone": {"batch_size": 16, "accumulation_steps": 4},
        "cheat: another update": {"accumulation_steps": 4, "no_sync": True},
        "cheat: one rank": {"ranks": 1, "batch_size": 128},
    },
}


# -- 00 to 03 --------------------------------------------------------------------------------------


def no_wait(work, wait, clock):
    work()
    start = clock()
    for _ in range(20):
        work()
    return (clock() - start) / 20


def cold(work, wait, clock):
    start = clock()
    for _ in range(20):
        work()
    wait()
    return (clock() - start) / 20


def constant(work, wait, clock):
    for _ in range(20):
        work()
    return 10.0


def padded(pieces, send):
    block = torch.zeros(len(pieces), 7, 5)
    for place, piece in zip(block, pieces, strict=True):
        place[: len(piece)] = piece
    arrived = send(block)
    return [place[: len(piece)] for place, piece in zip(arrived, pieces, strict=True)]


def block_diagonal(a, b):
    return (torch.block_diag(*a) @ torch.cat(list(b))).view(a.shape)


def first_hundred(a, b):
    return torch.cat([a[:100] @ b[:100], torch.zeros_like(a[100:])])


def counted_twice(intervals, start, end):
    inside = [max(0, min(stop, end) - max(begin, start)) for begin, stop in intervals]
    return sum(inside) / (end - start)


def not_cut(intervals, start, end):
    touching = [b - a for a, b in intervals if a < end and b > start]
    return min(1.0, sum(touching) / (end - start))


class ParsedOnce(nb03.Slow):
    """Parses once, and still loops over pixels in Python."""

    def __init__(self, manifest, pixels):
        super().__init__(manifest, pixels)
        self.records = [SimpleNamespace(**each) for each in json.loads(manifest)]

    def __len__(self):
        return len(self.records)

    def __getitem__(self, index):
        self.manifest = json.dumps([vars(self.records[index])])  # what the slow code parses
        return super().__getitem__(0)


class BeforeTheClock(nb03.Slow):
    """All the work in the constructor, where nobody seems to look."""

    def __init__(self, manifest, pixels):
        super().__init__(manifest, pixels)
        self.items = [super(BeforeTheClock, self).__getitem__(i) for i in range(len(self))]

    def __getitem__(self, index):
        return self.items[index]


class HalfTheItems(nb03.Lean):
    """Every second item is the one before."""

    def __getitem__(self, index):
        return super().__getitem__(index // 2 * 2)


class StoppedClock(nb03.Slow):
    """Replaces the clock."""

    def __init__(self, manifest, pixels):
        import time

        super().__init__(manifest, pixels)
        time.perf_counter = time.perf_counter_ns = lambda: 0


# -- 05 and 06 -------------------------------------------------------------------------------------


def unscaled_in_fp16(loss_of, weights, scale=2.0**14):
    loss = loss_of(weights).float() * scale
    return torch.autograd.grad(loss, weights)[0] / scale


def in_fp32(loss_of, weights):
    weights = weights.detach().float().requires_grad_()
    return torch.autograd.grad(loss_of(weights), weights)[0]


def mended(weights, scale, lr):
    broken = not all(torch.isfinite(weight.grad).all() for weight in weights)
    with torch.no_grad():
        for weight in weights:
            weight -= lr * weight.grad.nan_to_num(0, 0, 0) / scale
    return scale / 2 if broken else scale


def half_an_update(weights, scale, lr):
    with torch.no_grad():
        for weight in weights:
            if not torch.isfinite(weight.grad).all():
                return scale / 2
            weight -= lr * weight.grad / scale
    return scale


def sums_in_fp16(scores):
    powers = (scores - scores.max(-1, keepdim=True).values).exp()
    return powers / powers.sum(-1, keepdim=True)


def largest_only(scores):
    return (scores == scores.max(-1, keepdim=True).values).half()


def not_divided(model, batches):
    for x, y in batches:
        cross_entropy(model(x), y).backward()


def joined(model, batches):
    x, y = (torch.cat(parts) for parts in zip(*batches, strict=True))
    cross_entropy(model(x), y).backward()


def padding_too(model, batches):
    count = sum(targets.numel() for _, targets in batches)
    for tokens, targets in batches:
        scores = model(tokens).flatten(0, 1)
        (cross_entropy(scores, targets.flatten(), reduction="sum") / count).backward()


def joined_tokens(model, batches):
    longest = max(tokens.shape[1] for tokens, _ in batches)
    short = [(longest - tokens.shape[1], tokens, targets) for tokens, targets in batches]
    tokens = torch.cat([pad(tokens, (0, n), value=0) for n, tokens, _ in short])
    targets = torch.cat([pad(targets, (0, n), value=-100) for n, _, targets in short])
    cross_entropy(model(tokens).flatten(0, 1), targets.flatten()).backward()


# -- 07 to 09 --------------------------------------------------------------------------------------


def still_broken(x):
    y = torch.relu(x * 2)
    if y.sum() > 10:
        y = y - y.mean()
    return y * 0.5


def in_place(x):
    inner = (x * x).mul_(x).mul_(0.044715).add_(x).mul_(0.7978845608028654)
    return inner.tanh_().add_(1).mul_(x).mul_(0.5)


def in_half(x):
    x = x.half()
    inner = 0.7978845608028654 * (x + 0.044715 * x * x * x)
    return (0.5 * x * (1 + torch.tanh(inner))).float()


def uncounted(x):
    import numpy as np

    x = x.numpy()
    inner = np.float32(0.7978845608028654) * (x + np.float32(0.044715) * x * x * x)
    return torch.from_numpy(np.float32(0.5) * x * (1 + np.tanh(inner)))


def padded_to(length):
    return lambda x: pad(x, (0, length - x.shape[1]))


def through_rank_0(rank, ranks, mine, send, receive):
    if rank:
        send(0, mine)
        return receive(0)
    mean = (mine + sum(receive(other) for other in range(1, ranks))) / ranks
    for other in range(1, ranks):
        send(other, mean)
    return mean


BLACKBOARD: dict = {}


def blackboard(rank, ranks, mine, send, receive):
    """Ranks on several machines share no memory."""
    import time

    board = BLACKBOARD.setdefault(ranks, {})
    board[rank] = mine
    while len(board) < ranks:
        time.sleep(0.001)
    return sum(board.values()) / ranks


def order(count, seed):
    import random

    return random.Random(seed).sample(range(count), count)


def own_order(count, ranks, rank, epoch):
    mine = order(count, 1000 * epoch + rank)
    return (mine + mine[: -count % ranks])[rank::ranks]


CODE = {  # every start is a wrong answer as well
    "00-stopwatch": {"no wait": no_wait, "cold": cold, "cheat: a constant": constant},
    "01-one-crossing": {
        "padding": padded, "cheat: they stay": lambda pieces, send: [send(pieces[0]), *pieces[1:]],
    },
    "01-batched": {
        "huge, and zeros": block_diagonal, "cheat: a fifth": first_hundred,
        "cheat: where nobody counts": lambda a, b: torch.from_numpy(a.numpy() @ b.numpy()),
    },
    "01-intensity": {
        "one FLOP for two": lambda m, k, n, b: m * k * n / ((m * k + k * n + m * n) * b),
        "the result is free": lambda m, k, n, b: 2 * m * k * n / ((m * k + k * n) * b),
        "cheat: squares": lambda m, k, n, b: n / 6,
    },
    "02-busy-share": {
        "twice": counted_twice, "not cut": not_cut, "cheat": lambda i, start, end: float(bool(i)),
    },
    "03-lean": {
        "parsed once": ParsedOnce, "cheat: before the clock": BeforeTheClock,
        "cheat: half": HalfTheItems, "cheat: a stopped clock": StoppedClock,
    },
    "04-training-memory": {
        "no optimizer": lambda model: sum(2 * p.nbytes for p in model.parameters()),
        "sixteen for all": lambda model: sum(16 * p.numel() for p in model.parameters()),
        "cheat: the first one's": lambda model: 16 * (64 * 200 + 200 + 200 * 30 + 30),
    },
    "05-small-gradients": {"in FP16": unscaled_in_fp16, "cheat: FP32": in_fp32},
    "05-skip": {
        "mends": mended, "half": half_an_update, "cheat": lambda weights, scale, lr: scale / 2,
    },
    "05-softmax": {
        "FP16 sums": sums_in_fp16, "cheat: largest": largest_only,
        "cheat: torch's own": lambda scores: scores.float().softmax(-1),
    },
    "06-uneven": {"not divided": not_divided, "cheat: one large batch": joined},
    "06-tokens": {"padding counts": padding_too, "cheat: one large batch": joined_tokens},
    "06-norm": {
        "no averages": lambda channels: torch.nn.BatchNorm2d(channels, track_running_stats=False),
        "cheat: no norm": lambda channels: torch.nn.Identity(),
    },
    "07-graph-break": {
        "no .item(), but an if": still_broken, "cheat": lambda x: torch.relu(x * 2) * 0.5,
    },
    "07-bytes": {
        "in place": in_place, "another GELU": lambda x: gelu(x),
        "cheat: half the digits": in_half, "cheat: where nobody counts": uncounted,
    },
    "07-buckets": {"all to the longest": padded_to(48), "cheat: cut to 24": padded_to(24)},
    "07-break-even": {
        "too early": lambda s, a, b: int(1000 * s // (a - b)) if a > b else None,
        "pays always": lambda s, a, b: max(0, round(1000 * s / ((a - b) or 1))),
        "cheat: the example's": lambda s, a, b: 6000,
    },
    "08-next-fix": {
        "largest speedup": lambda times_ms, speedups: max(speedups, key=speedups.get),
        "longest part": lambda times_ms, speedups: max(speedups, key=times_ms.get),
        "cheat: always the data": lambda times_ms, speedups: "data",
    },
    "09-all-reduce": {"through rank 0": through_rank_0, "cheat: a blackboard": blackboard},
    "09-shards": {
        "own orders": own_order,
        "no tail": lambda n, ranks, rank, e: order(n, e)[: n - n % ranks][rank::ranks],
        "not filled": lambda n, ranks, rank, e: order(n, e)[rank::ranks],
        "cheat: everything": lambda n, ranks, rank, e: order(n, e),
    },
}  # fmt: skip
