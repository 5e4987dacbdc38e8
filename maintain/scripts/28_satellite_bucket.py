"""Land use from satellite tiles in a bucket (here a folder with the latency of one)."""
# bottleneck: input
# cause: waiting for data
# costs 55 % of the loop

import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Bucket:
    def __init__(self, folder, latency=0.002):
        self.folder = Path(folder)
        self.latency = latency

    def get(self, key):
        time.sleep(self.latency)  # CAUSE
        return (self.folder / key).read_bytes()

    def put(self, key, blob):
        (self.folder / key).write_bytes(blob)


class Tiles(Dataset):
    def __init__(self, bucket, n):
        self.bucket = bucket
        self.n = n

    def __len__(self):
        return self.n

    def band(self, name, i):
        blob = self.bucket.get(f"{name}_{i % 40}.bin")  # CAUSE
        return np.frombuffer(blob, dtype=np.uint16).astype(np.float32).reshape(32, 32) / 10_000

    def __getitem__(self, i):
        red = self.band("red", i)  # CAUSE
        green = self.band("green", i)  # CAUSE
        nir = self.band("nir", i)  # CAUSE
        ndvi = (nir - red) / (nir + red + 1e-6)
        return torch.from_numpy(np.stack([red, green, nir, ndvi])), i % 40 % 6


class LandUse(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(4, 64, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(64, 128, 3, padding=1, stride=2),
            nn.ReLU(),
            nn.Conv2d(128, 128, 3, padding=1),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(128, 6),
        )

    def forward(self, x):
        return self.net(x)


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    rng = np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as folder:
        bucket = Bucket(folder)
        for i in range(40):
            for name in ("red", "green", "nir"):
                tile = rng.integers(200 * (i % 6) + 1, 10_000, (32, 32), dtype=np.uint16)
                bucket.put(f"{name}_{i}.bin", tile.tobytes())
        loader = DataLoader(Tiles(bucket, 400), batch_size=4, shuffle=True)
        model = LandUse()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        loss_fn = nn.CrossEntropyLoss()
        for epoch in range(1):
            for step, (x, y) in enumerate(loader):  # CAUSE
                loss = loss_fn(model(x), y)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                if step % 20 == 0:
                    print(f"epoch {epoch} step {step}: {loss.item():.3f}")


if __name__ == "__main__":
    main()
