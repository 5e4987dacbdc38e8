"""A nano GPT on characters, with gradient accumulation; batches come from get_batch()."""
# bottleneck: compute
# cause: none
# compute is 94 % of the loop

import math

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(1337)
torch.set_num_threads(1)

block_size, batch_size, n_embd, n_head, n_layer = 64, 8, 96, 4, 2
max_iters, grad_accum, learning_rate = 150, 2, 1e-3

text = "to be or not to be that is the question whether tis nobler in the mind to suffer " * 100
chars = sorted(set(text))
data = torch.tensor([chars.index(c) for c in text])


def get_batch():
    ix = torch.randint(len(data) - block_size - 1, (batch_size,))
    x = torch.stack([data[i : i + block_size] for i in ix])
    y = torch.stack([data[i + 1 : i + block_size + 1] for i in ix])
    return x, y


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.ln1, self.ln2 = nn.LayerNorm(n_embd), nn.LayerNorm(n_embd)
        self.qkv, self.proj = nn.Linear(n_embd, 3 * n_embd), nn.Linear(n_embd, n_embd)
        self.mlp = nn.Sequential(
            nn.Linear(n_embd, 4 * n_embd), nn.GELU(), nn.Linear(4 * n_embd, n_embd)
        )

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = self.qkv(self.ln1(x)).view(b, t, 3, n_head, c // n_head).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(y.transpose(1, 2).reshape(b, t, c))
        return x + self.mlp(self.ln2(x))


class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.wte = nn.Embedding(len(chars), n_embd)
        self.wpe = nn.Embedding(block_size, n_embd)
        self.blocks = nn.Sequential(*[Block() for _ in range(n_layer)])
        self.head = nn.Linear(n_embd, len(chars))

    def forward(self, idx, targets):
        x = self.wte(idx) + self.wpe(torch.arange(idx.size(1)))
        logits = self.head(self.blocks(x))
        return F.cross_entropy(logits.view(-1, len(chars)), targets.view(-1))


model = GPT()
optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate)
for it in range(max_iters):
    for group in optimizer.param_groups:
        group["lr"] = learning_rate * 0.5 * (1 + math.cos(math.pi * it / max_iters))
    for _ in range(grad_accum):
        x, y = get_batch()
        loss = model(x, y) / grad_accum
        loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    if it % 25 == 0:
        print(f"iter {it}: loss {loss.item() * grad_accum:.4f}")
