"""Notebook 06, gradient accumulation: its challenges."""

from labkit.course.task import Goal, Refused, code, difference
from labkit.wiring import Later

torch, F = Later("torch"), Later("torch.nn.functional")
SAME = Goal("largest error, as a share", at_most=1e-6)


def compared(answer, model, batches, x, y):
    """Compare the answer's gradients with that of the mean loss of all samples `x`, `y`."""
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
        for i, (x, y) in enumerate(batches):
            (F.cross_entropy(model(x), y) / every).backward()
            if (i + 1) % every == 0:
                optimizer.step()
                optimizer.zero_grad()

    def solution(model, optimizer, batches, every):
        for at in range(0, len(batches), every):
            group = batches[at : at + every]
            samples = sum(len(y) for _, y in group)
            optimizer.zero_grad()
            for x, y in group:
                (F.cross_entropy(model(x), y, reduction="sum") / samples).backward()
            optimizer.step()

    def check(answer):
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
        for tokens, targets in batches:
            loss = F.cross_entropy(model(tokens).flatten(0, 1), targets.flatten())
            (loss / len(batches)).backward()

    def solution(model, batches):
        count = sum((targets != -100).sum() for _, targets in batches)
        for tokens, targets in batches:
            scores = model(tokens).flatten(0, 1)  # (B * L, words)
            (F.cross_entropy(scores, targets.flatten(), reduction="sum") / count).backward()

    def check(answer):
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
        return torch.nn.GroupNorm(2, channels)  # no other sample has a say

    def check(answer):
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
