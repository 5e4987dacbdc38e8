"""What the live view costs the run it shows: blocks of one run, drawn in a browser or not, by lot.

    python maintain/benchmarks/live_cost.py [SECONDS]

A run in JupyterLab, in headless Chromium, is drawn for a second and a half, then not drawn for as
long; which of such a pair comes first is drawn by lot. Kernel, server and browser share the machine
with the run, as they do at home. The first third of a second of each block is left out. Prints the
median ratio of the pairs' throughputs (drawn over not drawn), with the 95 % interval of a bootstrap
over the pairs. Pairs of whole runs differ by 5 to 8 % on a machine with neighbours, blocks by less.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

import numpy as np
from paired import median_95
from playwright.sync_api import sync_playwright

sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))
import test_browser as browser

SECONDS = 300.0
BLOCK_S = 1.5
LEFT_OUT_S = 1 / 3
CELL = """import json
import numpy as np
import labkit as lk
from labkit.process.events import now_ns
from labkit.results.launch import launch
from labkit.view.live import RunDisplay
firsts = np.random.default_rng(0).integers(0, 2, {pairs})
drawn = np.stack([firsts, 1 - firsts], axis=1).ravel()
run = launch(lk.Pipeline(dataset="array", num_workers=0, steps=10**6, width=32, xray=False,
                         seconds={seconds}))
shown = RunDisplay()
begun = now_ns()
def each(run):
    block = int((now_ns() - begun) / {block_ns})
    if block < len(drawn) and drawn[block]:
        shown.update(run)
run.wait(each=each)
shown.finish(run)
ends = np.array([event["t"][3] for event in run.steps_since(0)]) - begun
samples = run.pipeline.batch_size
rates = []
for block in range(len(drawn)):
    inside = ends[(ends > block * {block_ns} + {left_out_ns}) & (ends < (block + 1) * {block_ns})]
    few = len(inside) < 10
    rates.append(None if few else samples * (len(inside) - 1) / (inside[-1] - inside[0]) * 1e9)
print("RATES", json.dumps([drawn.tolist(), rates]))"""


def blocks(seconds: float) -> tuple[np.ndarray, np.ndarray]:
    """Run in JupyterLab; return whether each block was drawn, and its samples/s."""
    code = CELL.format(
        pairs=int(seconds / BLOCK_S / 2),
        seconds=seconds,
        block_ns=int(BLOCK_S * 1e9),
        left_out_ns=int(LEFT_OUT_S * 1e9),
    )
    with browser.lab_in(Path(tempfile.mkdtemp())) as lab, sync_playwright() as playwright:
        page = browser.page_of(browser.chromium_of(playwright))
        browser.opened(page, lab, "cost", code)
        page.wait_for_function("() => window.hasRun", timeout=1000 * seconds + browser.LATE)
        page.evaluate(browser.SAVE)
        page.wait_for_timeout(1000)
        [cell] = json.loads((lab[0] / "cost.ipynb").read_text())["cells"]
        page.context.close()
    said = "".join(line for output in cell["outputs"] for line in output.get("text", ()))
    assert "RATES" in said, cell["outputs"]
    drawn, rates = json.loads(said.partition("RATES")[2])
    return np.array(drawn, bool), np.array(rates, float)


def main() -> None:
    """Print the ratio and its interval."""
    drawn, rates = blocks(float(sys.argv[1]) if len(sys.argv) > 1 else SECONDS)
    first, second = rates.reshape(-1, 2).T
    ratios = np.where(drawn[::2], first / second, second / first)
    ratios = ratios[~np.isnan(ratios)][1:]  # of the first pair, a part is warm-up
    print("drawn over not drawn: {:.4f} (95 %: {:.4f} to {:.4f})".format(*median_95(ratios)))
    print(f"{len(ratios)} pairs")


if __name__ == "__main__":
    main()
