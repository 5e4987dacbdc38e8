"""What the live view costs the run it shows: blocks of one run, drawn in a browser or not, by lot.

    python maintain/benchmarks/live_cost.py [--seconds 300]

A run in JupyterLab, in headless Chromium, is drawn for a second and a half, then not drawn for as
long; which of such a pair comes first is drawn by lot. Kernel, server and browser share the machine
with the run, as they do at home. The first third of a second of each block is left out. Prints the
median ratio of the pairs' throughputs (drawn over not drawn), with the 95 % interval of a bootstrap
over the pairs. Pairs of whole runs differ by 5 to 8 % on a machine with neighbours, blocks by less.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace

import numpy as np
from paired import median_95

sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))
import test_browser as browser

BLOCK_S, LEFT_OUT_S = 1.5, 1 / 3
FOLDERS = SimpleNamespace(mktemp=lambda name: Path(tempfile.mkdtemp(prefix=name)))
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
frames, begun = np.zeros(len(drawn), int), now_ns()
def each(run):
    block = int((now_ns() - begun) / {block_ns})
    if block < len(drawn) and drawn[block]:
        before = shown.view.tick
        shown.update(run)
        frames[block] += shown.view.tick - before
run.wait(each=each)
shown.finish(run)
ends = np.array([event["t"][3] for event in run.steps_since(0)]) - begun
samples = run.pipeline.batch_size
rates = []
for block in range(len(drawn)):
    inside = ends[(ends > block * {block_ns} + {left_out_ns}) & (ends < (block + 1) * {block_ns})]
    few = len(inside) < 10
    rates.append(None if few else samples * (len(inside) - 1) / (inside[-1] - inside[0]) * 1e9)
print("RATES", json.dumps([drawn.tolist(), frames.tolist(), rates]))"""


def blocks(seconds: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Run in JupyterLab; return of each block: was it drawn, how many frames, its samples/s."""
    pairs = int(seconds / BLOCK_S / 2)
    values = {"block_ns": int(BLOCK_S * 1e9), "left_out_ns": int(LEFT_OUT_S * 1e9)}
    code = CELL.format(pairs=pairs, seconds=seconds, **values)
    with browser.sync_api.sync_playwright() as playwright:
        lab = browser.lab_in(FOLDERS)
        page = browser.page_of(browser.chromium_of(playwright))
        place = next(lab)
        browser.opened(page, place, "cost", code)
        page.wait_for_function("() => window.hasRun", timeout=1000 * seconds + 60_000)
        page.evaluate(browser.SAVE)
        page.wait_for_timeout(1000)
        (cell,) = json.loads((place[0] / "cost.ipynb").read_text())["cells"]
        said = "".join(line for o in cell["outputs"] for line in o.get("text", ()))
        assert "RATES" in said, [o for o in cell["outputs"] if o["output_type"] == "error"]
        page.context.close()
        next(lab, None)
    drawn, frames, rates = json.loads(said.partition("RATES")[2])
    return np.array(drawn, bool), np.array(frames), np.array(rates, float)


def main() -> None:
    """Print the ratio, its interval, and how many frames a second were drawn."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=300.0)
    drawn, frames, rates = blocks(parser.parse_args().seconds)
    first, (one, other) = drawn[::2], rates.reshape(-1, 2).T
    ratio = np.where(first, one / other, other / one)
    ratio = ratio[~np.isnan(ratio)][1:]  # of the first pair, a part is warm-up
    assert not frames[~drawn].any()
    print("drawn over not drawn: {:.4f} (95 %: {:.4f} to {:.4f})".format(*median_95(ratio)))
    print(f"{len(ratio)} pairs, {frames[drawn].mean() / BLOCK_S:.0f} frames a second")


if __name__ == "__main__":
    main()
