"""What has to be true on a real card. Skipped, with the reason, where there is none.

Made for anything from a T4 to an H200: no test asserts a time, and what a card or a driver does not
have is a skip that says so. tests/on_standin.py has what a stand-in can tell.
"""

import statistics
import time

import faultset
import pytest

import labkit as lk
from labkit.api import launch
from labkit.stamps.events import EventLog, now_ns
from labkit.stamps.record import Tail
from labkit.stamps.step_ring import StepRing, recover

torch = pytest.importorskip("torch")
from labkit.stamps.timeline import Step, make_timeline  # noqa: E402
from labkit.traces.read import xray_of  # noqa: E402

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


@pytest.fixture(scope="module")
def starved():
    return finished(STARVED.but(xray=False))


@pytest.fixture(scope="module")
def fed():
    return finished(FED.but(xray=False))


def soon(condition, seconds=20):
    """Whether `condition()` comes true; the driver takes its time with what a process leaves."""
    deadline = time.monotonic() + seconds
    while not (so := condition()) and time.monotonic() < deadline:
        time.sleep(0.1)
    return so


def stamped(timeline, i, work):
    """Do one step whose compute is `work`, which returns the loss, and record it."""
    asked = now_ns()
    ready = timeline.copying()
    copied = timeline.copied()
    timeline.computing()
    timeline.step(Step(i, asked, ready, copied, 1, work()))


def busy_share(intervals):
    """Return the union of (start, end) over the span they cover."""
    busy = 0.0
    reached = 0.0
    intervals = sorted(map(tuple, intervals))
    for start, end in intervals:
        busy += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return busy / (reached - intervals[0][0])


def heavy():
    a = torch.randn(4096, 4096, device=DEVICE)
    return lambda: [a @ a for _ in range(4)][0][0, 0]


def graphed():
    a = torch.randn(2048, 2048, device=DEVICE)
    graph = torch.cuda.CUDAGraph()
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        a @ a  # cuBLAS sets itself up
    torch.cuda.current_stream().wait_stream(side)
    with torch.cuda.graph(graph):
        b = a
        for _ in range(10):
            b = b @ a
    return lambda: graph.replay() or b[0, 0]


@pytest.mark.parametrize("gap_s, make", [(0.0, heavy), (0.02, heavy), (0.01, graphed)])
def test_busy_intervals_agree_with_the_profilers_kernels(gap_s, make, tmp_path):
    from torch.profiler import ProfilerActivity, profile

    work = make()
    work()
    torch.cuda.synchronize()
    timeline = make_timeline(EventLog(tmp_path), StepRing(tmp_path).add, DEVICE)
    with profile(activities=[ProfilerActivity.CUDA, ProfilerActivity.CPU]) as profiled:
        for i in range(40):
            time.sleep(gap_s)
            stamped(timeline, i, work)
        timeline.finish()
    recover(tmp_path)
    lines = Tail(tmp_path / "events.jsonl").read()
    ours = busy_share([event["busy"] for event in lines if event["event"] == "step"])
    kernels = [
        (each.time_range.start, each.time_range.end)
        for each in profiled.events()
        if each.device_type == torch.autograd.DeviceType.CUDA
        and not each.name.startswith(("Memcpy", "Memset"))
    ]
    if not kernels:
        pytest.skip("the profiler saw no kernel: it is not allowed to on this machine")
    assert ours == pytest.approx(busy_share(kernels), abs=0.02)


def test_recording_never_synchronises(tmp_path):
    timeline = make_timeline(EventLog(tmp_path), StepRing(tmp_path).add, DEVICE)
    work = heavy()
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")  # an implicit synchronisation raises
    try:
        for i in range(10):
            stamped(timeline, i, work)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    timeline.finish()


def test_a_starved_and_a_fed_run_differ_as_the_lesson_says_and_a_step_has_its_size(starved, fed):
    assert starved.diagnose().bottleneck == "input"
    assert fed.throughput > 1.5 * starved.throughput
    assert fed.utilization > starved.utilization + 0.15
    compute_ms = statistics.median(fed.steps_ms[:, 2])
    assert 1 / 3 < compute_ms / 10 < 3, fed.pipeline.depth


def test_busy_is_an_upper_bound_and_the_x_ray_sees_the_gaps():
    tight = finished(HEAVY)
    loose = finished(LAUNCH_BOUND)
    assert xray_of(tight.data).gpu_utilization <= tight.utilization + 0.1
    assert xray_of(tight.data).gpu_utilization > 0.8
    assert xray_of(loose.data).gpu_utilization < loose.utilization - 0.1
    assert loose.diagnose().bottleneck == "launch", loose.diagnose()
    unseen = finished(LAUNCH_BOUND.but(xray=False)).diagnose()  # not called healthy without it
    assert unseen.bottleneck in ("launch", "unsure"), unseen


def test_the_card_is_found_by_its_uuid(monkeypatch):
    last = finished(FED.but(steps=5, device=f"cuda:{torch.cuda.device_count() - 1}", xray=False))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", last.machine.uuid)  # it is cuda:0 now
    run = finished(FED.but(steps=5, xray=False))
    assert run.machine.uuid == last.machine.uuid and run.machine.device == "cuda:0"
    assert any(sample.get("memory_gib") for sample in run.all("telemetry"))


def used_gib():
    free, total = torch.cuda.mem_get_info(DEVICE)
    return (total - free) / 2**30


def test_out_of_memory_fails_with_a_remedy_and_leaves_a_clean_card():
    before = used_gib()
    run = launch(TOO_LARGE).wait()
    assert run.outcome == "failed" and "out of memory" in run.error and "Remedy" in run.error
    assert soon(lambda: used_gib() < before + SLACK_GIB)


@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
def test_a_compiled_run_is_compiled(mode):
    run = finished(FED.but(compile=mode, depth=2))
    assert run.pipeline.compile or run.not_applied["compile"]


def test_the_fault_sets_gpu_half_is_named_right():
    score = faultset.run_set(seeds=1)
    print(score)
    assert score.accuracy >= 0.9, str(score)
