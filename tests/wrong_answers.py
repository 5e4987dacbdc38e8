"""Plausible answers to every challenge that must fail, at least one of them a cheat.

Those of a knob challenge are changes of what was given. A cheat does less work, or other work. The
code that a challenge starts from is a wrong answer too.
"""

import random
import time

import torch
from torch.nn import BatchNorm2d, Identity
from torch.nn.functional import cross_entropy, gelu, pad, silu

from labkit.course import nb00_03, nb10, nb11

KNOBS = {
    "00-first": {
        "cheat: no storage wait": {"num_workers": 1, "io_ms": 0.0},
        "cheat: fewer samples": {"num_workers": 4, "steps": 10},
    },
    "02-feed": {"cheat: no augmentation": {"num_workers": 1, "augment": 0}},
    "02-less-busy": {"cheat: smaller images": {"image_px": 8}},
    "03-stalls": {"cheat: fewer stalls": {"prefetch_factor": 14, "stall_every": 100}},
    "03-small-queue": {"cheat: less to prepare": {"num_workers": 1, "prep_ms": 20.0}},
    "04-knee": {
        "past the limit": {"batch_size": 256},
        "cheat: a smaller model": {"batch_size": 64, "width": 32},
    },
    "04-fit": {"cheat: fewer samples": {"batch_size": 64, "accumulation_steps": 16, "steps": 1}},
    "08-two-fixes": {"cheat: fewer samples": {"fixes": ("data",), "steps": 4}},
    "08-flat": {"cheat: a slower device": {"num_workers": 2, "width": 2048}},
    "09-no-sync": {"cheat: one rank": {"ranks": 1, "batch_size": 128}},
}


class HalfTheItems(nb00_03.Lean):
    def __getitem__(self, index):
        return super().__getitem__(index // 2 * 2)


def in_fp32(loss_of, weights):
    weights = weights.detach().float().requires_grad_()
    return torch.autograd.grad(loss_of(weights), weights)[0]


def a_step_each(model, optimizer, batches, every):
    for x, y in batches:
        optimizer.zero_grad()
        cross_entropy(model(x), y).backward()
        optimizer.step()


def joined_groups(model, optimizer, batches, every):
    groups = [batches[at : at + every] for at in range(0, len(batches), every)]
    large = [tuple(map(torch.cat, zip(*group, strict=True))) for group in groups]
    a_step_each(model, optimizer, large, 1)


def joined_tokens(model, batches):
    most = max(tokens.shape[1] for tokens, _ in batches)
    tokens = torch.cat([pad(tokens, (0, most - tokens.shape[1])) for tokens, _ in batches])
    targets = torch.cat([pad(t, (0, most - t.shape[1]), value=-100) for _, t in batches])
    cross_entropy(model(tokens).flatten(0, 1), targets.flatten()).backward()


BLACKBOARD: dict = {}


def blackboard(rank, ranks, mine, send, receive):  # ranks on several machines share no memory
    board = BLACKBOARD.setdefault(ranks, {})
    board[rank] = mine
    while len(board) < ranks:
        time.sleep(0.001)
    return sum(board.values()) / ranks


def own_order(count, ranks, rank, epoch):
    mine = random.Random(1000 * epoch + rank).sample(range(count), count)
    return (mine + mine[: -count % ranks])[rank::ranks]


def always_the_loader(lanes):
    return nb10.Gap.solution(lanes)[0], "DataLoader"


def least_busy(traces):
    return min(range(4), key=lambda number: sum(b - a for a, b in traces[number]["kernels"]))


def waits_most(collectives):
    return max(collectives, key=lambda rank: sum(b - a for a, b in collectives[rank]))


def never_flipped(images, flips, brightness):
    return nb11.Augment.solution(images, torch.zeros_like(flips), brightness)


class NewOnes:
    def __init__(self, longest):
        pass

    def grown(self, keys, values):
        return keys, values


CODE = {
    "00-stopwatch": {
        "cheat": lambda work, wait, clock: 10.0 + 0 * len([work() for _ in range(20)])
    },
    "01-one-crossing": {
        "cheat: they stay": lambda pieces, send: [send(pieces[0]), *pieces[1:]],
    },
    "01-batched": {
        "cheat: where nobody counts": lambda a, b: torch.from_numpy(a.numpy() @ b.numpy()),
    },
    "01-intensity": {"cheat: squares": lambda m, k, n, b: n / 6},
    "02-busy-share": {
        "cheat": lambda i, *_: float(bool(i)),
    },
    "03-lean": {"cheat": HalfTheItems},
    "04-by-length": {
        "cheat: one by one": lambda lengths, _: [[i] for i in range(len(lengths))],
        "cheat: the longest left out": lambda _, n: [list(range(n))],
    },
    "05-small-gradients": {"cheat: FP32": in_fp32},
    "05-skip": {"cheat": lambda weights, scale, lr: scale / 2},
    "05-softmax": {"cheat": lambda scores: scores.float().softmax(-1)},
    "06-loop": {"a step for each": a_step_each, "cheat: large batches": joined_groups},
    "06-tokens": {"cheat: one large batch": joined_tokens},
    "06-norm": {
        "over the batch": BatchNorm2d,
        "cheat: no norm": lambda channels: Identity(),
    },
    "07-graph-break": {"cheat": lambda x: torch.relu(x * 2) * 0.5},
    "07-bytes": {
        "another GELU": gelu,
        "cheat: half the digits": lambda x: gelu(x.half(), approximate="tanh").float(),
    },
    "07-buckets": {
        "cheat: cut to 24": lambda x: pad(x, (0, 24 - x.shape[1])),
    },
    "07-kernel": {"cheat: PyTorch's own": lambda x, gate: silu(x) * gate},
    "08-next-fix": {
        "largest speedup": lambda times_ms, speedups: max(speedups, key=speedups.get),
        "cheat: always the data": lambda times_ms, speedups: "data",
    },
    "11-index": {"cheat: nothing": lambda path: {}},
    "11-augment": {
        "cheat: never flipped": never_flipped,
    },
    "11-choose": {
        "the fastest": lambda paths, *_: min(paths, key=paths.get),
        "cheat: always none": lambda *_: None,
    },
    "12-cache": {"cheat: only the new ones": NewOnes},
    "12-batching": {
        "cheat: short answers": lambda lengths, slots: [[*range(len(lengths))][:slots]],
    },
    "09-all-reduce": {"cheat: a blackboard": blackboard},
    "09-shards": {
        "own orders": own_order, "cheat: everything": lambda n, _, rank, e: own_order(n, 1, 0, e),
        "not filled": lambda n, ranks, rank, e: own_order(n, 1, 0, e)[rank::ranks],
    },
    "10-gap": {"cheat: always the loader": always_the_loader},
    "10-starved": {"least busy": least_busy, "cheat: always the first": lambda traces: 0},
    "10-exposed": {
        "hidden ones too": lambda _, sent: sum(end - start for start, end in sent),
        "cheat": lambda *_: 0.0,
    },
    "10-straggler": {"waits most": waits_most, "cheat: always rank 0": lambda collectives: 0},
}  # fmt: skip
