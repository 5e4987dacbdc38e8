"""Hand gestures from accelerometer windows: a transformer encoder fed by two loader workers."""
# bottleneck: compute
# cause: none
# compute is 92 % of the loop

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

GESTURES, WINDOW, CHANNELS = 8, 80, 6


class Windows(Dataset):
    def __init__(self, n):
        rng = np.random.default_rng(0)
        self.labels = rng.integers(0, GESTURES, n)
        t = np.linspace(0, 6, WINDOW)[None, :, None]
        self.signals = np.sin(t * (1 + self.labels[:, None, None])).repeat(CHANNELS, 2)
        self.signals = (self.signals + 0.3 * rng.normal(size=self.signals.shape)).astype("float32")

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, i):
        return torch.from_numpy(self.signals[i]), self.labels[i]


class GestureNet(nn.Module):
    def __init__(self, dim=64):
        super().__init__()
        self.embed = nn.Linear(CHANNELS, dim)
        self.position = nn.Parameter(0.02 * torch.randn(1, WINDOW, dim))
        layer = nn.TransformerEncoderLayer(dim, 4, 4 * dim, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(dim, GESTURES)

    def forward(self, x):
        return self.head(self.encoder(self.embed(x) + self.position).mean(1))


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    loader = DataLoader(
        Windows(16 * 50), batch_size=16, shuffle=True, num_workers=2, persistent_workers=True
    )
    model = GestureNet()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    loss_fn = nn.CrossEntropyLoss()
    for epoch in range(3):
        for x, y in loader:
            loss = loss_fn(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch}: loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
