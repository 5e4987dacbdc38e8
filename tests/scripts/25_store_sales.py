"""Daily sales of stores: windows out of one CSV file each, a one-dimensional CNN."""
# bottleneck: input
# cause: item
# half: tune
# costs 38 % of the loop

import argparse
import tempfile
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=12)
parser.add_argument("--window", type=int, default=60)
parser.add_argument("--batch-size", type=int, default=16)
opt = parser.parse_args()

torch.manual_seed(0)
torch.set_num_threads(1)


class StoreWindows(Dataset):
    def __init__(self, folder, window):
        self.files = sorted(Path(folder).glob("store_*.csv"))
        self.window = window
        self.starts = list(range(0, 240, 8))

    def __len__(self):
        return len(self.files) * len(self.starts)

    def __getitem__(self, i):
        store, k = divmod(i, len(self.starts))
        table = np.loadtxt(self.files[store], delimiter=",", skiprows=1)  # CAUSE
        start = self.starts[k]
        window = table[start : start + self.window + 1].astype(np.float32)
        return torch.from_numpy(window[:-1].T.copy()), torch.tensor(window[-1, 0])


def write_stores(folder, n_stores=20, days=365):
    rng = np.random.default_rng(0)
    t = np.arange(days)
    for s in range(n_stores):
        sales = 1 + 0.3 * np.sin(t / 58 + s) + 0.05 * rng.normal(size=days)
        table = np.stack([sales, t % 7 / 7, rng.random(days) < 0.1, np.full(days, s / 20)], 1)
        header = "sales,weekday,promo,store"
        np.savetxt(
            f"{folder}/store_{s:03d}.csv",
            table,
            fmt="%.4f",
            delimiter=",",
            header=header,
            comments="",
        )


tmp = tempfile.TemporaryDirectory()
write_stores(tmp.name)
loader = DataLoader(StoreWindows(tmp.name, opt.window), opt.batch_size, shuffle=True)
model = nn.Sequential(
    nn.Conv1d(4, 96, 5, padding=2),
    nn.ReLU(),
    nn.Conv1d(96, 96, 5, padding=2),
    nn.ReLU(),
    nn.AdaptiveAvgPool1d(8),
    nn.Flatten(),
    nn.Linear(96 * 8, 1),
)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for epoch in range(opt.epochs):
    total = 0.0
    for x, y in loader:  # CAUSE
        optimizer.zero_grad()
        loss = nn.functional.l1_loss(model(x).squeeze(1), y)
        loss.backward()
        optimizer.step()
        total += loss.item()
    print(f"epoch {epoch}: mae {total / len(loader):.4f}")
tmp.cleanup()
