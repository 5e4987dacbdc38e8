"""The recording side of `lk.watch`: stamps in the user's own process, and hardly anything else.

It uses torch only where the process has imported it, synchronises no device and draws no random
number; a failure of its own ends the recording, never the loop. The log is that of any run. What
differs: there is one stamp for "ready" and "copied", since the copy is inside the body; a step is
over when the loop asks for the next batch; and `epoch` marks the first step of each pass.
"""

from __future__ import annotations

import contextlib
import os
import platform
import subprocess
import sys
import weakref
from collections import deque
from collections.abc import Callable
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from labkit.bench import device_clock, loader_facts
from labkit.bench.watch_pass import Pass
from labkit.process.events import VERSION, EventLog

KEEP_STEPS = 100_000  # in the log, 13 MB: a run of days must not fill the disk, nor a Run memory
TEETH = 400  # busy intervals kept for the live view
# The loss is the loop's own business
STEP = '{"event":"step","i":%d,"t":[%d,%d,%d,%d],"n":%d,"loss":null%s}'
BUSY = ',"copy":[%d,%d],"busy":[%d,%d]'
TELEMETRY_AFTER_NS = 1_000_000_000  # a loop of a second is not worth another process


class Tally:
    """Sums over the steps so far, in ns and of bounded size: what the live line is made from."""

    def __init__(self):
        self.steps = self.samples = self.wall = self.busy = self.wait = 0
        self.end: int | None = None  # of the step before, on the device
        self.teeth: deque[tuple[int, int]] = deque(maxlen=TEETH)

    def add(self, t: tuple, samples: int, busy: tuple[int, int]) -> None:
        """Add a step: its stamps, and when the device was busy."""
        begin = t[0] if self.end is None else self.end
        start = max(busy[0], begin)
        end = max(busy[1], start)
        self.busy += end - start
        self.wait += min(t[1] - t[0], start - begin)
        self.wall += end - begin
        self.steps, self.samples, self.end = self.steps + 1, self.samples + samples, end
        self.teeth.append((start, end))

    def restart(self) -> None:
        """Forget the warm-up."""
        self.steps = self.samples = self.wall = self.busy = self.wait = 0


class Recorder:
    """Writes the run of one watched loader into `folder`."""

    def __init__(self, folder: Path, loader: Any, version: str):
        self.folder, self.pid = Path(folder), os.getpid()
        self.log = EventLog(folder)
        self.lines: list[str] = []  # of steps, on their way to the log
        self.knobs = loader_facts.knobs_of(loader)
        self.length = loader_facts.length_of(loader)
        self.tally, self.kind, self.unit = Tally(), "device", "samples"
        self.clock: device_clock.DeviceClock | None = None
        self.telemetry: subprocess.Popen | None = None
        self.epoch, self.next, self.first_step, self.warmup = -1, 0, 0, 3
        self._current: Callable[[], Pass | None] = lambda: None
        self.how, self.failed, self.begun = "", None, False
        self.log.write(
            "spec",
            version=VERSION,
            run=self.folder.name,
            utc=datetime.now(timezone.utc).isoformat(timespec="seconds"),
            labkit=version,
            pipeline=self.knobs,
            watched={"loader": type(loader).__name__, "length": self.length},
        )
        self.log.write("hello", pid=self.pid)

    # -- a pass over the loader --------------------------------------------------------------

    def begin_pass(self, current: Pass) -> None:
        """Begin a pass, and stop recording any older one that is not over.

        The run goes on, whatever the log said before.
        """
        if (older := self.current) is not None:
            older.stop()
        self._current = weakref.ref(current)  # its end is seen by its being dropped
        self.epoch += 1
        self.how, self.tally.end, self.first_step = "", None, self.next
        self.log.write("epoch", n=self.epoch, step=self.next)

    @property
    def current(self) -> Pass | None:
        """The pass that is being recorded, while it goes on."""
        found = self._current()
        return found if found is not None and found.on else None

    def counter(self, batch: Any) -> Callable[[Any], int]:
        """Return what counts the samples of a batch like this one; 1 a batch where unknown."""
        count = loader_facts.counter_for(batch, self.knobs.get("batch_size"))
        self.unit = "batches" if count is None else "samples"
        return count or (lambda _batch: 1)

    def take(self, rows: list[tuple]) -> None:
        """Record steps whose body is over: asked, ready, done (ns), samples, events if any."""
        if rows and not self.begun:
            self._begin()
        for asked, ready, done, samples, start, end in rows:
            t, i, self.next = (asked, ready, ready, done), self.next, self.next + 1
            if end is None:
                self._add(i, t, samples)
            else:
                self.clock.add(i, t, samples, start, end)
        if self.clock is not None:
            self.clock.collect()
        self._write()

    def _add(self, i: int, t: tuple, samples: int, busy: tuple[int, int] | None = None) -> None:
        if i == self.warmup:
            self.tally.restart()
        self.tally.add(t, samples, busy or t[2:])
        if i < KEEP_STEPS:
            self.lines.append(
                STEP % (i, *t, samples, "" if busy is None else BUSY % (busy[0], *busy[:1], *busy))
            )
        elif i == KEEP_STEPS:
            self.lines.append(f'{{"event":"full","steps":{KEEP_STEPS}}}')

    def _write(self) -> None:
        if self.lines:
            self.log.write_line("\n".join(self.lines))
            self.lines.clear()

    def _begin(self) -> None:
        """Say what this is: known only when the first body has run, and used the device."""
        self.begun = True
        device = device_clock.find_device()
        machine = describe(device)
        self.kind = machine["kind"]
        self.clock = device_clock.clock_for(device, self._add)
        in_flight = self.knobs.get("num_workers", 0) * self.knobs.get("prefetch_factor", 0)
        self.warmup = max(3, in_flight)
        self.log.write("machine", **machine)
        self.log.write("job", pipeline=self.knobs, not_applied={}, unit=self.unit)
        self.log.write("begin", warmup=self.warmup)

    def end_pass(self, how: str, error: BaseException | None = None) -> None:
        """Write how a pass ended: "exhausted", "left early", or with the loader's `error`."""
        if os.getpid() != self.pid:
            return  # a fork of the loop's process: not ours to say
        self.how = how
        if error is not None:
            self.fail(error)
        elif how == "exhausted":
            self.log.write("done")
            self.log.write("end", stop=None, code=0)
        else:
            self.log.write("end", stop=how, code=None)

    def fail(self, error: BaseException) -> None:
        """Write the exception that ended the loop; an interrupt is a stop, not a failure."""
        if error is self.failed:
            return
        self.failed = error
        if isinstance(error, KeyboardInterrupt):
            self.log.write("end", stop="interrupted", code=None)
            return
        self.log.write("error", kind=type(error).__name__, message=str(error)[:8_000])
        self.log.write("end", stop=None, code=1)

    def flush(self) -> None:
        """Write what has gathered, and give the device a moment for its last steps."""
        with contextlib.suppress(Exception):  # a device that was lost
            if (current := self.current) is not None:
                self.take(current.rows)
                current.rows = []
            if self.clock is not None:
                self.clock.finish()
        self._write()

    def close(self) -> None:
        """End the telemetry and let go of the log; the record stays."""
        if os.getpid() != self.pid:
            return
        if (current := self.current) is not None:  # somebody still holds the iterator
            current.stop()
            self.end_pass("left early")
        self.flush()
        if self.telemetry is not None:
            self.telemetry.kill()
            self.telemetry.wait()
        self.log.close()

    def start_telemetry(self) -> None:
        """Sample the instruments beside the loop, in a process that dies with this one."""
        if self.telemetry is not None or sys.platform != "linux":  # elsewhere it could outlive us
            return
        root = str(Path(__file__).parents[2])
        path = os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH"), root]))
        with contextlib.suppress(OSError):  # numbers without telemetry are still numbers
            self.telemetry = subprocess.Popen(
                [sys.executable, "-m", "labkit.bench.telemetry", str(self.pid)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                cwd=self.folder,
                env={**os.environ, "PYTHONPATH": path},
                start_new_session=True,  # Ctrl-C is for the loop
            )


def describe(device: Any) -> dict[str, Any]:
    """Describe the machine; without torch in this process only what Python itself knows."""
    torch = sys.modules.get("torch")
    if torch is not None:
        from labkit.bench import machine

        return machine.describe(device or torch.device("cpu"))
    name = platform.processor() or platform.machine()
    return {
        "device": "cpu",
        "kind": "cpu",
        "name": name,
        "cpu_name": name,
        "cpu_cores": os.cpu_count(),
        "os": f"{platform.system()} {platform.release()}",
        "versions": {"python": platform.python_version()},
    }
