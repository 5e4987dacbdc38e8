"""What the diagnosis says about runs whose stamps are written by hand, and about real traces."""

import contextlib
import json
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from labkit.analysis.diagnosis import diagnose
from labkit.analysis.step_breakdown import CLASSES, breakdown, split_steps
from labkit.spec import Pipeline

TRACES = Path(__file__).resolve().parents[2] / "shared" / "traces"
CALM = {
    "steps": 3, "window_us": 20_000.0, "plain_us": 18_000.0, "ops": 300, "gap_us": 800.0,
    "tiny_us": 400.0, "tiny_ops": 250, "heavy_us": 16_000.0, "elementwise_us": 2_000.0,
    "fusible_us": 300.0, "fixed_share": 0.0, "bf16_speedup": 0.9, "top": [],
}  # fmt: skip


@dataclass
class FakeRun:
    """A run as the diagnosis sees it: `ms` holds wait, copy, compute and other of each step."""

    as_of_now = contextlib.nullcontext

    ms: np.ndarray
    kind: str = "cpu"
    recorded: bool = False
    xray_facts: dict | None = field(default_factory=lambda: dict(CALM))
    xray: object = None
    telemetry: list = field(default_factory=list)
    pipeline: Pipeline = field(default_factory=Pipeline)
    name: str = "a <CPU>"
    own: float = 1.0  # share of the compute that the thread was running
    warmup: int = 1
    watched: bool = False

    @property
    def machine(self):
        return SimpleNamespace(kind=self.kind, name=self.name, cpu_cores=2)

    @property
    def steps(self):
        return len(self.ms)

    @property
    def stamps(self):
        wait, copy, compute, other = self.ms.T / 1e3
        asked = np.cumsum(wait + copy + compute + other) - (wait + copy + compute + other)
        ready = asked + wait
        copied = ready + copy
        return np.column_stack([asked, ready, ready, copied, copied, copied + compute])

    @property
    def thread_s(self):
        return self.ms[:, 2] / 1e3 * self.own

    @property
    def busy(self):
        return self.stamps[:, 4:]

    @property
    def utilization(self):
        return self.ms[:, 2].sum() / self.ms.sum()

    @property
    def busy_at_least(self):
        return self.utilization if self.kind == "cpu" else 0.0  # of a loop that waits each step

    def seconds(self, t_ns):
        return t_ns / 1e9


def steps(wait=0.2, copy=0.0, compute=20.0, other=0.1, count=30):
    rng = np.random.default_rng(1)
    return np.array([[wait, copy, compute, other]] * count) * rng.normal(1, 0.02, (count, 1))


def gpu_xray(kernel_us, on_tensor_cores=0.9, **more):
    return SimpleNamespace(
        kernel_us=kernel_us, tensor_core_share=on_tensor_cores, tensor_core_eligible_share=0.9,
        steps=4, **{"top_kernels": (), "device_kind": "gpu", "cuda_graphs": False} | more,
    )  # fmt: skip


def test_a_busy_device_is_healthy():
    found = diagnose(FakeRun(steps()))
    assert found.bottleneck == "compute"
    assert found.confidence == 1.0
    assert "limit" in found.findings[0].cause


@pytest.mark.parametrize(
    ("time", "bottleneck"),
    [({"wait": 15.0}, "input"), ({"copy": 15.0}, "transfer"), ({"other": 15.0}, "launch")],
)
def test_time_outside_the_compute_is_named_after_what_took_it(time, bottleneck):
    found = diagnose(FakeRun(steps(**time)))
    assert found.bottleneck == bottleneck
    assert found.findings[0].lost_share == pytest.approx(15 / 35, abs=0.03)
    assert "threshold" in found.evidence
    assert "Expect" in found.advice and "notebook" in found.advice


@pytest.mark.parametrize(
    ("seen", "bottleneck"),
    [
        ({"bf16_speedup": 2.0}, "precision"),
        ({"gap_us": 9_000.0}, "launch"),
        ({"tiny_us": 9_000.0}, "launch"),
        ({"fusible_us": 9_000.0}, "memory_bandwidth"),
    ],
)
def test_the_xray_sees_inside_the_compute(seen, bottleneck):
    assert diagnose(FakeRun(steps(), xray_facts=CALM | seen)).bottleneck == bottleneck


def test_the_costlier_of_two_faults_comes_first_and_both_are_listed():
    slow = CALM | {"bf16_speedup": 2.5}
    found = diagnose(FakeRun(steps(wait=30.0), xray_facts=slow))
    assert [f.name for f in found.findings] == ["input", "precision"]
    shares = [f.lost_share for f in found.findings]
    assert shares == sorted(shares, reverse=True)


def test_pauses_in_single_steps_are_the_hosts_doing():
    ms = steps()
    ms[::5, 2] += 60.0
    found = diagnose(FakeRun(ms))
    assert (found.bottleneck, found.findings[0].cause) == ("launch", "pauses inside steps")


def test_a_heavier_step_at_each_update_is_no_pause():
    ms = steps()
    ms[3::4, 2] += 30.0
    run = FakeRun(ms, pipeline=Pipeline(accumulation_steps=4))
    assert diagnose(run).bottleneck == "compute"


def test_a_run_that_is_too_short_gets_no_verdict_and_is_told_how_many_steps_are_missing():
    found = diagnose(FakeRun(steps(count=6)))
    assert found.bottleneck == "unsure"
    assert "Run 7 more steps" in found.advice
    assert diagnose(FakeRun(np.zeros((0, 4)), warmup=0)).bottleneck == "unsure"


def test_a_shared_gpu_gets_no_verdict():
    samples = [{"t_ns": 0, "others": 0}, {"t_ns": 10**9, "others": 1}]
    run = FakeRun(steps(wait=50), kind="gpu", telemetry=samples)
    found = diagnose(run)
    assert found.bottleneck == "unsure"
    assert "other processes" in found.evidence


def test_a_cpu_that_others_took_is_not_called_healthy_but_its_own_losses_stand():
    assert diagnose(FakeRun(steps(), own=0.5)).bottleneck == "unsure"
    assert diagnose(FakeRun(steps(wait=60.0), own=0.7)).bottleneck == "input"
    assert diagnose(FakeRun(steps(other=10.0), own=0.5)).bottleneck == "launch"


def test_workers_that_others_starved_are_no_fault_of_the_loader():
    samples = [{"t_ns": 10**8, "cpu": 1.0, "own_cpu": 0.3, "cpus": 2}]
    pipeline = Pipeline(num_workers=1)
    run = FakeRun(steps(wait=5.0), own=0.5, telemetry=samples, pipeline=pipeline)
    assert diagnose(run).bottleneck == "unsure"


def test_cores_taken_by_our_own_workers_are_the_loaders_doing():
    samples = [{"t_ns": 10**8, "cpu": 1.0, "own_cpu": 1.0, "cpus": 2}]
    run = FakeRun(steps(), own=0.5, telemetry=samples, pipeline=Pipeline(num_workers=4))
    found = diagnose(run)
    assert (found.bottleneck, found.findings[0].cause) == (
        "input",
        "workers take the device's cores",
    )


def test_two_equal_losses_are_too_close_to_call_or_called_with_low_confidence():
    rng = np.random.default_rng(0)
    ms = steps(count=30)
    ms[:, 0] = rng.exponential(12, 30)
    ms[:, 1] = rng.exponential(12, 30)
    found = diagnose(FakeRun(ms))
    assert found.confidence < 0.95


@pytest.mark.parametrize("odd", [{}, {"window_us": "long"}, {"gap_us": None}, {"fusible_us": []}])
def test_an_xray_event_of_the_wrong_shape_is_no_xray(odd):
    found = diagnose(FakeRun(steps(), xray_facts=CALM | odd if odd else {"steps": 1}))
    assert found.bottleneck == "compute"
    assert any("x-ray" in note for note in found.notes)


def test_no_xray_is_said():
    found = diagnose(FakeRun(steps(), xray_facts=None))
    assert found.bottleneck == "compute"
    assert found.confidence <= 0.5
    assert any("x-ray" in note for note in found.notes)


def on_gpu(xray, **more):
    return diagnose(FakeRun(steps(), kind="gpu", xray=xray, xray_facts=None, **more))


@pytest.mark.parametrize(
    ("seen", "knobs"),
    [
        (gpu_xray(0.0), {}),  # no kernel at all, of a device that its events call busy
        (gpu_xray(40_000.0), {}),  # kernels for longer than it was busy
        (gpu_xray(2_000.0, cuda_graphs=True), {}),
        (gpu_xray(2_000.0), {"compile": "reduce-overhead"}),
    ],
)
def test_instruments_that_contradict_each_other_give_no_verdict(seen, knobs):
    found = on_gpu(seen, pipeline=Pipeline(**knobs))
    assert (found.bottleneck, found.findings[0].cause) == ("unsure", "instruments disagree")
    assert ("CUDA graphs" in found.advice) == bool(knobs or seen.cuda_graphs)


@pytest.mark.parametrize("kernel_us", [9_000.0, 400.0, 20.0])
def test_gaps_between_kernels_are_launch_however_little_the_kernels_take(kernel_us):
    found = on_gpu(gpu_xray(kernel_us))
    assert (found.bottleneck, found.findings[0].cause) == ("launch", "gaps between kernels")
    assert found.findings[0].lost_share == pytest.approx(1 - kernel_us / 20_000, abs=0.03)


def test_a_cuda_graph_whose_kernels_were_seen_is_judged_like_any_step():
    assert on_gpu(gpu_xray(19_500.0, cuda_graphs=True)).bottleneck == "compute"


def test_a_profiler_that_saw_no_device_at_all_is_no_witness_and_no_contradiction():
    blind = gpu_xray(0.0, device_kind="cpu")
    starved = FakeRun(steps(wait=60.0), kind="gpu", xray=blind)
    found = diagnose(starved)
    assert found.bottleneck == "input"
    assert any("no device activity" in note for note in found.notes)


def test_a_recorded_run_says_so_and_on_what():
    found = diagnose(FakeRun(steps(), recorded=True, name="NVIDIA H200"))
    assert str(found).startswith("RECORDED on NVIDIA H200")
    assert "RECORDED on NVIDIA H200" in found._repr_html_()


def test_the_card_is_escaped_and_the_text_is_two_sentences_long():
    found = diagnose(FakeRun(steps(wait=20.0)))
    assert "<CPU>" not in found._repr_html_()
    assert "&lt;CPU&gt;" in found._repr_html_()
    assert len(str(found)) < 500


def test_the_dictionary_has_the_promised_keys_and_is_json():
    values = diagnose(FakeRun(steps(wait=20.0))).to_dict()
    assert {"bottleneck", "confidence", "findings"} <= set(values)
    assert {"name", "evidence", "advice", "lost_share"} <= set(values["findings"][0])
    json.dumps(values, allow_nan=False)


def test_every_ns_of_a_step_is_in_exactly_one_class():
    run = FakeRun(steps(wait=3.0, copy=2.0, other=1.0))
    split = split_steps(run.stamps)
    assert split.sum(axis=1) == pytest.approx(np.diff(run.stamps[:, 5]))
    found = breakdown(run)
    parts = [getattr(found, f"{name}_ms") for name in CLASSES]
    assert sum(parts) == pytest.approx(found.step_ms)
    assert parts == pytest.approx([3, 2, 20, 0, 1], rel=0.1)


def test_on_a_gpu_only_time_that_no_compute_covers_is_lost():
    # The host is ready early, copies overlap the compute before, the device is never idle.
    n = np.arange(20)
    busy = np.column_stack([n * 0.010, n * 0.010 + 0.010]) + 0.02
    stamps = np.column_stack(
        [n * 0.010, n * 0.010 + 0.004, busy[:, 0] - 0.003, busy[:, 0] - 0.001, *busy.T]
    )
    split = split_steps(stamps)
    assert split[:, 2] == pytest.approx(0.010)
    assert split.sum(axis=1) == pytest.approx(0.010)


def test_a_gap_on_a_gpu_goes_to_what_the_host_was_doing():
    n = np.arange(20) * 0.020
    # waits 8 ms for data, issues from 8 to 9, the device copies 9 to 11 and computes 11 to 20
    stamps = np.column_stack([n, n + 0.008, n + 0.009, n + 0.011, n + 0.011, n + 0.020])
    mean = dict(zip(CLASSES, split_steps(stamps).mean(axis=0), strict=True))
    expected = {"wait": 0.008, "copy": 0.002, "compute": 0.009, "launch": 0.001, "other": 0.0}
    assert mean == pytest.approx(expected)


@pytest.mark.skipif(not TRACES.is_dir(), reason="the shared traces are not here")
def test_real_traces_zero_workers_is_input_four_is_not_and_both_lack_tensor_cores():
    none = diagnose(next(TRACES.glob("*num_workers_0__*.json.gz")))
    four = diagnose(next(TRACES.glob("*num_workers_4__*.json.gz")))
    assert none.bottleneck == "input"
    assert none.findings[0].lost_share == pytest.approx(1 / 3, abs=0.02)
    assert four.bottleneck != "input"
    assert all(finding.name != "input" for finding in four.findings)
    for found in (none, four):
        assert "precision" in [finding.name for finding in found.findings]


def test_what_is_no_trace_and_no_record_is_one_clear_error(tmp_path):
    (tmp_path / "a.json").write_text("{}")
    (tmp_path / "a.jsonl").write_text("{}\n")
    for bad in ("a.json", "a.jsonl", "missing.json", "missing.jsonl"):
        with pytest.raises(ValueError, match=bad):
            diagnose(tmp_path / bad)


def test_replacing_a_pipeline_changes_nothing_it_was_not_asked_to():
    run = FakeRun(steps())
    assert diagnose(replace(run)).to_dict() == diagnose(run).to_dict()


def kernels(**us):
    """The x-ray of a GPU whose four steps of 20 ms have these kernels (µs a step)."""
    top = tuple(SimpleNamespace(name=name, total_us=4 * each) for name, each in us.items())
    return gpu_xray(kernel_us=sum(us.values()), top_kernels=top)


def test_products_of_odd_sizes_are_told_by_the_alignment_in_their_kernels_names():
    odd = {"cutlass_80_wmma_tensorop_bf16_s161616gemm_bf16_16x16_32x2_tn_align1": 15_000}
    even = {"cutlass_80_tensorop_bf16_s16816gemm_relu_bf16_64x64_32x6_nn_align8": 15_000}
    plain = {"cutlass_80_simt_sgemm_128x64_8x5_nn_align1": 15_000}  # FP32: aligned as it is made
    found = [
        diagnose(FakeRun(steps(), kind="gpu", xray=kernels(**names, other=4_500)))
        for names in (odd, even, plain)
    ]
    assert [f.bottleneck for f in found] == ["precision", "compute", "compute"]
    assert found[0].findings[0].cause == "unaligned sizes" and "multiple of 8" in found[0].evidence


def test_an_optimizer_that_passes_over_memory_for_each_operation_counts_as_memory_traffic():
    foreach = {"void at::native::multi_tensor_apply_kernel<BinaryOpListAlphaFunctor>": 12_000}
    fused = {"void at::native::multi_tensor_apply_kernel<FusedAdamMathFunctor<float, 4>>": 12_000}
    found = [
        diagnose(FakeRun(steps(), kind="gpu", xray=kernels(**names, gemm=7_500)))
        for names in (foreach, fused)
    ]
    assert [f.bottleneck for f in found] == ["memory_bandwidth", "compute"]


def test_gaps_between_elementwise_kernels_are_launches_and_no_memory_traffic():
    small = {"void at::native::vectorized_elementwise_kernel<4, add>": 4_000}
    found = diagnose(FakeRun(steps(), kind="gpu", xray=kernels(**small)))
    assert found.bottleneck == "launch"
    assert all(f.lost_share < 0.15 for f in found.findings if f.name == "memory_bandwidth")
