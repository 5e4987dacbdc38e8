"""Chest X-rays, normal or pneumonia: full-size scans resized for a small CNN."""
# bottleneck: input
# cause: item
# costs 51 % of the loop

import tempfile
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, Dataset


class XRays(Dataset):
    def __init__(self, folder):
        self.paths = sorted(Path(folder).glob("*.tif"))

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, i):
        scan = Image.open(self.paths[i])
        scan.load()
        scan = scan.resize((128, 128), Image.Resampling.LANCZOS)  # CAUSE
        x = torch.from_numpy(np.array(scan)).float().div(255).unsqueeze(0)
        return (x - 0.5) / 0.5, int(self.paths[i].stem.split("_")[1])


def make_scans(folder, n=64, size=1200):
    rng = np.random.default_rng(0)
    for i in range(n):
        scan = np.full((size, size), 60, dtype=np.uint8)
        if i % 2:
            row, col = rng.integers(100, 800, 2)
            scan[row : row + 300, col : col + 300] = 200
        Image.fromarray(scan).save(Path(folder) / f"{i:04d}_{i % 2}.tif")


def conv(cin, cout):
    return nn.Sequential(nn.Conv2d(cin, cout, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2))


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        make_scans(folder)
        loader = DataLoader(XRays(folder), batch_size=4, shuffle=True)
        model = nn.Sequential(
            conv(1, 16), conv(16, 32), conv(32, 64), nn.Flatten(), nn.Linear(64 * 256, 2)
        )
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
        criterion = nn.CrossEntropyLoss()
        for epoch in range(7):
            right = 0
            for x, y in loader:  # CAUSE
                out = model(x)
                loss = criterion(out, y)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                right += (out.argmax(1) == y).sum().item()
            print(f"epoch {epoch}: accuracy {right / len(loader.dataset):.3f}")


if __name__ == "__main__":
    main()
