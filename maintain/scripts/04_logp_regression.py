"""Predict logP of molecules from SMILES strings; fingerprints are saved next to the data."""
# bottleneck: input
# cause: cold_start
# costs 36 % of the loop

import hashlib
import random
import tempfile
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


def random_smiles(rng):
    return "".join(rng.choices(["C", "N", "c1ccccc1", "C(=O)", "Cl"], k=24))


def fingerprint(smiles, bits=1024):
    fp = np.zeros(bits, dtype=np.float32)
    for size in range(1, 9):
        for start in range(len(smiles) - size + 1):
            digest = hashlib.md5(smiles[start : start + size].encode()).hexdigest()  # CAUSE
            fp[int(digest, 16) % bits] = 1.0  # CAUSE
    return fp


class Molecules(Dataset):
    def __init__(self, smiles, folder):
        self.smiles = smiles
        self.folder = Path(folder)

    def __len__(self):
        return len(self.smiles)

    def __getitem__(self, i):
        path = self.folder / f"{i}.npy"
        if not path.exists():
            np.save(path, fingerprint(self.smiles[i]))  # CAUSE
        return np.load(path), np.float32(self.smiles[i].count("C") / 10)


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    rng = random.Random(0)
    smiles = [random_smiles(rng) for _ in range(2400)]
    with tempfile.TemporaryDirectory() as folder:
        loader = DataLoader(Molecules(smiles, folder), batch_size=64, shuffle=True)
        hidden = [nn.Linear(1024, 768), nn.ReLU(), nn.Linear(768, 512), nn.ReLU()]
        model = nn.Sequential(*hidden, nn.Linear(512, 1))
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        for epoch in range(5):
            total = 0.0
            for x, y in loader:  # CAUSE
                loss = nn.functional.mse_loss(model(x).squeeze(-1), y)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                total += loss.item()
            print(f"[{epoch}] mse {total / len(loader):.4f}")


if __name__ == "__main__":
    main()
