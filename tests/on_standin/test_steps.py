"""What labkit says of a step, against the list of kernels that the stand-in's queue really ran."""

import numpy as np
import pytest
import torch
from standin_run import run_on

import labkit as lk
from labkit import Pipeline
from labkit.bench import machine, model_size, their_loop
from labkit.bench import resolve_config as resolving
from labkit.bench.rank import Communication, rank_timeline
from labkit.bench.loop import Trainer, train
from labkit.bench.model_size import noise_batch, plain_job
from labkit.bench.timeline import DeviceTimeline
from labkit.bench.workbench import Workbench
from labkit.process.events import VERSION, EventLog
from labkit.process.step_log import recover
from labkit.results.ranks import RankRun
from labkit.results.record import Tail

DEVICE = torch.device("cuda", 0)
FED = Pipeline(dataset="array", num_workers=2, steps=30, seconds=None)
PINNED = {"pin_memory": True, "non_blocking": True}
SMALL = {"model": "mlp", "width": 64, "depth": 30, "batch_size": 4}


def copying(**knobs):
    """A pipeline whose copies take longer than its compute."""
    return FED.but(image_px=256, batch_size=512, width=8, depth=1, **knobs)


CASES = {
    # name: (pipeline, how it is run, verdict)
    "starved": (Pipeline(steps=30, seconds=None), {}, "input"),
    "fed": (FED.but(precision="bf16", batch_size=128), {}, "compute"),
    "launch-bound": (FED.but(**SMALL), {}, "launch"),
    "copy-bound": (copying(), {}, "transfer"),
    "copy-bound, pinned": (copying(**PINNED), {}, "transfer"),
    "a sync in every step": (
        FED.but(model="mlp", width=256, depth=2), {"fault": "read_losses@16"}, "launch"),
    "accumulation": (
        FED.but(precision="bf16", batch_size=128, accumulation_steps=4), {}, "compute"),
}  # fmt: skip


class Truth:
    """What the queue did in the steps that the run's statistics are about."""

    def __init__(self, gpu, run):
        zero, ends = run.steps_since(0)[0]["t"][0], run.stamps[:, 5]
        self.start, self.end = (zero + round(ends[i] * 1e9) for i in (run.warmup - 1, -1))
        self.steps, self.gpu, self.wall = run.steps - run.warmup, gpu, self.end - self.start

    @property
    def busy(self):
        return self.gpu.busy_ns(self.start, self.end) / self.wall

    def ms_a_step(self, copies):
        inside = [k for k in self.gpu.kernels if self.start <= k.start and k.end <= self.end]
        up = [k for k in inside if copies == (k.name == "memcpyHtoD")]
        return sum(k.end - k.start for k in up) / 1e6 / self.steps


@pytest.mark.parametrize("card", ["H200", "T4"])
@pytest.mark.parametrize("name", CASES)
def test_the_numbers_are_those_of_the_queue(name, card, cards):
    gpu = cards(card, numbers=False)
    pipeline, how, verdict = CASES[name]
    run = run_on(gpu, pipeline, **how)
    truth = Truth(gpu, run)
    # gaps between the kernels are in it; what runs between two steps is not
    assert run.utilization >= truth.busy - 0.01
    if verdict != "launch":
        assert run.utilization == pytest.approx(truth.busy, abs=0.02)
        assert run.breakdown.compute_ms == pytest.approx(truth.ms_a_step(False), rel=0.05, abs=0.1)
    if verdict == "transfer":
        assert run.breakdown.copy_ms == pytest.approx(truth.ms_a_step(True), rel=0.1)
    parts = run.breakdown
    assert sum(parts.shares.values()) == pytest.approx(1, abs=0.01)
    assert run.diagnose().bottleneck == verdict or (
        # on a T4 FP32 is slow: a right answer, too
        card == "T4" and run.diagnose().bottleneck == "precision"
    ), run.diagnose()


def test_a_starved_step_waits_as_long_as_its_data_takes_less_what_the_device_does_meanwhile(cards):
    gpu = cards("H200", numbers=False)
    run = run_on(gpu, Pipeline(steps=30, seconds=None), prep_ms=40)
    # the host runs ahead: it prepares the next batch while the device computes this one
    period = max(40, run.compute_ms)
    assert run.step_ms == pytest.approx(period, rel=0.05)
    assert run.utilization == pytest.approx(run.compute_ms / period, abs=0.03)


def test_a_copy_on_a_stream_of_its_own_is_hidden_under_the_compute(cards):
    balanced = FED.but(image_px=256, batch_size=256, width=8, depth=1, **PINNED)
    plain, hidden = (
        run_on(cards("T4", numbers=False), balanced.but(prefetch_to_device=so))
        for so in (False, True)
    )
    assert hidden.step_ms < 0.9 * plain.step_ms and hidden.breakdown.copy_ms >= 0


def test_a_fed_pinned_run_is_never_synchronised_while_it_trains(cards):
    gpu = cards("H200", numbers=False)
    run = run_on(gpu, FED.but(depth=3, **PINNED, xray=False))
    assert gpu.syncs - gpu.syncs_before == 2  # both at the end
    assert run.steps == 30


def test_the_losses_are_those_of_the_cpu(cards):
    cards("H200")
    losses = {}
    for name in ("cpu", "cuda"):
        job = plain_job(torch.device(name), model="mlp", width=32, depth=2)
        trainer = Trainer(job, torch.device(name))
        torch.manual_seed(7)
        batch = trainer.to_device(*noise_batch(job))
        losses[name] = [trainer.compute(*batch, update=True).item() for _ in range(12)]
    assert losses["cuda"] == pytest.approx(losses["cpu"], rel=1e-4)
    assert losses["cuda"][-1] < losses["cuda"][0] / 2


def test_a_loss_is_read_only_when_it_has_arrived(cards):
    gpu = cards("T4")
    run = run_on(gpu, FED.but(model="mlp", width=32, depth=2, **PINNED, xray=False))
    assert np.isfinite(run.loss).all()  # before its copy is through, the host's memory holds NaN


def test_a_run_on_the_second_card_leaves_the_first_alone(cards):
    gpu = cards("T4", "H200", numbers=False)
    run = run_on(gpu, FED, device="cuda:1")
    assert {kernel.card for kernel in gpu.kernels} == {1}
    assert run.machine.name == "NVIDIA H200" and run.utilization > 0.9
    busy = gpu.busy_ns(*gpu.trained, card=1) / (gpu.trained[1] - gpu.trained[0])
    assert run.utilization == pytest.approx(busy, abs=0.07)  # the run's start is in that one


def test_an_hour_into_a_run_a_step_is_timed_as_well_as_in_its_first_minute(cards, tmp_path):
    gpu = cards("H200")
    timeline = DeviceTimeline(tmp_path, EventLog(tmp_path), torch.device("cuda", 0))
    a, truth = torch.rand(4, 4, device="cuda"), []
    for i in range(120):
        gpu.clock.sleep(30)
        asked, ready, copied = gpu.clock.now(), timeline.copying(), timeline.copied()
        timeline.computing()
        (a @ a).sum()
        truth.append((gpu.kernels[-2].start, gpu.kernels[-1].end))
        timeline.step(i, asked, ready, copied, 1, a.sum())
    timeline.finish()
    recover(tmp_path)
    steps = [event["busy"] for event in Tail(tmp_path / "events.jsonl").read() if "busy" in event]
    took, really = (np.diff(np.array(times)[:, 0]) for times in (steps, truth))
    assert np.abs(took - really).max() < 2_000  # ns; from one anchor 250_000 after an hour
    assert np.abs(np.array(steps) - np.array(truth)).max() < 100_000


# -- one of several ranks -------------------------------------------------------------------------


class Exchanging(Trainer):
    """A trainer whose gradients are sent, as DDP would send them: behind the backward pass."""

    def compute(self, images, labels, update):
        loss = super().compute(images, labels, update)
        self.comm.started()
        self.gpu.enqueue("all_reduce", 0, 3000.0)
        self.comm.ended()
        return loss


@pytest.fixture
def rank(cards, tmp_path):
    """The stand-in, the timeline and the run of one rank."""
    gpu, log = cards("H200", numbers=False), EventLog(tmp_path)
    job = plain_job(DEVICE, model="mlp", width=2048, depth=2)
    vars(job).update(steps=40, seconds=None)
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
    assert run.steps == 40
    assert len(timeline.events.idle) < 40  # each step takes six


# -- the optimizer -------------------------------------------------------------------------------


@pytest.mark.parametrize("fused", [False, True])
def test_an_update_launches_as_little_as_pytorchs_own_default(fused, cards):
    gpu = cards("H200", numbers=False)
    job = plain_job(DEVICE, depth=8, fused_optimizer=fused)
    trainer = Trainer(job, DEVICE)
    tensors = len(list(trainer.model.parameters()))
    batch = trainer.to_device(*noise_batch(job))
    trainer.compute(*batch, update=True)  # the first update makes the optimizer's state
    trainer.compute(*batch, update=False)
    before = len(gpu.kernels)
    trainer.scaler.step(trainer.optimizer)
    assert len(gpu.kernels) - before < tensors  # one by one it takes some ten for each


def test_fp16_makes_the_host_wait_in_every_update_unless_the_optimizer_is_fused(cards):
    waits = {}
    for fused in (False, True):
        gpu = cards("T4", numbers=False)
        job = plain_job(DEVICE, model="mlp", width=64, depth=2, precision="fp16",
                        fused_optimizer=fused)  # fmt: skip
        trainer = Trainer(job, DEVICE)
        batch = trainer.to_device(*noise_batch(job))
        trainer.compute(*batch, update=True)
        before = gpu.syncs
        trainer.compute(*batch, update=True)
        waits[fused] = gpu.syncs - before
    assert waits[False] > waits[True]


# -- sizes ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("card", ["T4", "RTX4090", "H200"])
@pytest.mark.parametrize("model", ["cnn", "mlp", "transformer"])
def test_a_default_step_takes_about_ten_milliseconds_and_is_no_matter_of_launches(
    model, card, cards
):
    gpu = cards(card, numbers=False)
    job = plain_job(DEVICE, model=model)
    step_ms = model_size.time_step(model, job.width, job.depth, job.image_px, DEVICE)
    assert job.depth == 1 or 7 < step_ms < 13
    assert 7 < step_ms < 20  # one layer may be more on a small card
    trainer = Trainer(job, DEVICE)
    batch = trainer.to_device(*noise_batch(job))
    before, launched = gpu.clock.now(), len(gpu.kernels)
    trainer.compute(*batch, update=True)
    host_ms = (gpu.clock.now() - before) / 1e6
    assert host_ms < 0.6 * step_ms, len(gpu.kernels) - launched
    assert gpu.peak[0] < gpu.cards[0].memory_gib * 2**30 / 2


def test_a_depth_is_found_once_for_a_card_and_does_not_change_with_other_knobs(
    cards, tmp_path, monkeypatch
):
    monkeypatch.setattr(model_size, "kept_in", tmp_path)
    cards("A100", numbers=False)
    first = plain_job(DEVICE).depth
    monkeypatch.setattr(model_size, "time_step", lambda *_: pytest.fail("timed again"))
    assert plain_job(DEVICE, precision="bf16", batch_size=256).depth == first
    cards("T4", numbers=False)
    monkeypatch.undo()
    monkeypatch.setattr(model_size, "kept_in", tmp_path)
    assert plain_job(DEVICE).depth < first


def test_what_was_tried_to_find_a_depth_is_no_part_of_the_runs_memory(cards):
    gpu = cards("H200", numbers=False)
    plain_job(DEVICE, model="mlp")
    assert gpu.peak[0] < 2**20 * 64


# -- what a card cannot do -----------------------------------------------------------------------


def resolved(**knobs):
    return resolving.resolve_config(Pipeline(depth=1, width=8, **knobs).to_dict(), DEVICE)


@pytest.mark.parametrize("mode", ["reduce-overhead", "max-autotune"])
def test_cuda_graphs_and_accumulation_are_refused_together_with_the_reason(
    mode, cards, monkeypatch
):
    cards("A100", numbers=False)
    monkeypatch.setattr(resolving, "compile_lacks", lambda *_: None)
    job, dropped = resolved(compile=mode, accumulation_steps=4)
    assert job.compile == "default" and "overwrites gradients" in dropped["compile"]
    job, dropped = resolved(compile=mode)
    assert job.compile == mode and not dropped


def test_each_pass_that_compiles_begins_without_gradients(cards):
    """A CUDA graph's replay would overwrite those of the pass before."""
    cards("A100", numbers=False)
    job = plain_job(DEVICE, model="mlp", width=8, depth=1)
    trainer = Trainer(job, DEVICE)
    compute, held = trainer.compute, []

    def watched(*args, **kwargs):
        held.append(any(p.grad is not None for p in trainer.model.parameters()))
        return compute(*args, **kwargs)

    trainer.compute = watched
    trainer.model.load_state_dict = lambda _: None
    trainer.compile_now()
    assert held == [False] * 3


@pytest.mark.parametrize(
    ("missing", "says"),
    [("triton", "pip install triton"), ("compiler", "C compiler"), ("volta", "Volta")],
)
def test_compiling_for_a_card_needs_triton_a_compiler_and_volta(missing, says, cards, monkeypatch):
    cards("T4", numbers=False)
    monkeypatch.delenv("CC", raising=False)
    triton = None if missing == "triton" else "found"
    monkeypatch.setattr(resolving.importlib.util, "find_spec", lambda name: triton)
    found = None if missing == "compiler" else "/usr/bin/gcc"
    monkeypatch.setattr(resolving.shutil, "which", lambda name: found)
    if missing == "volta":
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (6, 1))
    assert says in resolving.compile_lacks("default", DEVICE)
    assert says in resolved(compile="default")[1]["compile"]


# -- memory --------------------------------------------------------------------------------------


def test_a_model_that_does_not_fit_is_pytorchs_own_error(cards):
    cards("T4", numbers=False)
    with pytest.raises(torch.OutOfMemoryError, match="CUDA out of memory"):
        Trainer(plain_job(DEVICE, model="mlp", width=16384, depth=64), DEVICE)


def test_a_doubled_batch_that_does_not_fit_leaves_the_x_ray_its_other_findings(cards):
    gpu = cards("T4", numbers=False)
    # activations of one batch fill more than half of the card
    wide = FED.but(width=64, depth=1, image_px=224, batch_size=800, steps=24)
    run = run_on(gpu, wide)
    assert gpu.peak[0] > 0.5 * gpu.cards[0].memory_gib * 2**30
    seen = run.xray_facts
    assert seen is not None, run.no_xray
    assert seen["fixed_share"] is None and seen["plain_us"] > 0 and run.xray.kernel_us > 0


# -- timing --------------------------------------------------------------------------------------


def test_an_operation_on_the_second_card_is_timed_and_not_only_launched(cards, tmp_path):
    gpu = cards("T4", "H200", numbers=False)
    second = torch.device("cuda", 1)
    machine.use(second)
    bench = Workbench(second, EventLog(tmp_path), lambda *_: None)
    a = torch.empty(8192, 8192, device=second)
    seconds = bench.time(lambda: a @ a, of="product")
    truth = gpu.kernel_us(gpu.cards[1], 2 * 8192**3, 0)
    assert seconds * 1e6 == pytest.approx(truth, rel=0.1)


@pytest.mark.parametrize("wait_ms", [0, 4])
def test_a_watched_loop_has_the_intervals_of_the_card(wait_ms, cards, monkeypatch):
    monkeypatch.setattr(their_loop, "DRIFT", 0.0)  # there is one clock here
    gpu = cards("H200", numbers=False)
    a, truth = torch.empty(4096, 4096, device=DEVICE), []
    watched = lk.watch([torch.empty(4)] * 40, live=False)
    for _ in watched:
        gpu.clock.sleep(wait_ms / 1e3 / 2)
        first = len(gpu.kernels)
        for _ in range(3):
            a @ a
        truth.append((gpu.kernels[first].start, gpu.kernels[-1].end))
    run = watched.run
    assert run.machine.kind == "gpu"
    took, really = np.diff(run.busy)[:, 0] * 1e9, np.diff(truth)[:, 0]
    assert took[5:-1].mean() == pytest.approx(really[5:-1].mean(), rel=0.1)
