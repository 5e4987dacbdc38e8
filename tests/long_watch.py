"""Records of watched loops that ran for a week, by the real writers on a clock that leaps."""

import contextlib
from types import SimpleNamespace
from unittest.mock import patch

from labkit.bench import loader_work, telemetry
from labkit.bench.loader_work import LoaderWork
from labkit.bench.places import Place
from labkit.process import events
from labkit.process.events import EventLog
from labkit.watching import recorder as recording
from labkit.watching.recorder import Recorder
from labkit.watching.timed_step import TimedStep

MS = 1_000_000
WEEK_NS = 7 * 24 * 3_600 * 1_000 * MS
WORKERS = 8
CPU = {"cpu": 0.5, "own_cpu": 0.4, "cpus": 8, "rss_gib": 1.0, "line_cpu": 0.1, "launch_line": 0.1}
LINE = Place("forward", "", "/home/user/train.py", 12, "main", "model(batch)", None)


class Clock:
    """Stands for `now_ns` wherever a writer asks for the time."""

    def __init__(self):
        self.now = 10**15

    def __call__(self):
        return self.now

    @contextlib.contextmanager
    def ticks(self):
        """Let the writers ask this clock."""
        with contextlib.ExitStack() as patched:
            for module in (events, loader_work, recording):
                patched.enter_context(patch.object(module, "now_ns", self))
            yield


class LongWatch:
    """A loop under watch that has as many steps, passes, batches and samples as it is told."""

    def __init__(self, folder, workers=WORKERS):
        self.clock = Clock()
        self.folder = folder
        self.loader = SimpleNamespace(num_workers=workers, batch_size=4, dataset=range(9))
        with self.clock.ticks():
            self.recorder = Recorder(folder, self.loader, place=("/home/user/train.py", 12))
            self.sampler = self.recorder.probes.sampler
            self.sampler.start = lambda: None
            self.sampler.places.fresh = {0: LINE}
            self.works = [self.work(number) for number in range(workers)]
        self.first_ns = self.clock.now

    def work(self, worker, start=1):
        """What a worker's process has when it starts."""
        made = LoaderWork(EventLog(self.folder), worker, WORKERS, self.folder / "watched", start)
        made.begin_pass(streams=False)
        made.memory = None  # reading that of this large process takes long
        return made

    @property
    def over(self):
        """Whether a week has gone by."""
        return self.clock.now - self.first_ns > WEEK_NS

    def one_pass(self, steps, step_ns=MS, wait_ns=MS // 5, batches=0, pause_ns=MS):
        """Make a pass of the loop, and let each worker prepare so many batches meanwhile."""
        began = self.clock.now
        self.recorder.begin_epoch(began)
        taken = []
        for number in range(steps):
            asked = began + number * step_ns
            taken.append(TimedStep(asked, asked + wait_ns, asked + step_ns, 4, 4096))
        self.recorder.take(taken)
        self.prepare(batches, step_ns * steps / max(1, batches))
        self.clock.now = began + steps * step_ns
        self.recorder.updates += 1
        self.recorder.end_pass("exhausted")
        self.clock.now += pause_ns

    def prepare(self, batches, batch_ns):
        """Let each worker prepare so many batches."""
        for _ in range(batches):
            for work in self.works:
                work.begin(None, [7, 8, 9, 10])
                work.next_item()
                work.begin_collate()
            self.clock.now += int(batch_ns)
            for work in self.works:
                work.end_fetch()

    def sample(self, count, every_ns=20 * MS):
        """Take samples of the loop's lines, as far as the sampler takes them."""
        now = self.clock.now
        for number in range(count):
            if self.sampler.taken < self.sampler.most:
                self.sampler.rows.append((now + number * every_ns, every_ns, 0))
                self.sampler.taken += 1
            if number % 25 == 0:
                self.sampler.flush()

    def instruments(self):
        """Let the telemetry look for a week."""
        log = EventLog(self.folder)
        due_s = 0.0
        while due_s * 1e9 < WEEK_NS:
            self.clock.now = self.first_ns + int(due_s * 1e9)
            log.write("telemetry", **CPU)
            due_s += telemetry.period_s(due_s)
        self.clock.now = self.first_ns

    def close(self):
        """End the loop as a script's end does."""
        for work in self.works:
            work.close()
        self.recorder.close()


def short_steps(watch, part=1.0):
    """Steps of 1 ms in one pass; after some minutes an hour at a time is left out."""
    watch.instruments()
    watch.sample(int(120_000 * part))
    dense = int(300 * part)
    for _ in range(dense):
        watch.one_pass(1_000, batches=12, pause_ns=0)
    watch.recorder.steps.begun = 1
    while not watch.over:
        watch.one_pass(1_000, batches=2, wait_ns=MS * 4 // 5, pause_ns=600 * 1_000 * MS)


def one_batch_passes(watch, part=1.0):
    """2,600 passes a second, each of one batch."""
    watch.sample(int(120_000 * part))
    for _ in range(int(200_000 * part)):
        watch.one_pass(1, step_ns=MS // 4, wait_ns=MS // 5, pause_ns=MS // 8)
    while not watch.over:
        watch.one_pass(1, step_ns=MS // 4, wait_ns=MS // 5, pause_ns=60 * 1_000 * MS)


def many_epochs(watch, part=1.0):
    """200,000 epochs of three seconds."""
    watch.instruments()
    watch.sample(int(120_000 * part))
    for _ in range(int(200_000 * part)):
        watch.one_pass(5, step_ns=600 * MS, wait_ns=100 * MS, pause_ns=20 * MS)


def restarted_workers(watch, part=1.0):
    """Workers that start anew for each epoch, and have many quick batches each time."""
    for _ in range(int(2_000 * part)):
        starts = watch.recorder.probes.starts
        watch.works = []
        if starts.keeps():
            watch.works = [watch.work(worker, starts.met) for worker in range(WORKERS)]
        watch.one_pass(100, step_ns=3_000 * MS, wait_ns=MS, batches=600)
        for work in watch.works:
            work.close()


KINDS = (short_steps, one_batch_passes, many_epochs, restarted_workers)


def record_of(folder, kind, part=1.0):
    """Write the record of a kind of loop, or of a part of it; return what wrote it."""
    watch = LongWatch(folder)
    with watch.clock.ticks():
        kind(watch, part)
        watch.close()
    return watch
