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

STEPS, A_FRAME = 5_000, 47

bench, view, costs = Bench(Path(tempfile.mkdtemp()), steps=STEPS), LiveView(), []
bench.machine()
for start in range(0, STEPS, A_FRAME):
    bench.steps(*range(start, min(start + A_FRAME, STEPS)), wait=9 * MS // 10, busy=MS // 2)
    before = time.thread_time()
    view.update(bench.run)
    costs.append(1e3 * (time.thread_time() - before))
quarter = len(costs) // 4
print(f"{len(costs)} frames of {len(view.frame)} bytes at the most")
print(f"ms a frame: median {median(costs):.3f}, worst {max(costs):.3f}")
print(f"first quarter {median(costs[:quarter]):.3f}, last quarter {median(costs[-quarter:]):.3f}")
