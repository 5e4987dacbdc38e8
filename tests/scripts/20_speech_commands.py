"""Keyword spotting on fake log-mel spectrograms, set up for the cluster nodes."""
# bottleneck: host
# cause: threads
# half: score

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
torch.set_num_threads(16)  # CAUSE

N_MELS, FRAMES, WORDS = 40, 96, 12

labels = torch.randint(0, WORDS, (32 * 40,))
mels = torch.randn(len(labels), N_MELS, FRAMES)
mels[torch.arange(len(labels)), labels * 3] += 1.5
train_loader = DataLoader(TensorDataset(mels, labels), batch_size=32, shuffle=True)


class SpeechNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Sequential(
            nn.Conv1d(N_MELS, 64, 5, padding=2),
            nn.BatchNorm1d(64),
            nn.ReLU(),
            nn.Conv1d(64, 64, 5, padding=2),
            nn.BatchNorm1d(64),
            nn.ReLU(),
        )
        self.gru = nn.GRU(64, 64, batch_first=True)
        self.fc = nn.Linear(64, WORDS)

    def forward(self, x):
        x = self.conv(x).transpose(1, 2)
        _, h = self.gru(x)
        return self.fc(h[-1])


model = SpeechNet()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
criterion = nn.CrossEntropyLoss()
for epoch in range(2):
    hits = 0
    for x, y in train_loader:
        optimizer.zero_grad()
        out = model(x)  # CAUSE
        loss = criterion(out, y)
        loss.backward()  # CAUSE
        optimizer.step()  # CAUSE
        hits += (out.argmax(1) == y).sum().item()
    print(f"epoch {epoch}: loss {loss.item():.3f}, accuracy {hits / len(labels):.3f}")
