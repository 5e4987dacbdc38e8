"""A small GAN on 32x32 images that keeps a sheet of samples of each step for a video."""
# bottleneck: host
# cause: logging
# half: tune
# costs 46 % of the loop

import tempfile
from pathlib import Path

import torch
from PIL import Image
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)

G = nn.Sequential(
    nn.Linear(64, 256),
    nn.LeakyReLU(0.2),
    nn.Linear(256, 384),
    nn.LeakyReLU(0.2),
    nn.Linear(384, 3 * 32 * 32),
    nn.Tanh(),
)
D = nn.Sequential(
    nn.Linear(3 * 32 * 32, 384), nn.LeakyReLU(0.2), nn.Linear(384, 256), nn.LeakyReLU(0.2),
    nn.Linear(256, 1),
)  # fmt: skip
opt_g = torch.optim.Adam(G.parameters(), lr=2e-4, betas=(0.5, 0.999))
opt_d = torch.optim.Adam(D.parameters(), lr=2e-4, betas=(0.5, 0.999))
bce = nn.BCEWithLogitsLoss()
fixed_z = torch.randn(64, 64)


def real_batch(n=64):
    ramp = torch.linspace(-1, 1, 32)
    image = ramp.view(1, 1, 32, 1) * torch.rand(n, 3, 1, 1) + ramp.view(1, 1, 1, 32)
    return image.clamp(-1, 1).flatten(1)


@torch.no_grad()
def save_samples(path):
    images = (G(fixed_z).view(8, 8, 3, 32, 32) + 1) * 127.5
    sheet = images.permute(0, 3, 1, 4, 2).reshape(256, 256, 3)
    sheet = Image.fromarray(sheet.clamp(0, 255).byte().numpy())
    sheet.resize((448, 448)).save(path, optimize=True)  # CAUSE


with tempfile.TemporaryDirectory() as out:
    for step in range(70):
        real = real_batch()
        fake = G(torch.randn(64, 64))
        loss_d = bce(D(real), torch.ones(64, 1)) + bce(D(fake.detach()), torch.zeros(64, 1))
        opt_d.zero_grad()
        loss_d.backward()
        opt_d.step()
        loss_g = bce(D(fake), torch.ones(64, 1))
        opt_g.zero_grad()
        loss_g.backward()
        opt_g.step()
        save_samples(Path(out) / f"{step:05d}.png")  # CAUSE
        if step % 20 == 0:
            print(f"{step} D {loss_d.item():.3f} G {loss_g.item():.3f}")
