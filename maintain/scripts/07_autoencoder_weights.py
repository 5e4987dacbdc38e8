"""Denoising autoencoder on 16x16 patches; keeps an eye on the weights with matplotlib."""
# bottleneck: host
# cause: periodic
# half: tune
# costs 55 % of the loop

import tempfile
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import torch
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)


class AutoEncoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(256, 800), nn.ReLU(), nn.Linear(800, 64))
        self.decoder = nn.Sequential(nn.Linear(64, 800), nn.ReLU(), nn.Linear(800, 256))

    def forward(self, x):
        return self.decoder(self.encoder(x))


def plot_weights(model, step, folder):
    params = [(n, p) for n, p in model.named_parameters() if n.endswith("weight")]
    fig, axes = plt.subplots(2, 2, figsize=(8, 6))  # CAUSE
    for ax, (name, p) in zip(axes.flat, params, strict=True):
        ax.hist(p.detach().numpy().ravel(), bins=100)  # CAUSE
        ax.set_title(f"{name} @ {step}")
    fig.tight_layout()  # CAUSE
    fig.savefig(folder / f"weights_{step:05d}.png", dpi=100)  # CAUSE
    plt.close(fig)


def train(folder, steps=420, batch_size=128):
    model = AutoEncoder()
    opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    basis = torch.randn(12, 256)
    for step in range(1, steps + 1):
        clean = torch.randn(batch_size, 12) @ basis
        noisy = clean + 0.3 * torch.randn_like(clean)
        loss = nn.functional.mse_loss(model(noisy), clean)
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step % 70 == 0:
            plot_weights(model, step, folder)  # CAUSE
            print(f"step {step:5d}  mse {loss.item():.4f}")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as tmp:
        train(Path(tmp))
