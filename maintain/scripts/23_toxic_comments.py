"""Toxic comment detection: hashed words into an EmbeddingBag, raw comments cleaned as they come."""
# bottleneck: input
# cause: item
# half: tune
# costs 43 % of the loop

import random
import re
import zlib

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

BUCKETS = 20_000
NOISE = ["<br />", "http://t.co/a1b2c3", "@someone", "!!!", "&amp;", "  ", "...", "#topic", "12:30"]


class Comments(Dataset):
    def __init__(self, n, seed=0):
        rng = random.Random(seed)
        words = [
            "".join(rng.choices("abcdefghilmnoprstu", k=rng.randint(2, 9))) for _ in range(900)
        ]
        self.comments = []
        for _ in range(n):
            label = int(rng.random() < 0.3)
            text = rng.choices(words, k=150) + rng.choices(NOISE, k=40) + ["idiot"] * (3 * label)
            rng.shuffle(text)
            self.comments.append((" ".join(text), label))

    def __len__(self):
        return len(self.comments)

    def __getitem__(self, i):
        text, label = self.comments[i]
        text = text.lower()
        text = re.sub(r"\s*<br\s*/>\s*|https?://\S+|(\w|\.)*@\w+|[^a-z ]+", " ", text)  # CAUSE
        tokens = text.split()[:128]
        ids = [zlib.crc32(t.encode()) % BUCKETS for t in tokens]
        ids += [0] * (128 - len(ids))
        return torch.tensor(ids), torch.tensor(label, dtype=torch.float)


class Detector(nn.Module):
    def __init__(self, dim=128):
        super().__init__()
        self.bag = nn.EmbeddingBag(BUCKETS, dim, mode="mean", sparse=True)
        self.net = nn.Sequential(
            nn.Linear(dim, 1024), nn.ReLU(), nn.Dropout(0.3), nn.Linear(1024, 512), nn.ReLU()
        )
        self.head = nn.Linear(512, 1)

    def forward(self, ids):
        return self.head(self.net(self.bag(ids))).squeeze(1)


torch.manual_seed(0)
torch.set_num_threads(1)
train_loader = DataLoader(Comments(32 * 80), batch_size=32, shuffle=True)
model = Detector()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
criterion = nn.BCEWithLogitsLoss()
for epoch in range(5):
    for i, (ids, labels) in enumerate(train_loader):  # CAUSE
        loss = criterion(model(ids), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if i % 20 == 0:
            print(f"epoch {epoch} batch {i} loss {loss.item():.4f}")
