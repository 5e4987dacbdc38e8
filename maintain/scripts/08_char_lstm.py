"""Character-level LSTM that learns to continue a text, after a well-known tutorial."""
# bottleneck: host
# cause: drift
# half: tune
# costs 66 % of the loop

import torch
import torch.nn as nn

torch.manual_seed(5)
torch.set_num_threads(1)

TEXT = "the quick brown fox jumps over the lazy dog while seven wizards box with jugs of ink. " * 60
chars = sorted(set(TEXT))
stoi = {c: i for i, c in enumerate(chars)}
data = torch.tensor([stoi[c] for c in TEXT])

SEQ_LEN = 32
BATCH = 24
N_ITERS = 600


class CharLSTM(nn.Module):
    def __init__(self, n_chars, hidden=64):
        super().__init__()
        self.emb = nn.Embedding(n_chars, 32)
        self.lstm = nn.LSTM(32, hidden, batch_first=True)
        self.fc = nn.Linear(hidden, n_chars)

    def forward(self, x):
        out, _ = self.lstm(self.emb(x))
        return self.fc(out)


def get_batch():
    starts = torch.randint(0, len(data) - SEQ_LEN - 1, (BATCH,))
    x = torch.stack([data[s : s + SEQ_LEN] for s in starts])
    y = torch.stack([data[s + 1 : s + SEQ_LEN + 1] for s in starts])
    return x, y


model = CharLSTM(len(chars))
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
all_losses = []

for it in range(1, N_ITERS + 1):
    x, y = get_batch()
    optimizer.zero_grad()
    out = model(x)
    loss = criterion(out.reshape(-1, len(chars)), y.reshape(-1))
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    all_losses.append(loss)
    avg_loss = sum(all_losses) / len(all_losses)  # CAUSE
    spread = sum((v - avg_loss) ** 2 for v in all_losses) / len(all_losses)  # CAUSE
    best = min(all_losses)  # CAUSE
    if it % 40 == 0:
        print(f"{it}/{N_ITERS} avg {avg_loss:.3f} +- {spread**0.5:.3f} best {best:.3f}")
