"""What a live panel takes: `python maintain/benchmarks/live.py`.

Kernel CPU of a frame, while a run of 5,000 steps of 1.4 ms grows as it would at 15 frames a second;
reading the new events is counted in, sending is not (about 0.2 ms more in a kernel).

From a click on Run to the first drawn step, and from a slider to what it would bring: the default
panel, in JupyterLab in headless Chromium. The clock is the page's, from the click or the key to the
frame that has the first step, or the prediction, in it. Before each click the standby gets five
seconds to be ready, as a person's look at the last run gives it; the first click has to make the
images too.
"""

import sys
import tempfile
import time
from pathlib import Path
from statistics import median

from playwright.sync_api import expect, sync_playwright

sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))
import test_browser as browser
from test_live import MS, Bench

from labkit.view.live import LiveView

STEPS = 5_000
STEPS_A_FRAME = 47
TIMES = 10
READY_MS = 5000

bench = Bench(Path(tempfile.mkdtemp()), steps=STEPS)
bench.machine()
view = LiveView()
costs_ms = []
for start in range(0, STEPS, STEPS_A_FRAME):
    bench.steps(*range(start, start + STEPS_A_FRAME), wait=9 * MS // 10, busy=MS // 2)
    view.due = 0.0  # every frame is drawn
    before = time.thread_time()
    view.update(bench.run)
    costs_ms.append(1e3 * (time.thread_time() - before))
print(f"ms a frame: median {median(costs_ms):.3f}")

with browser.lab_in(Path(tempfile.mkdtemp())) as lab, sync_playwright() as playwright:
    chromium = browser.chromium_of(playwright)
    page = browser.page_of(chromium)
    panel = browser.opened(page, lab, "first", "import labkit as lk\nlk.panel()")
    clicks = []
    predictions = []
    for _ in range(1 + TIMES):
        page.wait_for_timeout(READY_MS)
        clicks.append(browser.first_drawn_s(panel))
        expect(browser.button(panel, "Run")).to_be_enabled(timeout=60_000)
        predictions.append(panel.evaluate(browser.PREDICTED))
        panel.locator(".noUi-handle").first.press("ArrowLeft")  # back to what is measured
    chromium.close()
first, *others = clicks
print(f"first click {first:.2f} s; median of {TIMES}: {median(others):.2f} s")
print(f"from a slider to its prediction: median {median(predictions):.3f} s")
