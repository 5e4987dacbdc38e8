"""Sentiment of short reviews with an EmbeddingBag-like GRU classifier, many short epochs."""
# bottleneck: input
# cause: workers_restart
# costs 42 % of the loop

import random

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

GOOD = ["great", "lovely", "superb", "funny"]
POOR = ["dull", "boring", "weak", "flat"]
FILL = ["the", "a", "film", "plot", "it", "was", "and", "with"]


class Reviews(Dataset):
    def __init__(self, n, seed):
        rng = random.Random(seed)
        self.rows = []
        for _ in range(n):
            label = rng.random() < 0.5
            words = rng.choices(FILL, k=28) + rng.choices(GOOD if label else POOR, k=4)
            self.rows.append((" ".join(words), int(label)))
        self.vocab = {w: i for i, w in enumerate(GOOD + POOR + FILL)}

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, idx):
        text, label = self.rows[idx]
        ids = [self.vocab[w] for w in text.split()]
        return torch.tensor(ids), torch.tensor(label)


class Classifier(nn.Module):
    def __init__(self, vocab, dim=96):
        super().__init__()
        self.emb = nn.Embedding(vocab, dim)
        self.gru = nn.GRU(dim, dim, batch_first=True)
        self.out = nn.Linear(dim, 2)

    def forward(self, ids):
        _, h = self.gru(self.emb(ids))
        return self.out(h[-1])


def main():
    torch.manual_seed(42)
    torch.set_num_threads(1)
    train = Reviews(64 * 5, seed=1)
    train_loader = DataLoader(train, 64, shuffle=True, num_workers=2)  # CAUSE
    model = Classifier(len(train.vocab))
    opt = torch.optim.AdamW(model.parameters(), lr=2e-3)
    loss_fn = nn.CrossEntropyLoss()
    for epoch in range(26):
        correct = 0
        for ids, labels in train_loader:  # CAUSE
            logits = model(ids)
            loss = loss_fn(logits, labels)
            opt.zero_grad()
            loss.backward()
            opt.step()
            correct += (logits.argmax(1) == labels).sum().item()
        print(f"epoch {epoch}: acc {correct / len(train):.3f}")


if __name__ == "__main__":
    main()
