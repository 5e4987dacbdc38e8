"""Large batches: whether micro-batches add up to one, what they save and cost, and learning rates.

"The update" is plain SGD's, as one vector, before adding it to the weights rounds it.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Any

import numpy as np

from labkit.experiments import memory
from labkit.experiments.measure import data, formats, models, nn, page, primitives, style, torch
from labkit.spec import experiment, knob

PX, CLASSES, VOCABULARY, LONGEST = 32, 10, 50, 24
LR = 0.1
IGNORED = -100  # the label of a position that is padding, as cross_entropy skips it


@experiment(
    "micro-batches against one large batch: is it the same update?",
    micro=knob(8, "samples in a micro-batch", low=2, high=1024),
    count=knob(8, "micro-batches in an update", low=2, high=1024),
)
def accumulation(job: Any, bench: Any) -> None:
    """Compare `count` micro-batches of `micro` samples with one batch; then with each mistake."""
    bench.stage("comparing updates")
    formats.use_tf32(False)  # its 10 bits would be the error that is seen
    names = ["float32", "float64"]
    if bench.device.type == "mps":
        bench.skip(names.pop(), "Apple GPUs have no FP64")
    for model in ("mlp", "transformer"):
        for name in names:
            error = Net(model, job, bench.device, getattr(torch, name)).error()
            bench.write("equivalence", values={"error": error}, model=model, dtype=name)
    exact = getattr(torch, names[-1])  # where rounding hides least
    for name, (mistake, cure) in MISTAKES.items():
        wrong, cured = mistake(job, bench.device, exact)
        bench.write("mistake", values={"error": wrong, "cured": cured, "cure": cure}, name=name)
    # without the division, Adam's first step is all but the same: it divides by the gradient
    gradient, first = Net("mlp", job, bench.device, exact).update() / LR, []
    for scale in (job.count, 1):
        first.append(torch.zeros_like(gradient, requires_grad=True))
        first[-1].grad = scale * gradient
        models.Adam(first[-1:], lr=LR).step()
    bench.write("hidden by Adam", values={"error": difference(*first)})


class Net:
    """A model of the bench and random samples for it: its update at once, and in micro-batches."""

    def __init__(self, model: str, job: Any, device: Any, dtype: Any, size: int | None = None):
        torch.manual_seed(0)
        self.model = models.make_model(model, 64, 2, CLASSES, PX).to(device, dtype).train()
        size = size or job.micro * job.count
        self.inputs = torch.rand(size, 3, PX, PX, device=device, dtype=dtype)
        self.labels = torch.randint(0, CLASSES, (size,), device=device)
        self.micro, self.loss = job.micro, nn.functional.cross_entropy

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
        count = len(self.labels.split(self.micro))
        return difference(self.update(weight or (lambda _: 1 / count)), self.update())


def difference(update: torch.Tensor, reference: torch.Tensor) -> float:
    """Return the norm of the difference over the reference's; in FP64 where there is one."""
    update, reference = update.detach(), reference.detach()
    if reference.device.type != "mps":
        update, reference = update.double(), reference.double()
    return ((update - reference).norm() / reference.norm()).item()


# Each returns the error of a mistake, and what is left of it when it is cured


def no_division(*where: Any) -> tuple[float, float]:
    """Add the losses up as they are: the update is `count` times too long."""
    net = Net("mlp", *where)
    return net.error(lambda y: 1.0), net.error()


def batch_norm(job: Any, device: Any, dtype: Any) -> tuple[float, float]:
    """Take batch norm's statistics of each micro-batch; group norm looks at single samples."""
    net = Net("cnn", job, device, dtype)
    wrong = net.error()
    for block in net.model.blocks:
        block[1] = nn.GroupNorm(8, block[1].num_features, device=device, dtype=dtype)
    return wrong, net.error()


def unequal_last(job: Any, device: Any, dtype: Any) -> tuple[float, float]:
    """Let the last micro-batch, half as long, weigh as much as the others."""
    size = job.micro * job.count - job.micro // 2
    net = Net("mlp", job, device, dtype, size)
    return net.error(), net.error(lambda y: len(y) / size)


def token_mean(job: Any, device: Any, dtype: Any) -> tuple[float, float]:
    """Let each micro-batch average over its own tokens, which differ in number."""
    net = Net("mlp", job, device, dtype)
    torch.manual_seed(0)
    net.model = nn.Sequential(nn.Embedding(VOCABULARY, 32), nn.Linear(32, 64), nn.ReLU(),
                              nn.Linear(64, VOCABULARY)).to(device, dtype)  # fmt: skip
    size = len(net.labels)
    net.inputs = torch.randint(0, VOCABULARY, (size, LONGEST), device=device)  # (B, T)
    net.labels = torch.randint(0, VOCABULARY, (size, LONGEST), device=device)
    lengths = torch.randint(2, LONGEST + 1, (size, 1), device=device).sort(dim=0).values
    net.labels[torch.arange(LONGEST, device=device) >= lengths] = IGNORED
    total = (net.labels != IGNORED).sum().item()
    net.loss = lambda logits, labels: nn.functional.cross_entropy(
        logits.flatten(0, 1), labels.flatten(), ignore_index=IGNORED
    )
    return net.error(), net.error(lambda y: (y != IGNORED).sum().item() / total)


MISTAKES = {  # with their cures
    "no division by the number of steps": (no_division, "loss / number of micro-batches"),
    "batch norm's statistics": (batch_norm, "group norm instead"),
    "unequal last batch": (unequal_last, "weight by samples"),
    "loss averaged over tokens": (token_mean, "weight by tokens"),
}
FLOOR = 1e-18  # where a difference of exactly 0 is drawn


@accumulation.figure
def draw_errors(measured: Any) -> Any:
    """Draw the relative error of the update on a logarithmic axis: as it is done, and cured."""
    rows = [(f"{p.case['model']}, {p.case['dtype']}", None, p.values["error"], "")
            for p in measured.where("equivalence")]  # fmt: skip
    rows += [(p.case["name"], p.values["error"], p.values["cured"], f" ({p.values['cure']})")
             for p in measured.where("mistake")]  # fmt: skip
    worst = max((right for _, _, right, _ in rows), default=0.0)
    title = f"done right, micro-batches come within {worst:.0e} of the large batch's update"
    panels = [(0.24, 0.1 + 0.3 * len(rows))]
    figure, (axes,) = page(measured, panels, "update = SGD's: lr x gradient", title=title,
                           left_in=2.7)  # fmt: skip
    looks = {"as the mistake has it": {"color": style.ALARM, "marker": "X", "ls": "", "ms": 7},
             "done right": {"color": style.COMPUTE, "marker": "o", "ls": "", "ms": 7}}  # fmt: skip
    for y, (_, wrong, right, cure) in enumerate(rows):
        for x, look, words in zip((wrong, right), looks.values(), ("", cure), strict=True):
            if x is not None:
                axes.plot(max(x, FLOOR), y, **look)
                primitives.beside(axes, 2 * max(x, FLOOR), y, f"{x:.0e}{words}")
    axes.set(xscale="log", xlim=(FLOOR / 3, 1e3),
             xlabel="norm of the difference / norm of the large batch's update")  # fmt: skip
    primitives.name_rows(axes, [name for name, *_ in rows])
    primitives.legend(axes, looks)
    return figure


@experiment(
    "what accumulation saves in memory and costs in samples/s",
    model=knob("transformer", "model to train", choices=memory.MODELS),
    effective=knob(64, "samples of an update", low=1, high=16_384),
    seconds_each=knob(0.15, "timing of a micro-batch", unit="s", low=0.01, high=60),
    **memory.SIZED,
)
def accumulation_cost(job: Any, bench: Any) -> None:
    """Make one update from `effective` samples in micro-batches of 1, 2, 4 ... up to all."""
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
    parts = [memory.measured(point) for point in measured.where("memory")]
    stacks = [(name(**point.case), each.mib, primitives.number(each.total / memory.MIB))
              for point, each in zip(measured.where("memory"), parts, strict=True)]  # fmt: skip
    rates = []
    for point in measured.where("update"):
        rate, case = point.case["effective"] / point.median_s, point.case
        then = before.where("update", **case) if before is not None else []
        old = case["effective"] / then[0].median_s if then else None
        rates.append(primitives.Bar(name(**case), rate, f"{rate:,.0f}", before=old))
    title = f"one update from {measured.params['effective']} samples"
    if rates:
        less, speed = parts[0].total / parts[-1].total, rates[0].value / rates[-1].value
        title += f", one by one: {less:.0%} of the memory, {speed:.0%} of the speed"
    rows_in = primitives.rows_in(len(stacks))
    figure, (upper, lower) = page(measured, [(0.24, rows_in), (0.6, rows_in)],
                                  before=before, title=title, left_in=1.4)  # fmt: skip
    label = "memory by micro-batch (and how many of them), MiB"
    primitives.stack(upper, stacks, memory.PARTS, label)
    primitives.hbars(lower, rates, "samples/s")
    return figure


# -- larger batches and the learning rate ----------------------------------------------------------

TRAINED, HELD_OUT = 2048, 1024  # images
EDGE = 16  # px
CURVE = 64  # points kept of a loss curve
CUT = 3.0  # a held-out loss above it is drawn as this

CASES = [  # what it is called, batch times, learning rate times
    ("base", 1, 1), ("batch x4, same lr", 4, 1),
    ("batch x4, lr x4", 4, 4), ("batch x4, lr x4, warm-up", 4, 4),
    ("batch x16, lr x16", 16, 16), ("batch x16, lr x16, warm-up", 16, 16),
    ("batch x64, lr x64, warm-up", 64, 64),
]  # fmt: skip


@experiment(
    "larger batches and the learning rate: a small real training run",
    batch_size=knob(16, "samples of the smallest batch", low=1, high=TRAINED),
    lr=knob(0.02, "learning rate of the smallest batch", low=1e-6, high=10),
    epochs=knob(4, "passes over the images", low=1, high=100),
    seeds=knob(3, "trainings of each case", low=1, high=100),
    width=knob(16, "channels of the CNN", low=1, high=1024),
    depth=knob(2, "blocks of the CNN", low=1, high=64),
)
def lr_scaling(job: Any, bench: Any) -> None:
    """Train a small CNN with plain SGD, for the same samples every time.

    The linear scaling rule (Goyal et al. 2017, arXiv:1706.02677): batch times k, learning rate
    times k, with a warm-up: there from the small batch's rate over five epochs, here from near 0
    over one. For the held-out loss batch norm takes the held-out images' own statistics: the
    running ones lag behind after few updates.
    """
    count = TRAINED + HELD_OUT
    drawn = np.stack([data.draw_image(index, EDGE) for index in range(count)])  # (N, px, px, 3)
    pixels = torch.from_numpy(drawn).to(bench.device).permute(0, 3, 1, 2).contiguous()
    pixels = pixels.float().div_(255).sub_(0.5).mul_(4)  # around 0
    labels = torch.arange(count, device=bench.device) % data.CLASSES
    for i, (name, batches, rates) in enumerate(CASES):
        bench.stage(f"training: {name}", i, len(CASES))
        batch, lr, warm = job.batch_size * batches, job.lr * rates, "warm-up" in name
        if batch > TRAINED:
            bench.skip(name, f"a batch of {batch} is more than the {TRAINED} training images")
            continue
        runs = [train(job, (pixels, labels), batch, lr, warm, n) for n in range(job.seeds)]
        curves = zip(*(run["loss"] for run in runs), strict=True)
        values = {
            "lr": lr, "updates": job.epochs * (TRAINED // batch),
            "samples": runs[0]["samples"], "loss": [statistics.median(each) for each in curves],
            "held_out": [r["held_out"] for r in runs], "right": [r["right"] for r in runs],
        }  # fmt: skip
        bench.write(name, values=values, batch_size=batch, lr=lr, warmup=warm)


def train(job: Any, images: tuple, batch: int, lr: float, warm: bool, seed: int) -> dict[str, Any]:
    """Train once; return the loss against samples seen, and the held-out loss and share right."""
    pixels, labels = images
    torch.manual_seed(seed)
    model = models.make_model("cnn", job.width, job.depth, data.CLASSES, EDGE).to(pixels.device)
    optimizer = models.SGD(model.parameters(), lr=lr)
    order, losses = torch.Generator().manual_seed(seed), []
    for _ in range(job.epochs):
        for chosen in torch.randperm(TRAINED, generator=order).split(batch):
            share = min(1.0, (len(losses) + 1) * batch / TRAINED) if warm else 1.0  # an epoch
            optimizer.param_groups[0]["lr"] = lr * share
            chosen = chosen.to(pixels.device)
            loss = nn.functional.cross_entropy(model(pixels[chosen]), labels[chosen])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
    with torch.no_grad():
        logits = model(pixels[TRAINED:])  # (HELD_OUT, classes)
        held_out = nn.functional.cross_entropy(logits, labels[TRAINED:]).item()
        right = (logits.argmax(1) == labels[TRAINED:]).float().mean().item()
    stretches = np.array_split(torch.stack(losses).tolist(), min(CURVE, len(losses)))
    ends = np.cumsum([len(part) for part in stretches]) * batch
    return {"samples": ends.tolist(), "loss": [float(part.mean()) for part in stretches],
            "held_out": held_out, "right": right}  # fmt: skip


@lr_scaling.figure
def draw_scaling(measured: Any) -> Any:
    """Draw the training loss against samples seen, and below it each case's held-out loss."""
    series, rows = [], []
    for point, colour in zip(measured, style.LINES, strict=False):
        values, dash = point.values, "--" if point.case["warmup"] else "-"
        curve = values["samples"], values["loss"]
        series.append(primitives.Series("", *curve, colour, dash, ""))
        losses = [min(loss, CUT) for loss in values["held_out"] if loss is not None]
        middle = statistics.median(losses or [CUT])
        right = statistics.median(share or 0 for share in values["right"])
        text = f"{middle:.2f}, {right:.0%} right, {values['updates']} updates"
        rows.append(primitives.Bar(point.of, middle, text, colour, marks=losses))
    figure, (curves, ends) = page(
        measured, [(0.1, 2.3), (0.62, primitives.rows_in(len(rows)))], left_in=2.4,
        title="the same samples, other batches and learning rates (median of the seeds)",
    )  # fmt: skip
    primitives.lines(curves, series, "samples seen (dashed: warm-up)",
                     "training loss (colours as below)", log="y")  # fmt: skip
    curves.set_ylim(top=12)
    label = f"held-out loss at the end (bar: median, marks: each seed; cut off at {CUT:g})"
    primitives.hbars(ends, rows, label)
    return figure
