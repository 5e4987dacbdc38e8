"""The challenges of notebooks 04 to 06."""

from labkit.course.task import Goal, KnobTask, Refused, code, counting, difference, faster
from labkit.spec import Pipeline

# -- Notebook 04, batch sizing ---------------------------------------------------------------------

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
        import torch

        order = torch.randperm(len(lengths)).tolist()
        return [order[at : at + batch_size] for at in range(0, len(order), batch_size)]

    def solution(lengths, batch_size):
        import torch

        order = sorted(range(len(lengths)), key=lengths.__getitem__)
        batches = [order[at : at + batch_size] for at in range(0, len(order), batch_size)]
        return [batches[place] for place in torch.randperm(len(batches)).tolist()]

    def check(answer):
        import torch

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


# -- Notebook 05, mixed precision ------------------------------------------------------------------

SMALL = 1e-4  # twice in a row it is below what FP16 can hold


@code("05-small-gradients",
      "Gradients are proportional to the loss: what if it were 10,000 times as large?",
      "loss_of(weights).float() * scale; and where does the division fit 1e-8?",
      error=Goal("largest error, as a share", at_most=0.02))  # fmt: skip
class SmallGradients:
    """gradients that FP16 cannot hold.

    loss_of(weights) makes a loss in FP16 from FP16 weights, but the gradients, about 1e-8, become
    zero on their way. Write a function of (loss_of, weights) that returns the gradient as an FP32
    tensor, to 2 %. The loss stays in FP16.
    """

    def start(loss_of, weights):
        import torch

        return torch.autograd.grad(loss_of(weights), weights)[0].float()

    def solution(loss_of, weights, scale=2.0**14):
        import torch

        loss = loss_of(weights).float() * scale
        return torch.autograd.grad(loss, weights)[0].float() / scale  # in FP32 small numbers fit

    def check(answer):
        import torch

        factors = ((torch.rand(400) + 0.5) * SMALL).half()

        def loss_of(weights):
            if weights.dtype != torch.float16:
                raise Refused("The loss is made in FP16: leave the weights as they are.")
            return (weights * factors).sum() * SMALL

        weights = torch.randn(400).half().requires_grad_()
        right = factors.double() * torch.tensor(SMALL).half().double()
        return {"error": difference(answer(loss_of, weights), right)}


@code("05-skip", "Look at all of the gradients before the first weight is touched.",
      error=Goal("largest error, as a share", at_most=1e-6))  # fmt: skip
class Skip:
    """a step that is skipped.

    Write a function of (weights, scale, lr). The .grad of every weight is the gradient times scale.
    If any number in any of them is infinite or NaN, leave every weight as it is and return scale /
    2. Otherwise subtract lr times the gradient from each weight, in place, and return scale.
    """

    def solution(weights, scale, lr):
        import torch

        if not all(torch.isfinite(weight.grad).all() for weight in weights):
            return scale / 2
        with torch.no_grad():
            for weight in weights:
                weight -= lr * weight.grad / scale
        return scale

    def check(answer):
        import torch

        errors = []
        for scale, spoiled in ((1024.0, None), (2.0**16, "inf"), (64.0, "nan"), (8.0, None)):
            weights = [torch.randn(5, requires_grad=True), torch.randn(3, 2, requires_grad=True)]
            for weight in weights:
                weight.grad = torch.randn_like(weight) * scale
            right = [weight.detach() - 0.1 * weight.grad / scale for weight in weights]
            if spoiled:
                weights[1].grad[2, 1] = float(spoiled)  # one of eleven, in the last tensor
                right = [weight.detach().clone() for weight in weights]
            errors.append(abs(float(answer(weights, scale, 0.1)) / scale - (0.5 if spoiled else 1)))
            errors += [difference(w.detach(), r) for w, r in zip(weights, right, strict=True)]
        return {"error": max(errors)}


@code("05-softmax",
      "Softmax stays the same when the row's largest score is taken off first.",
      "The largest FP16 number is 65504: what is a sum of 100,000 ones?",
      error=Goal("largest error, as a share", at_most=0.01))  # fmt: skip
class Softmax:
    """why autocast leaves softmax in FP32.

    Write a function of (scores), FP16 of shape (rows, n), that returns the softmax over the last
    dimension to 1 % of each row's largest value, made of exp and sum. Some scores are above 1000,
    some rows have a hundred thousand equal ones.
    """

    def start(scores):
        powers = scores.exp()  # exp(12) is more than FP16 can hold
        return powers / powers.sum(-1, keepdim=True)

    def solution(scores):
        scores = scores.float()
        powers = (scores - scores.max(-1, keepdim=True).values).exp()
        return powers / powers.sum(-1, keepdim=True)

    def check(answer):
        import torch

        errors, rows = [], (torch.randn(8, 100) * 30, torch.zeros(1, 100_000))
        for scores in (*rows, torch.randn(4, 50) + 1000):
            scores = scores.half()
            with counting() as counted:
                found = answer(scores.clone())
            if any("softmax" in name for name in counted.names):
                raise Refused("Make it of exp and sum, to see what they need.")
            errors.append(difference(found, scores.double().softmax(-1)))
        return {"error": max(errors)}


# -- Notebook 06, gradient accumulation ------------------------------------------------------------

SAME = Goal("largest error, as a share", at_most=1e-6)


def compared(answer, model, batches, x, y):
    """Compare the answer's gradients with that of the mean loss of all samples `x`, `y`."""
    import torch
    from torch.nn import functional as F

    F.cross_entropy(model(x), y).backward()
    right = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    sizes = []
    hook = model.register_forward_pre_hook(lambda _model, inputs: sizes.append(len(inputs[0])))
    answer(model, [tuple(t.clone() for t in batch) for batch in batches])
    hook.remove()
    found = [torch.zeros_like(p) if p.grad is None else p.grad for p in model.parameters()]
    errors = [difference(mine, theirs) for mine, theirs in zip(found, right, strict=True)]
    return {"error": max(errors), "largest": max(sizes, default=0)}


@code("06-loop",
      "Which micro-batches make an update together? How many samples have they?",
      "Each group: zero the gradients, add up (summed loss / samples of the group), step.",
      error=SAME, largest=Goal("largest batch in the model", at_most=8))  # fmt: skip
class Loop:
    """the whole loop.

    Write a function of (model, optimizer, batches, every) that trains for one epoch: batches is a
    list of (x, y), and every so many make one update, that of the mean cross entropy over their
    samples. The last group may have fewer batches, and its last batch fewer samples.
    """

    def start(model, optimizer, batches, every):
        from torch.nn import functional as F

        for i, (x, y) in enumerate(batches):
            (F.cross_entropy(model(x), y) / every).backward()
            if (i + 1) % every == 0:
                optimizer.step()
                optimizer.zero_grad()

    def solution(model, optimizer, batches, every):
        from torch.nn import functional as F

        for at in range(0, len(batches), every):
            group = batches[at : at + every]
            samples = sum(len(y) for _, y in group)
            optimizer.zero_grad()
            for x, y in group:
                (F.cross_entropy(model(x), y, reduction="sum") / samples).backward()
            optimizer.step()

    def check(answer):
        import torch
        from torch.nn import functional as F

        nn, sizes, models = torch.nn, (8,) * 9 + (3,), []
        x, y = torch.randn(sum(sizes), 6).double(), torch.randint(0, 4, (sum(sizes),))
        for _ in range(2):
            torch.manual_seed(1)
            model = nn.Sequential(nn.Linear(6, 10), nn.Tanh(), nn.Linear(10, 4)).double()
            models.append((model, torch.optim.SGD(model.parameters(), lr=0.3, momentum=0.9)))
        (right, optimizer), seen = models[0], []
        for group in zip(x.split(32), y.split(32), strict=True):  # four of 8 at once
            optimizer.zero_grad()
            F.cross_entropy(right(group[0]), group[1]).backward()
            optimizer.step()
        models[1][0].register_forward_pre_hook(lambda _, inputs: seen.append(len(inputs[0])))
        answer(*models[1], list(zip(x.split(sizes), y.split(sizes), strict=True)), 4)
        pairs = zip(models[1][0].parameters(), right.parameters(), strict=True)
        error = max(difference(mine.detach(), theirs.detach()) for mine, theirs in pairs)
        return {"error": error, "largest": max(seen, default=0)}


@code("06-tokens",
      "Sum the loss over tokens; divide by the number of all tokens of the update.",
      "That number has to be known before the first backward pass.", error=SAME,
      largest=Goal("largest batch in the model", at_most=4))  # fmt: skip
class Tokens:
    """cure the token mean.

    Write a function of (model, batches) that leaves the gradient of the mean cross entropy over
    every token: batches is a list of (tokens, targets), each (4, length), of different lengths;
    targets of -100 do not count. No padding to equal lengths, no more than 4 sentences together.
    """

    def start(model, batches):
        from torch.nn import functional as F

        for tokens, targets in batches:
            loss = F.cross_entropy(model(tokens).flatten(0, 1), targets.flatten())
            (loss / len(batches)).backward()

    def solution(model, batches):
        from torch.nn import functional as F

        count = sum((targets != -100).sum() for _, targets in batches)
        for tokens, targets in batches:
            scores = model(tokens).flatten(0, 1)  # (B * L, words)
            (F.cross_entropy(scores, targets.flatten(), reduction="sum") / count).backward()

    def check(answer):
        import torch

        model = torch.nn.Sequential(torch.nn.Embedding(20, 8), torch.nn.Linear(8, 20)).double()
        batches = [tuple(torch.randint(0, 20, (2, 4, length))) for length in (3, 12, 5, 30)]
        for _, targets in batches:
            targets[1, 2:] = -100  # the second sentence is shorter than the others
        tokens, targets = (torch.cat([b[i].flatten() for b in batches]) for i in (0, 1))
        return compared(answer, model, batches, tokens, targets)


@code("06-norm",
      "Batch norm takes its statistics from the other samples of the micro-batch.",
      "Which norms take them from within each sample?", error=SAME,
      off=Goal("mean and std off by", at_most=0.05))  # fmt: skip
class Norm:
    """a norm that does not mind.

    Write a function of (channels) that returns a torch.nn.Module which normalises images (B,
    channels, h, w) to mean 0 and standard deviation 1, and with which four micro-batches of 4 give
    the gradient of one batch of 16.
    """

    def solution(channels):
        import torch

        return torch.nn.GroupNorm(2, channels)  # no other sample has a say

    def check(answer):
        import torch
        from torch.nn import functional as F

        nn, layer = torch.nn, answer(8)
        x, y = torch.randn(16, 3, 10, 10).double(), torch.randint(0, 4, (16,))
        if not isinstance(layer, nn.Module):
            raise Refused("It returns no torch.nn.Module.")
        body = nn.Conv2d(3, 8, 3), layer, nn.ReLU(), nn.Flatten(), nn.Linear(8 * 8 * 8, 4)
        model, gradients = nn.Sequential(*body).double().train(), []
        for parts in (1, 4):
            model.zero_grad()
            for images, labels in zip(x.chunk(parts), y.chunk(parts), strict=True):
                (F.cross_entropy(model(images), labels) / parts).backward()
            gradients.append([p.grad.clone() for p in model.parameters()])
        pairs = zip(*gradients, strict=True)
        error = max(difference(a, b) for a, b in pairs if b.abs().max() > 1e-12)
        with torch.no_grad():
            out = answer(8).double().train()(torch.randn(16, 8, 10, 10).double() * 7 + 5)
        return {"error": error, "off": max(float(out.mean().abs()), float((out.std() - 1).abs()))}
