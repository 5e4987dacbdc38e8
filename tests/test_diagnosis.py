"""What the diagnosis says about runs whose stamps are written by hand, and about real traces."""

import contextlib
import dataclasses
import json
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import get_args

import numpy as np
import pytest
import torch

import labkit as lk
from labkit.bench import model_parts
from labkit.diagnosis import (
    compute_rules,
    device_remedies,
    efficiency,
    gather,
    idle_rules,
    line_work,
    ranking,
    step_table,
    worker_remedies,
)
from labkit.diagnosis.card_formats import tensor_formats
from labkit.diagnosis.core_use import CoreUse
from labkit.diagnosis.estimate import Estimate, Workers
from labkit.diagnosis.evidence import Batch, CardEvidence, Evidence, Kernels, WorkerEvidence
from labkit.diagnosis.findings import BOTTLENECKS, Unit
from labkit.diagnosis.gains import with_gains
from labkit.diagnosis.hot_lines import Line
from labkit.diagnosis.line_work import loading_of
from labkit.diagnosis.loader_code import LoopCode
from labkit.diagnosis.remedies import LESSONS, Remedy
from labkit.diagnosis.step_table import StepTable
from labkit.diagnosis.thresholds import WORTH_NAMING
from labkit.diagnosis.wording import FORMATS, worded
from labkit.results.hardware import Machine
from labkit.results.loader_records import Hang
from labkit.results.supply import MemoryGrowth
from labkit.results.wall_shares import WallShare, WallShares
from labkit.spec import KNOBS
from labkit.watching import loader_call
from labkit.watching.batches import BatchFacts

NOTEBOOKS_FOLDER = Path(__file__).parents[1] / "notebooks"
TRACES = Path(__file__).resolve().parents[2] / "shared" / "traces"
CALM = {
    "steps": 3, "window_us": 20_000.0, "gap_us": 800.0, "tiny_us": 400.0, "tiny_ops": 250,
    "elementwise_us": 2_000.0, "fusible_us": 300.0, "fixed_share": 0.0, "bf16_speedup": 0.9,
}  # fmt: skip
BUSY_CORES = {"t_ns": 10**8, "cpu": 1.0, "own_cpu": 0.3, "cpus": 2}


class Fake(SimpleNamespace):
    """A run by its attributes."""

    @property
    def mark(self):
        return f"RECORDED on {self.machine.name}" if self.recorded else None


def fake(ms, kind="cpu", own=1.0, name="a <CPU>", **more):
    """A run as the diagnosis sees it: `ms` holds wait, copy, compute and other of each step.

    `own` is the share of the compute in which its thread was running.
    """
    wait, copy, compute, other = ms.T / 1e3
    asked = np.cumsum(wait + copy + compute + other) - (wait + copy + compute + other)
    ready = asked + wait
    copied = asked + wait + copy
    stamps = np.column_stack([asked, ready, ready, copied, copied, copied + compute])
    busy = compute.sum() / max(ms.sum() / 1e3, 1e-9)
    values = {
        "as_of_now": contextlib.nullcontext,
        "computed": {},
        "recorded": False,
        "watched": False,
        "warmup": 1,
        "machine": Machine(kind=kind, name=name, cpu_cores=2),
        "steps": len(ms),
        "stamps": stamps,
        "busy": stamps[:, 4:],
        "length_s": stamps[-1:, 5].sum(),
        "thread_s": compute * own,
        "utilization": busy,
        "busy_at_least": busy if kind == "cpu" else 0.0,
        "telemetry": [],
        "xray": None,
        "xray_facts": dict(CALM),
        "pipeline": lk.Pipeline(),
        "seconds": lambda t_ns: t_ns / 1e9,
        "padding": None,
        "batch_bytes": np.full(len(ms), np.nan),
        "item_events": (),
        "outcome": "finished",
        "throughput": 1.0,
        "mfu": None,
        "peak": None,
        "event": lambda name: None,
        "workers": (),
        "beside": (),
        "on_the_card": (),
        "queued_ms": None,
        "wall_shares": None,
        "samples_of_lines": (),
        "launches_only": False,
    }
    return Fake(**values | more)


def steps(wait=0.2, copy=0.0, compute=20.0, other=0.1, count=30):
    rng = np.random.default_rng(1)
    return np.array([[wait, copy, compute, other]] * count) * rng.normal(1, 0.02, (count, 1))


def on_gpu(kernel_us, knobs=(), xray_facts=None, ms=None, **more):
    """Diagnose a GPU whose x-ray saw kernels for `kernel_us` a step."""
    xray = {
        "kernel_us": kernel_us,
        "tensor_core_share": 0.9,
        "tensor_core_eligible_share": 0.9,
        "steps": 4,
        "top_kernels": (),
        "device_kind": "gpu",
        "cuda_graphs": False,
        **more,
    }
    ms = steps() if ms is None else ms
    return lk.diagnose(
        fake(
            ms,
            kind="gpu",
            xray=SimpleNamespace(**xray),
            xray_facts=xray_facts,
            pipeline=lk.Pipeline(**dict(knobs)),
        )
    )


def first(found):
    return found.bottleneck, found.findings[0].cause


def told(finding, evidence):
    """A finding with its remedies filled in and in words, as `diagnose` returns it."""
    return worded(with_gains(finding, evidence, None), evidence)


def test_every_loss_has_a_name_in_words_and_a_threshold_every_remedy_a_section_that_is_there():
    assert set(WORTH_NAMING) == set(BOTTLENECKS) - {"unsure"}
    assert FORMATS.keys() == set(get_args(Unit))
    taught = {row.lesson for row in rows_of_remedies().values() if row.lesson}
    assert taught == set(LESSONS)
    for name, heading in LESSONS.values():
        cells = json.loads((NOTEBOOKS_FOLDER / name).read_text())["cells"]
        lines = [line.strip() for cell in cells for line in cell["source"]]
        assert f"## {heading}" in lines, (name, heading)


TWO = WorkerEvidence((0.9, 0.9))
PLAIN = LoopCode("loader", call="DataLoader", arguments={"dataset": "data", "batch_size": "4"})
FITTING = {  # what a remedy applies to whose `fits` has words or settings
    "ALIGNED": Evidence("gpu"),
    "BF16": Evidence("cpu"),
    "CHEAPER_ITEMS": Evidence("cpu"),
    "COMPILE": Evidence("gpu"),
    "DEAL_FILES_OUT": Evidence("cpu", workers=TWO),
    "DEEPER_QUEUE": Evidence(
        "cpu", wait_share=0.5, stall_share=0.9, deeper_queue=8, knobs={"num_workers": 2}
    ),
    "FETCH_AT_ONCE": Evidence("cpu", wait_us=900.0),
    "FEWER_THREADS": Evidence(
        "cpu", compute_us=9e3, quick_compute_us=3e3, threads=2, use=CoreUse(2), workers=TWO,
        code=PLAIN,
    ),
    "GIVE_UP_WAITING": Evidence(
        "cpu", workers=dataclasses.replace(TWO, hang=Hang(0, None, 40.0, False))
    ),
    "IN_LOOP": Evidence("cpu", knobs={"num_workers": 2}, advised=Workers(0, Estimate(2, 1, 3))),
    "LARGER_AND_FEWER": Evidence(
        "gpu", batches_an_update=4, knobs={"batch_size": 4}, card=CardEvidence(held_share=0.1)
    ),
    "LARGER_BATCH": Evidence("cpu", knobs={"batch_size": 4}),
    "MORE_OF_ITS_OWN": Evidence("gpu", own_loader="PrefetchLoader", wait_us=9e4),
    "NO_NAN_FILTER": Evidence("gpu", trainer=True, code=LoopCode(training="args")),
    "PERSISTENT": Evidence("cpu", code=PLAIN),
    "PROCESS_PER_CARD": Evidence("gpu", code=LoopCode(cards=2)),
    "PROFILE_FIRST": Evidence("gpu", formats=("bf16",)),
    "QUIETER": Evidence("gpu"),
    "RESHARD": Evidence("cpu", workers=TWO),
    "SINGLE_PRECISION": Evidence("cpu", batch=Batch("float64")),
    "SIXTEEN_BITS": Evidence("gpu", formats=("bf16",)),
    "TWICE_THE_BATCH": Evidence("cpu", knobs={"batch_size": 4}),
    "WHOLE_TENSORS": Evidence(
        "cpu", code=dataclasses.replace(PLAIN, dataset_type="TensorDataset")
    ),
    "WORKERS": Evidence("cpu", advised=Workers(2, Estimate(2, 1, 3), threads=1), code=PLAIN),
    "FEWER_BYTES_OVER": Evidence("gpu"),
    "USE_THE_CARD": Evidence("cpu", spare_card="H200"),
}  # fmt: skip


def rows_of_remedies():
    modules = [sys.modules[name] for name in sys.modules if name.startswith("labkit.diagnosis.")]
    named = [item for module in modules for item in vars(module).items()]
    return {name: value for name, value in named if isinstance(value, Remedy)}


@pytest.mark.parametrize("row", rows_of_remedies().items(), ids=lambda row: row[0])
def test_every_remedy_is_filled_in_for_what_it_fits(row):
    name, remedy = row
    evidence = FITTING.get(name)
    if evidence is None:  # it fits or does not, and says the same of every run
        remedy = dataclasses.replace(remedy, fits=lambda evidence: True)
        evidence = Evidence(remedy.on or "gpu", use=CoreUse(2))
    try:
        filled = remedy.for_run(evidence, rank=1)
    except KeyError as error:
        pytest.fail(f"{name} lacks {error}: give FITTING evidence that it fits")
    assert filled, f"{name} does not fit what FITTING has for it"
    assert filled.changes.keys() <= KNOBS.keys()
    assert "$" not in f"{filled.text} {filled.code} {filled.arguments}"
    assert "None" not in f"{filled.text} {filled.arguments}"
    compile(filled.code, name, "exec")


@pytest.mark.parametrize(
    "time, bottleneck",
    [({"wait": 15.0}, "input"), ({"copy": 15.0}, "transfer"), ({"other": 15.0}, "launch")],
)
def test_time_outside_the_compute_is_named_after_what_took_it(time, bottleneck):
    found = lk.diagnose(fake(steps(**time)))
    assert found.bottleneck == bottleneck
    assert found.findings[0].lost_share == pytest.approx(15 / 35, abs=0.03)
    assert "% of the time" in found.evidence and "threshold" in found.evidence
    expect = {
        "input": "Expect 1.7x the throughput (1.3x to 1.8x).",  # simulated, within the device
        "transfer": "Expect 1.7x the throughput at most.",  # were no copy to be waited for
        "launch": "What it brings is unknown: measure it",
    }
    assert expect[bottleneck] in found.advice
    assert "See notebook 0" in found.advice and "section" in found.advice


@pytest.mark.parametrize(
    "seen, bottleneck",
    [({}, "compute"), ({"bf16_speedup": 2.0}, "precision"), ({"gap_us": 9_000.0}, "launch"),
     ({"tiny_us": 9_000.0}, "launch"), ({"fusible_us": 9_000.0}, "memory_bandwidth")],
)  # fmt: skip
def test_the_xray_sees_inside_the_compute_and_the_costlier_fault_comes_first(seen, bottleneck):
    found = lk.diagnose(fake(steps(), xray_facts=CALM | seen))
    assert found.bottleneck == bottleneck and found.confidence == 1.0
    names = [f.name for f in lk.diagnose(fake(steps(wait=60.0), xray_facts=CALM | seen)).findings]
    assert names[0] == "input" and set(names[1:]) <= {bottleneck}


def test_a_run_that_is_too_short_or_in_which_no_time_passed_gets_no_verdict():
    found = lk.diagnose(fake(steps(count=6)))
    assert found.bottleneck == "unsure" and "Run 7 more steps" in found.advice
    assert lk.diagnose(fake(np.zeros((0, 4)), warmup=0)).bottleneck == "unsure"
    ms = np.zeros((30, 4))
    assert on_gpu(5.0, ms=ms).bottleneck == lk.diagnose(fake(ms)).bottleneck == "unsure"
    ms[0] = 20.0
    assert repr(on_gpu(5.0, ms=ms)) and repr(lk.diagnose(fake(ms, warmup=0)))


@pytest.mark.parametrize(
    "time, own, workers, samples, bottleneck",
    [({}, 0.5, 0, [], "unsure"),  # others had the core: not called healthy
     ({"wait": 60.0}, 0.7, 0, [], "input"), ({"other": 10.0}, 0.5, 0, [], "launch"),  # these stand
     ({"wait": 5.0}, 0.5, 1, [BUSY_CORES], "unsure"),  # workers starved by others
     ({}, 0.5, 4, [BUSY_CORES | {"own_cpu": 1.0}], "input")],  # our own workers had it
)  # fmt: skip
def test_a_core_taken_from_the_model_is_blamed_on_who_took_it(
    time, own, workers, samples, bottleneck
):
    pipeline = lk.Pipeline(num_workers=workers)
    found = lk.diagnose(fake(steps(**time), own=own, telemetry=samples, pipeline=pipeline))
    assert found.bottleneck == bottleneck
    assert (found.findings[0].cause == "workers_take_the_device's_cores") == (workers == 4)


@pytest.mark.parametrize(
    "now, best, said",
    [(0, 6, "num_workers=6; PyTorch warns"), (2, 6, "Use more workers: num_workers=6"),
     (6, 6, "workers is not expected to gain. Do less"), (6, 2, "fewer workers: num_work"),
     (4, 0, "Make batches in the loop"), (4, None, "Try other numbers of workers. Do less")],
)  # fmt: skip
def test_the_advice_has_the_recommended_number_and_no_other(now, best, said):
    choice = (
        None if best is None else Workers(best, Estimate(1.0 if now == best else 2.0, 1.5, 2.5))
    )
    evidence = Evidence(
        "cpu", wait_share=0.5, use=CoreUse(2), knobs={"num_workers": now}, advised=choice
    )
    finding = told(idle_rules.waiting_for_data(evidence), evidence)
    assert said in finding.advice
    changes = [remedy.changes for remedy in finding.remedies if remedy.changes]
    assert [one["num_workers"] for one in changes] == ([] if best in (None, now) else [best])


@pytest.mark.parametrize(
    "kernel_us, how, graphs",
    [(0.0, {}, False),  # no kernel at all, of a device that its events call busy
     (40_000.0, {}, False),  # kernels for longer than it was busy
     (2_000.0, {"cuda_graphs": True}, True),
     (2_000.0, {"knobs": {"compile": "reduce-overhead"}}, True)],
)  # fmt: skip
def test_instruments_that_contradict_each_other_give_no_verdict(kernel_us, how, graphs):
    found = on_gpu(kernel_us, **how)
    assert first(found) == ("unsure", "instruments_disagree")
    assert ("CUDA graphs" in found.advice) == graphs


ODD = "cutlass_80_wmma_tensorop_bf16_s161616gemm_bf16_16x16_32x2_tn_align1"
EVEN = "cutlass_80_tensorop_bf16_s16816gemm_relu_bf16_64x64_32x6_nn_align8"
PLAIN = "cutlass_80_simt_sgemm_128x64_8x5_nn_align1"  # FP32: aligned as it is made
FOREACH = "void at::native::multi_tensor_apply_kernel<BinaryOpListAlphaFunctor>"
FUSED = "void at::native::multi_tensor_apply_kernel<FusedAdamMathFunctor<float, 4>>"
SMALL = "void at::native::vectorized_elementwise_kernel<4, add>"


@pytest.mark.parametrize(
    "name, us, rest, bottleneck",
    [(ODD, 15_000, 4_500, "precision"), (EVEN, 15_000, 4_500, "compute"),
     (PLAIN, 15_000, 4_500, "compute"), (FOREACH, 12_000, 7_500, "memory_bandwidth"),
     (FUSED, 12_000, 7_500, "compute"), (SMALL, 4_000, 0, "launch")],
    ids=["odd sizes", "multiples of 8", "FP32", "foreach optimizer", "fused optimizer", "gaps"],
)  # fmt: skip
def test_the_names_of_kernels_tell_odd_sizes_and_passes_over_memory(name, us, rest, bottleneck):
    top = (SimpleNamespace(name=name, total_us=4 * us),)  # of four steps of 20 ms
    found = on_gpu(us + rest, top_kernels=top, xray_facts=CALM)
    assert found.bottleneck == bottleneck
    assert (found.findings[0].cause == "unaligned_sizes") == (bottleneck == "precision")


def test_a_diagnosis_prints_as_a_sentence_shows_as_a_table_and_is_json():
    found = lk.diagnose(fake(steps(wait=20.0), recorded=True, name="NVIDIA <H200>"))
    assert str(found).startswith("RECORDED on NVIDIA <H200>: Bottleneck input (waiting for data)")
    what, why, do = repr(found).split("\n")
    assert "50% of the time; confidence 100%" in what and why.startswith("Why: 50% of the time")
    assert do.startswith("Do: Prepare batches in other processes: num_workers=1. Expect ")
    assert "batch_size=16, shuffle=True, num_workers=1)" in do
    assert "threshold" in str(found.details) and len(repr(found)) < 600
    assert "href='03_dataloader_tuning.ipynb#1.-Workers,-on-real-work'" in found._repr_html_()
    assert "RECORDED on NVIDIA &lt;H200&gt;" in found._repr_html_()
    values = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    assert {"bottleneck", "confidence", "findings"} <= set(values)
    assert {"name", "evidence", "advice", "lost_share"} <= set(values["findings"][0])


# -- advice does not contradict what is known of the run ------------------------------------------


@pytest.mark.skipif(not TRACES.is_dir(), reason="the shared traces are not here")
@pytest.mark.parametrize(
    "file, says, never",
    [("gpu/rtx2080ti_resnet_sawtooth", "workers do not keep up", "Give the DataLoader"),
     ("resnet50_num_workers_0", "in other processes: num_workers=1", "do not keep up"),
     ("gpu/v100_busy_fp32", "FP16 with a GradScaler (this card has no BF16)", "bf16"),
     ("gpu/h100_bert_small_inference", "Launch fewer", "optimizer")],
    ids=["a loader with workers", "a loader without", "a V100", "inference"],
)  # fmt: skip
def test_advice_from_a_trace_fits_the_loader_the_card_and_inference(file, says, never):
    found = lk.diagnose(next(TRACES.glob(f"{file}*.json.gz")))
    assert says in found.advice
    assert never not in str(found) and never not in str(found.findings[0].remedies)


@pytest.mark.parametrize(
    "name, capability, formats",
    [("Tesla V100-SXM2-32GB", None, ("fp16",)), ("Tesla T4", "7.5", ("fp16",)),
     ("Tesla P100-PCIE-16GB", None, ()), ("NVIDIA A100-SXM4-80GB", None, ("bf16", "fp16")),
     ("new", "12.0", ("bf16", "fp16")), ("new", None, None), ("NVIDIA T1000", "7.5", ())],
)  # fmt: skip
def test_a_card_is_advised_a_16_bit_format_that_its_tensor_cores_have(name, capability, formats):
    assert tensor_formats(name, capability) == formats
    seen = Kernels(kernel_us=1000.0, eligible_share=0.6)
    evidence = Evidence("gpu", compute_share=1.0, kernels=seen, formats=formats)
    found = compute_rules.no_tensor_cores(evidence)
    assert (found is not None) == (formats != ())
    remedies = told(found, evidence).remedies if found else ()
    changes = [remedy.changes for remedy in remedies if remedy.changes]
    assert changes == ([{"precision": formats[0]}] if formats else [])


def test_with_other_programs_on_the_cores_the_verdict_is_not_certain_and_says_so():
    alone = lk.diagnose(fake(steps(wait=20.0)))
    others = {"own_cpu": 0.3, "cpu": 1.0}  # of two cores
    beside = ["python (pid 12)", "chrome (pid 3)"]
    found = lk.diagnose(fake(steps(wait=20.0), telemetry=[BUSY_CORES | others], beside=beside))
    assert alone.confidence == 1.0 and found.confidence == pytest.approx(0.3, abs=0.01)
    said = "Other programs used 1.4 of 2 cores meanwhile: python (pid 12) and chrome (pid 3)"
    assert said in str(found).splitlines()[0]


@pytest.mark.parametrize("share, confidence", [(0.1, 0.9), (None, 0.5)])
def test_programs_on_the_same_gpu_are_named_and_lower_the_confidence(share, confidence):
    sample = {"t_ns": 10**8, "others_sm": share}
    run = fake(steps(wait=60.0), "gpu", telemetry=[sample], on_the_card=["python (pid 12)"])
    found = lk.diagnose(run)
    assert found.bottleneck == "input" and found.confidence == pytest.approx(confidence)
    assert "Other programs were on the same GPU: python (pid 12)" in str(found).splitlines()[0]


# -- what the loader's workers show ----------------------------------------------------------------

BUSY = {"cpu_shares": (0.95, 0.97), "cores": 2}
IDLE = {"cpu_shares": (0.9, 0.9), "cores": 8, "idle_share": 0.7}
WAITING = {"cpu_shares": (0.1, 0.2), "cores": 8, "item_wait_ms": 9.0}
LOADER = LoopCode("loader", call="", arguments={"dataset": "data", "num_workers": "2"})


def seen_in(workers):
    return WorkerEvidence(**{name: value for name, value in workers.items() if name != "cores"})


def diagnosed(workers, **more):
    """What is said of a loop that waits half of the time for workers that show this."""
    known = {"wait_share": 0.5, "compute_share": 0.5, "code": LOADER, "knobs": {"num_workers": 2}}
    known["use"] = CoreUse(workers["cores"])
    evidence = Evidence("gpu", workers=seen_in(workers), **known | more)
    return told(ranking.by_cost(evidence)[0], evidence)


@pytest.mark.parametrize(
    "workers, cause, said, code",
    [(BUSY, "cores", "2 workers on 2 cores", ""),
     (BUSY | {"cores": 8}, "too_few_workers", "num_workers=6", "num_workers=6"),
     (BUSY | {"cpu_shares": (1.9, 2.1)}, "threads", "one thread", "worker_init_fn=one_thread"),
     (WAITING, "storage_latency", "num_workers=6", "num_workers=6"),
     (WAITING | {"wait_over_alone": 3.0}, "shared_supply", "fewer bytes", "copytree"),
     (IDLE, "hand_over", "uint8", "div_(255)"),
     (IDLE | {"busiest_over_mean": 1.6}, "uneven_shards", "1.6x the throughput at most",
      "files[info.id ::"),
     (IDLE | {"slowest_ratio": 30.0, "slow_items": (7,), "late_share": 0.6}, "slow_items",
      "the mean time: 7", "in_order=Fals"),
     (BUSY | {"slowest_ratio": 30.0, "slow_items": (7,), "late_share": 0.05}, "cores", "cores", ""),
     (BUSY | {"epoch_start_share": 0.4}, "workers_restart", "persistent", "persistent_workers=Tr"),
     (BUSY | {"epoch_start_share": 0.4, "epoch_start_ms": 9e3, "cpu_shares": (0.1,) * 20},
      "workers_restart", "first batch, for which 20 workers start on 2 cores",
      "persistent_workers=Tr"),
     (BUSY | {"first_epoch_ratio": 4.0}, "cold_start", "later epochs", ""),
     (BUSY | {"hang": Hang(1, None, 90.0, over=False)}, "hang", "worker 1", "timeout=90")],
    ids=lambda value: value if isinstance(value, str) and value.isidentifier() else "",
)  # fmt: skip
def test_what_the_workers_show_names_the_cause_and_the_remedy(workers, cause, said, code):
    more = {"advised": Workers(6, Estimate(1.8, 1.4, 2.2))} if "num_workers" in code else {}
    found = diagnosed(workers, **more)
    assert (found.name, found.cause) == ("input", cause)
    assert said in f"{found.evidence} {found.advice}"
    assert code in found.code
    assert "prefetch_factor" not in found.advice  # it hides a cause, and removes none
    assert ("num_workers=" in found.advice) == bool(more)


@pytest.mark.parametrize("seen", [{"in_line": 9.0}, {"own": 1.9}])
def test_full_cores_are_the_libraries_threads_only_where_more_are_in_line_than_there_are_workers(
    seen,
):
    found = diagnosed(
        {"cpu_shares": (0.5,) * 4, "cores": 2, "idle_share": 0.0}, use=CoreUse(2, **seen)
    )
    assert found.cause == ("threads" if "in_line" in seen else "cores")


@pytest.mark.parametrize(
    "seen, cause",
    [({"cpu_shares": (0.4,) * 4, "in_line_share": 0.6, "idle_share": 0.3}, "workers_take"),
     ({"cpu_shares": (0.9,) * 2, "in_line_share": 0.4, "idle_share": 0.99}, "the_device_is"),
     ({"cpu_shares": (0.6,) * 2, "in_line_share": 0.01, "idle_share": 0.3}, "the_device_is")],
    ids=["full", "workers at rest", "nobody in line"],
)  # fmt: skip
def test_a_step_that_is_not_timed_loses_to_workers_what_its_quickest_ones_do_not_take(
    seen, cause, monkeypatch
):
    monkeypatch.setattr(gather, "worker_evidence", lambda _: seen_in(seen))
    ms = steps(wait=4.0, compute=80.0)
    ms[::8, 2] = 30.0
    machine = Machine(kind="cpu", name="a <CPU>", cpu_cores=2, threads=2)
    run = fake(ms, own=np.nan, machine=machine, pipeline=lk.Pipeline(num_workers=4))
    evidence = StepTable(run).evidence()
    found = ranking.by_cost(evidence)[0]
    assert found.cause.startswith(cause)
    if cause == "workers_take":
        beyond_quick = 1 - evidence.quick_compute_us / evidence.compute_us
        assert found.lost_share == pytest.approx(beyond_quick * evidence.compute_share, abs=0.01)


@pytest.mark.parametrize(
    "dataset_type, batch_size, says",
    [("TensorDataset", "64", "fetch a batch at once"), ("ImageFolder", "64", "num_workers=6"),
     ("TensorDataset", None, "num_workers=6")],
    ids=["whole tensors", "files", "a batch at once already"],
)  # fmt: skip
def test_whole_tensors_are_fetched_a_batch_at_once_before_workers_take_them_apart(
    dataset_type, batch_size, says
):
    arguments = {"dataset": "data", "batch_size": batch_size or "None", "shuffle": "True"}
    found = diagnosed(
        BUSY | {"cores": 8},
        advised=Workers(6, Estimate(1.8, 1.4, 2.2)),
        code=LoopCode("loader", call="", arguments=arguments, dataset_type=dataset_type),
        knobs={"num_workers": 2, "batch_size": batch_size and int(batch_size)},
    )
    assert says in found.advice
    at_once = "sampler=BatchSampler(RandomSampler(data), batch_size=64" in found.code
    assert at_once == ("at once" in says)


def starved(code=LOADER, **more):
    """A loop that waits for a loader without workers, for which eight are advised."""
    return Evidence(
        "cpu",
        wait_share=0.8,
        compute_share=0.2,
        wait_us=60e3,
        knobs={"num_workers": 0, "batch_size": 8},
        code=code,
        advised=Workers(8, Estimate(4.0, 3.5, 4.5)),
        **more,
    )


def test_a_stream_without_workers_is_told_to_share_itself_out_and_promised_nothing():
    for streams in (False, True):
        evidence = starved(dataclasses.replace(LOADER, streams=streams))
        found = told(ranking.by_cost(evidence)[0], evidence)
        assert "num_workers=8" in found.advice and (found.expected is None) == streams
        assert ("every item comes 8 times" in found.advice) == streams


def test_who_starts_workers_by_importing_the_script_is_told_of_the_guard():
    here = {"python": "3.11.7"}
    for machine, method, imports in (
        (Machine(os="Linux 6.1", versions=here), None, False),
        (Machine(os="Linux 6.1", versions={"python": "3.14.0"}), None, True),
        (Machine(os="Windows 11", versions=here), None, True),
        (Machine(os="macOS 15", versions=here), "'fork'", False),
        (Machine(os="Linux 6.1", versions=here), "'forkserver'", True),
    ):
        arguments = {} if method is None else {"multiprocessing_context": method}
        code = dataclasses.replace(LOADER, arguments=arguments)
        assert gather._imports_script(machine, code) == imports, machine
        evidence = starved(imports_script=imports)
        advice = told(ranking.by_cost(evidence)[0], evidence).advice
        assert ('if __name__ == "__main__":' in advice) == imports


def test_only_an_optimizer_that_could_be_fused_is_told_to():
    weights = [torch.nn.Parameter(torch.zeros(1))]
    for optimizer, may in (
        (torch.optim.AdamW(weights), True),
        (torch.optim.AdamW(weights, fused=True), False),
        (torch.optim.RMSprop(weights), False),
        (object(), None),
    ):
        assert loader_call.may_fuse(optimizer) is may
        evidence = Evidence("gpu", code=LOADER, may_fuse=may)
        filled = device_remedies.FUSED_OPTIMIZER.for_run(evidence)
        assert (filled is None) == (may is False)


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(2, 2)

    def forward(self, x):
        return self.layer(x).relu()


def in_place(model):
    model.compile(backend="eager")
    return model


def test_a_model_that_is_compiled_is_not_told_to_be():
    nn = torch.nn
    for made, is_compiled in (
        (nn.Linear(1, 1), False),
        (torch.compile(nn.Linear(1, 1)), True),
        (in_place(Block()), True),
        (nn.Sequential(in_place(Block())), True),
        (in_place(nn.Sequential(nn.Linear(2, 2), nn.ReLU())), False),
        (in_place(nn.DataParallel(Block())), True),  # what is compiled is within
    ):
        assert model_parts.is_compiled(made) == is_compiled
        code = LoopCode.of({"is_compiled": is_compiled})
        evidence = Evidence("gpu", compiles=True, code=code)
        assert (device_remedies.compiled(evidence) is None) == is_compiled


def test_behind_a_wait_within_torchs_own_step_the_device_may_work():
    for kind, follows in (("sync", 1.0), ("inner_sync", 0.0)):
        kinds = np.array([kind, *["python"] * 3] * 40)
        step = np.repeat(np.arange(40), 4)
        lines = SimpleNamespace(
            step=step, kind=kinds, share=np.full(160, 1 / 160),
            mask=lambda phase: np.ones(160, bool), of_part=lambda part, kinds=kinds: kinds == part,
        )  # fmt: skip
        assert line_work.share_after_sync(lines, "python") == follows


def test_a_step_with_a_larger_batch_is_no_pause():
    rng = np.random.default_rng(3)
    sizes = rng.lognormal(5.5, 0.7, 400)
    for known, pauses in ((sizes, False), (np.full(400, np.nan), True)):
        found = step_table._pauses(0.01 + 2e-4 * sizes, 1, step_table._larger_batches(known))
        assert (found.sum() > 0.1) == pauses


def test_long_steps_of_a_device_that_nobody_timed_are_no_pauses():
    for untimed in (False, True):
        evidence = Evidence("gpu", pause_share=0.5, compute_share=1.0, launches_only=untimed)
        assert (idle_rules.pauses(evidence) is None) == untimed


def test_a_loader_that_is_not_torchs_is_asked_for_more_of_its_own_workers():
    slow = {"wait_share": 0.8, "compute_share": 0.2, "wait_us": 60e3}
    for own_loader, says in ((None, "a DataLoader with"), ("PrefetchLoader", "the PrefetchLoader")):
        evidence = Evidence("gpu", own_loader=own_loader, **slow)
        assert says in told(ranking.by_cost(evidence)[0], evidence).advice


def test_only_a_run_that_has_an_xray_is_told_to_switch_it_on():
    work = {"flops": 1e9, "bytes": 1e6}
    for knobs, key in (({"xray": False}, "look_inside"), ({"num_workers": 0}, "profile")):
        evidence = Evidence("gpu", compute_share=1.0, knobs=knobs)
        _, remedy = efficiency._reason(work, SimpleNamespace(ridge=None), None, evidence, 0.03)
        assert remedy.key == key


def test_padding_costs_no_time_of_an_optimizers_step():
    parts = {"forward": 0.2, "backward": 0.3, "optimizer": 0.5}
    loop = SimpleNamespace(lines=SimpleNamespace(body=parts))
    slow = {"padding_share": 0.4, "compute_share": 0.9}
    for kind, lost in (("cpu", 0.18), ("gpu", 0.36)):  # a GPU's time is not its host's
        found = compute_rules.padding(Evidence(kind, loop=loop, **slow))
        assert found.lost_share == pytest.approx(lost) and found.is_bound
    assert "at most 36% of the time" in worded(found).evidence


def test_a_loader_that_makes_its_batches_on_a_gpu_is_advised_no_workers():
    slow = {"wait_share": 0.8, "compute_share": 0.2, "wait_us": 60e3, "batch": Batch(on_gpu=True)}
    evidence = Evidence("gpu", knobs={"num_workers": 0, "batch_size": 8}, code=LOADER, **slow)
    found = told(ranking.by_cost(evidence)[0], evidence)
    assert found.advice.startswith("The loader makes its batches on the GPU")
    assert "num_workers" not in found.advice + found.code and "inputs.to(device" in found.code
    whole = {"dataset": "data", "batch_size": "8"}
    code = LoopCode("loader", call="", arguments=whole, dataset_type="TensorDataset")
    evidence = dataclasses.replace(evidence, code=code)
    assert "BatchSampler" in told(ranking.by_cost(evidence)[0], evidence).code


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_a_record_says_whether_a_watched_loader_makes_its_batches_on_a_device(device):
    batches = BatchFacts(4)
    batches.counter(torch.zeros(4, 3, device=device))
    assert batches.on_gpu == (device == "meta")


@pytest.mark.parametrize("is_moved", [False, True], ids=["a DataLoader", "a prefetcher"])
def test_batches_that_a_prefetcher_has_moved_to_a_gpu_were_not_made_there(is_moved, monkeypatch):
    monkeypatch.setattr(lk.Run, "batch_on_gpu", True)
    loader = torch.utils.data.DataLoader(torch.zeros(160, 4), 8)
    for _ in (watch := lk.watch((batch for batch in loader) if is_moved else loader, live=False)):
        time.sleep(0.002)
    assert StepTable(watch.run).evidence().batch.on_gpu != is_moved


def test_who_shares_files_out_deals_them_and_hugging_face_cuts_its_own_shards():
    uneven = IDLE | {"busiest_over_mean": 1.6}
    assert "self.files[info.id" in diagnosed(uneven).code
    theirs = dataclasses.replace(LOADER, dataset_type="IterableDataset")
    assert "to_iterable_dataset(num_shards=8)" in diagnosed(uneven, code=theirs).code


def test_even_shards_and_batches_out_of_order_promise_no_more_than_the_cores_allow():
    known = {"wait_us": 3e3, "quick_compute_us": 1e3, "compute_us": 3e3,
             "knobs": {"num_workers": 2, "batch_size": 10}}  # fmt: skip
    quiet = CoreUse(2)
    shards = IDLE | {"busiest_over_mean": 1.8, "item_cpu_ms": 0.7}
    late = IDLE | {"slowest_ratio": 30.0, "late_share": 0.8, "item_cpu_ms": 0.7}
    assert diagnosed(shards, use=quiet, **known).at_most == pytest.approx(2 * 6 / 8)
    unordered = diagnosed(late, use=quiet, **known)
    assert unordered.expected[2] == pytest.approx(2 * 6 / 8)
    assert "before training" in unordered.advice and "in_order=False" in unordered.advice
    crowded = CoreUse(2, others=1.0)
    assert diagnosed(shards, use=crowded, **known).at_most == 1.0
    assert not diagnosed(late, use=crowded, **known).expected


def test_fewer_threads_are_not_advised_where_the_step_needs_them_more_than_the_workers_do():
    workers = seen_in(BUSY | {"in_line_share": 0.4, "item_cpu_ms": 0.1})
    evidence = Evidence("cpu", wait_share=0.1, wait_us=1e3, compute_us=9e3, quick_compute_us=6e3,
                        threads=2, use=CoreUse(2), code=LOADER, workers=workers,
                        knobs={"num_workers": 2, "batch_size": 4})  # fmt: skip
    assert worker_remedies.cores_returned(evidence).value < 1


@pytest.mark.parametrize("shares, named", [([35, 16, 15], True), ([14, 12, 12], False)])
def test_the_costliest_of_a_few_lines_that_share_the_loading_is_named(shares, named):
    item = "Sales.__getitem__"
    rows = [
        Line("train.py", 27 + number, item, share / 100, "waiting", "library", "torch.tensor()")
        for number, share in enumerate(shares)
    ]
    samples = np.ones(100, bool)
    lines = SimpleNamespace(
        within=np.full(100, "item"),
        share=np.full(100, 0.01),
        mask=lambda phase: samples if phase == "waiting" else ~samples,
        rows=lambda mask: tuple(rows) if mask.any() else (),
        worst=lambda mask: (dataclasses.replace(rows[0], share=0.66), *rows[:2]),
    )
    work = loading_of(lines)
    assert (work is not None) == named
    if named:
        assert (work.cause, work.lines[0].line, work.share) == ("item", 27, pytest.approx(0.35))


def test_a_loop_without_workers_is_not_told_that_these_have_all_cores():
    known = {"wait_share": 0.8, "wait_us": 5e3, "knobs": {"num_workers": 0}}
    advised = Workers(0, Estimate(1.0, 1.0, 1.0))
    evidence = Evidence("cpu", use=CoreUse(2, own=1.9), advised=advised, **known)
    assert "cores are busy" not in told(idle_rules.waiting_for_data(evidence), evidence).advice


def test_workers_whose_cores_others_have_are_not_said_to_wait_for_storage():
    beside = CoreUse(2, others=1.5, in_line=1.4)
    for workers in ({"cpu_shares": (0.25, 0.25), "cores": 2}, WAITING):
        found = diagnosed(workers, use=beside if workers is not WAITING else CoreUse(8))
        assert found.cause == ("storage_latency" if workers is WAITING else "cores")


def test_validation_that_outweighs_the_training_loop_comes_before_its_loader():
    def whole(**shares):
        return WallShares([WallShare(part, 0.0, share, "") for part, share in shares.items()], 1.0)

    found = diagnosed(BUSY, whole=whole(loop=0.2, validation=0.7, checkpoints=0.1))
    assert (found.name, found.cause) == ("host", "validation")
    assert "70% of the whole time" in found.evidence
    assert diagnosed(BUSY, whole=whole(loop=0.7, validation=0.2)).name == "input"


@pytest.mark.parametrize(
    "call, function, kind, code",
    [
        ("Image.open()", "__getitem__", "library", "draft"),
        ("self.scan_once()", "JSONDecoder.raw_decode", "library", ""),
        ("time.sleep()", "__getitem__", "wait", None),  # that needs no core
        (None, None, None, None),
    ],
)
def test_a_step_that_fills_the_cores_is_named_and_made_cheaper_where_it_is_known(
    call, function, kind, code, monkeypatch
):
    line = Line("train.py", 9, function, 0.8, "worker", kind, call)
    rows = SimpleNamespace(rows=lambda _mask: (line,) if call else (), made_us=None)
    monkeypatch.setattr("labkit.diagnosis.evidence.loading_mask", lambda _lines: None)
    evidence = Evidence("gpu", wait_share=0.5, use=CoreUse(2), workers=seen_in(BUSY), lines=rows)
    found = told(idle_rules.waiting_for_data(evidence), evidence)
    assert ("train.py:9" in found.evidence) == (code is not None)
    assert (code or "") in found.code and bool(code) == bool(found.code)


@pytest.mark.parametrize("headroom, expected", [(None, 1.8), (Estimate(1.3, 1.2, 1.5), 1.3)])
def test_no_advice_for_the_input_promises_more_than_the_measured_headroom(headroom, expected):
    advised = Workers(6, Estimate(1.8, 1.4, 2.2))
    found = diagnosed(BUSY | {"cores": 8}, advised=advised, headroom=headroom)
    assert found.expected[0] == expected and f"{expected}x the throughput" in found.advice
    uneven = diagnosed(IDLE | {"busiest_over_mean": 1.6}, headroom=headroom)
    assert uneven.at_most == (1.3 if headroom else 1.6)
    if headroom is None:
        return
    assert found.expected == (1.3, 1.2, 1.5)
    assert "1.3x the throughput at most" in diagnosed(BUSY, headroom=headroom).advice
    anew = diagnosed(BUSY | {"epoch_start_share": 0.4}, headroom=headroom)
    assert anew.at_most is None  # no replay saw the start of an epoch
    nothing = diagnosed(BUSY | {"cores": 8}, advised=advised, headroom=Estimate(1.0, 1.0, 1.1))
    assert "num_workers" not in nothing.advice


def test_a_hang_after_which_the_loop_went_on_is_a_warning_and_not_the_verdict():
    workers = seen_in(BUSY | {"hang": Hang(1, 7, 90.0, over=True)})
    evidence = Evidence("gpu", wait_share=0.5, use=CoreUse(2), workers=workers)
    verdict, *warnings = ranking.by_cost(evidence)
    assert verdict.cause == "cores"
    told_last = told(warnings[-1], evidence)
    assert "90 s" in told_last.evidence and "item 7" in told_last.evidence
    healthy = dataclasses.replace(evidence, wait_share=0.0, compute_share=1.0)
    assert [found.cause for found in ranking.by_cost(healthy)] == [
        "the_device_is_the_limit",
        "hang_that_ended",
    ]


def test_memory_of_the_workers_that_grows_is_said_whatever_it_costs():
    grown = BUSY | {"cores": 8, "memory": MemoryGrowth(2.0, 0.0)}
    found = diagnosed(grown | {"memory": MemoryGrowth(2.0, 1.5)}, wait_share=0.0)
    assert (found.name, found.cause, found.lost_share) == ("host", "memory_growth", 0.0)
    assert "2.0 GiB" in found.evidence and "np.array" in found.code
    kept = diagnosed(grown, wait_share=0.0)
    assert "shared" not in kept.evidence and "np.array" not in kept.code


def test_a_user_who_has_a_worker_init_fn_does_not_lose_it():
    init = dataclasses.replace(LOADER, arguments=LOADER.arguments | {"worker_init_fn": "seed"})
    found = diagnosed(BUSY | {"cpu_shares": (2.0, 2.0)}, code=init)
    assert found.cause == "threads" and "worker_init_fn" not in found.code
    assert "OPENBLAS" in found.code
