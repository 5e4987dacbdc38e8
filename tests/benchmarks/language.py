"""What batching text by length or packed brings against what was predicted, and decode's law.

    python tests/benchmarks/language.py [--passes 5] [--batching] [--inference]

Run it on a quiet machine, for about 4 minutes. Targets: at least 80 % of the padding is gone; real
tokens/s within 15 % of what `lk.predict` said of the padded run; the loss of a real token the same
within the format's rounding; decode within 30 % of the law for every batch that it calls
memory-bound, in each format. A format whose products are too slow to be so is compute-bound at 1.
"""

import argparse
import os
import tempfile
from statistics import median

os.environ.setdefault("LABKIT_HOME", tempfile.mkdtemp(prefix="labkit-language-"))

import torch
from torch.nn import functional

import labkit as lk
from labkit.bench.model_size import plain_job
from labkit.bench.models import GPT
from labkit.bench.text import Text, next_bytes, packed
from labkit.results.result import Table

OTHERS = ("by_length", "packed")
SECONDS = 6.0  # of a run
ROUNDING = {"fp32": 1e-5, "bf16": 1e-2}  # relative, of the mean loss


def measure_batching(passes):
    """Run padded text and the other two in turn; return a table of predicted and measured.

    Each pass predicts from its own padded run, in an order that turns. The spread of five passes
    holds their median with 94 % (1 - 2 / 2^5): if it lies within the target, that is met.
    """
    runs = {way: [] for way in ("padded", *OTHERS)}
    said = {way: [] for way in OTHERS}
    for at in range(passes):
        for way in (list(runs), list(runs)[::-1])[at % 2]:
            runs[way].append(
                lk.run(lk.Pipeline(dataset="text", batching=way, steps=1000, seconds=SECONDS))
            )
        for way in OTHERS:
            said[way].append(lk.predict(runs["padded"][-1], batching=way).real_tokens_per_s)
    rows, padding = [], median(run.padding for run in runs["padded"])
    for way, kept in runs.items():
        rates = [run.real_tokens_per_s for run in kept]
        share = median(run.padding for run in kept)
        row = [way, f"{share:.1%}", f"{median(rates):,.0f}", None, None, None, None]
        if way in said:
            off = sorted(p / m - 1 for p, m in zip(said[way], rates, strict=True))
            gone, within = 1 - share / padding, [abs(error) <= 0.15 for error in off]
            missed = gone < 0.8 or abs(median(off)) > 0.15
            row[3:] = (
                f"{median(said[way]):,.0f}",
                f"{median(off):+.1%} ({off[0]:+.1%} to {off[-1]:+.1%})",
                f"{gone:.0%}",
                "MISSED" if missed else "ok" if all(within) else "ok, but for some passes",
            )
        rows.append(row)
    head = ("batching", "padding", "real tokens/s", "predicted", "off by", "padding gone", "")
    return Table(rows, head, f"batching, median of {passes} passes (and all of them)")


def compare_losses():
    """Return the loss of a real token of the same 256 documents and weights, batched each way."""
    knobs = {"model": "gpt", "context": 256, "width": 64, "depth": 2}
    text = Text(plain_job(torch.device("cpu"), **knobs, io_ms=0.0, batching="padded"))
    by_length = sorted(range(256), key=text.lengths.__getitem__)
    orders = {"padded": [[i] for i in range(256)], "by_length": [[i] for i in by_length],
              "packed": packed(by_length, text.lengths, 256)}  # fmt: skip
    rows = []
    for kind, rounding in ROUNDING.items():
        losses = {}
        for way, order in orders.items():
            torch.manual_seed(0)
            model, total, count = GPT(64, 2, 256, 256, packed=way == "packed").eval(), 0.0, 0
            text.batching = way
            for at in range(0, len(order), 16):
                inputs, targets = next_bytes(
                    *text.collate([text[0, r] for r in order[at : at + 16]])
                )
                with torch.no_grad(), torch.autocast("cpu", torch.bfloat16, kind == "bf16"):
                    logits = model(inputs).float().flatten(0, 1)
                total += functional.cross_entropy(logits, targets.flatten(), reduction="sum").item()
                count += int((targets >= 0).sum())
            losses[way] = total / count
        off = max(abs(loss / losses["padded"] - 1) for loss in losses.values())
        row = [f"{loss:.6f}" for loss in losses.values()]
        rows.append((kind, *row, f"{off:.1e}", "ok" if off <= rounding else "MISSED"))
    return Table(rows, ("", *orders, "largest difference", ""), "loss of a real token")


def measure_inference():
    """Return what `lk.inference` says, with the decode steps that are further from the law."""
    measured = lk.measure("inference", plot=False)
    found = lk.inference(measured)
    far = [s for s in found.steps if s.bound == "memory" and s.ratio > 1.3]
    said = ", ".join(f"{s.format} batch {s.batch}: {s.ratio:.2f}x" for s in far)
    return f"{found.table()}\nmemory-bound by the law, and over 1.30x: {said or 'none'}"


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--passes", type=int, default=5)
    parser.add_argument("--batching", action="store_true", help="this alone")
    parser.add_argument("--inference", action="store_true", help="this alone")
    asked = parser.parse_args()
    if not asked.inference:
        print(measure_batching(asked.passes), "\n")
        print(compare_losses(), "\n")
    if not asked.batching:
        print(measure_inference())
