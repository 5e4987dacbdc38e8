"""House prices: an MLP on a table, the prediction of every row kept in a CSV for later."""
# bottleneck: host
# cause: logging
# half: tune
# costs 40 % of the loop

import csv
import os
import tempfile

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(7)
torch.set_num_threads(1)

features = torch.randn(3200, 40)
prices = features[:, :5].sum(1, keepdim=True) * 30 + 200 + torch.randn(3200, 1) * 5
loader = DataLoader(TensorDataset(features, prices), batch_size=32, shuffle=True)

model = nn.Sequential(
    nn.Linear(40, 1024), nn.ReLU(), nn.Linear(1024, 512), nn.ReLU(), nn.Linear(512, 1)
)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
loss_fn = nn.SmoothL1Loss()


class CSVLogger:
    def __init__(self, path):
        self.file = open(path, "w", newline="")
        self.writer = csv.writer(self.file)
        self.writer.writerow(["step", "row", "predicted", "actual"])

    def log(self, step, predicted, actual):
        for row in range(len(predicted)):
            p = predicted[row].item()
            a = actual[row].item()
            self.writer.writerow([step, row, p, a])  # CAUSE
            self.file.flush()  # CAUSE
            if row % 4 == 3:
                os.fsync(self.file.fileno())  # CAUSE

    def close(self):
        self.file.close()


with tempfile.TemporaryDirectory() as run_dir:
    logger = CSVLogger(os.path.join(run_dir, "predictions.csv"))
    step = 0
    for epoch in range(4):
        for x, y in loader:
            pred = model(x)
            loss = loss_fn(pred, y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            logger.log(step, pred, y)  # CAUSE
            step += 1
        print(f"epoch {epoch} last loss {loss.item():.3f}")
    logger.close()
