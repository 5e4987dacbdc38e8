"""Flower photos, five classes: images are kept in a dict so that every file is read once."""
# bottleneck: input
# cause: cold_start
# half: tune
# costs 35 % of the loop

import os
import tempfile

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, Dataset

torch.manual_seed(3)
torch.set_num_threads(1)


class Flowers(Dataset):
    def __init__(self, root, size=64):
        self.paths = sorted(os.path.join(root, f) for f in os.listdir(root))
        self.size = size
        self.cache = {}

    def load(self, path):
        img = Image.open(path).convert("RGB")  # CAUSE
        img = img.resize((self.size, self.size), Image.LANCZOS)  # CAUSE
        arr = np.asarray(img, dtype=np.float32) / 255.0
        return torch.from_numpy((arr - 0.5) / 0.25).permute(2, 0, 1)

    def __getitem__(self, index):
        if index not in self.cache:
            self.cache[index] = self.load(self.paths[index])  # CAUSE
        img = self.cache[index]
        if torch.rand(()) < 0.5:
            img = img.flip(-1)
        return img, index % 5

    def __len__(self):
        return len(self.paths)


root = tempfile.TemporaryDirectory()
rng = np.random.default_rng(0)
for k in range(144):
    small = Image.fromarray(rng.integers(0, 255, (40, 60, 3), dtype=np.uint8))
    small.resize((1200, 800)).save(os.path.join(root.name, f"flower_{k:04d}.jpg"), quality=80)

dataset = Flowers(root.name)
loader = DataLoader(dataset, batch_size=8, shuffle=True)
model = nn.Sequential(
    nn.Conv2d(3, 24, 3, padding=1),
    nn.BatchNorm2d(24),
    nn.ReLU(),
    nn.MaxPool2d(2),
    nn.Conv2d(24, 48, 3, padding=1),
    nn.BatchNorm2d(48),
    nn.ReLU(),
    nn.AdaptiveAvgPool2d(1),
    nn.Flatten(),
    nn.Linear(48, 5),
)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)

for epoch in range(7):
    model.train()
    losses = []
    for images, labels in loader:  # CAUSE
        loss = F.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    print("epoch", epoch, "loss", sum(losses) / len(losses))
root.cleanup()
