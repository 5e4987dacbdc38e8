"""A workbench that keeps its points in memory and times them with a single call."""

from types import SimpleNamespace

from labkit.bench.workbench import Workbench, job_of
from labkit.experiments import EXPERIMENTS


class Kept(Workbench):
    """A bench whose `events` are what it would write to a log."""

    def __init__(self, device):
        log = SimpleNamespace(write=lambda event, **about: self.events.append((event, about)))
        super().__init__(device, log, lambda *_: None)
        self.events, self.longest_s, self.timing = [], 0.0, False

    def time(self, work, *, of, flops=None, bytes=None, min_time_s=0, launches=None, **case):
        """Write the time of a call."""
        seconds = self.timed(work)
        share = self.launch_share(seconds, launches)
        self.write(of, seconds=[seconds], flops=flops, bytes=bytes, values=share, **case)
        return seconds

    def timed(self, work, calls=1):
        """Time calls in a row, and remember the longest."""
        self.timing = True
        seconds = super().timed(work, calls)
        self.timing = False
        self.longest_s = max(self.longest_s, seconds)
        return seconds


def measured(name, bench, **params):
    """Run an experiment as it is by default, but for `params`."""
    EXPERIMENTS[name].measure(job_of(name, params), bench)
