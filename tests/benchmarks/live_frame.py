"""Kernel CPU of a frame of the live view: `python tests/benchmarks/live_frame.py`.

A run of 5,000 steps of 1.4 ms grows as it would at 15 frames a second; reading the new events is
counted in. Sending is not (no front end is there): it adds about 0.2 ms in a kernel.
"""

import json
import statistics
import tempfile
import time
from pathlib import Path

from labkit.results.run import Run
from labkit.show.live import LiveView
from labkit.spec import Pipeline

STEPS, A_FRAME, MS = 5_000, 47, 1_000_000


class Alive:
    """Stands in for the supervisor of a run that goes on."""

    def alive(self):
        """It is."""
        return True


def main():
    """Print milliseconds a frame, over the run and at its start and end."""
    folder = Path(tempfile.mkdtemp())
    with open(folder / "events.jsonl", "a") as log:

        def write(event, **values):
            log.write(json.dumps({"event": event, "t_ns": 0, **values}) + "\n")

        knobs = Pipeline(steps=STEPS).to_dict()
        write("spec", version=1, run="benchmark", pipeline=knobs)
        write("machine", device="cpu", kind="cpu", name="none", versions={})
        write("begin", warmup=3)
        log.flush()
        run, view, costs, now = Run(folder, process=Alive()), LiveView(), [], 1_000 * MS
        for start in range(0, STEPS, A_FRAME):
            for i in range(start, min(start + A_FRAME, STEPS)):
                stamps = [now, now + 900_000, now + 900_000, now + 1_400_000]
                write("step", i=i, t=stamps, n=16, loss=1.0)
                now = stamps[-1]
            log.flush()
            before = time.thread_time()
            view.update(run)
            costs.append(1e3 * (time.thread_time() - before))
    quarter = len(costs) // 4
    print(f"{len(costs)} frames of {len(view.frame)} bytes at the most")
    print(f"ms a frame: median {statistics.median(costs):.3f}, worst {max(costs):.3f}")
    print(f"first quarter {statistics.median(costs[:quarter]):.3f}", end=", ")
    print(f"last quarter {statistics.median(costs[-quarter:]):.3f}")


if __name__ == "__main__":
    main()
