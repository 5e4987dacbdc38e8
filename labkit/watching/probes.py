"""What looks at a watched loop beside its steps: at its lines, its variables, its loader."""

from __future__ import annotations

import contextlib
from pathlib import Path
from types import FrameType

from labkit.instruments.growth import Growth
from labkit.instruments.loader_hook import Recording, in_workers
from labkit.instruments.loader_progress import PROGRESS, progress_words
from labkit.instruments.loader_work import STARTS, LoaderWork
from labkit.instruments.sampler import FLAG, Sampler
from labkit.instruments.telemetry_process import TELEMETRY_AFTER_NS, telemetry_beside
from labkit.process.thinning import Thinning
from labkit.stamps.events import EventLog, now_ns
from labkit.watching import run_folders
from labkit.watching.switches import switches_on


class Probes:
    """Finds facts about a loop, and writes them into its log; ends with the run."""

    def __init__(self, folder: Path, log: EventLog, workers: int | None):
        """`workers` is how many prepare the batches; None where that is not known."""
        self.folder = folder
        self.log = log
        self.sampler = Sampler(folder)
        self.growth = Growth()
        self.has_grown = False  # even if what grew has been emptied since
        self.switches: set[str] | None = None  # that were on at each look
        self.while_there = folder / FLAG
        self.while_there.touch()
        self.words = progress_words(folder, "loop")  # what the loop is busy with
        self.work: LoaderWork | None = None  # of this process, where the loader has no workers
        if workers == 0:
            self.work = LoaderWork(log, -1, 1, self.while_there)
        self.starts = Thinning(STARTS)  # of the loader's workers: those that record themselves
        self.telemetry: Path | None = None  # a file that it goes on with
        self.telemetry_due = now_ns() + TELEMETRY_AFTER_NS

    def next_recording(self) -> Recording | None:
        """Return how the processes that begin now to prepare batches record, if they can."""
        if run_folders.of_script is not None and not run_folders.reach_children():
            return None  # a worker that is spawned would not find us
        start = self.starts.met if self.starts.keeps() else None
        return Recording(self.folder, self.work, self.while_there, start)

    def recorded(self, loader: object) -> contextlib.AbstractContextManager[None]:
        """Let the processes that prepare the batches, begun within the block, record themselves."""
        recording = self.next_recording()
        return contextlib.nullcontext() if recording is None else in_workers(loader, recording)

    def look(self, frame: FrameType, step: int) -> None:
        """Look which switches are on, and what grows among the variables of the loop at a step.

        `frame` runs the loop.
        """
        self.growth.look(frame, self.sampler.places.loop, step)
        self.has_grown = self.has_grown or bool(self.growth.found)
        on = switches_on()
        self.switches = on if self.switches is None else self.switches & on

    def start_telemetry(self) -> None:
        """Sample the instruments beside the loop, unless that is done already.

        `labkit watch` does so from its own process.
        """
        if self.telemetry is None and str(self.folder.parent) != run_folders.of_script:
            self.telemetry = telemetry_beside(self.folder)

    def flush(self) -> None:
        """Write what has been found by now."""
        self.sampler.flush()
        if self.work is not None:
            self.work.flush()
        if self.sampler.missing and not self.sampler.taken:
            self.log.write("no_lines", why=self.sampler.missing)
        if self.switches:
            self.log.write("switches", on=sorted(self.switches))
        if self.has_grown:
            self.log.write("growth", found=list(self.growth.found.values()))

    def close(self) -> None:
        """End what still looks, in the loader's workers as well."""
        if self.work is not None:
            self.work.close()
        self.while_there.unlink(missing_ok=True)
        for left in self.folder.glob(f"{PROGRESS}-*"):
            left.unlink(missing_ok=True)
        if self.telemetry is not None:
            self.telemetry.unlink(missing_ok=True)
        self.sampler.log.close()
