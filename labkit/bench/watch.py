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
from collections import deque
from collections.abc import Callable
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from labkit.bench import device_clock, loader_facts
from labkit.bench.events import VERSION, EventLog, now_ns
from labkit.bench.step_log import NO_DEVICE, StepLog

KEEP_STEPS = 100_000  # in the log, 13 MB: a run of days must not fill the disk, nor a Run memory
TEETH = 400  # busy intervals kept for the live view
UNKNOWN = float("nan")  # the loss: the loop's own business
BEAT_NS = 500_000_000  # two live updates a second: they run in the training process itself
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
        self.steps = StepLog(self.log, folder)
        self.knobs = loader_facts.knobs_of(loader)
        self.length = loader_facts.length_of(loader)
        self.tally, self.kind, self.unit = Tally(), "device", "samples"
        self.count: Callable[[Any], int] | None = None
        self.clock: device_clock.DeviceClock | None = None
        self.telemetry: subprocess.Popen | None = None
        self.epoch, self.next, self.first_step, self.warmup = -1, 0, 0, 3
        self.current: int | None = None  # the pass being recorded: the newest, while it goes on
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

    def start(self) -> int:
        """Begin a pass and return its number: the run goes on, whatever the log said before."""
        self.epoch += 1
        self.current, self.how, self.tally.end = self.epoch, "", None
        self.first_step = self.next
        self.log.write("epoch", n=self.epoch, step=self.next)
        return self.epoch

    def first_batch(self, batch: Any) -> None:
        """Learn how to count samples."""
        self.count = loader_facts.counter_for(batch, self.knobs.get("batch_size"))
        if self.count is None:
            self.unit, self.count = "batches", lambda _batch: 1

    def step(self, t: tuple[int, int, int, int], samples: int, mark: Any) -> None:
        """Record a step whose body is over."""
        i, self.next = self.next, self.next + 1
        if not self.begun:
            self._begin()
        if mark is not None:
            self.clock.step(i, t, samples, mark)
        else:
            self._write(i, t, samples)

    def _write(self, i: int, t: tuple, samples: int, busy: tuple[int, int] | None = None) -> None:
        if i < KEEP_STEPS:
            self.steps.add(
                i, t, samples, UNKNOWN, NO_DEVICE if busy is None else busy[:1] * 2 + busy
            )
        elif i == KEEP_STEPS:
            self.log.write("full", steps=KEEP_STEPS)
        if i == self.warmup:
            self.tally.restart()
        self.tally.add(t, samples, busy or t[2:])

    def _begin(self) -> None:
        """Say what this is: known only when the first body has run, and used the device."""
        self.begun = True
        device = device_clock.find_device()
        machine = describe(device)
        self.kind = machine["kind"]
        self.clock = device_clock.clock_for(device, self._write)
        in_flight = self.knobs.get("num_workers", 0) * self.knobs.get("prefetch_factor", 0)
        self.warmup = max(3, in_flight)
        self.log.write("machine", **machine)
        self.log.write("job", pipeline=self.knobs, not_applied={}, unit=self.unit)
        self.log.write("begin", warmup=self.warmup)

    def end(self, how: str, error: BaseException | None = None) -> None:
        """Write how a pass ended: "exhausted", "left early", or with the loader's `error`."""
        if os.getpid() != self.pid:
            return  # a fork of the loop's process: not ours to say
        self.how, self.current = how, None
        if self.clock is not None:
            self.clock.collect()
        self.steps.flush()
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
            if self.clock is not None:
                self.clock.finish()
        self.steps.flush()

    def close(self) -> None:
        """End the telemetry, remove the ring; the record stays."""
        if os.getpid() != self.pid:
            return
        if self.current is not None:
            self.end("left early")  # somebody still holds the iterator
        self.flush()
        self.steps.drain.remove()
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


class Pass:
    """One pass over the loader: hands its batches on, and stamps when."""

    def __init__(self, recorder: Recorder, iterator: Any, iter_ns: int, beat: Callable):
        """`iter_ns` is what iter(loader) took; `beat(now)` is called now and then."""
        self.recorder, self.fetch, self.beat = recorder, iterator.__next__, beat
        self.lead_ns = iter_ns  # counts as waiting for the first batch: workers were started
        self.beat_at = 0
        self.stamps: tuple[int, int] | None = None  # asked, ready; None while there is no body
        self.samples, self.mark, self.batches = 0, None, 0
        self.number = recorder.start()

    def __iter__(self) -> Pass:
        return self

    def __next__(self) -> Any:
        now, recorder = now_ns(), self.recorder
        recording = recorder.current == self.number
        if recording and self.stamps is not None:
            now = self._body_over(now)
        try:
            batch = self.fetch()
        except BaseException as error:
            if recording:
                self._over(error)
            raise
        if recording:
            try:
                ready = now_ns()
                if recorder.count is None:
                    recorder.first_batch(batch)
                self.samples = recorder.count(batch)
                self.stamps, self.lead_ns = (now - self.lead_ns, ready), 0
                self.batches += 1
                if recorder.clock is not None:
                    self.mark = recorder.clock.mark()
            except Exception as error:
                self._give_up(error)
        return batch

    def _body_over(self, now: int) -> int:
        """Record the body that has just ended; return when the next batch is asked for."""
        try:
            asked, ready = self.stamps
            self.recorder.step((asked, ready, ready, now), self.samples, self.mark)
            if now < self.beat_at:
                return now
            self.beat_at = now + BEAT_NS
            self.beat(now)
        except Exception as error:
            self._give_up(error)
        return now_ns()  # what the beat took is neither waiting nor body

    def _over(self, error: BaseException) -> None:
        with contextlib.suppress(Exception):
            if isinstance(error, StopIteration):
                self.recorder.end("exhausted")
            else:
                self.recorder.end("failed", error)
            self.beat(None)

    def _give_up(self, error: Exception) -> None:
        """Stop recording; the loop goes on."""
        self.recorder.current = None
        print(f"labkit.watch stops recording: {type(error).__name__}: {error}", file=sys.stderr)

    def __del__(self) -> None:
        if self.recorder.current == self.number:  # a break, a return or an exception in the body
            with contextlib.suppress(Exception):
                self.recorder.end("left early")
                self.beat(None)


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
