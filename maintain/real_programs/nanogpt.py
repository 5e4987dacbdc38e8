"""To the shape of karpathy/nanoGPT train.py (MIT): no DataLoader, batches from a memory map."""

import argparse
import math
import time

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F


class GPT(nn.Module):
    def __init__(self, vocab_size, block_size, n_layer, n_head, n_embd):
        super().__init__()
        self.wte = nn.Embedding(vocab_size, n_embd)
        self.wpe = nn.Embedding(block_size, n_embd)
        layer = nn.TransformerEncoderLayer(
            n_embd, n_head, 4 * n_embd, 0.0, "gelu", batch_first=True, norm_first=True
        )
        self.h = nn.TransformerEncoder(layer, n_layer, enable_nested_tensor=False)
        self.lm_head = nn.Linear(n_embd, vocab_size, bias=False)
        self.wte.weight = self.lm_head.weight

    def forward(self, idx, targets):
        length = idx.size(1)
        x = self.wte(idx) + self.wpe(torch.arange(length))
        mask = nn.Transformer.generate_square_subsequent_mask(length)
        logits = self.lm_head(self.h(x, mask=mask, is_causal=True))
        return logits, F.cross_entropy(logits.view(-1, logits.size(-1)), targets.view(-1))


parser = argparse.ArgumentParser()
parser.add_argument("--max_iters", type=int, default=2000)
args = parser.parse_args()

torch.manual_seed(1337)
batch_size, block_size, eval_interval, eval_iters = 12, 64, 50, 5


def get_batch(split):
    data = np.memmap(f"data/shakespeare_char/{split}.bin", dtype=np.uint16, mode="r")
    ix = torch.randint(len(data) - block_size, (batch_size,))
    rows = [torch.from_numpy(data[i : i + 1 + block_size].astype(np.int64)) for i in ix]
    return torch.stack([row[:-1] for row in rows]), torch.stack([row[1:] for row in rows])


@torch.no_grad()
def estimate_loss():
    model.eval()
    losses = [model(*get_batch("val"))[1].item() for _ in range(eval_iters)]
    model.train()
    return sum(losses) / eval_iters


def get_lr(it):
    return 1e-4 + 4.5e-4 * (1.0 + math.cos(math.pi * it / args.max_iters))


model = GPT(65, block_size, n_layer=4, n_head=4, n_embd=128)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.99))
X, Y = get_batch("train")
t0 = time.time()
for iter_num in range(args.max_iters + 1):
    for param_group in optimizer.param_groups:
        param_group["lr"] = get_lr(iter_num)
    if iter_num % eval_interval == 0:
        print(f"step {iter_num}: val loss {estimate_loss():.4f}")
        torch.save({"model": model.state_dict(), "iter_num": iter_num}, "ckpt.pt")
    logits, loss = model(X, Y)
    X, Y = get_batch("train")  # the next batch, while a GPU computes
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    t1 = time.time()
    print(f"iter {iter_num}: loss {loss.item():.4f}, time {(t1 - t0) * 1000:.2f}ms")
    t0 = t1
torch.save(model.state_dict(), "model.pt")
