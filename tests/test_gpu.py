"""What has to be true on a real card. Skipped, with the reason, where there is none.

Made for anything from a T4 to an H200: no test asserts a time, and what a card or a driver does not
have is a skip that says so. tests/on_standin.py has what a stand-in can tell: that the busy
intervals are those of the queue, and that nothing waits for it.
"""

import os
import time

import faultset
import pytest

import labkit as lk
from labkit.diagnosis.findings import NEIGHBOUR
from labkit.results.launch import launch

torch = pytest.importorskip("torch")
from labkit.bench import model_size  # noqa: E402

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device here"),
]
DEVICE = torch.device("cuda", 0)

# Made when the file is collected, so that each is legal. None may fall back on the CPU
STARVED = lk.Pipeline(device="cuda", steps=60, seconds=20)
FED = STARVED.but(dataset="array", num_workers=2)
LAUNCH_BOUND = FED.but(model="mlp", width=32, depth=64, batch_size=1)
HEAVY = FED.but(image_px=64, width=768, depth=2, steps=100_000, seconds=6)
TOO_LARGE = FED.but(model="mlp", width=16_384, depth=256)  # 275 GB of weights alone
SLACK_GIB = 0.25  # of a card's memory, for what other programs do meanwhile


def finished(pipeline):
    run = launch(pipeline).wait()
    assert run.outcome == "finished", run.error
    return run


def soon(condition, seconds=20):
    """Whether `condition()` comes true; the driver takes its time with what a process leaves."""
    deadline = time.monotonic() + seconds
    while not (so := condition()) and time.monotonic() < deadline:
        time.sleep(0.1)
    return so


def test_a_starved_and_a_fed_run_differ_as_the_lesson_says_and_a_step_has_its_size():
    starved = finished(STARVED.but(xray=False))
    fed = finished(FED.but(xray=False))
    assert starved.diagnose().bottleneck == "input"
    assert fed.throughput > 1.5 * starved.throughput
    assert fed.utilization > starved.utilization + 0.15
    drift_s = abs(starved.event("drift")["drift_us"]) / 1e6
    assert drift_s < 0.1 * starved.step_ms / 1e3  # of the device's clock from the host's
    assert 1 / 3 < fed.median_compute_ms / model_size.STEP_MS < 3, fed.pipeline.depth


def test_busy_is_an_upper_bound_of_the_profilers_kernels_and_the_x_ray_sees_the_gaps():
    idle = torch.ones(1, device=DEVICE)  # as the reader's own notebook has
    is_ours = soon(lambda: torch.cuda.utilization(DEVICE) < 10)
    tight = finished(HEAVY)
    loose = finished(LAUNCH_BOUND)
    assert tight.xray.gpu_utilization <= tight.utilization + 0.1
    assert tight.xray.gpu_utilization > 0.8
    # neither the run itself nor an idle context counts as somebody else
    assert not is_ours or tight.diagnose().findings[0].cause != NEIGHBOUR and idle.is_cuda
    assert loose.xray.gpu_utilization < loose.utilization - 0.1
    assert loose.diagnose().bottleneck == "launch", loose.diagnose()
    unseen = finished(LAUNCH_BOUND.but(xray=False)).diagnose()  # not called healthy without it
    assert unseen.bottleneck in ("launch", "unsure"), unseen


def test_the_card_is_found_by_its_uuid(monkeypatch):
    last = finished(FED.but(steps=5, device=f"cuda:{torch.cuda.device_count() - 1}", xray=False))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", last.machine.uuid)  # it is cuda:0 now
    run = finished(FED.but(steps=5, xray=False))
    assert run.machine.uuid == last.machine.uuid and run.machine.device == "cuda:0"
    assert any(sample.get("memory_gib") for sample in run.telemetry)


def used_gib():
    free, total = torch.cuda.mem_get_info(DEVICE)
    return (total - free) / 2**30


def test_out_of_memory_fails_with_a_remedy_and_leaves_a_clean_card():
    before = used_gib()
    run = launch(TOO_LARGE).wait()
    assert run.outcome == "failed" and "out of memory" in run.error and "Remedy" in run.error
    assert soon(lambda: used_gib() < before + SLACK_GIB)


def test_a_compiled_run_is_compiled():
    run = finished(FED.but(compile="reduce-overhead", depth=2))
    assert run.compile_s or run.not_applied["compile"]


def test_the_fault_sets_gpu_half_is_named_right():
    score = faultset.run_set(seeds=1, keep=os.environ.get("LABKIT_FAULTS_KEEP"))
    print(score)
    assert score.accuracy >= 0.9, str(score)
