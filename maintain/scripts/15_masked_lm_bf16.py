"""Masked language model on made-up sentences: a tiny encoder in bfloat16 autocast."""
# bottleneck: host
# cause: python
# costs 43 % of the loop

import random

import torch
from torch import nn

WORDS = [a + b + c for a in "klmnrstv" for b in "aeiou" for c in "nsl"]
VOCAB = {"<pad>": 0, "<mask>": 1, **{w: i + 2 for i, w in enumerate(WORDS)}}


def sentences(n, rng):
    return [" ".join(rng.choices(WORDS, k=rng.randint(30, 64))) for _ in range(n)]


class Encoder(nn.Module):
    def __init__(self, dim=64):
        super().__init__()
        self.tokens = nn.Embedding(len(VOCAB), dim)
        self.positions = nn.Embedding(64, dim)
        layer = nn.TransformerEncoderLayer(dim, 4, 2 * dim, batch_first=True, dropout=0.0)
        self.layers = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
        self.lm_head = nn.Linear(dim, len(VOCAB))

    def forward(self, ids, mask):
        x = self.tokens(ids) + self.positions(torch.arange(ids.size(1)))
        return self.lm_head(self.layers(x, mask=mask))


def main():
    rng = random.Random(0)
    torch.manual_seed(0)
    torch.set_num_threads(1)
    texts = sentences(2000, rng)
    model = Encoder()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step in range(230):
        batch = [text.split() for text in rng.sample(texts, 16)]
        ids = torch.zeros(len(batch), 64, dtype=torch.long)
        labels = torch.full((len(batch), 64), -100)
        for row, words in enumerate(batch):
            for col, word in enumerate(words):
                if rng.random() < 0.15:
                    ids[row, col] = VOCAB["<mask>"]  # CAUSE
                    labels[row, col] = VOCAB[word]  # CAUSE
                else:
                    ids[row, col] = VOCAB[word]  # CAUSE
        mask = torch.zeros(64, 64)
        for i in range(64):  # CAUSE
            for j in range(64):  # CAUSE
                if abs(i - j) > 16:  # CAUSE
                    mask[i, j] = float("-inf")  # CAUSE
        with torch.autocast("cpu", dtype=torch.bfloat16):
            logits = model(ids, mask)
            loss = nn.functional.cross_entropy(logits.flatten(0, 1).float(), labels.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 40 == 0:
            print(f"step {step} loss {loss.item():.3f}")


if __name__ == "__main__":
    main()
