"""A workbench that keeps its points in memory, and experiments run in this process."""

import tempfile
from pathlib import Path
from types import SimpleNamespace

import torch

from labkit.bench import machine
from labkit.bench.workbench import Workbench, job_of
from labkit.experiments import EXPERIMENTS, Experiment
from labkit.process.events import VERSION, EventLog
from labkit.results.measurements import Measurements


class Kept(Workbench):
    """A bench whose `events` are what it would write to a log; it times with a single call."""

    def __init__(self, device):
        log = SimpleNamespace(write=lambda event, **about: self.events.append((event, about)))
        super().__init__(device, log, lambda *_: None)
        self.events, self.longest_s = [], 0.0

    def time(self, work, *, of, flops=None, bytes=None, min_time_s=0, launches=None, **case):
        seconds = self.timed(work)
        share = self.launch_share(seconds, launches)
        self.write(of, seconds=[seconds], flops=flops, bytes=bytes, values=share, **case)
        return seconds

    def timed(self, work, calls=1):
        seconds = super().timed(work, calls)
        self.longest_s = max(self.longest_s, seconds)
        return seconds


def measured(name, bench, **params):
    """Run an experiment as it is by default, but for `params`."""
    EXPERIMENTS[name].measure(job_of(name, params), bench)


def here(name, **params):
    """Return the Measurements of an experiment that ran in this process, on its CPU."""
    device, folder = torch.device("cpu"), Path(tempfile.mkdtemp())
    spec, log = Experiment(name, params), EventLog(folder)
    log.write("spec", version=VERSION, run="x", labkit="x", **spec.to_spec())
    log.write("machine", **machine.describe(device))
    torch.manual_seed(0)
    measured(name, Workbench(device, log, lambda *_: None), **spec.params)
    log.write("done")
    log.write("end", stop=None, code=0)
    log.close()
    return Measurements(folder)
