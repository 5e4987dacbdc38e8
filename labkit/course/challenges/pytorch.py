"""The challenges that are answered with a function or a class of PyTorch."""

from __future__ import annotations

import copy
import queue
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.optim import Optimizer

from labkit.course.challenge import Answer, Goal, Refused, code

ERROR = "largest error"


def difference(found: object, right: Tensor) -> float:
    """Return the largest difference of two tensors, as a share of the largest right value.

    Raises Refused where `found` is not a tensor of the right shape.
    """
    if not isinstance(found, Tensor) or found.shape != right.shape:
        shape = tuple(found.shape) if isinstance(found, Tensor) else type(found).__name__
        raise Refused(f"It returns {shape}, not a tensor of shape {tuple(right.shape)}.")
    largest = (found.double() - right.double()).abs().max()
    return float(largest / right.double().abs().max())


# -- 05 Mixed precision ----------------------------------------------------------------------------

SMALL = 1e-4  # its square is below what FP16 can hold


def with_loss_scale(loss_of: Callable[[Tensor], Tensor], weights: Tensor) -> Tensor:
    """Return the gradient of a loss that is enlarged for the backward pass."""
    scale = 2.0**14
    loss = loss_of(weights).float() * scale
    return torch.autograd.grad(loss, weights)[0].float() / scale  # in FP32 small numbers fit


@code(
    "05-small-gradients",
    hints=(
        "Gradients are proportional to the loss: what if it were 10,000 times as large?",
        "loss_of(weights).float() * scale; and where does the division fit 1e-8?",
    ),
    goals=(Goal(ERROR, at_most=0.02),),
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
            raise Refused("The loss is made in FP16: leave the weights as they are.")
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


@code(
    "06-loop",
    hints=(
        "Which micro-batches make an update together? How many samples do they have?",
        "Each group: zero the gradients, add up (summed loss / samples of the group), step.",
    ),
    goals=(Goal(ERROR, at_most=1e-6), Goal(LARGEST, at_most=8)),
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
    right = nn.Sequential(nn.Linear(6, 10), nn.Tanh(), nn.Linear(10, 4)).double()
    model = copy.deepcopy(right)
    sizes = []
    model.register_forward_pre_hook(lambda _model, inputs: sizes.append(len(inputs[0])))
    batches = list(zip(inputs.split(8), targets.split(8), strict=True))
    for trained, train in ((right, train_epoch), (model, answer)):
        # with momentum the order of updates matters
        optimizer = torch.optim.SGD(trained.parameters(), lr=0.3, momentum=0.9)
        train(trained, optimizer, batches, 4)
    pairs = zip(model.parameters(), right.parameters(), strict=True)
    errors = [difference(weight.detach(), expected.detach()) for weight, expected in pairs]
    return {ERROR: max(errors), LARGEST: max(sizes, default=0)}


# -- 07 torch.compile and kernels ------------------------------------------------------------------

GRAPHS = "graphs"


def broken(x: Tensor) -> Tensor:
    """Return what the task asks for, in two graphs."""
    y = torch.relu(x * 2)
    if y.sum().item() > 10:
        y = y - y.mean()
    return y * 0.5


def one_graph(x: Tensor) -> Tensor:
    """Choose between two tensors without leaving the graph."""
    y = torch.relu(x * 2)
    y = torch.where(y.sum() > 10, y - y.mean(), y)
    return y * 0.5


@code(
    "07-graph-break",
    hints=(
        "Python's `if` needs the value of a tensor, so the graph ends there.",
        "torch.where chooses between two tensors without leaving the graph.",
    ),
    goals=(Goal(GRAPHS, at_most=1),),
    example=one_graph,
)
def graph_break(answer: Answer) -> Mapping[str, float]:
    """Remove the graph break.

    Write a function that returns the same as the one of the notebook and is captured as one graph.
    """
    for scale in (0.01, 1.0, 5.0, -1.0):  # both sides of the condition
        x = torch.randn(64, 32) * scale
        if not torch.allclose(answer(x.clone()), broken(x), atol=1e-6):
            raise Refused("It does not return what the function of the task returns.")
    torch._dynamo.reset()
    return {GRAPHS: torch._dynamo.explain(answer)(torch.randn(64, 32)).graph_count}


# -- 09 Beyond one GPU -----------------------------------------------------------------------------

RANKS = 4
WAIT_S = 20.0  # for a tensor that another rank is to send
SENT = "bytes sent by a rank, over its share"


def ring(
    rank: int,
    ranks: int,
    mine: Tensor,
    send: Callable[[int, Tensor], None],
    receive: Callable[[int], Tensor],
) -> Tensor:
    """Return the mean of all ranks' gradients; each rank sends to the next one only."""
    parts = [part.clone() for part in mine.chunk(ranks)]
    after = (rank + 1) % ranks
    before = (rank - 1) % ranks
    for step in range(ranks - 1):  # parts are summed on their way round
        send(after, parts[(rank - step) % ranks])
        parts[(rank - step - 1) % ranks] += receive(before)
    for step in range(ranks - 1):  # then the sums go round
        send(after, parts[(rank + 1 - step) % ranks])
        parts[(rank - step) % ranks] = receive(before)
    return torch.cat(parts) / ranks


@code(
    "09-all-reduce",
    hints=(
        "In a ring every rank sends to the next one and receives from the one before.",
        "mine.chunk(ranks): in ranks - 1 rounds every part is summed, in as many it is shared.",
    ),
    goals=(Goal(ERROR, at_most=1e-5), Goal(SENT, at_least=0.99, at_most=1.01)),
    example=ring,
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


# -- 12 Inference ----------------------------------------------------------------------------------

BUFFERS = "buffers that it returns tokens in"


class Preallocated:
    """A cache that makes room once and writes each new token into its place."""

    def __init__(self, longest: int):
        self.longest = longest
        self.length = 0

    def grown(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Take new keys and values (B, H, T, D); return those of all tokens so far."""
        if not self.length:
            batch, heads, _, size = keys.shape
            self.kept = keys.new_empty(2, batch, heads, self.longest, size)
        end = self.length + keys.shape[2]
        self.kept[0, :, :, self.length : end] = keys
        self.kept[1, :, :, self.length : end] = values
        self.length = end
        return self.kept[0, :, :, :end], self.kept[1, :, :, :end]


@code(
    "12-cache",
    hints=(
        "Make room for all `longest` tokens at the first call, and remember how many there are.",
        "Write into a slice, return another: a slice is a view, and moves nothing.",
    ),
    goals=(Goal(ERROR, at_most=0), Goal(BUFFERS, at_most=2)),
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
        if not isinstance(found, tuple) or len(found) != 2:
            raise Refused("grown() must return two tensors: all keys, all values.")
        errors += [difference(found[each], texts[each, :, :, :end]) for each in range(2)]
        returned += found
    buffers = {each.untyped_storage().data_ptr() for each in returned}
    return {ERROR: max(errors), BUFFERS: len(buffers)}
