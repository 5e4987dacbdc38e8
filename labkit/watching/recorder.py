"""The recording side of `lk.watch`: stamps in the user's own process, and hardly anything else.

It uses torch only where the process has imported it, synchronises no device and draws no random
number; a failure of its own ends the recording, never the loop. The log is that of any run. What
differs: there is one stamp for "ready" and "copied", since the copy is inside the body; a step is
over when the loop asks for the next batch; `epoch` marks the first step of each pass, and `pass` is
written when a pass is over.
"""

from __future__ import annotations

import os
import weakref
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, cast

from labkit.instruments import loader_knobs, record_head
from labkit.instruments.batch_contents import unseen
from labkit.instruments.before_calls import held
from labkit.instruments.messages import say
from labkit.stamps.events import EventLog, now_ns
from labkit.stamps.interrupts import OwnErrors
from labkit.watching import device_in_use
from labkit.watching.batches import BatchFacts
from labkit.watching.loader_call import call_of, has_compiled, may_fuse, trainer_frame
from labkit.watching.loop_steps import LoopSteps
from labkit.watching.passes import Beat, Pass, WatchedIterator
from labkit.watching.probes import Probes
from labkit.watching.trained import Trained

if TYPE_CHECKING:
    import torch

KEEP_STEPS = 100_000  # in the log, 13 MB: a run of days must not fill the disk, nor a Run memory
KEEP_PASSES = 20_000  # 6 MB without their steps: a pass may be of one batch
LEAST_WARMUP = 3  # steps that the statistics leave out
MOST_GATHERED = 8  # counts of batches before an update, the usual ones first


class Recorder:
    """Writes the run of one watched loop into `folder`. Also the process of its `Run`.

    Itself it knows the loop's passes. Its steps are in `steps`, what its batches are in `batches`,
    what it trains in `trained`; `probes` look at the rest.
    """

    def __init__(
        self,
        folder: Path,
        loader: object,
        model: object = None,
        place: tuple[str, int] | None = None,
    ):
        """`model`, where it is known, is what the loop trains: its first call is counted.

        `place` is the file and line of the loop.
        """
        self.folder = Path(folder)
        self.pid = os.getpid()
        self.log = EventLog(folder)
        self.knobs = loader_knobs.knobs_of(loader)
        self.length: int | None = None  # batches of a pass, once one is over
        self.kind = ""  # what the loop's body runs on, "cpu" or "gpu", once the first body has
        self.epoch = -1
        self.first_step = 0
        self.began_ns = 0  # the pass that goes on
        self.updates = 0  # steps of any optimizer within it
        self.gathered: Counter[int] = Counter()  # updates within it, by the batches before each
        self.updated_at = 0  # batches handed on by the last update
        self.how = ""  # how the last pass ended: "exhausted", "left early" or "failed"
        self._current: weakref.ref[Pass] | None = None
        self.closed = False
        self.batches = BatchFacts(self.knobs.get("batch_size"))
        self.trained = Trained()
        self.trained.model = model
        code = None  # of the call that makes the loader
        with OwnErrors():
            code = call_of(loader, model)
        watched = {
            "loader": type(loader).__name__,
            "trainer": trainer_frame() is not None,  # so that its arguments set the loader
            "code": code,
            "place": place and list(place),
        }
        record_head.write_spec(self.log, self.folder.name, self.knobs, watched=watched)
        self.probes = Probes(self.folder, self.log, self.knobs.get("num_workers"))
        self.steps = LoopSteps(self.log, self.probes.words)
        self.begun = 0  # passes, one that goes on after a pause once more

    def trained_by(self, optimizer: torch.optim.Optimizer) -> None:
        """Note that an optimizer has made a step; at first, where and what its weights are."""
        self.updates += 1
        current = self.current
        if current is not None and current.handed > self.updated_at:  # once for several optimizers
            self.gathered[current.handed - self.updated_at] += 1
            self.updated_at = current.handed
        if not self.kind and self.trained.device is None:
            with OwnErrors(), unseen():
                groups = held(optimizer)["param_groups"]
                self.trained.note([each for group in groups for each in group["params"]])
                self.trained.may_fuse = may_fuse(optimizer)

    def alive(self) -> bool:
        """Whether more may follow."""
        return not self.closed

    def stop(self) -> None:
        """Raise RuntimeError: the loop is the user's."""
        raise RuntimeError("a watched loop is your own: interrupt it (Ctrl-C, or the stop button).")

    def join(self) -> None:
        """There is no process to wait for."""

    def iterate(self, loader: object, beat: Beat) -> Iterator[object]:
        """Return what hands on the batches of an iterable."""
        if not self.has_room():
            return iter(cast("Iterable[object]", loader))
        asked = now_ns()
        try:
            with self.probes.recorded(loader):
                iterator = iter(cast("Iterable[object]", loader))  # draws a seed, starts workers
        except BaseException as error:
            with OwnErrors():
                self.begun += 1  # a pass that has ended at once
                self.fail(error)
            raise
        try:
            return WatchedIterator(Pass(self, now_ns() - asked, beat), iterator)
        except Exception as error:
            say(f"not recording: {type(error).__name__}: {error}")
            return iterator

    def begin_pass(self, current: Pass, began_ns: int) -> None:
        """Begin a pass; any older one ends here, though its iterator may not be dropped yet."""
        older = self.current
        if older is not None:
            older.stop()
            self.write_pass(began_ns)
        self._current = weakref.ref(current)  # its end is seen by its being dropped
        self.begin_epoch(began_ns)

    def begin_epoch(self, began_ns: int, counts: bool = True) -> None:
        """Write that the steps which follow are of another pass, and sample their lines.

        It is no new one where it does not count: an old one goes on after a pause.
        """
        self.epoch += counts
        if counts:
            self.began_ns = began_ns
        self.how = ""
        self.steps.tally.end = None
        self.first_step = self.steps.next
        self.begun += 1
        self.log.write("epoch", n=self.epoch, step=self.steps.next, began=began_ns)
        self.probes.sampler.start()

    @property
    def current(self) -> Pass | None:
        """The pass that is being recorded, while it goes on."""
        found = self._current and self._current()
        return found if found is not None and found.on else None

    def beat(self, now: int | None) -> None:
        """Look around twice a second; None says that a pass is over."""
        if now is not None and now > self.probes.telemetry_due and self.pid == os.getpid():
            self.probes.start_telemetry()

    @property
    def is_full(self) -> bool:
        """Whether the log has all that it may hold."""
        return self.steps.next >= KEEP_STEPS or self.begun > KEEP_PASSES

    def has_room(self) -> bool:
        """Return whether there is room for more; where the log is full, this ends the run."""
        if self.is_full and not self.closed:
            self.log.write("full", steps=self.steps.next)
            self.close()
        return not self.closed

    def hand_over(self) -> None:
        """Record the steps that have gathered."""
        steps = self.steps
        if steps.gathered and not self.kind:
            with unseen():
                self._begin()
        steps.write()

    def _begin(self) -> None:
        """Say what this is: known only when the first body has run, and used the device."""
        trained = self.trained
        if trained.model is not None:
            with OwnErrors():
                trained.note(list(trained.model.parameters()))
        machine, self.steps.clock = device_in_use.machine_and_clock(self.steps.add, trained.device)
        self.kind = machine["kind"]
        self.log.write("machine", **machine)
        self.log.write(
            "job",
            pipeline=self.knobs,
            not_applied={},
            weights_dtype=trained.dtype,
            batch_dtype=self.batches.dtype,
            unit=self.batches.unit,
            batch_on_gpu=self.batches.on_gpu,
            may_fuse=trained.may_fuse,
            batch_shape=self.batches.shape,
            is_compiled=has_compiled(),
        )
        self.log.write("begin", warmup=max(LEAST_WARMUP, loader_knobs.in_flight(self.knobs)))

    def end_pass(self, how: str, error: BaseException | None = None) -> None:
        """Write how a pass ended; `error` is that of one which "failed"."""
        self.how = how
        self.probes.sampler.in_use = False
        self.write_pass(now_ns())
        if how == "failed" and error is not None:
            self.fail(error)
        elif how == "exhausted":
            self.log.write("done")
            self.log.write("end", stop=None, code=0)
        else:
            self.log.write("end", stop=how, code=None)

    def write_pass(self, ended_ns: int, trains: bool = False) -> None:
        """Write when the pass that is over began and ended; nothing where that is known.

        `trains` where it is known that it does, whatever was seen of an optimizer.
        """
        trains = trains or self.updates > 0
        if self.began_ns:
            self.log.write(
                "pass",
                n=self.epoch,
                began=self.began_ns,
                ended=ended_ns,
                trains=trains,
                gathered=self.gathered.most_common(MOST_GATHERED),
            )
        self.began_ns = 0
        self.updates = 0
        self.gathered.clear()
        self.updated_at = 0

    def fail(self, error: BaseException) -> None:
        """Write the exception that ended the loop; an interrupt is a stop, not a failure."""
        if isinstance(error, KeyboardInterrupt):
            self.log.write("end", stop="interrupted", code=None)
        else:
            self.log.write("error", kind=type(error).__name__, message=str(error)[:2_000])
            self.log.write("end", stop=None, code=1)

    def flush(self) -> None:
        """Write what has gathered, and give the device a moment for its last steps."""
        with OwnErrors():  # a device that was lost
            self.hand_over()
            if self.steps.clock is not None:
                self.steps.clock.finish()
        self.steps.write_lines()
        self.probes.flush()
        self.batches.write_padding(self.log)

    def close(self, error: BaseException | None = None) -> None:
        """Let go of the log; the record stays. `error` is what ended the loop, where one did."""
        if os.getpid() != self.pid or self.closed:
            return
        current = self.current
        if current is not None:  # somebody still holds the iterator
            current.stop()
        if self.began_ns:
            self.end_pass("left early")
        if error is not None and self.how != "exhausted":
            self.fail(error)
        self.probes.sampler.stop()
        self.flush()
        self.probes.close()
        self.log.close()
        self.closed = True
