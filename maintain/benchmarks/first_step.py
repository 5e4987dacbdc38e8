"""From a click on Run to the first drawn step, and from a slider to what it would bring.

`python maintain/benchmarks/first_step.py`: the default panel, in JupyterLab in headless Chromium.
The clock is the page's, from the click or the key to the frame that has the first step, or the
prediction, in it. Before each click the standby gets five seconds to be ready, as a person's look
at the last run gives it; the first click has to make the images too.
"""

import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from types import SimpleNamespace

from playwright.sync_api import sync_playwright

sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))

import test_browser

TIMES, READY_S = 10, 5


FOLDERS = SimpleNamespace(mktemp=lambda name: Path(tempfile.mkdtemp(prefix=name)))
lab = contextmanager(test_browser.lab_in)(FOLDERS)
with lab as served, sync_playwright() as playwright:
    chromium = test_browser.chromium_of(playwright)
    page = test_browser.page_of(chromium)
    panel = test_browser.opened(page, served, "first", "import labkit as lk\nlk.panel()")
    took, ghosts = [], []
    for _ in range(1 + TIMES):  # the first run makes the images
        page.wait_for_timeout(1000 * READY_S)
        took.append(test_browser.first_drawn_s(panel))
        test_browser.expect(test_browser.button(panel, "Run")).to_be_enabled(timeout=60_000)
        ghosts.append(panel.evaluate(test_browser.PREDICTED))
        panel.locator(".noUi-handle").first.press("ArrowLeft")  # back to what is measured
    chromium.close()
print(f"first click {took[0]:.2f} s; median of {TIMES}: {median(took[1:]):.2f} s")
print(f"from {min(took[1:]):.2f} to {max(took[1:]):.2f} s")
print(f"from a slider to its prediction: median {median(ghosts):.3f} s, worst {max(ghosts):.3f}")
