"""Kernel CPU of a frame of the live view: `python maintain/benchmarks/live_frame.py`.

A run of 5,000 steps of 1.4 ms grows as it would at 15 frames a second; reading the new events is
counted in. Sending is not (no front end is there): it adds about 0.2 ms in a kernel.
"""

import sys
import tempfile
import time
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))

from test_live import MS, Bench

from labkit.view.live import LiveView

STEPS = 5_000
STEPS_A_FRAME = 47

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
late = median(costs_ms[-len(costs_ms) // 4 :])
print(f"{len(costs_ms)} frames of {len(view.frame['rows'])} bytes of steps at the most")
print(f"ms a frame: median {median(costs_ms):.3f}, worst {max(costs_ms):.3f}")
print(f"last quarter, median: {late:.3f}")
