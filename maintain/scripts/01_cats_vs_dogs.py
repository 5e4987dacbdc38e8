"""Cats vs dogs: a small CNN on a folder of JPEG files."""
# bottleneck: input
# cause: workers_restart
# half: tune
# costs 40 % of the loop

import random
import tempfile
from pathlib import Path

import numpy as np
import torch
import torch.nn as nn
from PIL import Image
from torch.utils.data import DataLoader, Dataset

torch.manual_seed(0)
random.seed(0)
torch.set_num_threads(1)

EPOCHS = 20
BATCH_SIZE = 32


def make_images(folder, n=128):
    rng = np.random.default_rng(0)
    for i in range(n):
        name = "cat" if i % 2 else "dog"
        pixels = rng.integers(0, 255, (16, 16, 3), dtype=np.uint8)
        Image.fromarray(pixels).resize((64, 64)).save(folder / f"{name}.{i}.jpg")


class CatsAndDogs(Dataset):
    def __init__(self, files):
        self.files = files

    def __len__(self):
        return len(self.files)

    def __getitem__(self, i):
        img = Image.open(self.files[i]).convert("RGB")
        x = torch.from_numpy(np.array(img)).permute(2, 0, 1).float() / 255
        return x, int("cat" in self.files[i].name)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 16, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(16, 32, 3, padding=1),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(4),
        )
        self.head = nn.Linear(32 * 16, 2)

    def forward(self, x):
        return self.head(self.features(x).flatten(1))


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as tmp:
        make_images(Path(tmp))
        files = sorted(Path(tmp).glob("*.jpg"))
        model = Net()
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
        criterion = nn.CrossEntropyLoss()
        for epoch in range(EPOCHS):
            random.shuffle(files)
            loader = DataLoader(CatsAndDogs(files), batch_size=BATCH_SIZE, num_workers=2)  # CAUSE
            running = 0.0
            for x, y in loader:  # CAUSE
                optimizer.zero_grad()
                loss = criterion(model(x), y)
                loss.backward()
                optimizer.step()
                running += loss.item()
            print(f"epoch {epoch + 1}: loss {running / len(loader):.4f}")
