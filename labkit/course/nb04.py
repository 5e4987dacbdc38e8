"""Notebook 04, batch sizing: its challenges."""

from labkit.course.task import Goal, KnobTask, Refused, code, faster
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


@code("04-by-length",
      "A row is padded to the longest of its batch: which documents belong together?",
      "Sort, cut into batches, and then shuffle the batches.",
      padding=Goal("share of the tokens that is padding", at_most=0.05))  # fmt: skip
class ByLength:
    """batches of documents of similar length.

    Write a function of (lengths, batch_size) that returns batches: lists of indices into lengths,
    each index once, every batch full but one, in random order: not the short ones first.
    """

    def start(lengths, batch_size):
        order = torch.randperm(len(lengths)).tolist()
        return [order[at : at + batch_size] for at in range(0, len(order), batch_size)]

    def solution(lengths, batch_size):
        order = sorted(range(len(lengths)), key=lengths.__getitem__)
        batches = [order[at : at + batch_size] for at in range(0, len(order), batch_size)]
        return [batches[place] for place in torch.randperm(len(batches)).tolist()]

    def check(answer):
        lengths = (5 + 500 * torch.rand(3000) ** 4).int().tolist()  # most are short
        batches = [list(batch) for batch in answer(list(lengths), 32)]
        if sorted(index for batch in batches for index in batch) != list(range(len(lengths))):
            raise Refused("Every document has to be in one batch, and in one only.")
        if sum(len(batch) != 32 for batch in batches) > 1 or max(map(len, batches)) > 32:
            raise Refused("Every batch but one has to hold batch_size documents.")
        longest = [max(lengths[index] for index in batch) for batch in batches]
        place = torch.tensor([range(len(longest)), longest], dtype=torch.float64)
        if abs(float(torch.corrcoef(place)[0, 1])) > 0.5:
            raise Refused("The batches come in order of length: a model has to meet them mixed.")
        padded = sum(map(int.__mul__, longest, map(len, batches)))
        return {"padding": 1 - sum(lengths) / padded}
