"""What has to be true on a real card. Skipped, with the reason, where there is none."""

import shutil
import subprocess
import time

import numpy as np
import pytest

import labkit as lk
from labkit.bench import step_log
from labkit.bench.events import EventLog
from labkit.lab.experiment import Experiment
from labkit.lab.launcher import launch
from labkit.lab.record import Tail

torch = pytest.importorskip("torch")
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device here"),
]

FED = lk.Pipeline(dataset="array", num_workers=4, steps=60, seconds=20)
POINTS = 0.02  # of utilization


def finished(pipeline):
    run = launch(pipeline).wait()
    assert run.outcome == "finished", run.error
    return run


def memory_used_mib():
    query = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
    return int(subprocess.run(query, capture_output=True, text=True).stdout.split()[0])


# -- the timeline ------------------------------------------------------------------------------


class Loop:
    """Steps on the card with a gap of the host before each, recorded and profiled at once."""

    def __init__(self, folder, gap_s, work):
        from labkit.bench.timeline import make_timeline

        self.timeline = make_timeline(EventLog(folder), folder, torch.device("cuda", 0))
        self.gap_s, self.work = gap_s, work
        self.loss = torch.zeros((), device="cuda")

    def steps(self, count):
        for i in range(count):
            time.sleep(self.gap_s)
            asked = time.perf_counter_ns()
            ready, copied = self.timeline.copying(), self.timeline.copied()
            self.timeline.computing()
            self.work()
            self.timeline.step(i, asked, ready, copied, 1, self.loss)
        self.timeline.finish()


def busy_share(intervals):
    """The union of (start, end) over the span they cover."""
    intervals = np.array(sorted(intervals), dtype=float)
    reached = np.maximum.accumulate(np.append(intervals[0, 0], intervals[:, 1]))
    idle = np.maximum(0, intervals[:, 0] - reached[:-1]).sum()
    return 1 - idle / (intervals[:, 1].max() - intervals[0, 0])


def heavy():
    a = torch.randn(2048, 2048, device="cuda")
    return lambda: [a @ a for _ in range(8)]


def graphed():
    a = torch.randn(512, 512, device="cuda")
    graph, side = torch.cuda.CUDAGraph(), torch.cuda.Stream()
    with torch.cuda.stream(side):
        a @ a  # cuBLAS sets itself up
    torch.cuda.current_stream().wait_stream(side)
    with torch.cuda.graph(graph):
        b = a
        for _ in range(50):
            b = b @ a
    return graph.replay


@pytest.mark.parametrize(
    ("name", "gap_s", "make"),
    [("healthy", 0.0, heavy), ("starved", 0.02, heavy), ("graph", 0.01, graphed)],
)
def test_busy_intervals_agree_with_the_profilers_kernels(name, gap_s, make, tmp_path):
    from torch.profiler import ProfilerActivity, profile

    work = make()
    work()
    torch.cuda.synchronize()
    loop = Loop(tmp_path, gap_s, work)
    with profile(activities=[ProfilerActivity.CUDA, ProfilerActivity.CPU]) as profiled:
        loop.steps(40)
        torch.cuda.synchronize()
    step_log.recover(tmp_path)
    lines = Tail(tmp_path / "events.jsonl").read()
    ours = busy_share([event["busy"] for event in lines if event["event"] == "step"])
    kernels = [
        (event.time_range.start, event.time_range.end)
        for event in profiled.events()
        if event.device_type == torch.autograd.DeviceType.CUDA
    ]
    assert ours == pytest.approx(busy_share(kernels), abs=POINTS), name


def test_recording_never_synchronises(tmp_path):
    loop = Loop(tmp_path, 0.0, heavy())
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")  # an implicit synchronisation raises
    try:
        loop.timeline.copying()
        loop.timeline.copied()
        loop.timeline.computing()
        loop.work()
        loop.timeline.step(0, 1, 2, 3, 1, loop.loss)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    loop.timeline.finish()


def test_a_starved_and_a_fed_run_differ_as_the_lesson_says():
    starved, fed = finished(lk.Pipeline()), finished(lk.Pipeline(num_workers=8))
    assert fed.throughput > 2 * starved.throughput
    assert fed.utilization > starved.utilization + 0.2
    assert abs(starved.event("drift")["drift_us"]) < 1000


def test_a_launch_bound_run_has_gaps_inside_its_steps():
    run = finished(FED.but(model="mlp", width=32, depth=64, batch_size=1))
    assert run.diagnose().bottleneck in ("launch", "input"), run.diagnose()


# -- telemetry ---------------------------------------------------------------------------------


def test_gaps_between_tiny_kernels_are_seen_by_the_x_ray_not_by_the_steps():
    run = finished(FED.but(model="mlp", width=32, depth=64, batch_size=1))
    assert run.xray is not None and run.xray.gpu_utilization < run.utilization


def test_counters_of_the_card_are_shares_where_it_has_them():
    run = finished(FED.but(steps=100_000, seconds=6, batch_size=256))
    counted = [sample["gpm"] for sample in run.telemetry if sample.get("gpm")]
    if not counted:
        pytest.skip("this card has no GPM counters (Hopper and later have)")
    shares = [value for each in counted for value in each.values() if value is not None]
    assert shares and all(0 <= value <= 1 for value in shares)


@pytest.mark.skipif(shutil.which("nvidia-smi") is None, reason="there is no nvidia-smi")
def test_telemetry_agrees_with_nvidia_smi():
    run = launch(FED.but(steps=100_000, seconds=6, batch_size=256))
    time.sleep(5)
    query = [
        "nvidia-smi",
        "--query-gpu=utilization.gpu,power.draw",
        "--format=csv,noheader,nounits",
    ]
    smi = subprocess.run(query, capture_output=True, text=True).stdout.splitlines()[0].split(",")
    run.wait()
    said = [100 * s["gpu_now"] for s in run.telemetry if s.get("gpu_now") is not None]
    assert said and abs(max(said) - float(smi[0])) <= 25
    assert run.energy_j and run.energy_j > 0


def test_the_card_is_found_by_its_uuid_whatever_the_order(monkeypatch):
    first = finished(FED.but(steps=5)).machine.name
    last = torch.cuda.device_count() - 1
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", str(last))
    run = finished(FED.but(steps=5))
    assert run.machine.kind == "gpu" and (last > 0 or run.machine.name == first)


# -- memory ------------------------------------------------------------------------------------


@pytest.mark.skipif(shutil.which("nvidia-smi") is None, reason="there is no nvidia-smi")
def test_out_of_memory_fails_with_a_remedy_and_leaves_a_clean_card():
    before = memory_used_mib()
    run = launch(FED.but(batch_size=65_536, image_px=512, width=2048, steps=5)).wait()
    assert run.outcome == "failed" and "out of memory" in run.error and "Remedy" in run.error
    assert memory_used_mib() <= before + 64
    finished(FED.but(steps=5))
    assert memory_used_mib() <= before + 64


# -- formats, compilation, kernels -------------------------------------------------------------


@pytest.mark.parametrize("precision", ["tf32", "fp16", "bf16"])
def test_each_format_trains_to_the_same_losses(precision):
    exact, rounded = finished(FED), finished(FED.but(precision=precision))
    if why := rounded.not_applied.get("precision"):
        pytest.skip(why)
    assert rounded.loss[-1] == pytest.approx(exact.loss[-1], rel=0.1)


@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
def test_a_compiled_run_is_compiled(mode):
    run = finished(FED.but(compile=mode, steps=20))
    assert run.compile_s and "compile" not in run.not_applied


@pytest.mark.parametrize("name", ["fusion", "own_kernel", "copies", "roofline", "precision_matmul"])
def test_the_experiments_run_on_the_card(name):
    measured = launch(Experiment(name)).wait()
    assert measured.outcome == "finished", measured.error
    assert measured.points and measured.machine.kind == "gpu"


def test_the_fault_sets_gpu_half_is_named_right():
    from labkit.explain import faultscore

    score = faultscore.run_set("scoring", seeds=1)
    assert score.accuracy >= 0.9, str(score)
