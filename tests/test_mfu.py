"""MFU and MBU: the FLOPs and bytes of a step, counted, and the peak that they are held against."""

import time

import pytest
import torch

import labkit as lk
from labkit.bench import flops
from labkit.bench.loop import Trainer
from labkit.bench.model_size import plain_job
from labkit.process.events import EventLog
from labkit.results.record import Tail

CPU = torch.device("cpu")


def work_of(folder, trainer):
    """Return what `write_work` writes of a trainer."""
    log = EventLog(folder)
    flops.write_work(trainer, log)
    log.close()
    (event,) = Tail(folder / "events.jsonl").read()
    return event


def by_hand(job):
    """Return the FLOPs of a step, 2 a multiply-add: forward, and twice that backward.

    The first layer's input needs no gradient.
    """
    width, depth, px, classes = job.width, job.depth, job.image_px, 10
    if job.model == "mlp":
        first, rest = 3 * px**2 * width, (depth - 1) * width**2 + width * classes
    elif job.model == "cnn":
        out = (px // 2) ** 2  # pixels behind the stem
        first, rest = 27 * width * out, depth * 9 * width**2 * out + width * classes
    else:
        tokens = (px // 8) ** 2
        first = tokens * 3 * 8**2 * width
        layer = 12 * width**2 * tokens + 2 * tokens**2 * width  # weights; scores and their sums
        rest = depth * layer + width * classes
    return 2 * job.batch_size * (2 * first + 3 * rest)


@pytest.mark.parametrize("model", ["mlp", "cnn", "transformer"])
@pytest.mark.parametrize("knobs", [{}, {"batch_size": 5, "width": 32, "depth": 3, "image_px": 32}])
def test_the_flops_of_the_courses_models_are_those_of_the_formula(model, knobs, tmp_path):
    job = plain_job(CPU, model=model, **knobs)
    work = work_of(tmp_path, Trainer(job, CPU))
    assert work["flops"] == pytest.approx(by_hand(job), rel=0.01)
    assert work["samples"] == job.batch_size and work["precision"] == "fp32"


def test_the_bytes_of_an_mlp_are_those_of_the_formula(tmp_path):
    job = plain_job(CPU, model="mlp", width=64, depth=2, accumulation_steps=4)
    trainer = Trainer(job, CPU)
    work = work_of(tmp_path, trainer)
    weights = 4 * sum(p.numel() for p in trainer.model.parameters())
    numbers = 3 * job.image_px**2 + 2 * 64 + 10  # image, hidden layers, the loss's log-softmax
    kept = job.batch_size * (4 * numbers + 8) + 4  # labels; the number of them, for the mean
    assert work["bytes"] == pytest.approx(3 * weights + 7 * weights / 4 + 2 * kept, rel=0.01)


@pytest.mark.slow
def test_a_large_product_comes_close_to_the_measured_roof_and_none_exceeds_it():
    """In the time that the loop's thread had a core: others may be on this machine."""
    measured = lk.measure("roofline", formats=["fp32"], sizes=[256, 512], mib=64, threads=1)
    assert measured.outcome == "finished", measured.error
    threads, reached = torch.get_num_threads(), {}
    torch.set_num_threads(1)
    for n in (256, 1024, 2048):
        model = torch.nn.Linear(n, n, bias=False)
        watched = lk.watch([torch.randn(n, n)] * max(8, 2**30 // n**3), live=False, model=model)
        cpu, wall = time.thread_time(), time.perf_counter()
        for batch in watched:
            model.weight.grad = None
            model(batch).backward(batch)
        mine = (time.thread_time() - cpu) / (time.perf_counter() - wall)
        run = watched.run
        assert run.event("work")["flops"] == 2 * 2 * n**3 and run.machine.threads == 1
        assert run.mfu_against(lk.roofline(measured)) == pytest.approx(run.mfu, rel=0.1)
        reached[n] = run.mfu / mine
        watched.close()
    torch.set_num_threads(threads)
    assert "measured here (roofline, 1 thread)" in str(run.peak)
    assert max(reached.values()) <= 1 and reached[2048] > 0.8, reached
