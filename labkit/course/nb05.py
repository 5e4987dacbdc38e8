"""Notebook 05, mixed precision: its challenges."""

from labkit.course.task import Goal, Refused, code, counting, difference
from labkit.wiring import Later

torch = Later("torch")
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
        return torch.autograd.grad(loss_of(weights), weights)[0].float()

    def solution(loss_of, weights, scale=2.0**14):
        loss = loss_of(weights).float() * scale
        return torch.autograd.grad(loss, weights)[0].float() / scale  # in FP32 small numbers fit

    def check(answer):
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
        if not all(torch.isfinite(weight.grad).all() for weight in weights):
            return scale / 2
        with torch.no_grad():
            for weight in weights:
                weight -= lr * weight.grad / scale
        return scale

    def check(answer):
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
        errors, rows = [], (torch.randn(8, 100) * 30, torch.zeros(1, 100_000))
        for scores in (*rows, torch.randn(4, 50) + 1000):
            scores = scores.half()
            with counting() as counted:
                found = answer(scores.clone())
            if any("softmax" in name for name in counted.names):
                raise Refused("Make it of exp and sum, to see what they need.")
            errors.append(difference(found, scores.double().softmax(-1)))
        return {"error": max(errors)}
