"""The challenges of notebooks 07 to 09."""

import importlib.util
import os
import queue
import random
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

from labkit.bench import triton_kernels
from labkit.course.slow_script import SlowScript
from labkit.course.task import Goal, KnobTask, Refused, code, counting, difference, faster, ratio
from labkit.spec import Distributed, Pipeline

# -- Notebook 07, torch.compile and kernels --------------------------------------------------------


@code("07-graph-break",
      "Python's `if` needs the value of a tensor, so the graph ends there.",
      "torch.where chooses between two tensors without leaving the graph.",
      graphs=Goal("graphs", at_most=1))  # fmt: skip
class GraphBreak:
    """remove the graph break.

    Write a function that returns the same as this one and is captured as one graph.
    """

    def start(x):
        import torch

        y = torch.relu(x * 2)
        if y.sum().item() > 10:
            y = y - y.mean()
        return y * 0.5

    def solution(x):
        import torch

        y = torch.relu(x * 2)
        y = torch.where(y.sum() > 10, y - y.mean(), y)
        return y * 0.5

    def check(answer):
        import torch

        for scale in (0.01, 1.0, 5.0, -1.0):  # both sides of the condition
            x = torch.randn(64, 32) * scale
            if not torch.allclose(answer(x.clone()), GraphBreak.start(x), atol=1e-6):
                raise Refused("It does not return what the function of the task returns.")
        torch._dynamo.reset()
        return {"graphs": torch._dynamo.explain(answer)(torch.randn(64, 32)).graph_count}


@code("07-bytes", "Count the passes: each sign in the formula is one.",
      "The formula is the tanh approximation of GELU, and torch has it as one kernel.",
      share=Goal("bytes over those of the formula", at_most=0.5),
      passes=Goal("times that x is read and written", at_least=1.0))  # fmt: skip
class Bytes:
    """halve the bytes.

    Write a function that returns the same as this one (to 1e-5), in FP32 and without torch.compile,
    with at most half of the memory traffic: an operation reads its inputs and writes its output.
    """

    def start(x):
        import torch

        inner = 0.7978845608028654 * (x + 0.044715 * x * x * x)
        return 0.5 * x * (1 + torch.tanh(inner))

    def solution(x):
        from torch.nn import functional as F

        return F.gelu(x, approximate="tanh")

    def check(answer):
        import torch

        x, moved = torch.randn(256, 512) * 3, []
        for function in (Bytes.start, answer):
            given = x.clone()
            with counting() as counted, torch.no_grad():
                found = function(given)
            moved.append(counted.bytes)
        if difference(found, Bytes.start(x)) > 1e-5 or found.dtype != x.dtype:
            raise Refused("It does not return what the formula returns.")
        once = 2 * x.nbytes  # x is read and the result is written, whatever else happens
        return {"share": moved[1] / moved[0], "passes": moved[1] / once}


@code("07-buckets",
      "Three graphs are three lengths: which, so that little is appended?",
      graphs=Goal("graphs", at_most=3),
      work=Goal("numbers over those of x", at_most=1.5))  # fmt: skip
class Buckets:
    """fifty lengths, three graphs.

    Sentences x of shape (2, length) come in every length from 1 to 48, and each new length compiles
    the model anew. Write a function of (x) that returns x with zeros appended, so that there are at
    most three graphs and the model works on at most 1.5 times as many numbers as there are.
    """

    def solution(x):
        from torch.nn import functional as F

        length = next(size for size in (16, 32, 48) if size >= x.shape[1])
        return F.pad(x, (0, length - x.shape[1]))

    def check(answer):
        import torch

        longest, graphs = 48, []

        def backend(module, _inputs):
            graphs.append(module)
            return module.forward

        torch._dynamo.reset()
        torch._dynamo.config.recompile_limit = 2 * longest
        model = torch.compile(torch.nn.ReLU(), backend=backend, dynamic=False)
        real = padded = 0
        for length in torch.randperm(longest).add(1).tolist():
            x = torch.randn(2, length)
            ready = answer(x.clone())
            if difference(ready[:, :length], x) > 0 or bool(ready[:, length:].any()):
                raise Refused("It must return x, followed by zeros along the second dimension.")
            model(ready)
            real, padded = real + x.numel(), padded + ready.numel()
        return {"graphs": len(graphs), "work": padded / real}


@code("07-kernel",
      "Load x and gate once each, compute in FP32, store once; the mask is that of section 7.",
      "x / (1 + tl.exp(-x)) * gate, and a grid of triton.cdiv(x.numel(), BLOCK) instances.",
      error=Goal("largest error, as a share", at_most=1e-5),
      launches=Goal("launches of Triton kernels, each time", at_least=1, at_most=1),
      others=Goal("PyTorch's own arithmetic", at_most=0))  # fmt: skip
class GatedKernel:
    """a fused kernel.

    Write a Triton kernel of out = x / (1 + exp(-x)) * gate, and a function of (x, gate), two FP32
    vectors of any length, that launches it once and returns out.
    """

    def solution(x, gate):
        global tl  # Triton looks its language up among a kernel's globals
        import torch
        import triton
        import triton.language as tl

        @triton.jit
        def gated(x, gate, out, n, BLOCK: tl.constexpr):
            place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
            inside = place < n
            value = tl.load(x + place, inside)
            value = value / (1 + tl.exp(-value)) * tl.load(gate + place, inside)
            tl.store(out + place, value, inside)

        out = torch.empty_like(x)
        gated[(triton.cdiv(x.numel(), 256),)](x, gate, out, x.numel(), BLOCK=256)
        return out

    def check(answer):
        import torch
        from torch.nn import functional as F

        if importlib.util.find_spec("triton") is None:
            raise Refused("Triton is missing here. On Linux: pip install 'labkit[kernels]'")
        device = triton_kernels.device()
        if device.type == "cuda":
            from labkit.bench.resolve_config import compile_lacks

            if lacking := compile_lacks(device):
                raise Refused(lacking)
        errors, launches, others = [], [], 0
        for length in (1, 255, 256, 1000, 5000):
            x, gate = (torch.randn(length, device=device) for _ in range(2))
            right = F.silu(x) * gate
            with launched() as grids, counting() as counted:
                found = answer(x.clone(), gate.clone())
            errors.append(difference(found, right))
            launches.append(len(grids))
            others += sum(not name.startswith(MOVES) for name in counted.names)
        odd = max(launches, key=lambda count: abs(count - 1))
        return {"error": max(errors), "launches": odd, "others": others}


# What allocates or copies: the interpreter does, for Triton, and so may an answer
MOVES = ("aten.empty", "aten.new_empty", "aten.set_", "aten.copy_", "aten._to_copy", "aten.clone")


@contextmanager
def launched():
    """Yield a list that the grid of every Triton kernel launched in the block is added to.

    Without a GPU the kernels are interpreted.
    """
    if triton_kernels.device().type == "cpu":
        os.environ["TRITON_INTERPRET"] = "1"
    from triton.runtime.jit import KernelInterface

    grids = []
    of_grid = KernelInterface.__getitem__

    def counted(kernel, grid):
        grids.append(grid)
        return of_grid(kernel, grid)

    KernelInterface.__getitem__ = counted
    try:
        yield grids
    finally:
        KernelInterface.__getitem__ = of_grid


# -- Notebook 08, the capstone ---------------------------------------------------------------------

STARVED = Pipeline(
    dataset="sleep", prep_ms=80.0, model="mlp", width=256, depth=2, image_px=48, batch_size=16,
    steps=50, seconds=None, xray=False,
)  # fmt: skip

KnobTask(
    "08-two-fixes", "two fixes, 1.7 times as fast",
    "Choose only two fixes that make the slow script at least 1.7 times as fast. Answer with "
    "{'fixes': ['...', '...']}, of data, items, copies, launches, precision and memory.",
    (faster(1.7),
     Goal("fixes", lambda run, _: len(run.event("spec")["script"]["fixes"]), at_most=2)),
    ("What was on top of the very first diagnosis?", "And what was there when that was fixed?"),
    SlowScript(), {"fixes": ("items", "copies")},  # on a GPU "data" and "items" are not enough
    free=("fixes",),
)  # fmt: skip

KnobTask(
    "08-flat", "flat",
    "Bring this pipeline to seven tenths of the samples a second that this machine can train when "
    "its data costs nothing, without touching the model.",
    (ratio("samples/s over those of free data", "throughput", at_least=0.7),),
    ("w workers bring a batch every prep_ms / w: how many keep up with compute_ms?",
     "Workers that sleep need no core: there may be more of them than cores."),
    STARVED, STARVED.but(num_workers=12), against=STARVED.but(prep_ms=0.0), cpu_only=True,
    free=("num_workers", "prefetch_factor", "persistent_workers", "pin_memory", "non_blocking"),
)  # fmt: skip


@code("08-next-fix", "Twenty times as fast: of how many milliseconds?",
      wrong=Goal("wrong choices", at_most=0))  # fmt: skip
class NextFix:
    """what to fix first.

    Write a function of (times_ms, speedups), two dicts by part of a step: its ms, how many times
    as fast it could be. Return the name of the part whose fix makes the step shortest.
    """

    def solution(times_ms, speedups):
        return max(speedups, key=lambda part: times_ms[part] * (1 - 1 / speedups[part]))

    def check(answer):
        parts = ("data", "copies", "compute", "launches", "update")
        rng, wrong = random.Random(11), 0
        for _ in range(100):
            times = {part: rng.randrange(1, 100) for part in parts}
            speedups = {part: rng.uniform(1.05, 20) for part in rng.sample(parts, 4)}
            wrong += answer(dict(times), dict(speedups)) != NextFix.solution(times, speedups)
        return {"wrong": wrong}


# -- Notebook 09, beyond one GPU -------------------------------------------------------------------

SMALL = Pipeline(
    dataset="sleep", prep_ms=0.0, model="mlp", width=64, depth=1, image_px=16, batch_size=64,
    steps=32, xray=False,
)  # fmt: skip
WAIT_S = 20.0


def exchanging(ranks, _):
    """Return the share of the steps in which rank 0 exchanges gradients."""
    exchanged = ranks[0].exchange_ns
    return float((exchanged[:, 0] == exchanged[:, 0]).mean()) if len(exchanged) else None  # no NaN


if sys.platform != "win32":  # PyTorch's launcher does not start there
    KnobTask(
        "09-no-sync", "an exchange for every fourth step",
        "Two ranks exchange their gradients in every step. Let them do so in a quarter of the "
        "steps, with 128 samples an update as before.",
        (Goal("share of steps that exchange", exchanging, at_least=0.2, at_most=0.3),
         Goal("samples an update", lambda ranks, _: ranks.world_size * ranks.pipeline.batch_size
              * ranks.pipeline.accumulation_steps, at_least=128, at_most=128)),
        ("accumulation_steps alone still exchanges after every backward pass.",
         "A batch a quarter as large, four of them an update, and no_sync."),
        Distributed(SMALL, ranks=2), {"batch_size": 16, "accumulation_steps": 4, "no_sync": True},
        free=("batch_size", "accumulation_steps", "no_sync"), compares=False,
    )  # fmt: skip


@code("09-all-reduce",
      "In a ring everybody sends to the next and receives from the one before.",
      "mine.chunk(ranks): in ranks - 1 rounds every part is summed, in as many it is shared.",
      error=Goal("largest error, as a share", at_most=1e-5),
      most=Goal("most sent, over the share", at_most=1.01),
      least=Goal("least sent, over the share", at_least=0.99))  # fmt: skip
class AllReduce:
    """an all-reduce of your own.

    Write a function of (rank, ranks, mine, send, receive) that runs on every rank and returns the
    mean of all ranks' gradients mine, whose length is a multiple of ranks. Between them are only
    send(to, tensor) and receive(source). A rank's share is 2 (ranks - 1) / ranks times mine.nbytes.
    """

    def start(rank, ranks, mine, send, receive):
        others = [other for other in range(ranks) if other != rank]
        for other in others:
            send(other, mine)
        return (mine + sum(receive(other) for other in others)) / ranks

    def solution(rank, ranks, mine, send, receive):
        import torch

        parts = [part.clone() for part in mine.chunk(ranks)]
        after, before = (rank + 1) % ranks, (rank - 1) % ranks
        for step in range(ranks - 1):  # parts are summed on their way round
            send(after, parts[(rank - step) % ranks])
            parts[(rank - step - 1) % ranks] += receive(before)
        for step in range(ranks - 1):  # then the sums go round
            send(after, parts[(rank + 1 - step) % ranks])
            parts[(rank - step) % ranks] = receive(before)
        return torch.cat(parts) / ranks

    def check(answer):
        import torch

        errors, shares = [], []
        for ranks in (2, 3, 4, 8):
            gradients = [torch.randn(ranks * 100) for _ in range(ranks)]
            means, sent = exchanged(answer, gradients)
            right = torch.stack(gradients).mean(0)
            errors += [difference(mean, right) for mean in means]
            shares += [each / right.nbytes / (2 * (ranks - 1) / ranks) for each in sent]
        return {"error": max(errors), "most": max(shares), "least": min(shares)}


def exchanged(answer, gradients):
    """Run every rank in a thread; return what each ends up with, and the bytes it sent."""
    ranks = len(gradients)
    wires = {(a, b): queue.SimpleQueue() for a in range(ranks) for b in range(ranks)}
    sent = [0] * ranks

    def work(rank):
        def send(to, tensor):
            sent[rank] += tensor.nbytes
            wires[rank, to].put(tensor.detach().clone())

        def receive(source):
            try:
                return wires[source, rank].get(timeout=WAIT_S)
            except queue.Empty:
                raise Refused("A rank waits for what nobody sends.") from None

        return answer(rank, ranks, gradients[rank].clone(), send, receive)

    with ThreadPoolExecutor(ranks) as pool:
        return list(pool.map(work, range(ranks))), sent


@code("09-shards",
      "All ranks need the same order: seed it with the epoch, not with the rank.",
      "Fill the order up from its start to a multiple of ranks, then order[rank::ranks].",
      missing=Goal("samples that nobody has", at_most=0),
      uneven=Goal("shares of another length", at_most=0),
      repeated=Goal("samples repeated needlessly", at_most=0),
      stale=Goal("epochs without an order of their own", at_most=0))  # fmt: skip
class Shards:
    """every rank its share.

    Write a function of (count, ranks, rank, epoch) that returns the indices a rank trains on: every
    sample is somebody's, all have equally many (repeat no more than that takes), in a new order.
    """

    def solution(count, ranks, rank, epoch):
        order = random.Random(epoch).sample(range(count), count)
        order += order[: -count % ranks]
        return order[rank::ranks]

    def check(answer):
        missing = uneven = repeated = stale = 0
        for count, ranks in ((100, 4), (103, 4), (17, 8), (64, 1)):
            each, orders = -(-count // ranks), set()
            for epoch in range(3):
                shares = [list(answer(count, ranks, rank, epoch)) for rank in range(ranks)]
                drawn = [index for share in shares for index in share]
                missing += len(set(range(count)) - set(drawn))
                uneven += sum(len(share) != each for share in shares)
                repeated += max(0, len(drawn) - len(set(drawn)) - (ranks * each - count))
                stale += tuple(drawn) in orders or drawn == sorted(drawn)
                orders.add(tuple(drawn))
        return {"missing": missing, "uneven": uneven, "repeated": repeated, "stale": stale}
