"""The recording side of `lk.watch`: stamps in the user's own process, and hardly anything else.

It uses torch only where the process has imported it, synchronises no device and draws no random
number; a failure of its own ends the recording, never the loop. The log is that of any run. What
differs: there is one stamp for "ready" and "copied", since the copy is inside the body; a step is
over when the loop asks for the next batch; `epoch` marks the first step of each pass, and `pass` is
written when a pass is over.
"""

from __future__ import annotations

import contextlib
import math
import os
import sys
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType, ModuleType
from typing import TYPE_CHECKING, Any

from labkit import quotas
from labkit.instruments import loader_knobs, record_head
from labkit.instruments.batch_contents import (
    BatchFacts,
    Growth,
    dtype_of,
    without_torch_modes,
)
from labkit.instruments.before_calls import attributes_of
from labkit.instruments.hangs import (
    IDLE,
    IN_BODY,
    LOOP,
    PROGRESS,
    SINCE,
    STATE,
    USUAL,
    WAITING,
    HangWatch,
    progress_words,
)
from labkit.instruments.loader_hook import Recording
from labkit.instruments.loader_work import LoaderWork
from labkit.instruments.sampler import FLAG, Sampler
from labkit.stamps.events import EventLog, now_ns
from labkit.stamps.interrupts import OwnErrors
from labkit.stamps.step_ring import FEW_SLOTS, Drain, FinishedStep, StepRing
from labkit.watching import run_folders
from labkit.watching.loader_call import call_of, in_trainer

if TYPE_CHECKING:
    import torch

    from labkit.stamps.timeline import AddStep, DeviceClock, Mark

KEEP_STEPS = 100_000  # in the log, 13 MB: a run of days must not fill the disk, nor a Run memory
BEAT_NS = 500_000_000  # two live updates a second: they run in the training process itself
GATHER_NS = 100_000_000  # steps are written ten times a second
MOST_STEPS = FEW_SLOTS // 2  # that wait in the ring to be written


class LoopSteps:
    """The step that goes on; one that is over goes into the ring, which outlives a kill.

    On a GPU it does so when the device is through with it.
    """

    def __init__(self, folder: Path, log: EventLog):
        self.ring = StepRing(folder, FEW_SLOTS)
        self.drain = Drain(folder, log)
        self.busy_with = progress_words(folder, LOOP)
        self.clock: DeviceClock | None = None  # of a GPU; known when the first body has run
        # The step that goes on
        self.next = 0  # its number
        self.asked = 0
        self.ready = 0  # 0 while there is no body whose end could be stamped
        self.batch = (0, 0)  # its samples and bytes
        self.start: Mark | None = None
        self.written_at = 0  # ns
        # Sums over the steps so far, for the live line and for how long a step usually takes
        self.samples = 0
        self.wall_ns = 0
        self.wait_ns = 0

    def ask(self, now: int) -> None:
        """The loop asks for a batch, and waits."""
        self.asked = now
        busy_with = self.busy_with
        busy_with[SINCE] = now
        busy_with[STATE] = WAITING

    def begin(self, ready: int, samples: int = 0, batch_bytes: int = 0) -> None:
        """The batch is here, and the body begins. There is no stamp of a copy: that is inside."""
        self.ready = ready
        self.batch = samples, batch_bytes
        busy_with = self.busy_with
        busy_with[SINCE] = ready
        busy_with[STATE] = IN_BODY
        if self.clock is not None:
            self.start = self.clock.mark()

    def end(self, now: int) -> bool:
        """The body is over, and issued to its device; return whether it is time to write."""
        ready = self.ready
        samples, size = self.batch
        stamps = (self.asked, ready, ready, now)
        step = FinishedStep(self.next, stamps, samples, math.nan, batch_bytes=size)
        self.next += 1
        self.ready = 0
        if self.start is None or self.clock is None:
            self.ring.add(step)
        else:
            self.clock.in_flight.append((step, (self.start, self.clock.mark())))
        return now - self.written_at > GATHER_NS or self.next - self.drain.next >= MOST_STEPS

    def write(self, now: int = 0) -> None:
        """Write the steps that are over, and that the device is through with."""
        self.written_at = now
        if self.clock is not None:
            self.clock.collect()
        for step in self.drain.drain():
            asked, ready, _, done = step.stamps
            self.samples += step.samples
            self.wall_ns += done - asked
            self.wait_ns += ready - asked
        self.busy_with[USUAL] = self.wall_ns // max(1, self.drain.next)

    def idle(self) -> None:
        """The loop is busy with nothing, and what it does is no part of a step."""
        self.ready = 0
        self.start = None
        self.busy_with[STATE] = IDLE

    def finish(self) -> None:
        """Give the device a moment for its last steps, and write them."""
        if self.clock is not None:
            self.clock.finish()
        self.write()


class Recorder:
    """Writes the run of one watched loop into `folder`. Also the process of its `Run`.

    Its steps are in `steps`, what its batches are in `batches`. It looks at the loop's lines,
    variables and loader as well, until the run ends.
    """

    def __init__(self, folder: Path, loader: object, place: tuple[str, int] | None = None):
        """`place` is the file and line of the loop."""
        self.folder = Path(folder)
        self.pid = os.getpid()
        self.log = EventLog(folder)
        self.knobs = loader_knobs.knobs_of(loader)
        self.place = place
        self.dataset: Callable[[], object] = type(None)  # returns that of its last loader, or None
        self.feed_from(loader)
        self.optimizer: torch.optim.Optimizer | None = None  # of its first step, until `_begin`
        code = None
        with OwnErrors():
            code = call_of(loader)
        watched = {
            "loader": type(loader).__name__,
            "trainer": in_trainer(),
            "code": code,  # the call that makes the loader, where it is known
            "place": place and list(place),
        }
        record_head.write_spec(self.log, self.folder.name, self.knobs, watched=watched)
        self.batches = BatchFacts(self.knobs.get("batch_size"))
        self.steps = LoopSteps(self.folder, self.log)
        self.has_begun = False  # whether it is known what the loop's body runs on
        self.closed = False
        # Its passes
        self.epoch = -1
        self.begun = 0  # of them, one that goes on after a pause once more
        self.going = 0  # the number among these of the one that is recorded; 0 while none is
        self.first_step = 0
        self.began_ns = 0  # until it is written
        self.trains = False  # whether an optimizer has made a step within it
        self.how = ""  # how the last one ended: "exhausted", "left early" or "failed"
        # What else is looked at
        self.sampler = Sampler(folder)
        self.growth = Growth()
        self.while_there = self.folder / FLAG
        self.while_there.touch()
        is_main = self.knobs.get("num_workers") == 0  # what prepares the batches is this process
        self.work = LoaderWork(self.log, -1, self.while_there) if is_main else None
        self.starts = 0  # of the loader's workers
        self.ends = contextlib.ExitStack()  # what ends with the run
        # `labkit watch` looks for hangs and samples the instruments from its own process
        self.is_alone = str(self.folder.parent) != run_folders.of_script
        if self.is_alone:
            self.ends.enter_context(HangWatch(lambda: [self.folder]))
        self.telemetry: Path | None = None  # a file that it goes on with
        self.beat_at = now_ns() + BEAT_NS  # when the loop's variables are looked at again
        # Called twice a second, and when a pass is over, which it is told
        self.each_beat: Callable[[bool], object] = lambda is_over: None

    # -- as the process of its Run -----------------------------------------------------------------

    @property
    def is_alive(self) -> bool:
        """Whether more may follow."""
        return not self.closed

    def stop(self) -> None:
        """Raise RuntimeError: the loop is the user's."""
        raise RuntimeError("a watched loop is your own: interrupt it (Ctrl-C, or the stop button).")

    def join(self) -> None:
        """There is no process to wait for."""

    # -- the loop's passes -------------------------------------------------------------------------

    def begin_pass(self, began_ns: int) -> int:
        """Begin a pass; return what `going` is meanwhile.

        An older pass ends here, though its iterator may not be dropped yet.
        """
        if self.going:
            self.write_steps()
        self._write_pass(began_ns)
        self.epoch += 1
        self.began_ns = began_ns
        self.first_step = self.steps.next
        return self.resume(began_ns)

    def resume(self, now: int) -> int:
        """Record the pass that was begun from now on; return what `going` is meanwhile."""
        self.begun += 1
        self.going = self.begun
        self.how = ""
        self.steps.idle()
        self.log.write("epoch", step=self.steps.next, began=now)
        self.sampler.start()
        return self.going

    def has_room(self) -> bool:
        """Return whether there is room for more; where the log or disk is full, end the run."""
        is_full = self.steps.next >= KEEP_STEPS or self.log.error
        if is_full and not self.closed:
            self.log.write("full", steps=self.steps.next)
            self.close()
        return not self.closed

    def end_pass(self, how: str, error: BaseException | None = None) -> None:
        """End the pass that goes on, and write how; `error` is that of one which "failed"."""
        with OwnErrors():  # a device that was lost
            self.write_steps()
        if how == "exhausted":
            self.log.write("done")
        self.drop_pass()
        self.how = how
        self.sampler.in_use = False
        self._write_pass(now_ns())
        self._write_end(error)

    def drop_pass(self) -> None:
        """Record no more of the pass that goes on."""
        self.going = 0
        self.steps.idle()

    def _write_pass(self, ended_ns: int) -> None:
        """Write when the pass that is over began and ended; nothing where that is known."""
        if self.began_ns:
            self.log.write("pass", began=self.began_ns, ended=ended_ns, trains=self.trains)
        self.began_ns = 0
        self.trains = False

    def _write_end(self, error: BaseException | None) -> None:
        """Write how the loop ended; an interrupt is a stop, not a failure."""
        stop = None if error is not None or self.how == "exhausted" else self.how
        if isinstance(error, KeyboardInterrupt):
            stop = "interrupted"
        elif error is not None:
            self.log.write("error", kind=type(error).__name__, message=str(error)[:2_000])
        self.log.write("end", stop=stop)

    # -- what the loop trains ----------------------------------------------------------------------

    def feed_from(self, loader: object) -> None:
        """Note whose items it has now."""
        with contextlib.suppress(TypeError):  # a list
            self.dataset = weakref.ref(
                attributes_of(loader_knobs.torch_loader(loader)).get("dataset")
            )

    def trained_by(self, optimizer: torch.optim.Optimizer) -> None:
        """Note that an optimizer has made a step."""
        if not self.trains:
            self.trains = True
            self.log.write("trains")  # `labkit tune` waits for it
        if not self.has_begun:
            self.optimizer = self.optimizer or optimizer

    def write_steps(self, now: int = 0) -> None:
        """Write the steps that have gathered."""
        if self.steps.next and not self.has_begun:
            with without_torch_modes():
                self._begin()
        self.steps.write(now)

    def _begin(self) -> None:
        """Say what this is: known only when the first body has run, and used the device."""
        weights: list[Any] = []
        dtype = None
        with OwnErrors():
            groups = attributes_of(self.optimizer)["param_groups"]
            weights = [each for group in groups for each in group["params"]]
            dtype = dtype_of(weights)
        self.optimizer = None  # it is the script's
        dynamo: Any = sys.modules.get("torch._dynamo.utils")
        machine, self.steps.clock = machine_and_clock(self.steps.ring.add, weights)
        self.has_begun = True
        self.log.write("machine", **machine)
        self.log.write(
            "job",
            pipeline=self.knobs,
            not_applied={},
            weights_dtype=dtype,
            batch_dtype=self.batches.dtype,
            unit=self.batches.unit,
            batch_on_gpu=self.batches.on_gpu,
            is_compiled=bool(dynamo and dynamo.counters.get("frames")),
        )
        self.log.write("begin", warmup=loader_knobs.warmup_steps(self.knobs))

    # -- what else is looked at --------------------------------------------------------------------

    def next_recording(self) -> Recording | None:
        """Return how the processes that begin now to prepare batches record, if they can."""
        if run_folders.of_script is not None and not run_folders.reach_children():
            return None  # a worker that is spawned would not find us
        self.starts += 1
        return Recording(self.folder, self.work, self.while_there, self.starts)

    def look(self, frame: FrameType, now: int) -> None:
        """Look what grows among the variables of the loop; `frame` runs it.

        Beside one that takes longer, the instruments are sampled.
        """
        self.growth.look(frame, self.sampler.places.loop)
        self.beat_at = now + BEAT_NS
        if self.is_alone and self.telemetry is None and self.pid == os.getpid():
            self.telemetry = run_folders.telemetry_beside(self.folder)

    # -- the end -----------------------------------------------------------------------------------

    def flush(self) -> None:
        """Write all that is known by now."""
        with OwnErrors():  # a device that was lost
            self.write_steps()
            self.steps.finish()
        self.sampler.flush()
        if self.work is not None:
            self.work.flush()
        if self.growth.least:  # what had grown may be empty by now
            self.log.write("growth", found=self.growth.found)
        self.batches.write_padding(self.log)

    def close(self, error: BaseException | None = None) -> None:
        """Let go of the log; the record stays. `error` is what ended the loop, where one did."""
        if os.getpid() != self.pid or self.closed:
            return
        if self.began_ns:  # somebody still holds the iterator
            self.end_pass("left early")
        if error is not None and self.how != "exhausted":
            self._write_end(error)
        self.ends.close()
        self.sampler.stop()
        self.flush()
        self.steps.drain.remove()
        for left in (self.while_there, self.telemetry, *self.folder.glob(f"{PROGRESS}-*")):
            if left is not None:
                left.unlink(missing_ok=True)
        self.sampler.log.close()
        self.log.close()
        self.closed = True


def machine_and_clock(
    write: AddStep, weights: Sequence[Any]
) -> tuple[dict[str, Any], DeviceClock | None]:
    """Describe the machine, without torch as far as Python knows it, and return a GPU's clock.

    `weights` are those that are trained, where they are known.
    """
    if not (torch := sys.modules.get("torch")):
        return quotas.plain_machine(), None
    from labkit.instruments import machine
    from labkit.stamps.timeline import DeviceClock

    device = device_in_use(torch, weights)
    clock = DeviceClock(device, write) if device.type == "cuda" else None
    return machine.describe(device), clock


def device_in_use(torch: ModuleType, weights: Sequence[Any] = ()) -> torch.device:
    """Return the card with most of this process's tensors; without one MPS or the CPU.

    It starts no CUDA. Where all weights are plain parameters on the CPU, it is that: shards and
    copies that an optimizer has offloaded rest there too, while the model computes on a card.
    """
    if weights and all(type(each) is torch.nn.Parameter and each.is_cpu for each in weights):
        return torch.device("cpu")
    cards = range(torch.cuda.device_count() if torch.cuda.is_initialized() else 0)
    card = max(cards, key=torch.cuda.memory_allocated, default=0)
    if cards and torch.cuda.memory_allocated(card):
        return torch.device("cuda", card)
    on_mps = torch.backends.mps.is_available() and torch.mps.current_allocated_memory()
    return torch.device("mps" if on_mps else "cpu")
