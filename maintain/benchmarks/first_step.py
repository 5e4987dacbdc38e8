"""From a click on Run to the first drawn step, and from a slider to what it would bring.

`python maintain/benchmarks/first_step.py`: the default panel, in JupyterLab in headless Chromium.
The clock is the page's, from the click or the key to the frame that has the first step, or the
prediction, in it. Before each click the standby gets five seconds to be ready, as a person's look
at the last run gives it; the first click has to make the images too.
"""

import sys
import tempfile
from pathlib import Path
from statistics import median

from playwright.sync_api import expect, sync_playwright

sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))
import test_browser as browser

TIMES = 10
READY_MS = 5000

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
