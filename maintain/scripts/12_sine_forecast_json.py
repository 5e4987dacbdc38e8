"""Forecast noisy sine waves with a GRU; writes a JSON file for the dashboard of the lab."""
# bottleneck: host
# cause: logging
# costs 54 % of the loop

import json
import math
import tempfile
import time
from pathlib import Path

import torch
from torch import nn


class Forecaster(nn.Module):
    def __init__(self, hidden=64, horizon=12):
        super().__init__()
        self.rnn = nn.GRU(1, hidden, batch_first=True)
        self.head = nn.Linear(hidden, horizon)

    def forward(self, x):
        out, _ = self.rnn(x.unsqueeze(-1))
        return self.head(out[:, -1])


def waves(n_batches, batch=64, length=48, horizon=12):
    for _ in range(n_batches):
        t = torch.arange(length + horizon).float()
        phase = torch.rand(batch, 1) * 2 * math.pi
        freq = 0.1 + torch.rand(batch, 1) * 0.3
        series = torch.sin(freq * t + phase) + 0.05 * torch.randn(batch, length + horizon)
        yield series[:, :length], series[:, length:]


def write_status(path, step, loss, model, inputs, outputs):
    record = {
        "step": step,
        "time": time.time(),
        "loss": loss,
        "weights": {name: p.tolist() for name, p in model.named_parameters()},  # CAUSE
        "gradients": {name: p.grad.norm().item() for name, p in model.named_parameters()},
        "inputs": inputs.tolist(),
        "outputs": outputs.tolist(),
    }
    with open(path, "w") as f:
        json.dump(record, f)  # CAUSE


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = Forecaster()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    with tempfile.TemporaryDirectory() as folder:
        status = Path(folder) / "status.json"
        for step, (history, future) in enumerate(waves(160)):
            forecast = model(history)
            loss = nn.functional.mse_loss(forecast, future)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            write_status(status, step, loss.item(), model, history, forecast)  # CAUSE
            if step % 20 == 0:
                print(f"step {step}: {loss.item():.4f}")


if __name__ == "__main__":
    main()
