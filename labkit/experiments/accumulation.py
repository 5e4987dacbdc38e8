"""Accumulation: whether micro-batches add up to the large batch, and what they save and cost.

"The update" is plain SGD's: the learning rate times the gradient. It is compared before it is added
to the weights, since adding rounds it to the weights' own digits. The error is the norm of the
difference over the norm of the update that one large batch gives, all parameters as one vector.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from labkit.experiments import memory
from labkit.experiments.measure import page, primitives, style
from labkit.spec import experiment, knob
from labkit.wiring import Later

torch, nn, functional = Later("torch"), Later("torch.nn"), Later("torch.nn.functional")
models, formats = Later("labkit.bench.models"), Later("labkit.bench.formats")

PX, CLASSES, VOCABULARY, LONGEST = 32, 10, 50, 24
LR = 0.1
IGNORED = -100  # the label of a position that is padding, as cross_entropy skips it


@experiment(
    "micro-batches against one large batch: is it the same update?",
    micro=knob(8, "samples in a micro-batch", low=2, high=1024),
    count=knob(8, "micro-batches in an update", low=2, high=1024),
)
def accumulation(job: Any, bench: Any) -> None:
    """Compare `count` micro-batches of `micro` samples with one batch of `micro` x `count`.

    FP32 and FP64, without batch norm; then what goes wrong, each with its cure, in FP64, where
    rounding hides nothing.
    """
    bench.stage("comparing updates")
    formats.use_tf32(False)  # its 10 bits would be the error that is seen
    no_fp64 = bench.device.type == "mps"
    for model in ("mlp", "transformer"):
        for dtype in (torch.float32, torch.float64):
            if dtype is torch.float64 and no_fp64:
                bench.skip(f"{model}, float64", "Apple GPUs have no FP64")
                continue
            name = str(dtype).removeprefix("torch.")
            error = Net(job, bench.device, model, dtype).error()
            bench.write("equivalence", values={"error": error}, model=model, dtype=name)
    exact = torch.float32 if no_fp64 else torch.float64
    for name, (mistake, cure) in MISTAKES.items():
        wrong, cured = mistake(job, bench.device, exact)
        bench.write("mistake", values={"error": wrong, "cured": cured, "cure": cure}, name=name)
    bench.write("hidden by Adam", values={"error": hidden_by_adam(job, bench.device, exact)})


class Net:
    """A model and a batch of samples for it: its update at once, and from micro-batches."""

    def __init__(self, job: Any, device: Any, model: str, dtype: Any, size: int | None = None):
        """Make a model of the bench and `size` (`micro` x `count`) random pictures."""
        torch.manual_seed(0)
        self.model = models.make_model(model, 64, 2, CLASSES, PX).to(device, dtype).train()
        size = size or job.micro * job.count
        self.inputs = torch.rand(size, 3, PX, PX, device=device, dtype=dtype)
        self.labels = torch.randint(0, CLASSES, (size,), device=device)
        self.micro, self.loss = job.micro, functional.cross_entropy
        self.count = -(-size // job.micro)  # of micro-batches

    def update(self, weight: Callable[[Any], float] | None = None) -> torch.Tensor:
        """Return SGD's update, flat: at once, or each micro-batch's loss times weight(labels)."""
        micro = self.micro if weight else len(self.labels)
        self.model.zero_grad(set_to_none=True)
        for x, y in zip(self.inputs.split(micro), self.labels.split(micro), strict=True):
            loss = self.loss(self.model(x), y)
            (loss * (weight(y) if weight else 1.0)).backward()
        return LR * torch.cat([p.grad.flatten() for p in self.model.parameters()])

    def error(self, weight: Callable[[Any], float] | None = None) -> float:
        """Return how far the update from micro-batches, by default their mean, is from the one."""
        return difference(self.update(weight or (lambda _: 1 / self.count)), self.update())


# Each returns the error of a mistake, and what is left of it when it is cured


def no_division(job: Any, device: Any, dtype: Any) -> tuple[float, float]:
    """Add the losses up as they are: the update is `count` times too long."""
    net = Net(job, device, "mlp", dtype)
    return net.error(lambda y: 1.0), net.error()


def batch_norm(job: Any, device: Any, dtype: Any) -> tuple[float, float]:
    """Take batch norm's statistics of each micro-batch; group norm looks at single samples."""
    net = Net(job, device, "cnn", dtype)
    wrong = net.error()
    for block in net.model.blocks:
        block[1] = nn.GroupNorm(8, block[1].num_features, device=device, dtype=dtype)
    return wrong, net.error()


def unequal_last(job: Any, device: Any, dtype: Any) -> tuple[float, float]:
    """Let the last micro-batch, half as long, weigh as much as the others."""
    size = job.micro * job.count - job.micro // 2
    net = Net(job, device, "mlp", dtype, size)
    return net.error(), net.error(lambda y: len(y) / size)


def token_mean(job: Any, device: Any, dtype: Any) -> tuple[float, float]:
    """Let each micro-batch average over its own tokens, which differ in number."""
    net = Net(job, device, "mlp", dtype)
    torch.manual_seed(0)
    net.model = nn.Sequential(nn.Embedding(VOCABULARY, 32), nn.Linear(32, 64), nn.ReLU(),
                              nn.Linear(64, VOCABULARY)).to(device, dtype)  # fmt: skip
    size = len(net.labels)
    net.inputs = torch.randint(0, VOCABULARY, (size, LONGEST), device=device)  # (B, T)
    net.labels = torch.randint(0, VOCABULARY, (size, LONGEST), device=device)
    lengths = torch.randint(2, LONGEST + 1, (size, 1), device=device).sort(dim=0).values
    net.labels[torch.arange(LONGEST, device=device) >= lengths] = IGNORED
    total = (net.labels != IGNORED).sum().item()
    net.loss = lambda logits, labels: functional.cross_entropy(
        logits.flatten(0, 1), labels.flatten(), ignore_index=IGNORED
    )
    return net.error(), net.error(lambda y: (y != IGNORED).sum().item() / total)


MISTAKES = {  # with their cures
    "no division by the number of steps": (no_division, "loss / number of micro-batches"),
    "batch norm's statistics": (batch_norm, "group norm instead"),
    "unequal last batch": (unequal_last, "weight by samples"),
    "loss averaged over tokens": (token_mean, "weight by tokens"),
}


def hidden_by_adam(job: Any, device: Any, dtype: Any) -> float:
    """Return what is left of the missing division in Adam's first step, before it is added.

    It divides by the gradient.
    """
    gradient = Net(job, device, "mlp", dtype).update() / LR

    def first_step(gradient: torch.Tensor) -> torch.Tensor:
        zeros = torch.zeros_like(gradient, requires_grad=True)
        zeros.grad = gradient
        torch.optim.Adam([zeros], lr=LR).step()
        return zeros.detach()

    return difference(first_step(job.count * gradient), first_step(gradient))


def difference(update: torch.Tensor, reference: torch.Tensor) -> float:
    """Return the norm of the difference over the reference's; in FP64 where there is one."""
    if reference.device.type != "mps":
        update, reference = update.double(), reference.double()
    return ((update - reference).norm() / reference.norm()).item()


FLOOR = 1e-18  # where a difference of exactly 0 is drawn


@accumulation.figure
def draw_errors(measured: Any) -> Any:
    """Draw the relative error of the update on a logarithmic axis: as it is done, and cured."""
    rows = [(f"{p.case['model']}, {p.case['dtype']}", None, p.values["error"], "")
            for p in measured.where("equivalence")]  # fmt: skip
    rows += [(p.case["name"], p.values["error"], p.values["cured"], f" ({p.values['cure']})")
             for p in measured.where("mistake")]  # fmt: skip
    worst = max((right for _, _, right, _ in rows), default=0.0)
    figure, (axes,) = page(
        measured, [(0.24, 0.1 + 0.3 * len(rows))], "update = plain SGD's: lr x gradient",
        title=f"done right, micro-batches come within {worst:.0e} of the large batch's update",
        left_in=2.7,
    )  # fmt: skip
    right_look = {"color": style.COMPUTE, "marker": "o", "ls": "", "markersize": 7}
    wrong_look = {"color": style.ALARM, "marker": "X", "ls": "", "markersize": 7}
    for y, (_, wrong, right, cure) in enumerate(rows):
        if wrong is not None:
            axes.plot(wrong, y, **wrong_look)
            primitives.beside(axes, 1.6 * wrong, y, f"{wrong:.1e}")
        axes.plot(max(right, FLOOR), y, **right_look)
        primitives.beside(axes, 2 * max(right, FLOOR), y, f"{right:.0e}{cure}")
    for limit in (1e-6, 1e-14):
        axes.axvline(limit, color="#999999", linewidth=0.9, linestyle=":", zorder=0)
    axes.set_xscale("log")
    axes.set_xlim(FLOOR / 3, 1e3)
    primitives.name_rows(axes, [name for name, *_ in rows])
    axes.set_xlabel("norm of the difference / norm of the large batch's update")
    primitives.legend(axes, {
        "as the mistake has it": wrong_look, "done right": right_look,
        "1e-14 (FP64) and 1e-6 (FP32)": {"color": "#999999", "ls": ":"},
    })  # fmt: skip
    return figure


# -- what it saves and costs -----------------------------------------------------------------------


@experiment(
    "what accumulation saves in memory and costs in samples/s",
    model=knob("transformer", "model to train", choices=memory.MODELS),
    effective=knob(64, "samples of an update", low=1, high=16_384),
    seconds_each=knob(0.15, "timing of a micro-batch", unit="s", low=0.01, high=60),
    **memory.SIZED,
)
def accumulation_cost(job: Any, bench: Any) -> None:
    """Make one update from `effective` samples, in micro-batches of 1, 2, 4 ... up to all at once.

    Timed as a whole: every forward and backward of the update and the optimizer's step. Memory by
    part, as the experiment memory_parts counts it: one micro-batch's activations at a time.
    """
    sizes = [2**i for i in range(job.effective.bit_length()) if job.effective % 2**i == 0]
    for i, micro in enumerate(sizes):
        bench.stage("accumulating", i, len(sizes))
        count = job.effective // micro
        step = memory.plain_step(job, bench, model=job.model, batch_size=micro,
                                 accumulation_steps=count)  # fmt: skip
        case = {"effective": job.effective, "micro": micro, "steps": count}
        bench.write("memory", values=memory.measure_step(step, bench.device), **case)
        trainer = memory.loop.Trainer(step, bench.device)
        batch = trainer.to_device(*memory.model_size.noise_batch(step))

        def update(trainer: Any = trainer, batch: Any = batch, count: int = count) -> None:
            for i in range(count):
                trainer.compute(*batch, update=i + 1 == count)

        bench.time(update, of="update", min_time_s=job.seconds_each, **case)


@accumulation_cost.figure
def draw_cost(measured: Any, before: Any = None) -> Any:
    """Draw memory by part, and samples/s, for each size of the micro-batch."""
    name = "{micro} ({steps}x)".format
    stacks, rates = [], []
    for point in measured.where("memory"):
        parts = memory.measured(point)
        stacks.append((name(**point.case), parts.mib, primitives.number(parts.total / memory.MIB)))
    for point in measured.where("update"):
        rate = point.case["effective"] / point.median_s
        then = before.where("update", **point.case) if before is not None else []
        old = point.case["effective"] / then[0].median_s if then else None
        rates.append(primitives.Bar(name(**point.case), rate, f"{rate:,.0f}", before=old))
    title = f"one update from {measured.params['effective']} samples"
    if rates:
        first, last = (sum(parts.values()) for _, parts, _ in (stacks[0], stacks[-1]))
        speed = rates[0].value / rates[-1].value
        title += f", one by one: {first / last:.0%} of the memory, {speed:.0%} of the speed"
    rows_in = primitives.rows_in(len(stacks))
    how = {point.values["how"] for point in measured.where("memory")}
    figure, (upper, lower) = page(measured, [(0.24, rows_in), (0.6, rows_in)], *how,
                                  before=before, title=title, left_in=1.4)  # fmt: skip
    legend = {part: (part, colour) for part, colour in memory.PARTS.items()}
    primitives.stack(upper, stacks, legend, "memory by micro-batch (and how many of them), MiB")
    primitives.hbars(lower, rates, "samples/s")
    return figure
