"""What batching text by length or packed brings, against what was predicted.

    python maintain/benchmarks/language.py [--passes 5]

Run it on a quiet machine, for about 2 minutes. Targets: at least 80 % of the padding is gone; real
tokens/s within 15 % of what `lk.predict` said of the padded run.
"""

import argparse
import os
import tempfile
from statistics import median

os.environ.setdefault("LABKIT_HOME", tempfile.mkdtemp(prefix="labkit-language-"))

import labkit as lk
from labkit.results.result import Table

OTHERS = ("by_length", "packed")
SECONDS = 6.0  # of a run


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


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--passes", type=int, default=5)
    print(measure_batching(parser.parse_args().passes))
