"""The challenges that are answered with a function or a class.

Each is a function of the answer that tries it out and returns its goals; its docstring poses the
task. None needs another: a new one goes to its notebook's place, its solution to `solutions.py`.
"""

from __future__ import annotations

import copy
import queue
import random
from collections import defaultdict
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from statistics import fmean

import torch
from torch import Tensor, nn

from labkit.course.challenge import Answer, CodeChallenge, Goal, Goals
from labkit.course.challenges import solutions
from labkit.results.templates import entries
from labkit.traces.public import STORED_FILE

ERROR = "largest error"


def right_answers(answer: Answer, example: Answer, cases: Iterable[tuple[object, ...]]) -> Goals:
    """Return in what share of cases, each a function's arguments, an answer does as the example."""
    share = fmean(answer(*copy.deepcopy(case)) == example(*case) for case in cases)
    return [Goal("share of right answers", share, "least", 1)]


def difference(found: object, right: Tensor) -> float:
    """Return the largest difference of two tensors, as a share of the largest right value.

    Raises ValueError where `found` is not a tensor of the right shape.
    """
    if not isinstance(found, Tensor) or found.shape != right.shape:
        raise ValueError(f"It returns no tensor of shape {tuple(right.shape)}.")
    largest = (found.double() - right.double()).abs().max()
    return float(largest / right.double().abs().max())


# -- 01 GPU anatomy --------------------------------------------------------------------------------


class SimulatedDevice:
    """A device whose calls return at once, and whose first call is slow."""

    def __init__(self, each_ms: float):
        self.now_ms = 0.0
        self.free_at_ms = 300.0
        self.each_ms = each_ms
        self.calls = 0

    def work(self) -> None:
        """Start a call, which takes the caller 0.02 ms."""
        self.now_ms += 0.02
        self.free_at_ms = max(self.free_at_ms, self.now_ms) + self.each_ms
        self.calls += 1

    def wait(self) -> None:
        """Return when all calls are done."""
        self.now_ms = max(self.now_ms, self.free_at_ms)

    def clock(self) -> float:
        """Return the time in ms."""
        return self.now_ms


@partial(
    CodeChallenge,
    key="01-stopwatch",
    hints=(
        "What does clock() - start measure while the device is still at work?",
        "One call and one wait() before the clock starts; one wait() before it stops.",
    ),
    example=solutions.ms_per_call,
)
def stopwatch(answer: Answer) -> Goals:
    """An honest stopwatch.

    A device's work() returns at once, its wait() when all work is done, and the very first call is
    slow. Write a function of (work, wait, clock) that returns the milliseconds that one call takes,
    from at least ten calls. clock() returns the time in ms.
    """
    devices = [SimulatedDevice(random.uniform(1, 20)) for _ in range(6)]
    errors = [
        abs(answer(device.work, device.wait, device.clock) / device.each_ms - 1)
        for device in devices
    ]
    calls = min(device.calls for device in devices)
    return [Goal(ERROR, max(errors), "most", 0.02), Goal("calls", calls, "least", 10)]


# -- 05 Mixed precision ----------------------------------------------------------------------------

SMALL = 1e-4  # its square is below what FP16 can hold


@partial(
    CodeChallenge,
    key="05-small-gradients",
    hints=(
        "Gradients are proportional to the loss: what if it were 10,000 times as large?",
        "loss_of(weights).float() * scale; and where does the division fit 1e-8?",
    ),
    example=solutions.with_loss_scale,
)
def small_gradients(answer: Answer) -> Goals:
    """Gradients that FP16 cannot hold.

    loss_of(weights) makes a loss in FP16 from FP16 weights, but the gradients, about 1e-8, become
    zero on their way. Write a function of (loss_of, weights) that returns the gradient as an FP32
    tensor, to 2 %. The loss stays in FP16.
    """
    factors = ((torch.rand(400) + 0.5) * SMALL).half()

    def loss_of(weights: Tensor) -> Tensor:
        if weights.dtype != torch.float16:
            raise ValueError("The loss is made in FP16: leave the weights as they are.")
        return (weights * factors).sum() * SMALL

    weights = torch.randn(400).half().requires_grad_()
    right = factors.double() * torch.tensor(SMALL).half().double()
    return [Goal(ERROR, difference(answer(loss_of, weights), right), "most", 0.02)]


# -- 06 Gradient accumulation ----------------------------------------------------------------------


@partial(
    CodeChallenge,
    key="06-loop",
    hints=(
        "Which micro-batches make an update together? How many samples do they have?",
        "Each group: zero the gradients, add up (summed loss / samples of the group), step.",
    ),
    example=solutions.train_epoch,
)
def loop(answer: Answer) -> Goals:
    """The whole loop.

    Write a function of (model, optimizer, batches, every) that trains for one epoch: batches is a
    list of (x, y), and every so many make one update, that of the mean cross entropy over their
    samples. The last group may have fewer batches, and its last batch fewer samples.
    """
    inputs = torch.randn(75, 6).double()
    targets = torch.randint(0, 4, (75,))
    right = nn.Linear(6, 4).double()
    model = copy.deepcopy(right)
    sizes = []
    model.register_forward_pre_hook(lambda _model, inputs: sizes.append(len(inputs[0])))
    batches = list(zip(inputs.split(8), targets.split(8), strict=True))
    for trained, train in ((right, solutions.train_epoch), (model, answer)):
        # with momentum the order of updates matters
        optimizer = torch.optim.SGD(trained.parameters(), lr=0.3, momentum=0.9)
        train(trained, optimizer, batches, 4)
    error = difference(model.weight.detach(), right.weight.detach())
    largest = Goal("largest batch in the model", max(sizes, default=0), "most", 8)
    return [Goal(ERROR, error, "most", 1e-6), largest]


# -- 07 torch.compile and kernels ------------------------------------------------------------------


@partial(
    CodeChallenge,
    key="07-graph-break",
    hints=(
        "Python's `if` needs the value of a tensor, so the graph ends there.",
        "torch.where chooses between two tensors without leaving the graph.",
    ),
    example=solutions.one_graph,
)
def graph_break(answer: Answer) -> Goals:
    """Remove the graph break.

    Write a function that returns the same as the one of the notebook and is captured as one graph.
    """
    for scale in (0.01, 1.0, 5.0, -1.0):  # both sides of the condition
        x = torch.randn(64, 32) * scale
        if not torch.allclose(answer(x.clone()), solutions.one_graph(x), atol=1e-6):
            raise ValueError("It does not return what the function of the task returns.")
    torch._dynamo.reset()
    graphs = torch._dynamo.explain(answer)(torch.randn(64, 32)).graph_count
    return [Goal("graphs", graphs, "most", 1)]


# -- 09 Beyond one GPU -----------------------------------------------------------------------------

RANKS = 4
WAIT_S = 20.0  # for a tensor that another rank is to send


@partial(
    CodeChallenge,
    key="09-all-reduce",
    hints=(
        "Let each rank add up one part of the gradients, mine.chunk(ranks)[rank].",
        "First every rank sends each part to the rank that adds it up, then those send the sums.",
    ),
    example=solutions.part_by_part,
)
def all_reduce(answer: Answer) -> Goals:
    """An all-reduce of your own.

    Write a function of (rank, ranks, mine, send, receive) that runs on every rank and returns the
    mean of all ranks' gradients mine, whose length is a multiple of ranks. Between them are only
    send(to, tensor) and receive(source). A rank's share is 2 (ranks - 1) / ranks times mine.nbytes.
    """
    gradients = torch.randn(RANKS, 100 * RANKS)
    wires: dict[tuple[int, int], queue.SimpleQueue] = defaultdict(queue.SimpleQueue)
    sent = [0] * RANKS

    def work(rank: int) -> object:
        def send(to: int, tensor: Tensor) -> None:
            sent[rank] += tensor.nbytes
            wires[rank, to].put(tensor.detach().clone())

        def receive(source: int) -> Tensor:
            return wires[source, rank].get(timeout=WAIT_S)

        return answer(rank, RANKS, gradients[rank].clone(), send, receive)

    with ThreadPoolExecutor(RANKS) as pool:  # a thread for each rank
        means = list(pool.map(work, range(RANKS)))
    error = max(difference(mean, gradients.mean(0)) for mean in means)
    share = max(sent) / (2 * (RANKS - 1) / RANKS * gradients[0].nbytes)
    what = "bytes sent by a rank, over its share"
    limits = Goal(what, share, "most", 1.01), Goal(what, share, "least", 0.99)
    return [Goal(ERROR, error, "most", 1e-5), *limits]


# -- 10 Read a trace -------------------------------------------------------------------------------

EXCERPTS = ("v100-workers-0", "v100-workers-4", "rtx2080ti-sawtooth", "a100-ddp-rank0")


@partial(
    CodeChallenge,
    key="10-gap",
    hints=(
        "Between kernels i and i + 1 lies the gap from the end of i to the start of i + 1.",
        "How long is a span inside the gap? min(ends) - max(starts), if that is above 0.",
    ),
    example=solutions.largest_gap,
)
def gap(answer: Answer) -> Goals:
    """The largest gap, and its cause.

    Write a function of lanes, {name of a lane: [(start, end), ...]} in ms, each lane sorted and
    without overlap. It returns two values: how long the largest gap between two "kernels" is, and
    which of "DataLoader", "CPU operators" and "CUDA calls" is active longest in it. A lane may be
    missing.
    """
    lanes = ((entries(STORED_FILE)[name][0]["lanes"],) for name in EXCERPTS)
    return right_answers(lambda lanes: tuple(answer(lanes)), solutions.largest_gap, lanes)


# -- 11 Which data path ----------------------------------------------------------------------------

ROUNDS = 30


@partial(
    CodeChallenge,
    key="11-choose",
    hints=(
        "cores * 1000 / ms images per second: a path feeds the device if that is enough.",
        "Of those that do, the one with the fewest bytes; of an empty list, min has a default.",
    ),
    example=solutions.smallest_that_feeds,
)
def choose(answer: Answer) -> Goals:
    """The smallest that feeds the device.

    Write a function of (paths, cores, images_per_s), where paths is {name: (ms of CPU per image,
    bytes per image)}. It returns the name of the path that takes the fewest bytes of those that
    feed the device, or None if none does.
    """

    def case() -> tuple[object, ...]:
        names = "PIL", "draft", "tar", "array"
        paths = {name: (random.uniform(0.1, 8), random.randrange(10**4, 10**6)) for name in names}
        return paths, random.choice((1, 2, 4, 16)), random.choice((300, 5_000, 20_000))

    cases = (case() for _ in range(ROUNDS))
    return right_answers(answer, solutions.smallest_that_feeds, cases)


# -- 12 Inference ----------------------------------------------------------------------------------


@partial(
    CodeChallenge,
    key="12-cache",
    hints=(
        "Make room for all `longest` tokens at the first call, and remember how many there are.",
        "Write into a slice, return another: a slice is a view, and moves nothing.",
    ),
    example=solutions.Preallocated,
)
def cache(answer: Answer) -> Goals:
    """A cache that copies nothing twice.

    Write a class with the same two methods as the one in the notebook that returns the same, always
    out of the same memory: one buffer for keys and one for values at the most. No text is longer
    than longest.
    """
    texts = torch.randn(2, 2, 4, 64, 8)  # keys and values (B, H, T, D)
    kept = answer(64)
    errors = []
    returned = []  # referred to, so that no memory is used again
    for start, end in [(0, 16), *((token, token + 1) for token in range(16, 64))]:
        found = kept.grown(*texts[:, :, :, start:end].clone())
        errors.append(difference(torch.stack(found), texts[:, :, :, :end]))
        returned += found
    buffers = {each.untyped_storage().data_ptr() for each in returned}
    where = Goal("buffers that it returns tokens in", len(buffers), "most", 2)
    return [Goal(ERROR, max(errors), "most", 0), where]
