"""The challenges that are answered with a function or a class."""

from __future__ import annotations

import copy
import queue
import random
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import pairwise
from statistics import fmean

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.optim import Optimizer

from labkit.course.challenge import Answer, CodeChallenge, Goal
from labkit.results.templates import entries
from labkit.traces.public import STORED_FILE

ERROR = "largest error"
RIGHT = "share of right answers"
ALL_RIGHT = Goal(RIGHT, "least", 1.0)


def right_answers(
    answer: Answer, example: Answer, cases: Iterable[tuple[object, ...]]
) -> Mapping[str, float]:
    """Return in what share of cases, each a function's arguments, an answer returns the right."""
    return {RIGHT: fmean(answer(*copy.deepcopy(case)) == example(*case) for case in cases)}


def difference(found: object, right: Tensor) -> float:
    """Return the largest difference of two tensors, as a share of the largest right value.

    Raises ValueError where `found` is not a tensor of the right shape.
    """
    if not isinstance(found, Tensor) or found.shape != right.shape:
        raise ValueError(f"It returns no tensor of shape {tuple(right.shape)}.")
    largest = (found.double() - right.double()).abs().max()
    return float(largest / right.double().abs().max())


# -- 01 GPU anatomy --------------------------------------------------------------------------------

TIMED = 20  # calls


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


def ms_per_call(
    work: Callable[[], None], wait: Callable[[], None], clock: Callable[[], float]
) -> float:
    """Return what a call takes on the device, without the set-up of the first one."""
    work()
    wait()
    start = clock()
    for _ in range(TIMED):
        work()
    wait()
    return (clock() - start) / TIMED


@partial(
    CodeChallenge,
    "01-stopwatch",
    hints=(
        "What does clock() - start measure while the device is still at work?",
        "One call and one wait() before the clock starts; one wait() before it stops.",
    ),
    goals=(Goal(ERROR, "most", 0.02), Goal("calls", "least", 10)),
    example=ms_per_call,
)
def stopwatch(answer: Answer) -> Mapping[str, float]:
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
    return {ERROR: max(errors), "calls": min(device.calls for device in devices)}


# -- 05 Mixed precision ----------------------------------------------------------------------------

SMALL = 1e-4  # its square is below what FP16 can hold


def with_loss_scale(loss_of: Callable[[Tensor], Tensor], weights: Tensor) -> Tensor:
    """Return the gradient of a loss that is enlarged for the backward pass."""
    scale = 2.0**14
    loss = loss_of(weights).float() * scale
    return torch.autograd.grad(loss, weights)[0].float() / scale  # in FP32 small numbers fit


@partial(
    CodeChallenge,
    "05-small-gradients",
    hints=(
        "Gradients are proportional to the loss: what if it were 10,000 times as large?",
        "loss_of(weights).float() * scale; and where does the division fit 1e-8?",
    ),
    goals=(Goal(ERROR, "most", 0.02),),
    example=with_loss_scale,
)
def small_gradients(answer: Answer) -> Mapping[str, float]:
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
    return {ERROR: difference(answer(loss_of, weights), right)}


# -- 06 Gradient accumulation ----------------------------------------------------------------------

LARGEST = "largest batch in the model"

Batches = Sequence[tuple[Tensor, Tensor]]


def train_epoch(model: nn.Module, optimizer: Optimizer, batches: Batches, every: int) -> None:
    """Train for one epoch; so many batches together make an update."""
    for first in range(0, len(batches), every):
        group = batches[first : first + every]
        samples = sum(len(targets) for _, targets in group)
        optimizer.zero_grad()
        for inputs, targets in group:
            loss = cross_entropy(model(inputs), targets, reduction="sum") / samples
            loss.backward()
        optimizer.step()


@partial(
    CodeChallenge,
    "06-loop",
    hints=(
        "Which micro-batches make an update together? How many samples do they have?",
        "Each group: zero the gradients, add up (summed loss / samples of the group), step.",
    ),
    goals=(Goal(ERROR, "most", 1e-6), Goal(LARGEST, "most", 8)),
    example=train_epoch,
)
def loop(answer: Answer) -> Mapping[str, float]:
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
    for trained, train in ((right, train_epoch), (model, answer)):
        # with momentum the order of updates matters
        optimizer = torch.optim.SGD(trained.parameters(), lr=0.3, momentum=0.9)
        train(trained, optimizer, batches, 4)
    error = difference(model.weight.detach(), right.weight.detach())
    return {ERROR: error, LARGEST: max(sizes, default=0)}


# -- 07 torch.compile and kernels ------------------------------------------------------------------

GRAPHS = "graphs"


def one_graph(x: Tensor) -> Tensor:
    """Choose between two tensors without leaving the graph."""
    y = torch.relu(x * 2)
    y = torch.where(y.sum() > 10, y - y.mean(), y)
    return y * 0.5


@partial(
    CodeChallenge,
    "07-graph-break",
    hints=(
        "Python's `if` needs the value of a tensor, so the graph ends there.",
        "torch.where chooses between two tensors without leaving the graph.",
    ),
    goals=(Goal(GRAPHS, "most", 1),),
    example=one_graph,
)
def graph_break(answer: Answer) -> Mapping[str, float]:
    """Remove the graph break.

    Write a function that returns the same as the one of the notebook and is captured as one graph.
    """
    for scale in (0.01, 1.0, 5.0, -1.0):  # both sides of the condition
        x = torch.randn(64, 32) * scale
        if not torch.allclose(answer(x.clone()), one_graph(x), atol=1e-6):
            raise ValueError("It does not return what the function of the task returns.")
    torch._dynamo.reset()
    return {GRAPHS: torch._dynamo.explain(answer)(torch.randn(64, 32)).graph_count}


# -- 09 Beyond one GPU -----------------------------------------------------------------------------

RANKS = 4
WAIT_S = 20.0  # for a tensor that another rank is to send
SENT = "bytes sent by a rank, over its share"


def part_by_part(
    rank: int,
    ranks: int,
    mine: Tensor,
    send: Callable[[int, Tensor], None],
    receive: Callable[[int], Tensor],
) -> Tensor:
    """Return the mean of all ranks' gradients; each rank adds up one part, and shares its sum."""
    parts = mine.chunk(ranks)
    others = [other for other in range(ranks) if other != rank]
    for other in others:
        send(other, parts[other])
    total = sum((receive(other) for other in others), parts[rank])
    for other in others:
        send(other, total)
    return torch.cat([total if each == rank else receive(each) for each in range(ranks)]) / ranks


@partial(
    CodeChallenge,
    "09-all-reduce",
    hints=(
        "Let each rank add up one part of the gradients, mine.chunk(ranks)[rank].",
        "First every rank sends each part to the rank that adds it up, then those send the sums.",
    ),
    goals=(Goal(ERROR, "most", 1e-5), Goal(SENT, "most", 1.01), Goal(SENT, "least", 0.99)),
    example=part_by_part,
)
def all_reduce(answer: Answer) -> Mapping[str, float]:
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
    share = 2 * (RANKS - 1) / RANKS * gradients[0].nbytes
    return {
        ERROR: max(difference(mean, gradients.mean(0)) for mean in means),
        SENT: max(sent) / share,
    }


# -- 10 Read a trace -------------------------------------------------------------------------------

Spans = list[tuple[float, float]]

EXCERPTS = ("v100-workers-0", "v100-workers-4", "rtx2080ti-sawtooth", "a100-ddp-rank0")
ACTIVITIES = ("DataLoader", "CPU operators", "CUDA calls")


def largest_gap(lanes: dict[str, Spans]) -> tuple[float, str]:
    """Return the length of the largest gap between kernels, ms, and the lane active in it."""
    kernels = lanes["kernels"]
    gaps = [(start - end, end, start) for (_, end), (start, _) in pairwise(kernels)]
    length, begin, stop = max(gaps)

    def active(lane: str) -> float:
        spans = lanes.get(lane, ())
        return sum(max(0, min(end, stop) - max(start, begin)) for start, end in spans)

    return length, max(ACTIVITIES, key=active)


@partial(
    CodeChallenge,
    "10-gap",
    hints=(
        "Between kernels i and i + 1 lies the gap from the end of i to the start of i + 1.",
        "How long is a span inside the gap? min(ends) - max(starts), if that is above 0.",
    ),
    goals=(ALL_RIGHT,),
    example=largest_gap,
)
def gap(answer: Answer) -> Mapping[str, float]:
    """The largest gap, and its cause.

    Write a function of lanes, {name of a lane: [(start, end), ...]} in ms, each lane sorted and
    without overlap. It returns two values: how long the largest gap between two "kernels" is, and
    which of "DataLoader", "CPU operators" and "CUDA calls" is active longest in it. A lane may be
    missing.
    """
    lanes = ((entries(STORED_FILE)[name][0]["lanes"],) for name in EXCERPTS)
    return right_answers(lambda lanes: tuple(answer(lanes)), largest_gap, lanes)


# -- 11 Which data path ----------------------------------------------------------------------------

ROUNDS = 30

Paths = dict[str, tuple[float, int]]  # ms of CPU and bytes of an image


def smallest_that_feeds(paths: Paths, cores: int, images_per_s: float) -> str | None:
    """Return the path of fewest bytes of those that are fast enough; None where none is."""
    fed = [name for name, (ms, _) in paths.items() if cores * 1000 / ms >= images_per_s]
    return min(fed, key=lambda name: paths[name][1], default=None)


@partial(
    CodeChallenge,
    "11-choose",
    hints=(
        "cores * 1000 / ms images per second: a path feeds the device if that is enough.",
        "Of those that do, the one with the fewest bytes; of an empty list, min has a default.",
    ),
    goals=(ALL_RIGHT,),
    example=smallest_that_feeds,
)
def choose(answer: Answer) -> Mapping[str, float]:
    """The smallest that feeds the device.

    Write a function of (paths, cores, images_per_s), where paths is {name: (ms of CPU per image,
    bytes per image)}. It returns the name of the path that takes the fewest bytes of those that
    feed the device, or None if none does.
    """

    def case() -> tuple[Paths, int, int]:
        names = "PIL", "draft", "tar", "array"
        paths = {name: (random.uniform(0.1, 8), random.randrange(10**4, 10**6)) for name in names}
        return paths, random.choice((1, 2, 4, 16)), random.choice((300, 5_000, 20_000))

    return right_answers(answer, smallest_that_feeds, (case() for _ in range(ROUNDS)))


# -- 12 Inference ----------------------------------------------------------------------------------

BUFFERS = "buffers that it returns tokens in"


class Preallocated:
    """A cache that makes room once and writes each new token into its place."""

    def __init__(self, longest: int):
        self.longest = longest
        self.length = 0

    def grown(self, keys: Tensor, values: Tensor) -> tuple[Tensor, ...]:
        """Take new keys and values (B, H, T, D); return those of all tokens so far."""
        new = torch.stack([keys, values])
        start = self.length
        if not start:
            self.kept = new.new_empty(*new.shape[:3], self.longest, new.shape[4])
        self.length = start + new.shape[3]
        self.kept[:, :, :, start : self.length] = new
        return tuple(self.kept[:, :, :, : self.length])


@partial(
    CodeChallenge,
    "12-cache",
    hints=(
        "Make room for all `longest` tokens at the first call, and remember how many there are.",
        "Write into a slice, return another: a slice is a view, and moves nothing.",
    ),
    goals=(Goal(ERROR, "most", 0), Goal(BUFFERS, "most", 2)),
    example=Preallocated,
)
def cache(answer: Answer) -> Mapping[str, float]:
    """A cache that copies nothing twice.

    Write a class with the same two methods as the one in the notebook that returns the same, always
    out of the same memory: one buffer for keys and one for values at the most. No text is longer
    than longest.
    """
    texts = torch.randn(2, 2, 4, 64, 8)  # keys and values (B, H, T, D)
    kept = answer(64)
    errors = []
    returned = []  # held, so that no memory is used again
    for start, end in [(0, 16), *((token, token + 1) for token in range(16, 64))]:
        found = kept.grown(*texts[:, :, :, start:end].clone())
        errors.append(difference(torch.stack(found), texts[:, :, :, :end]))
        returned += found
    buffers = {each.untyped_storage().data_ptr() for each in returned}
    return {ERROR: max(errors), BUFFERS: len(buffers)}
