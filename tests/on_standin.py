"""Labkit on a stand-in GPU, held against the kernels that its queue really ran.

Run by test_on_standin.py in a process of its own: it keeps the stand-in for good. Steps are those
of the real training loop, on the smallest or the largest card.
"""

import time

import numpy as np
import pytest
import torch
from standin_run import run_on

import labkit as lk
from labkit import Pipeline
from labkit.bench import compiling, devices, model_size
from labkit.bench import resolve_config as resolving
from labkit.bench.first_call import FirstCallHook
from labkit.bench.gradient_exchange import Communication, rank_timeline
from labkit.bench.loop import Trainer, train
from labkit.bench.model_size import noise_batch, plain_job
from labkit.bench.timeline import Step, make_timeline
from labkit.process.events import EventLog
from labkit.process.step_ring import recover
from labkit.results.record import Tail
from labkit.watching import device_clock

DEVICE = torch.device("cuda", 0)
STEPS = 20
FED = Pipeline(xray=False, dataset="array", num_workers=2, steps=STEPS, seconds=None)
STARVED = Pipeline(xray=False, steps=STEPS, seconds=None)
PINNED = {"pin_memory": True, "non_blocking": True}
COPYING = FED.but(image_px=256, batch_size=512, width=8, depth=1)  # longer than it computes
MLP = FED.but(model="mlp", width=256, depth=2)


@pytest.fixture(autouse=True)
def somewhere(tmp_path, tmp_path_factory, monkeypatch):
    monkeypatch.chdir(tmp_path)  # experiments and faults write files
    monkeypatch.setenv("LABKIT_HOME", str(tmp_path_factory.getbasetemp()))


@pytest.mark.parametrize(
    "card, pipeline, fault",
    [
        ("H200", STARVED.but(steps=16), None),
        ("T4", FED, None),
        ("H200", MLP.but(width=64, depth=15, batch_size=4), None),  # bound by launches
        ("H200", COPYING, None),
        ("T4", COPYING.but(**PINNED), None),
        ("H200", MLP, "read_losses@16"),
    ],
)
def test_the_numbers_are_those_of_the_queue(card, pipeline, fault, cards):
    gpu = cards(card)
    run = run_on(gpu, pipeline, fault=fault)
    zero = run.steps_since(0)[0]["t"][0]
    ends = run.stamps[:, 5]
    start, end = (zero + round(ends[i] * 1e9) for i in (run.warmup - 1, -1))
    inside = [k for k in gpu.kernels if start <= k.start and k.end <= end]

    took = {True: 0.0, False: 0.0}  # ms a step, of copies and of kernels
    for kernel in inside:
        took[kernel.is_copy] += (kernel.end - kernel.start) / 1e6 / (run.steps - run.warmup)
    busy = gpu.busy_ns(start, end) / (end - start)
    # gaps between the kernels are in it; what runs between two steps is not
    assert run.utilization >= busy - 0.01
    if pipeline.model != "mlp":
        assert run.utilization == pytest.approx(busy, abs=0.02)
        assert run.compute_ms == pytest.approx(took[False], rel=0.05, abs=0.1)
    is_copying = pipeline.image_px == COPYING.image_px
    if is_copying:
        assert run.copy_ms == pytest.approx(took[True], rel=0.1)
    assert run.mean_ms.sum() == pytest.approx(run.step_ms, abs=0.01 * run.step_ms)
    # what the queue's kernels computed, over what the data sheet allows in that time
    did = sum(kernel.flops for kernel in inside) / (end - start) * 1e9
    assert run.mfu == pytest.approx(did / run.peak.flop_per_s, rel=1e-3) and run.mfu < 1
    assert str(run.peak).endswith(f", data sheet of {'T4' if card == 'T4' else 'H200 SXM'}")
    limit = "transfer" if is_copying else "input"
    assert (run.diagnose().bottleneck == limit) == (is_copying or pipeline.num_workers == 0)


def test_a_fed_pinned_run_is_never_synchronised_and_its_losses_are_read_when_they_are_there(cards):
    gpu = cards("T4")
    run = run_on(gpu, MLP.but(width=32, **PINNED))
    assert gpu.syncs - gpu.syncs_before == 2  # both at the end
    assert np.isfinite(run.loss).all()  # before its copy is through, the host's memory holds NaN


def test_a_run_on_the_second_card_leaves_the_first_alone(cards):
    gpu = cards("T4", "H200")
    run = run_on(gpu, FED, device="cuda:1")
    assert {kernel.card for kernel in gpu.kernels} == {1}
    assert run.machine.name == "NVIDIA H200" and run.utilization > 0.9


def test_ten_minutes_of_a_device_whose_clock_runs_fast_stay_tied_to_the_hosts(cards, tmp_path):
    cards("H200").fast = 20e-6
    timeline = make_timeline(EventLog(tmp_path), tmp_path, DEVICE)
    loss = torch.rand(1, device="cuda")
    for number in range(600):
        time.sleep(1)
        ready = timeline.copying()
        timeline.copied()
        timeline.computing()
        timeline.step(Step(number, ready, ready, ready, 16, loss))
    timeline.finish()
    recover(tmp_path)
    events = Tail(tmp_path / "events.jsonl").read()
    off_us = [(each["copy"][0] - each["t"][1]) / 1e3 for each in events if each["event"] == "step"]
    assert len(off_us) == 600 and max(map(abs, off_us)) < 130
    [drift] = [each["drift_us"] for each in events if each["event"] == "drift"]
    assert abs(drift) < 130


def test_an_exchange_of_ranks_is_stamped_when_it_runs_and_not_when_it_is_issued(cards, tmp_path):
    gpu = cards("H200")
    log = EventLog(tmp_path)
    comm = Communication()
    job = plain_job(DEVICE, model="mlp", width=2048, depth=2)
    vars(job).update(steps=40, seconds=None)
    trainer = Trainer(job, DEVICE)
    compute = trainer.compute

    def exchanging(*args, **more):  # as DDP sends gradients: behind the backward pass
        loss = compute(*args, **more)
        comm.started()
        gpu.enqueue("all_reduce", 0, 3000.0)
        comm.ended()
        comm.end_step()
        return loss

    trainer.compute = exchanging
    timeline = rank_timeline(log, DEVICE, comm)
    train(trainer, gpu.loader(1.0, noise_batch(job)), timeline, job)
    steps = [e for e in Tail(tmp_path / "events.jsonl").read() if e["event"] == "step"]
    exchanged = np.array([step["comm"] for step in steps])  # ns
    truth = np.array([(k.start, k.end) for k in gpu.kernels if k.name == "all_reduce"])
    assert np.abs(exchanged - truth).max() < 2_000  # an event's own resolution is 500
    # the host had gone on long before
    assert (exchanged[:, 1] > [step["t"][3] for step in steps]).all()
    assert len(steps) == 40 > len(timeline.events.idle)  # of six a step: they are used again


@pytest.mark.parametrize("wait_ms", [0, 4])
def test_a_watched_loop_has_the_intervals_of_the_card(wait_ms, cards, monkeypatch):
    monkeypatch.setattr(device_clock, "DRIFT", 0.0)  # there is one clock here
    gpu = cards("H200")
    a = torch.empty(4096, 4096, device=DEVICE)
    truth = []
    watched = lk.watch([torch.empty(4)] * 40, live=False)
    for _ in watched:
        time.sleep(wait_ms / 1e3 / 2)
        first = len(gpu.kernels)
        for _ in range(3):
            a @ a
        truth.append((gpu.kernels[first].start, gpu.kernels[-1].end))
    run = watched.run
    assert run.machine.kind == "gpu"
    took = np.diff(run.busy)[:, 0] * 1e9
    really = np.diff(truth)[:, 0]
    assert took[5:-1].mean() == pytest.approx(really[5:-1].mean(), rel=0.1)


def test_a_loop_that_trains_on_the_cpu_is_not_timed_on_a_card_that_holds_a_tensor(cards):
    cards("H200")
    held = torch.empty(64, 64, device=DEVICE)
    model = torch.nn.Linear(4, 1)
    watched = lk.watch([torch.ones(2, 4)] * 40, model=model, live=False)
    for batch in watched:
        model(batch).sum().backward()
    assert watched.run.machine.kind == "cpu" and held.is_cuda


@pytest.mark.parametrize("item_ms", [1, 10])
def test_headroom_without_workers_counts_what_the_card_did_and_not_what_it_was_given(
    item_ms, cards
):
    gpu = cards("H200")
    a = torch.empty(4096, 4096, device=DEVICE)
    step_ms = gpu.kernel_us(gpu.cards[0], 2 * 4096**3, 0) / 1e3  # between the two

    class Slow(torch.utils.data.Dataset):
        def __len__(self):
            return 2000

        def __getitem__(self, index):
            time.sleep(item_ms / 1e3)
            return torch.empty(4)

    for _ in (room := lk.headroom(torch.utils.data.DataLoader(Slow(), batch_size=1))):
        a @ a
    assert room.factor == pytest.approx(max(item_ms / step_ms, 1), rel=0.03)


@pytest.mark.parametrize(
    "card, kind, precision",
    [
        ("A100", "convolution", "tf32"),
        ("A100", "product", "fp32"),
        ("T4", "convolution", "fp32"),
    ],
)
def test_a_watched_model_has_the_peak_of_the_format_its_operators_run_in(
    card, kind, precision, cards, monkeypatch, tmp_path
):
    cards(card)
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", True)  # PyTorch's default
    layer = torch.nn.Conv2d(3, 64, 3) if kind == "convolution" else torch.nn.Identity()
    model = torch.nn.Sequential(layer, torch.nn.Flatten(), torch.nn.LazyLinear(2))
    model(torch.empty(4, 3, 8, 8))
    model.to(DEVICE)
    first = FirstCallHook(model)
    log = EventLog(tmp_path)
    model(torch.empty(4, 3, 8, 8, device=DEVICE))
    first.write(log, None)
    [event] = Tail(tmp_path / "events.jsonl").read()
    assert event.get("precision") == precision, event


# -- what is sized --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "model, card",
    [("cnn", "T4"), ("cnn", "A100 1g"), ("mlp", "H200"), ("transformer", "T4")],
)
def test_a_default_step_takes_about_ten_milliseconds_and_is_no_matter_of_launches(
    model, card, cards, tmp_path, monkeypatch
):
    monkeypatch.setenv("LABKIT_HOME", str(tmp_path))
    gpu = cards(card)
    job = plain_job(DEVICE, model=model)
    step_ms = model_size.time_step(job, job.depth, DEVICE)
    assert 7 < step_ms < 14, (job.width, job.depth)  # a small card's model is narrower
    trainer = Trainer(job, DEVICE)
    batch = trainer.to_device(*noise_batch(job))
    before = gpu.clock.now()
    launched = len(gpu.kernels)
    trainer.compute(*batch, update=True)
    host_ms = (gpu.clock.now() - before) / 1e6
    assert host_ms < 0.6 * step_ms, len(gpu.kernels) - launched
    assert any(kernel.name.startswith("_foreach") for kernel in gpu.kernels[launched:])


def test_the_default_on_a_card_starves_it_without_a_simulated_delay_and_workers_feed_it(cards):
    gpu = cards("T4")  # an H200 is starved above, its queue takes longer to play
    starved = run_on(gpu, STARVED)
    job = starved.pipeline
    assert (job.image_px, job.io_ms, job.simulated_delay) == (128, 0.0, "")
    assert 7 < starved.compute_ms < 16 and starved.utilization < 0.4
    fed = run_on(gpu, STARVED.but(num_workers=12, steps=40))
    assert fed.utilization > 0.9
    assert resolving.resolve_config(Pipeline().to_dict(), DEVICE)[0].steps * fed.step_ms > 3000
    mlp = resolving.resolve_config(Pipeline(model="mlp").to_dict(), DEVICE)[0]
    assert (mlp.image_px, mlp.io_ms) == (48, 2.5)  # small images starve no card by themselves


def test_a_depth_is_not_taken_at_idle_clocks_nor_kept_of_a_shared_card(
    cards, tmp_path, monkeypatch
):
    monkeypatch.setenv("LABKIT_HOME", str(tmp_path))
    gpu = cards("A100")
    usual = gpu.kernel_us
    begun = gpu.clock.now()
    right = plain_job(DEVICE).depth

    def ramp(*of):  # idle clocks for the first 0.4 s of load
        return usual(*of) * (3 if gpu.clock.now() < begun + 4e8 else 1)

    monkeypatch.setattr(gpu, "kernel_us", ramp)
    monkeypatch.setattr(devices, "busy_with_others", lambda _: 0.5)
    for kept in tmp_path.glob("depths/*"):
        kept.unlink()
    begun = gpu.clock.now()
    assert plain_job(DEVICE).depth == right
    assert [path.name[-11:] for path in tmp_path.glob("depths/*")] == [".shared.txt"]
    monkeypatch.setattr(devices, "busy_with_others", lambda _: 0.0)
    monkeypatch.setattr(model_size, "find_depth", lambda *_: 7)
    assert plain_job(DEVICE).depth == 7  # now that nobody else is on the card
    monkeypatch.setattr(model_size, "find_depth", lambda *_: 8)
    assert plain_job(DEVICE, precision="bf16", batch_size=256).depth == 7  # found once
    monkeypatch.setattr(torch, "__version__", "2.99")
    assert plain_job(DEVICE).depth == 8


def resolved(**knobs):
    return resolving.resolve_config(Pipeline(depth=1, width=8, **knobs).to_dict(), DEVICE)


@pytest.mark.parametrize("mode", ["reduce-overhead", "max-autotune"])
def test_cuda_graphs_and_accumulation_are_refused_with_the_reason(mode, cards, monkeypatch):
    cards("H200")
    monkeypatch.setattr(resolving, "compile_lacks", lambda *_: None)
    job, dropped = resolved(compile=mode, accumulation_steps=4)
    assert job.compile == "default" and "overwrites gradients" in dropped["compile"]
    job, dropped = resolved(compile=mode)
    assert job.compile == mode and not dropped


@pytest.mark.parametrize(
    "missing, says",
    [
        ("compiler", "C compiler"),
        ("volta", "Volta"),
        ("headers", "install python3-dev"),
    ],
)
def test_compiling_for_a_card_needs_a_compiler_with_headers_and_volta(
    missing, says, cards, monkeypatch
):
    cards("T4")
    monkeypatch.delenv("CC", raising=False)
    compiler = None if missing == "compiler" else "/usr/bin/gcc"
    monkeypatch.setattr(compiling.importlib.util, "find_spec", lambda name: name)
    monkeypatch.setattr(compiling.shutil, "which", lambda name: compiler)
    if missing == "headers":
        monkeypatch.setattr(compiling.sysconfig, "get_path", lambda *names: "/nowhere")
    if missing == "volta":
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (6, 1))
    assert says in resolved(compile="default")[1]["compile"]
