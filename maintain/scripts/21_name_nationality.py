"""Which country does a surname come from? Character GRU with its own collate function."""
# bottleneck: input
# cause: collate
# half: tune
# costs 38 % of the loop

import random
import string

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

LETTERS = string.ascii_lowercase + " '"
ENDINGS = {"it": "ini", "ru": "ovsky", "jp": "moto", "de": "mann", "fr": "eau", "pl": "czyk"}
COUNTRIES = list(ENDINGS)


class Names(Dataset):
    def __init__(self, n, seed=0):
        rng = random.Random(seed)
        self.items = []
        for _ in range(n):
            country = rng.choice(COUNTRIES)
            stem = "".join(rng.choices(string.ascii_lowercase, k=rng.randint(8, 24)))
            self.items.append((stem + ENDINGS[country], COUNTRIES.index(country)))

    def __len__(self):
        return len(self.items)

    def __getitem__(self, i):
        return self.items[i]


def pad_collate(batch):
    longest = max(len(name) for name, _ in batch)
    x = torch.zeros(len(batch), longest, len(LETTERS))
    lengths = torch.zeros(len(batch), dtype=torch.long)
    y = torch.zeros(len(batch), dtype=torch.long)
    for i, (name, label) in enumerate(batch):  # CAUSE
        for j in range(longest):  # CAUSE
            if j < len(name):  # CAUSE
                x[i, j, LETTERS.find(name[j])] = 1  # CAUSE
        lengths[i] = len(name)
        y[i] = label
    return x, lengths, y


class NameNet(nn.Module):
    def __init__(self, hidden=64):
        super().__init__()
        self.gru = nn.GRU(len(LETTERS), hidden, batch_first=True)
        self.out = nn.Linear(hidden, len(COUNTRIES))

    def forward(self, x, lengths):
        states, _ = self.gru(x)
        return self.out(states[torch.arange(len(x)), lengths - 1])


def train():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    loader = DataLoader(Names(64 * 50), batch_size=64, shuffle=True, collate_fn=pad_collate)
    model = NameNet()
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    for epoch in range(6):
        total = 0.0
        for x, lengths, y in loader:  # CAUSE
            loss = nn.functional.cross_entropy(model(x, lengths), y)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 5.0)
            optimizer.step()
            total += loss.item()
        print(f"epoch {epoch}: {total / len(loader):.4f}")


if __name__ == "__main__":
    train()
