"""Credit default: an MLP on a table that fits in memory, batches by index."""
# bottleneck: compute
# cause: none
# half: tune
# compute is 93 % of the loop

import torch
from torch import nn

N_ROWS, N_FEATURES, BATCH_SIZE, EPOCHS = 12_800, 60, 128, 6


class MLP(nn.Module):
    def __init__(self, widths=(512, 512, 256)):
        super().__init__()
        layers, previous = [], N_FEATURES
        for width in widths:
            layers += [nn.Linear(previous, width), nn.BatchNorm1d(width), nn.SiLU()]
            previous = width
        self.layers = nn.Sequential(*layers, nn.Linear(previous, 1))

    def forward(self, x):
        return self.layers(x).squeeze(1)


def main():
    torch.manual_seed(2024)
    torch.set_num_threads(1)
    x = torch.randn(N_ROWS, N_FEATURES)
    y = ((x[:, :8].sum(1) + torch.randn(N_ROWS)) > 1).float()
    model = MLP()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=1e-2)
    steps = EPOCHS * (N_ROWS // BATCH_SIZE)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 2e-3, total_steps=steps)
    loss_fn = nn.BCEWithLogitsLoss(pos_weight=torch.tensor(2.0))
    for epoch in range(EPOCHS):
        order = torch.randperm(N_ROWS)
        total = 0.0
        for start in range(0, N_ROWS, BATCH_SIZE):
            index = order[start : start + BATCH_SIZE]
            loss = loss_fn(model(x[index]), y[index])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            scheduler.step()
            total += loss.item() * len(index)
        print(f"epoch {epoch}: loss {total / N_ROWS:.4f}")


if __name__ == "__main__":
    main()
