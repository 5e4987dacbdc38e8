"""Skip-gram word vectors with negative sampling; saves as it goes so that it can be resumed."""
# bottleneck: host
# cause: periodic
# costs 54 % of the loop

import os
import tempfile

import torch
from torch import nn

torch.manual_seed(1)
torch.set_num_threads(1)

VOCAB = 50_000
DIM = 128
STEPS = 130
SAVE_STEPS = 10


class SkipGram(nn.Module):
    def __init__(self):
        super().__init__()
        self.center = nn.Embedding(VOCAB, DIM, sparse=True)
        self.context = nn.Embedding(VOCAB, DIM, sparse=True)

    def forward(self, center, context, negative):
        c = self.center(center)
        positive = (c * self.context(context)).sum(-1)
        negatives = torch.bmm(self.context(negative), c.unsqueeze(-1)).squeeze(-1)
        loss = nn.functional.logsigmoid(positive) + nn.functional.logsigmoid(-negatives).sum(-1)
        return -loss.mean()


def pairs(batch=512, negatives=15):
    for _ in range(STEPS):
        center = torch.randint(0, VOCAB, (batch,))
        context = (center + torch.randint(-5, 6, (batch,))).clamp(0, VOCAB - 1)
        yield center, context, torch.randint(0, VOCAB, (batch, negatives))


class Trainer:
    def __init__(self, out_dir):
        self.model = SkipGram()
        self.optimizer = torch.optim.SparseAdam(self.model.parameters(), lr=1e-3)
        self.out_dir = out_dir

    def save(self):
        path = os.path.join(self.out_dir, "last.pt")
        state = {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}
        torch.save(state, path + ".tmp")  # CAUSE
        os.replace(path + ".tmp", path)

    def fit(self, batches):
        for step, (center, context, negative) in enumerate(batches, 1):
            loss = self.model(center, context, negative)
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            if step % SAVE_STEPS == 0:
                self.save()  # CAUSE
                print(step, round(loss.item(), 4))


with tempfile.TemporaryDirectory() as out_dir:
    Trainer(out_dir).fit(pairs())
