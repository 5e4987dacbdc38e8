"""What the live view costs the run it shows: pairs of runs, one shown in a browser, one hidden.

    python tests/benchmarks/live_cost.py [--pairs 12]

JupyterLab in headless Chromium runs the same pipeline by turns with `lk.run(...)`, which draws, and
without a view; which of a pair comes first is drawn by lot. Kernel, server and browser share the
machine with the run, as they do at home. Prints the median ratio of the pairs' throughputs (shown
over hidden) with the 95 % interval of a bootstrap over the pairs.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))
import test_browser as browser

PIPELINE = (
    "lk.Pipeline(dataset='array', num_workers=0, steps=10**6, seconds=4, xray=False, width=32)"
)
ONE = """import labkit as lk
from labkit.results.launch import launch
from labkit.results.run import Run
run = lk.run({pipeline}) if {shown} else Run(launch({pipeline}).wait().path)
"""


class Folders:
    """What `lab_in` wants of pytest: a temporary folder."""

    def __init__(self, root: str):
        self.root = Path(root)

    def mktemp(self, name: str) -> Path:
        """Make a folder."""
        (self.root / name).mkdir()
        return self.root / name


def main() -> None:
    """Run the pairs and print the ratio."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=12)
    pairs, lot = parser.parse_args().pairs, np.random.default_rng(0)
    orders = [bool(lot.integers(2)) for _ in range(pairs)]
    shown = [each for first in orders for each in (first, not first)]
    cells = [ONE.format(pipeline=PIPELINE, shown=each) + "run.throughput" for each in shown]
    rates = []
    with tempfile.TemporaryDirectory() as root, browser.sync_api.sync_playwright() as playwright:
        lab = browser.lab_in(Folders(root))
        page = browser.page_of(browser.chromium_of(playwright))
        place = next(lab)
        browser.opened(page, place, "pairs", *cells)
        page.wait_for_function("() => window.hasRun", timeout=40_000 * len(cells))
        page.evaluate(browser.SAVE)
        page.wait_for_timeout(1000)
        for cell in json.loads((place[0] / "pairs.ipynb").read_text())["cells"]:
            values = [o["data"]["text/plain"] for o in cell["outputs"]
                      if o["output_type"] == "execute_result"]  # fmt: skip
            rates.append(float(values[0][0] if isinstance(values[0], list) else values[0]))
        page.context.close()
        next(lab, None)
    by = np.array(rates).reshape(pairs, 2)
    ratio = np.array([row[0] / row[1] if first else row[1] / row[0]
                      for row, first in zip(by, orders, strict=True)])  # fmt: skip
    again = np.median(ratio[lot.integers(0, pairs, (5000, pairs))], axis=1)
    low, high = np.quantile(again, (0.025, 0.975))
    print(
        f"shown over hidden: {np.median(ratio):.4f} (95 %: {low:.4f} to {high:.4f}), {pairs} pairs"
    )


if __name__ == "__main__":
    main()
