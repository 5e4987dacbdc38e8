"""Loops that keep a GPU waiting, as posted, and with what the verdict on them advises.

    python maintain/benchmarks/gpu_loops.py                 # all: watched, then each remedy
    labkit watch -- python maintain/benchmarks/gpu_loops.py copies
    python maintain/benchmarks/gpu_loops.py copies int16    # one remedy

Needs a CUDA GPU. A loop trains for 5 s beyond its start, compiled ones after a longer start; it
prints "RATE", its samples/s. What CONTRIBUTING.md says of an H200 was measured on first versions of
these loops; JPEGs decoded without workers are the default pipeline's fault, too, and their loop and
that of micro-batches are in the repository's history only.
"""

from __future__ import annotations

import subprocess
import sys
import time

import torch
from paired import endless
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset

MEASURED_S = 5.0
START_S, COMPILING_S = 3.0, 25.0


class Rate:
    """Counts samples once a loop has started."""

    def __init__(self, start_s: float = START_S):
        self.begins = time.perf_counter() + start_s
        self.since = 0.0
        self.samples = 0

    def over(self, samples: int) -> bool:
        """Count a batch; say whether the loop has been measured."""
        now = time.perf_counter()
        if self.since:
            self.samples += samples
        elif now > self.begins:
            self.since = now
        if not self.since or now < self.since + MEASURED_S:
            return False
        torch.cuda.synchronize()
        print(f"RATE {self.samples / (time.perf_counter() - self.since):.1f}", flush=True)
        return True


def train(model, optimizer, batches, rate, prepare=lambda x: x):
    """Train over `batches` again and again."""
    for x, y in endless(batches):
        x = prepare(x.cuda(non_blocking=x.is_pinned()))
        loss = nn.functional.cross_entropy(model(x), y.cuda())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if rate.over(len(y)):
            return


def on_the_card(remedy=None):
    data = TensorDataset(torch.randn(100_000, 784).cuda(), torch.randint(0, 10, (100_000,)).cuda())
    loader = DataLoader(data, batch_size=128, shuffle=True)
    if remedy == "at_once":
        batches = BatchSampler(RandomSampler(data), batch_size=128, drop_last=False)
        loader = DataLoader(data, batch_size=None, sampler=batches)
    model = nn.Sequential(nn.Linear(784, 256), nn.ReLU(), nn.Linear(256, 10)).cuda()
    train(model, torch.optim.SGD(model.parameters(), lr=0.1), loader, Rate())


class Volumes:
    """Scans in memory, of 6 MiB each as float32."""

    def __init__(self, as_float):
        self.volumes = torch.randint(0, 4096, (64, 1, 96, 128, 128), dtype=torch.int16)
        self.as_float = as_float

    def __len__(self):
        return 100_000

    def __getitem__(self, i):
        volume = self.volumes[i % len(self.volumes)]
        return volume.float() / 4096 if self.as_float else volume, i % 2


def copies(remedy=None):
    as_float = remedy != "int16"
    pins = remedy == "pinned"
    loader = DataLoader(Volumes(as_float), batch_size=16, num_workers=8, pin_memory=pins)
    convolutions = (nn.Conv3d(1, 8, 3, 2), nn.ReLU(), nn.Conv3d(8, 16, 3, 2), nn.ReLU())
    model = nn.Sequential(*convolutions, nn.AdaptiveAvgPool3d(1), nn.Flatten(), nn.Linear(16, 2))
    optimizer = torch.optim.Adam(model.cuda().parameters())
    train(model, optimizer, loader, Rate(), prepare=lambda x: x if as_float else x.float() / 4096)


class Tokens(nn.Module):
    """A GPT: small enough that its launches take longer than its kernels."""

    def __init__(self, words, width, layers):
        super().__init__()
        self.words = nn.Embedding(words, width)
        layer = nn.TransformerEncoderLayer(width, width // 64, 4 * width, 0.0, batch_first=True)
        self.blocks = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, words)

    def forward(self, x):
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1], device=x.device)
        return self.head(self.blocks(self.words(x), mask=mask, is_causal=True)).transpose(1, 2)


def texts(words, length, batch_size):
    tokens = torch.randint(0, words, (20_000, length + 1))
    data = TensorDataset(tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous())
    return DataLoader(data, batch_size, num_workers=2, pin_memory=True)


def launches(remedy=None):
    model = Tokens(8000, 384, 6).cuda()
    if remedy == "graphs":
        model.compile(mode="reduce-overhead")
    optimizer = torch.optim.AdamW(model.parameters())
    scaler = torch.amp.GradScaler("cuda")
    rate = Rate(COMPILING_S if remedy else START_S)
    for x, y in endless(texts(8000, 256, 16)):
        with torch.autocast("cuda", torch.float16):
            loss = nn.functional.cross_entropy(model(x.cuda()), y.cuda())
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        if rate.over(len(y)):
            return


LOOPS = {  # with what is tried against what holds each back
    "on_the_card": (on_the_card, "at_once"),
    "copies": (copies, "int16", "pinned"),
    "launches": (launches, "graphs"),
}


def main() -> None:
    if len(sys.argv) > 1:
        LOOPS[sys.argv[1]][0](*sys.argv[2:])
        return
    for loop, (_, *remedies) in LOOPS.items():
        print(f"\n== {loop}", flush=True)
        here = [sys.executable, __file__, loop]
        subprocess.run([sys.executable, "-m", "labkit", "watch", "--", *here])
        for remedy in remedies:
            print(f"-- {remedy}", flush=True)
            subprocess.run([*here, remedy])


if __name__ == "__main__":
    main()
