"""Labkit on a stand-in GPU, held against the kernels that its queue really ran.

Run by test_on_standin.py in a process of its own: it keeps the stand-in for good. Steps are those
of the real training loop, on the smallest or the largest card.
"""

import time

import numpy as np
import pytest
import torch
from helpers import Waiting
from standin_run import run_on

import labkit as lk
from labkit import Pipeline
from labkit.bench import formats
from labkit.bench.data import noise_batch
from labkit.bench.loop import Trainer
from labkit.bench.resolve_config import resolve_config
from labkit.instruments import machine
from labkit.stamps import timeline

DEVICE = torch.device("cuda", 0)
STARVED = Pipeline(xray=False, steps=20, seconds=None)
FED = STARVED.but(dataset="array", num_workers=2)
PINNED = {"pin_memory": True, "non_blocking": True}
COPYING = FED.but(image_px=256, batch_size=512, width=8, depth=1)  # longer than it computes
MLP = FED.but(model="mlp", width=256, depth=2)


@pytest.fixture(autouse=True)
def home(tmp_path_factory, monkeypatch):
    """What is sized for a card serves all tests that ask for it."""
    monkeypatch.setenv("LABKIT_HOME", str(tmp_path_factory.getbasetemp()))


@pytest.mark.parametrize(
    "card, pipeline",
    [
        ("T4", STARVED),
        ("H200", MLP.but(width=64, depth=15, batch_size=4)),  # bound by launches
        ("H200", COPYING),
        ("T4", COPYING.but(**PINNED)),
    ],
)
def test_the_numbers_are_those_of_the_queue(card, pipeline, cards):
    gpu = cards(card)
    run = run_on(gpu, pipeline)
    zero = run.host_ns[0, 0]
    ends = run.stamps[:, 5]
    start, end = (zero + round(ends[i] * 1e9) for i in (run.warmup - 1, -1))
    inside = [k for k in gpu.kernels if start <= k.start and k.end <= end]

    took_ms = {True: 0.0, False: 0.0}  # of copies and of kernels
    for kernel in inside:
        took_ms[kernel.is_copy] += (kernel.end - kernel.start) / 1e6
    measured = run.steps - run.warmup
    busy = took_ms[False] / (end - start) * 1e6
    # gaps between the kernels are in it; what runs between two steps is not
    assert run.utilization >= busy - 0.01
    if pipeline.model != "mlp":
        assert run.utilization == pytest.approx(busy, abs=0.02)
        assert run.compute_ms == pytest.approx(took_ms[False] / measured, rel=0.05, abs=0.1)
    is_copying = pipeline.image_px == COPYING.image_px
    if is_copying:
        assert run.copy_ms == pytest.approx(took_ms[True] / measured, rel=0.1)
    assert run.mean_ms.sum() == pytest.approx(run.step_ms, abs=0.01 * run.step_ms)
    # what the queue's kernels computed, over what the data sheet allows in that time
    did = sum(kernel.flops for kernel in inside) / (end - start) * 1e9
    assert run.mfu == pytest.approx(did / run.peak.flop_per_s, rel=1e-3) and run.mfu < 1
    limit = "transfer" if is_copying else "input"
    assert (run.diagnose().bottleneck == limit) == (is_copying or pipeline.num_workers == 0)


def test_a_fed_pinned_run_is_never_synchronised_and_its_losses_are_read_when_they_are_there(cards):
    gpu = cards("T4")
    run = run_on(gpu, MLP.but(width=32, **PINNED))
    assert gpu.syncs - gpu.syncs_before == 1  # at the end
    assert np.isfinite(run.loss).all()  # before its copy is through, the host's memory holds NaN


def test_a_watched_loop_has_the_intervals_of_the_card(cards, monkeypatch):
    monkeypatch.setattr(timeline, "DRIFT", 0.0)  # there is one clock here
    gpu = cards("H200")
    a = torch.empty(4096, 4096, device=DEVICE)
    watched = lk.watch([torch.empty(4)] * 40, live=False)
    for number, _ in enumerate(watched):
        time.sleep(0.002 * (number > 20))  # starved in its second half
        for _ in range(3):
            a @ a
    assert watched.run.machine.kind == "gpu"
    spans = np.array([(k.start, k.end) for k in gpu.kernels if k.name == "mm"]).reshape(-1, 3, 2)
    truth = spans[:, 2, 1] - spans[:, 0, 0]
    took = np.diff(watched.run.busy)[:, 0] * 1e9
    assert took[5:-1] == pytest.approx(truth[5:-1], rel=0.1)


def test_a_loop_that_trains_on_the_cpu_is_not_timed_on_a_card_that_holds_a_tensor(cards):
    cards("H200")
    model = torch.nn.Linear(4, 1)
    watched = lk.watch([torch.ones(2, 4)] * 40, live=False)
    for batch in watched:
        model(batch).sum().backward()
        watched._recorder.trained_by(torch.optim.SGD(model.parameters()))  # as its hook tells
    assert watched.run.machine.kind == "cpu"


@pytest.mark.parametrize("item_ms", [1, 10])
def test_headroom_without_workers_counts_what_the_card_did_and_not_what_it_was_given(
    item_ms, cards
):
    gpu = cards("H200")
    a = torch.empty(4096, 4096, device=DEVICE)
    step_ms = gpu.kernel_us(2 * 4096**3, 0) / 1e3  # between the two

    loader = torch.utils.data.DataLoader(Waiting(item_ms / 1e3, 600), batch_size=1)
    for _ in (room := lk.headroom(loader)):
        a @ a
    assert room.factor == pytest.approx(max(item_ms / step_ms, 1), rel=0.03)


@pytest.mark.parametrize(
    "card, precision, formats_of_models",
    [
        ("A100", "fp32", ["tf32", "fp32", "fp32"]),  # PyTorch's own default
        ("A100", "ieee", ["fp32", "fp32", "fp32"]),
        ("A100", "tf32", ["tf32", "tf32", "tf32"]),
        ("T4", "fp32", ["fp32", "fp32", "fp32"]),
    ],
)
def test_fp32_is_pytorchs_default_and_ieee_is_strict(
    card, precision, formats_of_models, cards, monkeypatch
):
    cards(card)
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", True)
    products = torch.get_float32_matmul_precision()
    formats.set_fp32(precision)
    models = ("cnn", "mlp", "transformer")
    try:
        found = [formats.computes_in(precision, model, DEVICE) for model in models]
        assert found == formats_of_models
        assert torch.backends.cudnn.allow_tf32 == (precision != "ieee")
    finally:
        torch.set_float32_matmul_precision(products)


# -- what is sized --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "model, card", [("cnn", "A100 1g"), ("mlp", "H200"), ("transformer", "T4")]
)
def test_a_default_step_takes_about_ten_milliseconds_and_is_no_matter_of_launches(
    model, card, cards
):
    gpu = cards(card)
    job, _ = resolve_config(Pipeline(model=model).to_dict(), machine.describe(DEVICE))
    trainer = Trainer(job, DEVICE)
    batch = trainer.to_device(*noise_batch(job))
    machine.finish(DEVICE)
    before = gpu.now_ns
    launched = len(gpu.kernels)
    trainer.compute(*batch, update=True)
    host_ms = (gpu.now_ns - before) / 1e6
    machine.finish(DEVICE)
    step_ms = (gpu.now_ns - before) / 1e6
    assert 5 < step_ms < 20, (job.width, job.depth)  # a small card's model is narrower
    assert host_ms < 0.6 * step_ms, len(gpu.kernels) - launched
    assert any(kernel.name.startswith("_foreach") for kernel in gpu.kernels[launched:])


def resolved(**knobs):
    return resolve_config(Pipeline(**knobs).to_dict(), machine.describe(DEVICE))


def test_the_default_on_a_card_has_no_simulated_delay_and_workers_feed_it(cards):
    fed = run_on(cards("T4"), STARVED.but(num_workers=12, steps=40))  # without them: see above
    job = fed.pipeline
    assert (job.image_px, job.io_ms, job.simulated_delay) == (128, 0.0, "")
    assert 7 < fed.compute_ms < 16 and fed.utilization > 0.9
    assert resolved()[0].steps * fed.step_ms > 3000
    mlp = resolved(model="mlp")[0]
    assert (mlp.image_px, mlp.io_ms) == (48, 2.5)  # small images starve no card by themselves
