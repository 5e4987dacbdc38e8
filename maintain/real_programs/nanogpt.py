"""To the shape of karpathy/nanoGPT train.py (MIT): no DataLoader, batches from a memory map."""

import argparse
import math
import os
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
            n_embd,
            n_head,
            4 * n_embd,
            dropout=0.0,
            activation="gelu",
            norm_first=True,
            batch_first=True,
            bias=False,
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
parser.add_argument("--eval_interval", type=int, default=250)
parser.add_argument("--eval_iters", type=int, default=20)
parser.add_argument("--batch_size", type=int, default=12)
parser.add_argument("--block_size", type=int, default=64)
parser.add_argument("--max_iters", type=int, default=2000)
args = parser.parse_args()

torch.manual_seed(1337)
data_dir = "data/shakespeare_char"


def get_batch(split):
    data = np.memmap(os.path.join(data_dir, f"{split}.bin"), dtype=np.uint16, mode="r")
    size = args.block_size
    ix = torch.randint(len(data) - size, (args.batch_size,))
    x = torch.stack([torch.from_numpy(data[i : i + size].astype(np.int64)) for i in ix])
    y = torch.stack([torch.from_numpy(data[i + 1 : i + 1 + size].astype(np.int64)) for i in ix])
    return x, y


@torch.no_grad()
def estimate_loss():
    model.eval()
    losses = torch.zeros(args.eval_iters)
    for k in range(args.eval_iters):
        losses[k] = model(*get_batch("val"))[1].item()
    model.train()
    return losses.mean()


def get_lr(it):
    warm_up = min(1.0, (it + 1) / 101)
    return 1e-4 + warm_up * 4.5e-4 * (1.0 + math.cos(math.pi * it / args.max_iters))


model = GPT(65, args.block_size, n_layer=4, n_head=4, n_embd=128)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.99))
X, Y = get_batch("train")
t0 = time.time()
iter_num = 0
while iter_num <= args.max_iters:
    for param_group in optimizer.param_groups:
        param_group["lr"] = get_lr(iter_num)
    if iter_num % args.eval_interval == 0:
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
    iter_num += 1
torch.save(model.state_dict(), "model.pt")
