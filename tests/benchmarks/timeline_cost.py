"""What stamping a GPU step costs the host: `python tests/benchmarks/timeline_cost.py [STEPS]`.

The real DeviceTimeline with the real torch.Event, on a stand-in GPU whose driver answers at once:
so PyTorch's and labkit's own host time, without the driver's (on a card about 1 µs more for each of
the four events and the copy of the loss). Paired by lot, since a noisy machine drifts: a step is
stamped or one of two unstamped ones, whose difference is the noise. A small product on the CPU
between two steps leaves the caches as a training loop would.
"""

import json
import random
import statistics
import sys
import tempfile
from pathlib import Path

import torch
from torch.utils._python_dispatch import _disable_current_modes

sys.path.append(str(Path(__file__).parents[1]))
import standin_gpu

from labkit.bench.timeline import DeviceTimeline
from labkit.process.events import EventLog, now_ns

STAMPED = 2  # of the lots 0, 1 and 2


def measure(steps: int) -> dict[str, float]:
    """Return medians of the host time a step, µs: the timeline's own, and the noise."""
    torch.set_num_threads(1)
    standin_gpu.install(standin_gpu.H200, real_time=True)
    device, lots = torch.device("cuda", 0), random.Random(0)
    a, loss = torch.randn(160, 160), torch.zeros(())
    took: tuple[list[int], ...] = ([], [], [])
    with tempfile.TemporaryDirectory() as folder, _disable_current_modes():
        standin_gpu.library().standin_install(1, standin_gpu.Answers())  # events pass at once
        timeline = DeviceTimeline(Path(folder), EventLog(folder), device)
        for i in range(steps):
            lot = lots.randrange(3)
            a @ a
            start = now_ns()
            if lot == STAMPED:
                asked = now_ns()
                ready, copied = timeline.copying(), timeline.copied()
                timeline.computing()
                timeline.step(i, asked, ready, copied, 16, loss)
            took[lot].append(now_ns() - start)
    first, second, stamped = (statistics.median(lot) / 1e3 for lot in took)
    return {"timeline_us": stamped - first, "noise_us": abs(second - first), "steps": steps}


if __name__ == "__main__":
    print(json.dumps(measure(int(sys.argv[1]) if len(sys.argv) > 1 else 20_000)))
