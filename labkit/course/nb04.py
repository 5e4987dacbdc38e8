"""Notebook 04, batch sizing: its challenges."""

from labkit.course.task import Goal, KnobTask, code, faster
from labkit.spec import Pipeline
from labkit.wiring import Later

torch = Later("torch")
ONE = Pipeline(
    dataset="sleep", prep_ms=0.0, batch_size=1, model="mlp", width=512, depth=4, image_px=16,
    steps=60, xray=False,
)  # fmt: skip
WHOLE = Pipeline(
    dataset="sleep", prep_ms=0.0, batch_size=1024, model="cnn", width=12, depth=1, image_px=256,
    steps=1, seconds=None, xray=False,
)  # fmt: skip

KnobTask(
    "04-knee", "up to the knee",
    "This pipeline takes one sample at a time. Train at least three times as many samples a second "
    "with a batch of 64 at the most.",
    (faster(3.0), Goal("batch_size", lambda run, _: run.pipeline.batch_size, at_most=64)),
    ("A step costs a fixed part and a part per sample. Who pays the fixed part?",),
    ONE, ONE.but(batch_size=64), free=("batch_size",),
)  # fmt: skip

KnobTask(
    "04-fit", "1024 samples an update in 2 GiB",
    "This pipeline takes more than 2 GiB. Train on 1024 samples an update all the same, all 1024 "
    "of them, with a peak of 2 GiB or less. steps counts batches.",
    (Goal("samples an update",
          lambda run, _: run.pipeline.batch_size * run.pipeline.accumulation_steps,
          at_least=1024, at_most=1024),
     Goal("samples", lambda run, _: run.samples, at_least=1024),
     Goal("peak memory, GiB", lambda run, _: run.peak_memory_gib, at_most=2.0)),
    ("Activations grow with the batch; weights and gradients do not.",
     "16 batches of 64 are 1024 samples: and how many steps is that?"),
    WHOLE, WHOLE.but(batch_size=64, accumulation_steps=16, steps=16),
    free=("batch_size", "accumulation_steps", "steps"), compares=False,
)  # fmt: skip


@code("04-training-memory",
      "AdamW keeps two moments for each weight that is trained, in the weight's format.",
      "A frozen weight has neither a gradient nor moments.",
      error=Goal("largest error, as a share", at_most=0.01))  # fmt: skip
class TrainingMemory:
    """what a model takes before the first sample.

    Write a function of (model), a torch.nn.Module, that returns the bytes of its weights, of their
    gradients and of AdamW's state, in whatever format the weights have; some may be frozen.
    """

    def solution(model):
        return sum(p.nbytes * (4 if p.requires_grad else 1) for p in model.parameters())

    def check(answer):
        nn, errors = torch.nn, []
        for dtype, frozen in ((torch.float32, 0), (torch.bfloat16, 0), (torch.float32, 1)):
            model = nn.Sequential(nn.Linear(64, 200), nn.ReLU(), nn.Linear(200, 30)).to(dtype)
            model[0].requires_grad_(not frozen)
            said = answer(model)
            trained = [p for p in model.parameters() if p.requires_grad]
            optimizer = torch.optim.AdamW(trained)
            model(torch.randn(4, 64, dtype=dtype)).sum().backward()
            optimizer.step()
            states = [t for state in optimizer.state.values() for t in state.values()]
            states = [t for t in states if t.numel() > 1]  # AdamW's step counters are left out
            held = [*model.parameters(), *(p.grad for p in trained), *states]
            errors.append(abs(said / sum(tensor.nbytes for tensor in held) - 1))
        return {"error": max(errors)}
