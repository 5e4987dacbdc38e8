"""Keyword spotting on fake log-mel spectrograms, set up for the cluster nodes."""
# bottleneck: host
# cause: threads
# costs 40 % of the loop

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
torch.set_num_threads(16)  # CAUSE

N_MELS, FRAMES, WORDS = 40, 96, 12

labels = torch.randint(0, WORDS, (128 * 40,))
mels = torch.randn(len(labels), N_MELS, FRAMES)
mels[torch.arange(len(labels)), labels * 3] += 1.5
train_loader = DataLoader(TensorDataset(mels.flatten(1), labels), batch_size=128, shuffle=True)


model = nn.Sequential(
    nn.Linear(N_MELS * FRAMES, 512),
    nn.BatchNorm1d(512),
    nn.ReLU(),
    nn.Linear(512, 512),
    nn.BatchNorm1d(512),
    nn.ReLU(),
    nn.Linear(512, WORDS),
)
optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
criterion = nn.CrossEntropyLoss()
for epoch in range(5):
    hits = 0
    for x, y in train_loader:
        optimizer.zero_grad()
        out = model(x)  # CAUSE
        loss = criterion(out, y)
        loss.backward()  # CAUSE
        optimizer.step()  # CAUSE
        hits += (out.argmax(1) == y).sum().item()
    print(f"epoch {epoch}: loss {loss.item():.3f}, accuracy {hits / len(labels):.3f}")
