"""The fault set's GPU half, trained and diagnosed on stand-in cards: is each fault what it says?

On the smallest and the largest card that the set is made for: what holds on both hangs on no size.
The launch lint has all faults, all severities and all cards, but neither the loop nor the x-ray.
"""

from types import SimpleNamespace

import pytest
from standin_gpu import LAUNCH_US
from standin_run import DECODE_MS, run_on

from labkit import Pipeline
from labkit.course import faultset, slow_faults

SEVERITY = 2  # the mildest that is scored
STEPS = 20  # as many as an x-ray needs
READ_BYTES_PER_US = 5e3  # of the array of images, by one process; here 12e3 for a batch of 3 MB
# The host's own work, which a clock of its own does not see: 3/4 of what it took here
LOOP_US, BREAK_US, DICT_US = 20, 18, 0.4  # a thousand turns, a graph break, a dictionary
NAMES = [
    "no workers", "object building", "pageable copies", "tiny batches", "sync every step",
    "launch storm", "Python-heavy model", "graph breaks", "elementwise chain", "unfused optimizer",
    "evaluation stalls", "FP32 where BF16 would do", "objects and a Python loop",
    "a chain and checkpoints", "healthy CNN", "healthy transformer", "healthy MLP",
    "healthy with a worker",
]  # fmt: skip


@pytest.fixture(params=["T4", "H200"])
def here(request, cards, monkeypatch, tmp_path):
    """A card, and the base that the fault set finds on it."""
    gpu = cards(request.param, numbers=False)
    monkeypatch.setattr(faultset, "machine", lambda: SimpleNamespace(kind="gpu"))
    monkeypatch.setattr(faultset, "_finished", lambda base: run_on(gpu, Pipeline(**base)))
    monkeypatch.setitem(slow_faults.PLANTS, "python_heavy", ("trainer", spending(gpu, LOOP_US)))
    monkeypatch.setitem(slow_faults.PLANTS, "graph_breaks", ("trainer", spending(gpu, BREAK_US)))
    monkeypatch.chdir(tmp_path)  # checkpoints are written
    return SimpleNamespace(gpu=gpu, card=request.param, base=faultset.base_here().base)


def spending(gpu, us):
    """A fault that takes the host so long in every forward, for one of its unit."""

    def plant(trainer, amount):
        def spend(out):
            gpu.clock.spend(us * amount)
            return out

        slow_faults.on_stem(trainer, spend)

    return plant


def prep_ms(case):
    """What a batch costs one process, with what is planted in its items."""
    knobs = case.pipeline
    item_us = 0.5 + 3 * knobs.image_px**2 / READ_BYTES_PER_US
    if knobs.dataset == "jpeg":
        item_us = 1e3 * DECODE_MS * (1 + 0.2 * knobs.augment)
    if case.fault.plant == "object_building":
        item_us += DICT_US * case.amount
    return knobs.batch_size * ((knobs.io_ms or 0) + item_us / 1e3)


def test_the_base_is_deep_enough_for_a_step_of_many_times_its_launches(here):
    here.gpu.launches.clear()
    run = run_on(here.gpu, Pipeline(**here.base).but(xray=False))
    launches_ms = here.gpu.launches.total() * LAUNCH_US / 1e3 / run.steps
    assert run.compute_ms > 10 * launches_ms
    assert 0.5 < run.compute_ms / faultset.STEP_MS < 2


def test_what_is_planted_is_what_is_named(here):
    named = {}
    for name in NAMES:
        fault = faultset.named(name).on("gpu")
        case = faultset.Case(fault, SEVERITY, 0, here.base)
        pipeline = case.pipeline.but(steps=STEPS, seconds=None)
        run = run_on(here.gpu, pipeline, prep_ms=prep_ms(case), fault=case.planted)
        named[name] = run.diagnose().bottleneck
        here.gpu.kernels.clear()
    assert named == {name: faultset.named(name).expected for name in NAMES}
