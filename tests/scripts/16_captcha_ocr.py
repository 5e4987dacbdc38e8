"""CAPTCHA reader: a CNN with one head per position that reports the character error rate."""
# bottleneck: host
# cause: python
# half: tune
# costs 46 % of the loop

import numpy as np
import torch
import torch.nn as nn

torch.manual_seed(0)
torch.set_num_threads(1)

ALPHABET = "-abcdefghijklmnopqrstuvwxyz0123456789"
LENGTH = 16


def levenshtein(a, b):
    table = np.zeros((len(a) + 1, len(b) + 1), dtype=np.int32)
    table[:, 0] = np.arange(len(a) + 1)
    table[0, :] = np.arange(len(b) + 1)
    for i in range(1, len(a) + 1):
        for j in range(1, len(b) + 1):  # CAUSE
            cost = 0 if a[i - 1] == b[j - 1] else 1  # CAUSE
            table[i, j] = min(  # CAUSE
                table[i - 1, j] + 1, table[i, j - 1] + 1, table[i - 1, j - 1] + cost  # CAUSE
            )  # fmt: skip  # CAUSE
    return int(table[-1, -1])


def decode(indices):
    return "".join(ALPHABET[k] for k in indices).rstrip("-")


class Reader(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Sequential(
            nn.Conv2d(1, 8, 3, stride=2, padding=1), nn.ReLU(),
            nn.Conv2d(8, 16, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d((8, LENGTH)),
        )  # fmt: skip
        self.head = nn.Linear(16 * 8, len(ALPHABET))

    def forward(self, x):
        f = self.conv(x)
        return self.head(f.permute(0, 3, 1, 2).flatten(2))


class Trainer:
    def __init__(self, model, lr=1e-3):
        self.model = model
        self.optimizer = torch.optim.Adam(model.parameters(), lr=lr)
        self.criterion = nn.CrossEntropyLoss()

    def cer(self, logits, targets):
        errors = 0
        for predicted, target in zip(logits.argmax(-1).tolist(), targets.tolist(), strict=True):
            errors += levenshtein(decode(predicted), decode(target))  # CAUSE
        return errors / targets.numel()

    def train_step(self, images, targets):
        logits = self.model(images)
        loss = self.criterion(logits.flatten(0, 1), targets.flatten())
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.item(), self.cer(logits, targets)  # CAUSE


trainer = Trainer(Reader())
for step in range(300):
    targets = torch.randint(1, len(ALPHABET), (32, LENGTH))
    images = torch.randn(32, 1, 32, 128) + targets.repeat_interleave(8, 1).view(32, 1, 1, 128) / 20
    loss, cer = trainer.train_step(images, targets)
    if step % 60 == 0:
        print(f"{step}: loss {loss:.3f} CER {cer:.2f}")
