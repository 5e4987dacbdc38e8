"""A rank's steps on a stand-in GPU: its communication is stamped in the queue, by kept events."""

import numpy as np
import pytest
import torch

from labkit.bench.ddp import Communication, rank_timeline
from labkit.bench.loop import Trainer, train
from labkit.bench.model_size import noise_batch, plain_job
from labkit.process.events import VERSION, EventLog
from labkit.results.ranks import RankRun

DEVICE = torch.device("cuda", 0)
STEPS, EXCHANGE_US = 40, 3000.0


class Exchanging(Trainer):
    """A trainer whose gradients are sent, as DDP would send them: behind the backward pass."""

    def compute(self, images, labels, update):
        loss = super().compute(images, labels, update)
        self.comm.started()
        self.gpu.enqueue("all_reduce", 0, EXCHANGE_US)
        self.comm.ended()
        return loss


@pytest.fixture
def rank(cards, tmp_path):
    """The stand-in, the timeline and the run of one rank."""
    gpu, log = cards("H200", numbers=False), EventLog(tmp_path)
    job = plain_job(DEVICE, model="mlp", width=2048, depth=2)
    vars(job).update(steps=STEPS, seconds=None)
    trainer = Exchanging(job, DEVICE)
    trainer.gpu, trainer.comm = gpu, Communication()
    log.write("spec", version=VERSION, run="rank0", pipeline={})
    timeline = rank_timeline(log, tmp_path, DEVICE, trainer.comm)
    log.write("begin", warmup=3)
    train(trainer, gpu.loader(1.0, noise_batch(job)), timeline, job)
    log.write("done")
    return gpu, timeline, RankRun(tmp_path, recorded=True)


def test_an_exchange_is_stamped_when_it_runs_and_not_when_it_is_issued(rank):
    gpu, _, run = rank
    truth = np.array([(k.start, k.end) for k in gpu.kernels if k.name == "all_reduce"])
    assert run.exchange_ns.shape == truth.shape
    assert np.abs(run.exchange_ns - truth).max() < 2_000  # ns; an event's own resolution is 500
    issued = run.exchange_ns[:, 1] / 1e9 - run.steps_since(0)[0]["t"][0] / 1e9 - run.issued
    assert (issued > 0).all()  # the host had gone on long before


def test_events_of_steps_that_were_written_are_used_again(rank):
    _, timeline, run = rank
    assert run.steps == STEPS
    assert len(timeline.events.idle) < STEPS  # each step takes six
