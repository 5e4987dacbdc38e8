"""Profiler traces, read: small ones made here, and two real ones where they lie."""

import gzip
import json
import os
import timeit
from pathlib import Path

import pytest
from benchmarks.trace_reader import measure, write_trace
from test_plots import overflow

from labkit.analysis import trace_file
from labkit.analysis.trace import TraceError, trace
from labkit.analysis.trace_events import uses_tensor_cores

TRACES = Path(__file__).resolve().parents[2] / "shared" / "traces"
EXPECTED = TRACES / "expected.json"
CLASSES = [
    "kernel", "memcpy", "memset", "communication", "runtime", "dataloader", "cpu_exec", "other",
]  # fmt: skip
REAL = [
    "resnet50_num_workers_0__worker0.1623143089861.pt.trace.json.gz",
    "resnet50_num_workers_4__worker0.1623212756351.pt.trace.json.gz",
]
needs_real_traces = pytest.mark.skipif(
    not EXPECTED.exists(), reason=f"the real profiler traces are not at {TRACES}"
)


def event(category, name, start, length, pid=100, **args):
    return {
        "ph": "X", "cat": category, "name": name, "pid": pid, "tid": pid,
        "ts": start, "dur": length, "args": args,
    }  # fmt: skip


def step(number, start, length, pid=100):
    return event("user_annotation", f"ProfilerStep#{number}", start, length, pid)


def launch(number, start, length=5, name="cudaLaunchKernel"):
    return event("cuda_runtime", name, start, length, correlation=number)


def kernel(number, start, length, name="k", device=0, **args):
    return event("kernel", name, start, length, device, correlation=number, **args)


@pytest.fixture
def read(tmp_path):
    """Write events (or any text) to a file and read it back as a Breakdown."""

    def write_and_read(content):
        text = content if isinstance(content, (str, bytes)) else json.dumps(content)
        (tmp_path / "bad.json").write_bytes(text if isinstance(text, bytes) else text.encode())
        return trace(tmp_path / "bad.json")

    return write_and_read


def times(breakdown):
    return {name: getattr(breakdown, f"{name}_us") for name in CLASSES}


# One step of 100 µs in which each class is covered by the one before it from the left.
LADDER = [
    step(1, 0, 100),
    event("cpu_op", "aten::relu", 0, 80),
    event("user_annotation", "enumerate(DataLoader)#_Iter.__next__", 0, 65),
    launch(1, 0, 55),
    event("user_annotation", "nccl:all_reduce", 0, 45),
    event("gpu_memset", "Memset (Device)", 0, 30, pid=0),
    event("gpu_memcpy", "Memcpy HtoD", 0, 20, pid=0),
    kernel(1, 0, 10),
]
LADDER_TIMES = dict(zip(CLASSES, [10, 10, 10, 15, 10, 10, 15, 20], strict=True))
OLD_NAMES = {
    "kernel": "Kernel", "gpu_memcpy": "Memcpy", "gpu_memset": "Memset", "cuda_runtime": "Runtime",
    "cpu_op": "Operator", "user_annotation": "Operator",
}  # fmt: skip


@pytest.mark.parametrize("packed", [True, False], ids=["gz object", "plain list"])
@pytest.mark.parametrize("names", [{}, OLD_NAMES, {"cuda_runtime": "cuda_driver"}])
def test_each_ns_goes_to_the_first_active_class_in_every_kind_of_file(read, packed, names):
    events = [e | {"cat": names.get(e["cat"], e["cat"])} for e in LADDER]
    text = json.dumps({"schemaVersion": 1, "traceEvents": events} if packed else events)
    data = b"\xef\xbb\xbf" + text.encode()
    result = read(gzip.compress(data) if packed else data)
    assert times(result) == LADDER_TIMES
    assert (result.step_us, result.shares["dataloader"]) == (100, 0.1)
    assert result.gpu_utilization == result.utilization == 0.1


def test_labels_of_a_person_are_no_work_but_the_optimizer_is(read):
    labels = [("my training step", 0, 90), ("Optimizer.step#SGD.step", 10, 20)]
    result = read([step(1, 0, 100), *(event("user_annotation", *it) for it in labels)])
    assert result.cpu_exec_us == 20


@needs_real_traces
@pytest.mark.parametrize("name", REAL)
def test_real_traces_agree_with_pytorchs_own_plugin(name):
    expected = json.loads(EXPECTED.read_text())[name]
    result = trace(TRACES / name)
    for key in ("step_us", *(f"{c}_us" for c in CLASSES)):
        # README: every class within 0.001% of the step
        assert getattr(result, key) == pytest.approx(expected[key], abs=1e-5 * expected["step_us"])
    assert result.gpu_utilization == pytest.approx(expected["gpu_utilization"], abs=1e-3)
    assert sum(times(result).values()) == pytest.approx(result.step_us)
    assert (result.steps, result.tensor_core_share) == (6, 0)
    assert round(result.tensor_core_eligible_share, 2) == 0.68
    assert result.device_name == "Tesla V100-DGXS-32GB"
    called_input = any(line.startswith("input") for line in expected["advice"])
    assert (result.shares["dataloader"] > 0.05) == called_input


def test_a_step_lasts_until_its_kernels_end_and_the_next_begins_there(read):
    result = read([
        step(1, 0, 100), launch(1, 50), kernel(1, 60, 90),
        step(2, 110, 90), launch(2, 160), kernel(2, 170, 30),
    ])  # fmt: skip
    assert (result.steps, result.step_us) == (2, 100)  # 0 to 150, and 150 to 200
    assert result.kernel_us == 60
    late = read([step(1, 0, 100), kernel(9, 0, 30), launch(1, 40), kernel(1, 50, 10)])
    assert (late.step_us, late.kernel_us) == (70, 10)  # it begins when older work has ended


def test_a_last_step_without_its_kernels_is_left_out_and_without_marks_the_whole_span_is_one(read):
    full = [step(1, 0, 100), step(2, 100, 100)]
    full += [e for i in range(5) for e in (launch(i + 1, 10 + i * 10), kernel(i + 1, 50 + i, 1))]
    result = read([*full, launch(9, 110), kernel(9, 120, 1)])
    assert result.steps == 1 and "Dropped the last step:" in result.notes[0]
    result = read(LADDER[1:])
    assert (result.steps, result.step_us) == (1, 80)
    assert "No ProfilerStep marks" in result.notes[0]


def test_times_are_exact_to_the_ns_also_in_microseconds_since_1970(read):
    text = json.dumps([step(1, "A", 0.007), kernel(1, "A", 0.003)])
    result = read(text.replace('"A"', "1790857026000000.001"))
    assert (result.step_us, result.kernel_us) == (0.007, 0.003)


def test_idle_time_has_its_cause_and_adds_up(read):
    result = read([
        step(1, 0, 200),
        launch(1, 2), kernel(1, 10, 20),  # 10 µs: launched after the step began
        launch(2, 5), kernel(2, 34, 16),  # 4 µs between queued kernels
        launch(3, 12), kernel(3, 90, 10),  # 40 µs although it was queued
        launch(4, 130), kernel(4, 140, 10),  # 40 µs: launched after the device ran dry
        kernel(5, 170, 10),  # 20 µs: nobody knows when it was launched
    ])  # fmt: skip
    assert result.idle == {"host_wait_us": 10 + 40 + 20, "kernel_wait_us": 4, "other_us": 40 + 20}
    assert sum(result.idle.values()) + result.kernel_us == result.step_us


def test_copies_under_kernels_are_counted(read):
    copy = event("gpu_memcpy", "Memcpy HtoD", 40, 40, pid=0, stream=9)
    result = read([step(1, 0, 100), kernel(1, 0, 50), copy])
    assert (result.copy_overlap_share, result.memcpy_us) == (0.25, 30)


TENSOR_CORE = """
    volta_fp16_s884gemm_fp16_128x128_ldg8_f2f_nn nvjet_tst_256x128_64x4_1x2_h_bz_coopA_TNT
    ampere_bf16_s16816gemm_bf16_128x64_ldg8_f2f_stages_64x4_nn
    sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64 pytorch_flash::flash_fwd_kernel<F>
"""
PLAIN = """
    sm80_xmma_gemm_f32f32_f32f32_f32_nn_n_tilesize32x32x8_stage3_ffma_aligna4 volta_sgemm_128x64_nt
    cutlass::Kernel2<cutlass_80_simt_sgemm_128x64_8x5_nn_align1> vectorized_elementwise_kernel<4>
"""


def test_tensor_core_kernels_are_told_by_name():
    assert all(map(uses_tensor_cores, TENSOR_CORE.split()))
    assert not any(map(uses_tensor_cores, PLAIN.split()))


def test_tensor_core_shares_are_of_kernel_time(read):
    matmul = {"External id": 7}
    result = read([
        step(1, 0, 100), event("cpu_op", "aten::mm", 0, 30, **matmul),
        launch(1, 5) | {"args": {"correlation": 1, **matmul}},  # the id is at the launch only
        kernel(1, 20, 30, name="volta_sgemm_128x64_nt"),
        kernel(2, 50, 10, name="volta_h884gemm"), kernel(3, 60, 60, name="relu"),
    ])  # fmt: skip
    assert result.tensor_core_share == pytest.approx(10 / 80)  # the step ends with 20 to go
    assert result.tensor_core_eligible_share == pytest.approx(40 / 80)
    assert [(k.name, k.total_us, k.calls, k.tensor_core) for k in result.top_kernels] == [
        ("relu", 40, 1, False), ("volta_sgemm_128x64_nt", 30, 1, False),
        ("volta_h884gemm", 10, 1, True),
    ]  # fmt: skip


def test_collectives_are_known_by_kernel_name_and_operator_and_several_devices_averaged(read):
    result = read([
        step(1, 0, 100), kernel(1, 0, 10, name="ncclDevKernel_AllReduce_Sum_f32_RING_LL()"),
        event("cpu_op", "nccl:all_reduce", 20, 5, **{"External id": 3}),
        kernel(2, 30, 10, name="reduce", **{"External id": 3}), kernel(3, 35, 10),
    ])  # fmt: skip
    assert result.communication_us == 10 + 5 + 5  # a compute kernel covers the last 5
    assert (result.kernel_us, result.gpu_utilization) == (10, 0.25)
    work = [step(1, 0, 100), launch(1, 0), launch(2, 0)]
    result = read([*work, kernel(1, 10, 40), kernel(2, 30, 40, device=1)])
    assert (result.kernel_us, result.gpu_utilization) == (60, 0.4)
    assert sum(result.idle.values()) == pytest.approx(60)
    assert any("2 devices" in note for note in result.notes)


def test_the_rank_is_read_several_in_one_file_refused_and_cuda_graphs_pointed_out(read):
    assert read({"distributedInfo": {"rank": 3}, "traceEvents": LADDER}).rank == 3
    with pytest.raises(TraceError, match=r"2 ranks \(processes 11, 12\): write one file per rank"):
        read([*LADDER[1:], step(1, 0, 100, pid=11), step(1, 0, 100, pid=12)])
    graph = read([step(1, 0, 100), launch(1, 0, name="cudaGraphLaunch"), kernel(1, 10, 10)])
    assert graph.cuda_graphs and not read(LADDER).cuda_graphs


GOOD = json.dumps(LADDER)
MALFORMED = {
    "empty": b"",
    "no events": b'{"traceEvents": []}',
    "other JSON": b'{"a": 1}',
    "events of the wrong type": b'{"traceEvents": 5}',
    "a picture": b"\x89PNG\r\n\x1a\n\0\0",
    "UTF-16": GOOD.encode("utf-16"),
    "cut short": GOOD[: len(GOOD) // 2].encode(),
    "gz cut short": gzip.compress(GOOD.encode())[:-20],
    "gz damaged": gzip.compress(GOOD.encode())[:40] + b"\xff" * 40,
    "text after the end": GOOD.encode() + b" x",
    "negative duration": GOOD.replace('"dur": 80', '"dur": -80').encode(),
    "NaN": GOOD.replace('"dur": 80', '"dur": NaN').encode(),
    "a huge integer": GOOD.replace('"dur": 80', '"dur": ' + "8" * 10_000).encode(),
    "a huge exponent": GOOD.replace('"dur": 80', '"dur": 8e999999999').encode(),
    "no time at all": json.dumps([step(1, 5, 0)]).encode(),
    "10 MB of nesting": b"[" * 10_000_000,
    "an endless string": b'["' + b"a" * 10_000_000,
    "a list of many lists": b"[[" + b"[]," * 200_000 + b"[]]]",
    "1,000 devices": json.dumps([kernel(1, 0, 1, device=d) for d in range(1000)]).encode(),
}


@pytest.mark.parametrize("content", MALFORMED.values(), ids=MALFORMED)
def test_a_malformed_trace_is_one_clear_sentence(read, content):
    with pytest.raises(TraceError) as raised:
        read(content)
    message = str(raised.value)
    assert "bad.json" in message
    assert "\n" not in message and len(message) < 400
    assert ": " in message and message.endswith(".")  # what is wrong, then the remedy


def test_small_faults_are_mended_and_noted(read):
    many = [event("cpu_op", "aten::add", 1, 2) for _ in range(200)]
    few = read([*LADDER, *many, event("cpu_op", "aten::add", 1, -2), "no event"])
    assert "2 malformed events of 210 were left out" in few.notes[0]
    words = GOOD.replace('"correlation": 1', '"correlation": 1, "bandwidth": inf, "warps": N/A')
    odd = read(GOOD.encode().replace(b"aten::relu", b"aten::\xff\xfe"))
    assert "UTF-8" in odd.notes[0]
    assert times(few) == times(odd) == times(read(words)) == LADDER_TIMES


def test_what_is_no_readable_file_is_refused_without_waiting(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "secret.json").write_text(GOOD)
    (tmp_path / "secret.json").chmod(0)
    reasons = {
        tmp_path / "missing.json": "No such file", tmp_path: "a folder", "nul\0byte": "cannot be",
        tmp_path / "pipe": "not a regular file", tmp_path / "secret.json": "Permission denied",
    }  # fmt: skip
    if os.geteuid() == 0:  # may read all
        del reasons[tmp_path / "secret.json"]
    for path, reason in reasons.items():
        with pytest.raises(TraceError, match=reason):
            trace(path)


def test_sizes_past_the_limits_are_refused(read, monkeypatch):
    monkeypatch.setattr(trace_file, "MAX_EVENTS", 3)
    with pytest.raises(TraceError, match="more than 3"):
        read(GOOD)
    monkeypatch.setattr(trace_file, "MAX_SIZE", 100)
    with pytest.raises(TraceError, match="larger than .* GiB uncompressed"):
        read(GOOD)


def test_it_prints_and_goes_through_json(read):
    odd = "<script>alert(1)</script>"
    result = read({"deviceProperties": [{"id": 0, "name": odd}], "traceEvents": LADDER})
    contract = {f"{c}_us" for c in (*CLASSES, "step")} | {"steps", "idle"}
    contract |= {"gpu_utilization", "tensor_core_share"}
    assert not contract - set(json.loads(json.dumps(result.to_dict())))
    assert "10.0% busy" in repr(result) and "device idle: " in repr(result)
    assert odd in repr(result) and odd not in result._repr_html_()


@pytest.mark.slow
def test_it_loads_no_torch_and_stays_within_memory_and_time_of_plain_json(tmp_path):
    path = tmp_path / "generated.json"
    write_trace(path, 40_000)
    found = measure(path, times=1)
    assert 0 < found["memory_ratio"] < 6 and not found["loaded"]
    text = path.read_bytes()
    ours = min(timeit.repeat(lambda: trace(path), number=1, repeat=3))
    assert ours < 5 * min(timeit.repeat(lambda: json.loads(text), number=1, repeat=3))


FIGURES = {
    "all classes": LADDER,
    "odd names": [
        step(1, 0, 100), kernel(1, 0, 50, name="$\\frac{" * 20),
        kernel(2, 50, 20, name="nvjet_a\n"),
        *(kernel(3 + i, 70 + i, 1, name=f"void at::native::f{i}<4, long>(int)") for i in range(20)),
    ],
    "cpu": [step(1, 0, 100), event("cpu_op", "aten::relu", 0, 80)],
    "nothing but copies": [step(1, 0, 100), event("gpu_memcpy", "Memcpy DtoH", 0, 50, pid=0)],
}  # fmt: skip


@pytest.mark.parametrize("events", FIGURES.values(), ids=FIGURES)
def test_the_figure_keeps_its_texts_inside_and_says_how_busy_it_was(read, events):
    figure = read(events).plot()
    assert overflow(figure) == []
    assert any("of a step computing" in text.get_text() for text in figure.texts)
