"""The rest of the bench on a stand-in GPU: what it launches, allocates, sizes, probes and times."""

from types import SimpleNamespace

import pytest
import torch
from standin_run import run_on

from labkit import Pipeline
from labkit.bench import model_size
from labkit.bench import resolve_config as resolving
from labkit.bench.loop import Trainer
from labkit.bench.model_size import noise_batch, plain_job

DEVICE = torch.device("cuda", 0)
FED = Pipeline(dataset="array", num_workers=2, steps=30, seconds=None)
MODELS = ("cnn", "mlp", "transformer")


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


@pytest.mark.parametrize("card", ["T4", "RTX4070", "RTX4090", "A100", "H100", "H200"])
@pytest.mark.parametrize("model", MODELS)
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
    monkeypatch.setattr(model_size, "find_depth", lambda *_: pytest.fail("found again"))
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
    triton = None if missing == "triton" else SimpleNamespace()
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
    from labkit.bench import machine
    from labkit.bench.workbench import Workbench
    from labkit.process.events import EventLog

    gpu = cards("T4", "H200", numbers=False)
    second = torch.device("cuda", 1)
    machine.use(second)
    bench = Workbench(second, EventLog(tmp_path), lambda *_: None)
    a = torch.empty(8192, 8192, device=second)
    seconds = bench.time(lambda: a @ a, of="product")
    truth = gpu.kernel_us(gpu.cards[1], 2 * 8192**3, 0)
    assert seconds * 1e6 == pytest.approx(truth, rel=0.1)


def test_a_watched_loop_has_the_intervals_of_the_card(cards):
    import labkit as lk

    gpu = cards("H200", numbers=False)
    a = torch.empty(4096, 4096, device=DEVICE)
    truth = []

    def batches():
        for _ in range(40):
            gpu.clock.sleep(0.004)
            yield torch.empty(4)

    watched = lk.watch(Loop(batches))
    for _ in watched:
        first = len(gpu.kernels)
        for _ in range(3):
            a @ a
        truth.append(gpu.kernels[-1].end - gpu.kernels[first].start)
    run = watched.run
    took = (run.busy[:, 1] - run.busy[:, 0]) * 1e9
    assert run.machine.kind == "gpu"
    assert took[5:-1].mean() == pytest.approx(sum(truth[5:-1]) / len(truth[5:-1]), rel=0.1)


class Loop:
    """Something to iterate, again and again."""

    def __init__(self, make):
        self.make = make

    def __iter__(self):
        return iter(self.make())

    def __len__(self):
        return 40
