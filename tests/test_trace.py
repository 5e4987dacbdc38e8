"""Profiler traces, read: small ones made here, and real ones where they lie."""

import gzip
import json
import shutil
from functools import partial
from pathlib import Path

import pytest
from test_plots import overflow

import labkit as lk
from labkit import trace
from labkit.__main__ import main
from labkit.traces.events import uses_tensor_cores

TRACES = Path(__file__).resolve().parents[2] / "shared" / "traces"
# Of the public traces, found by others' tools than this: each rank's shares, and the bottleneck
KNOWN = json.loads(Path(__file__).with_name("trace_shares.json").read_text())


def event(cat, name, ts, dur, pid=100, **args):
    where = {"pid": pid, "tid": pid}
    return {"ph": "X", "cat": cat, "name": name, "ts": ts, "dur": dur, "args": args} | where


def step(start, length, pid=100):
    return event("user_annotation", "ProfilerStep#1", start, length, pid)


def op(start, length, name="aten::relu", **args):
    return event("cpu_op", name, start, length, **args)


python = partial(event, "python_function")


def launch(number, start, length=5, name="cudaLaunchKernel"):
    return event("cuda_runtime", name, start, length, correlation=number)


def kernel(number, start, length, name="k", device=0, **args):
    return event("kernel", name, start, length, device, correlation=number, **args)


STEP = step(0, 100)


@pytest.fixture
def read(tmp_path):
    """Write events (or any bytes) to a file and read it back as a Breakdown."""

    def write_and_read(content, using=trace):
        file = tmp_path / "bad.json"
        file.write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
        return using(file)

    return write_and_read


# One step of 100 µs in which each class is covered by the one before it from the left.
LADDER = [
    STEP, op(0, 80), event("user_annotation", "enumerate(DataLoader)#_It", 0, 65),
    launch(1, 0, 55), event("user_annotation", "nccl:all_reduce", 0, 45), kernel(1, 0, 10),
    event("gpu_memset", "Memset", 0, 30, pid=0), event("gpu_memcpy", "Memcpy HtoD", 0, 20, pid=0),
]  # fmt: skip
LADDER_US = [10, 10, 10, 15, 10, 10, 15, 20]
OLD_NAMES = {
    "kernel": "Kernel", "gpu_memcpy": "Memcpy", "gpu_memset": "Memset", "cuda_runtime": "Runtime",
    "cpu_op": "Operator", "user_annotation": "Operator",
}  # fmt: skip


@pytest.mark.parametrize("names", [OLD_NAMES, {"cuda_runtime": "xpu_runtime"}])
def test_each_ns_goes_to_the_first_active_class_whatever_a_version_calls_them(read, names):
    events = [e | {"cat": names.get(e["cat"], e["cat"])} for e in LADDER]
    result = read(b"\xef\xbb\xbf" + json.dumps(events).encode())
    assert [*result.class_us.values()] == LADDER_US
    assert (result.step_us, result.gpu_utilization) == (100, 0.1)
    assert (result.busy["idle"], result.busy["dataloader_share"]) == (0.7, 0.65)


@pytest.mark.slow
@pytest.mark.skipif(not TRACES.is_dir(), reason="the shared traces are not here")
@pytest.mark.parametrize("name", KNOWN)
def test_real_traces_have_the_bottleneck_and_the_shares_found_by_others(name, monkeypatch):
    monkeypatch.setenv("LABKIT_TRACES", str(TRACES))
    found = lk.public_trace(name)
    assert "STORED" not in found.source
    verdict = lk.diagnose(found)
    assert verdict.bottleneck == KNOWN[name]["bottleneck"]
    if "kineto" in found.source:
        plugins = json.loads((TRACES / "expected.json").read_text())
        [plugin] = [plugins[file] for file in plugins if name[5:].replace("-", "_") in file]
        for key, us in found.class_us.items():
            # README: every class within 0.001% of the step
            assert us == pytest.approx(plugin[f"{key}_us"], abs=1e-5 * plugin["step_us"])
        assert (found.steps, round(found.tensor_core_eligible_share, 2)) == (6, 0.68)
        return
    ranks = getattr(found, "ranks", [found])
    for result, numbers in zip(ranks, KNOWN[name]["numbers"].values(), strict=True):
        shares = result.busy | {"kernel_busy": result.gpu_utilization}
        for key in numbers.keys() & shares.keys():  # theirs are of a slightly longer window
            assert shares[key] == pytest.approx(numbers[key], abs=0.06), key
    assert len(ranks) == 1 or found.straggler == verdict.rank == 7


def test_a_step_lasts_until_its_kernels_end_and_the_next_begins_there(read):
    first = [STEP, launch(1, 50), kernel(1, 60, 50), kernel(1, 110, 40)]
    second = [step(110, 90), launch(2, 160), kernel(2, 170, 10), kernel(2, 180, 20)]
    result = read([*first, *second])
    assert (result.steps, result.step_us, result.kernel_us) == (2, 100, 60)
    assert result.lanes["steps"].tolist() == [[0, 0.15], [0.15, 0.2]]
    assert result.lanes["kernels"].tolist() == [[0.06, 0.15], [0.17, 0.2]]  # two touch
    late = read([STEP, kernel(9, 0, 30), launch(1, 40), kernel(1, 50, 10)])
    assert (late.step_us, late.kernel_us) == (70, 10)  # it begins when older work has ended


def test_idle_time_has_its_cause(read):
    result = read(
        [
            step(0, 200),
            op(0, 180),
            launch(1, 2),
            kernel(1, 10, 20),  # 10 µs: launched after the step began
            launch(2, 5),
            kernel(2, 34, 16),  # 4 µs between queued kernels
            launch(3, 12),
            kernel(3, 90, 10),  # 40 µs although it was queued
            launch(4, 130),
            kernel(4, 140, 10),  # 40 µs: launched after the device ran dry
            kernel(5, 170, 10),  # 20 µs: launched nobody knows when; then the host is in nothing
        ]
    )
    idle = {"host_wait_us": 50, "host_us": 20, "kernel_wait_us": 4, "other_us": 40 + 20}
    assert result.idle == idle


WORK = [step(0, 1000), op(700, 300), launch(1, 900), kernel(1, 910, 90)]


def test_host_work_outside_operators_is_not_launch_and_is_called_by_its_name(read):
    found = read(WORK, lk.diagnose)
    assert found.bottleneck == "host" and found.findings[0].lost_share == 0.7
    loop = python("train.py(9): loop", 0, 1000), event("user_annotation", "checkpoint", 50, 640)
    result = read([*WORK, *loop, python("train.py(3): save", 100, 580)])
    assert result.host_where == ["checkpoint", "train.py(3): save"]
    assert result.host_work_us == 700
    found = read([*WORK, python("my_dataset.py(8): get", 90, 590)], lk.diagnose)
    assert found.bottleneck == "input" and "my_dataset.py(8): get" in found.evidence
    # Python between operators is part of issuing them, as is what operators and calls take
    eager = [op(start, 30) for start in range(0, 900, 60)]
    assert read([*WORK, *eager], lk.diagnose).bottleneck == "launch"


OPERATOR = {"External id": 3}
COLLECTIVES = [
    [kernel(2, 20, 60, "ncclDevKernel_AllReduce_Sum_f32_RING_LL()")],
    [op(20, 5, "nccl:all_reduce", **OPERATOR), kernel(2, 20, 60, "reduce", **OPERATOR)],
]


@pytest.mark.parametrize("sent", COLLECTIVES)
def test_exposed_collectives_are_their_own_loss_known_by_kernel_or_operator(read, sent):
    result = read([STEP, kernel(1, 0, 30), *sent])
    assert (result.kernel_us, result.communication_us) == (30, 50)
    assert (result.busy["comm_busy"], result.busy["exposed_comm"]) == (0.6, 0.5)
    assert read([STEP, *sent], lk.diagnose).bottleneck == "communication"
    hidden = [STEP, kernel(1, 0, 95), *sent]
    assert read(hidden, lk.diagnose).bottleneck == "compute"


TENSOR_CORE = """
    nvjet_tst_256x128_64x4_1x2_h_bz_coopA_TNT
    sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64 pytorch_flash::flash_fwd_kernel<F>
    Cijk_Alik_Bljk_HHS_BH_MT128x128x32_MI16x16x16x1_SN
"""


def test_tensor_core_kernels_are_told_by_name_and_their_shares_are_of_kernel_time(read):
    assert all(map(uses_tensor_cores, TENSOR_CORE.split()))
    assert not any(map(uses_tensor_cores, ("volta_sgemm_128x64_nt", "elementwise_kernel<4>")))
    matmul = {"External id": 7}
    result = read(
        [
            STEP,
            op(0, 30, "aten::mm", **matmul),
            launch(1, 5) | {"args": {"correlation": 1, **matmul}},  # the id is at the launch only
            kernel(1, 20, 30, "sgemm"),
            kernel(2, 50, 10, "volta_h884gemm"),
            kernel(3, 60, 60, "relu"),
        ]
    )
    shares = result.tensor_core_share, result.tensor_core_eligible_share
    assert shares == pytest.approx((10 / 80, 40 / 80))  # the step ends with 20 to go
    assert "Tensor Cores:" in str(result) and overflow(result.plot()) == []
    assert [*result.kernels_us] == ["relu", "sgemm", "volta_h884gemm"]


def test_the_file_says_rank_and_device_and_several_devices_are_busy_together(read):
    mi300 = {"deviceProperties": [{"id": 0, "name": "AMD Instinct MI300X"}]}
    work = [STEP, kernel(1, 10, 40), kernel(2, 30, 40, device=1)]
    result = read({"distributedInfo": {"rank": 3}, **mi300, "traceEvents": work})
    assert (result.rank, result.device_name) == (3, "AMD Instinct MI300X")
    assert result.gpu_utilization == 0.6
    with pytest.raises(ValueError, match="2 ranks: give one whole"):
        read([*LADDER[1:], step(0, 100, pid=11), step(0, 100, pid=12)])


# -- several traces -------------------------------------------------------------------------------


def test_ranks_are_read_from_a_folder_or_an_archive(tmp_path, capsys):
    folder = tmp_path / "ranks"
    job = folder / "job"
    job.mkdir(parents=True)
    for rank, wait in enumerate([50, 5, 55]):
        work = [STEP, launch(1, 0), kernel(1, 10, 80 - wait), launch(2, 5)]
        work.append(kernel(2, 90 - wait, wait, "ncclDevKernel"))
        (job / f"rank{rank}.json.gz").write_bytes(gzip.compress(json.dumps(work).encode()))
    (job / "config.json").write_text("{}")
    found = trace(folder)
    verdict = lk.diagnose(folder)
    assert (found.straggler, [each.rank for each in found.ranks]) == (1, [0, 1, 2])
    assert "rank 1 is the straggler" in str(found) and "config.json is not a profiler" in str(found)
    assert (verdict.bottleneck, verdict.rank) == ("communication", 1)
    assert overflow(found.timeline()) == []
    assert main(["trace", str(folder), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["ranks"][2]["busy"]["exposed_comm"] == 0.55
    with pytest.raises(ValueError, match="several ranks"):
        found.ranks[0].compare(found)
    assert main(["trace", str(folder), str(folder)]) == 2
    packed = Path(shutil.make_archive(tmp_path / "job", "gztar", folder))
    assert trace(packed).ranks == found.ranks
    packed.write_bytes(packed.read_bytes()[:200])
    with pytest.raises(ValueError, match="damaged|cut short"):
        trace(packed)


def test_files_that_do_not_say_their_rank_have_numbers_of_their_own(tmp_path):
    plain = [STEP, kernel(1, 10, 20)]
    named = {"distributedInfo": {"rank": 0}, "traceEvents": plain}
    for name, content in {"a": plain, "b": named, "c": plain, "d": named}.items():
        (tmp_path / f"{name}.json").write_text(json.dumps(content))
    found = trace(tmp_path)
    assert [(each.rank, each.source[0]) for each in found.ranks] == [(0, "d"), (1, "a"), (2, "c")]
    assert "several traces" in found.notes[0] and "do not say their rank" in found.notes[1]


def test_a_comparison_says_what_changed(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    slow = [STEP, op(0, 60), kernel(1, 10, 50), kernel(2, 60, 5, "t")]
    fast = [step(0, 80), op(0, 30), kernel(1, 10, 20)]
    Path("before.json").write_text(json.dumps(slow))
    Path("after.json").write_text(json.dumps(fast))
    assert main(["trace", "before.json", "after.json", "--json"]) == 0
    values = json.loads(capsys.readouterr().out)
    rows = [(row["name"], row["before_us"], row["after_us"]) for row in values["changes"]]
    assert rows[0] == ("kernel", 55, 20)
    assert rows[-2:] == [("kernel k", 50, 20), ("kernel t", 5, 0)]
    found = str(trace("before.json").compare(trace("after.json")))
    assert "(-20%)" in found and "kernel k" in found


# -- what is no trace -----------------------------------------------------------------------------

GOOD = json.dumps(LADDER).encode()


def test_small_faults_are_mended_and_noted(read):
    few = read([*LADDER, *(op(1, 2) for _ in range(200)), op(1, -2), "no event"])
    assert "2 malformed events of 210 were left out" in few.notes[0]
    words = GOOD.replace(b'"correlation": 1', b'"correlation": 1, "bandwidth": inf, "warps": N/A')
    odd = read(GOOD.replace(b"aten::relu", b"aten::\xff\xfe"))
    for each in (few, odd, read(words)):
        assert [*each.class_us.values()] == LADDER_US
