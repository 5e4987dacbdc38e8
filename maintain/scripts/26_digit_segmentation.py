"""Segment blobs in grey images with a small U-shaped network; masks come from colour coding."""
# bottleneck: input
# cause: item
# costs 35 % of the loop

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset

PALETTE = {(0, 0, 0): 0, (255, 0, 0): 1, (0, 255, 0): 2, (0, 0, 255): 3}
SIZE = 48


class Blobs(Dataset):
    def __init__(self, n, seed=0):
        rng = np.random.default_rng(seed)
        colours = list(PALETTE)
        self.images = rng.integers(0, 60, (n, SIZE, SIZE)).astype(np.uint8)
        self.masks = np.zeros((n, SIZE, SIZE, 3), dtype=np.uint8)
        for i in range(n):
            for c in (1, 2, 3):
                top, left = rng.integers(0, SIZE - 16, 2)
                self.images[i, top : top + 16, left : left + 16] += 60 * c
                self.masks[i, top : top + 16, left : left + 16] = colours[c]

    def __len__(self):
        return len(self.images)

    def __getitem__(self, i):
        mask = self.masks[i]
        target = np.zeros((SIZE, SIZE), dtype=np.int64)
        for r in range(SIZE):
            for c in range(SIZE):
                target[r, c] = PALETTE[tuple(mask[r, c].tolist())]  # CAUSE
        image = torch.from_numpy(self.images[i]).float().unsqueeze(0) / 255
        return image, torch.from_numpy(target)


class MiniUNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.down1 = nn.Conv2d(1, 16, 3, padding=1)
        self.down2 = nn.Conv2d(16, 32, 3, padding=1)
        self.up = nn.ConvTranspose2d(32, 16, 2, stride=2)
        self.out = nn.Conv2d(32, 4, 3, padding=1)

    def forward(self, x):
        a = F.relu(self.down1(x))
        b = F.relu(self.down2(F.max_pool2d(a, 2)))
        return self.out(torch.cat([a, F.relu(self.up(b))], 1))


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    accumulate = 2
    loader = DataLoader(Blobs(960), batch_size=8, shuffle=True)
    model = MiniUNet()
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    for epoch in range(3):
        for i, (image, target) in enumerate(loader):  # CAUSE
            loss = F.cross_entropy(model(image), target)
            (loss / accumulate).backward()
            if (i + 1) % accumulate == 0:
                optimizer.step()
                optimizer.zero_grad()
        print(f"epoch {epoch} loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
