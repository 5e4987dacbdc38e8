"""Click prediction on tabular data: embeddings and an MLP, with the AUC so far."""
# bottleneck: host
# cause: drift
# costs 43 % of the loop

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

CARDINALITY = [1000, 400, 60, 24, 7]
N_DENSE = 13


class ClickStream(IterableDataset):
    def __init__(self, n_batches, batch_size, seed=0):
        self.n_batches, self.batch_size, self.seed = n_batches, batch_size, seed

    def __iter__(self):
        rng = np.random.default_rng(self.seed)
        for _ in range(self.n_batches):
            dense = rng.normal(size=(self.batch_size, N_DENSE)).astype(np.float32)
            cats = np.stack([rng.integers(0, c, self.batch_size) for c in CARDINALITY], 1)
            p = 1 / (1 + np.exp(-dense[:, :3].sum(1) - (cats[:, 4] - 3) * 0.3))
            clicked = (rng.random(self.batch_size) < p).astype(np.float32)
            yield torch.from_numpy(dense), torch.from_numpy(cats), torch.from_numpy(clicked)


class WideAndDeep(nn.Module):
    def __init__(self, dim=16):
        super().__init__()
        self.embeddings = nn.ModuleList(nn.Embedding(c, dim) for c in CARDINALITY)
        width = N_DENSE + dim * len(CARDINALITY)
        self.mlp = nn.Sequential(
            nn.Linear(width, 1024), nn.ReLU(), nn.Linear(1024, 512), nn.ReLU(), nn.Linear(512, 1)
        )

    def forward(self, dense, cats):
        embedded = [e(cats[:, i]) for i, e in enumerate(self.embeddings)]
        return self.mlp(torch.cat([dense, *embedded], 1)).squeeze(1)


def auc(scores, targets):
    ranked = sorted(zip(scores, targets, strict=True))  # CAUSE
    positives = sum(targets)
    negatives = len(targets) - positives
    rank_sum = sum(rank for rank, (_, t) in enumerate(ranked, 1) if t)  # CAUSE
    return (rank_sum - positives * (positives + 1) / 2) / max(positives * negatives, 1)


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    loader = DataLoader(ClickStream(n_batches=170, batch_size=256), batch_size=None)
    model = WideAndDeep()
    opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    loss_fn = nn.BCEWithLogitsLoss()
    scores, targets = [], []
    for step, (dense, cats, clicked) in enumerate(loader):
        logits = model(dense, cats)
        loss = loss_fn(logits, clicked)
        opt.zero_grad()
        loss.backward()
        opt.step()
        scores.extend(torch.sigmoid(logits).tolist())
        targets.extend(clicked.int().tolist())
        value = auc(scores, targets)  # CAUSE
        if step % 25 == 0:
            print(f"{step:4d} loss {loss.item():.4f} auc {value:.4f}")


if __name__ == "__main__":
    main()
