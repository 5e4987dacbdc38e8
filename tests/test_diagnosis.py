"""What the diagnosis says about runs whose stamps are written by hand, and about real traces."""

import contextlib
import dataclasses
import json
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import labkit as lk
from labkit.diagnosis import judge
from labkit.diagnosis.causes import launches
from labkit.diagnosis.evidence import (
    Batch,
    Epochs,
    Evidence,
    Kernels,
    WorkerEvidence,
)
from labkit.diagnosis.findings import LESSONS, Remedy
from labkit.diagnosis.loader_code import LoopCode
from labkit.diagnosis.step_table import StepTable
from labkit.diagnosis.wording import worded
from labkit.instruments.card_formats import tensor_formats
from labkit.results.core_use import CoreUse
from labkit.results.hardware import Machine
from labkit.results.loader_records import Hang, LostCache
from labkit.results.supply import MemoryGrowth
from labkit.spec import KNOBS
from labkit.watching import loader_call

NOTEBOOKS_FOLDER = Path(__file__).parents[1] / "notebooks"
TRACES = Path(__file__).resolve().parents[2] / "shared" / "traces"
CALM = {
    "steps": 3, "window_us": 20_000.0, "gap_us": 800.0, "tiny_us": 400.0, "tiny_ops": 250,
    "elementwise_us": 2_000.0, "fusible_us": 300.0, "fixed_share": 0.0, "bf16_speedup": 0.9,
}  # fmt: skip
BUSY_CORES = {"t_ns": 10**8, "cpu": 1.0, "own_cpu": 0.3, "cpus": 2}


LOADER = LoopCode("loader", call="", arguments={"dataset": "data", "num_workers": "2"})
TENSORS = dataclasses.replace(
    LOADER, arguments={"dataset": "data", "batch_size": "64"}, dataset_type="TensorDataset"
)


class Fake(SimpleNamespace):
    """A run by its attributes; what nobody gave is None, as what nobody measured."""

    def __getattr__(self, name):
        return None

    def once(self, compute):
        return compute(self)


def fake(ms, kind="cpu", own=1.0, **more):
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
        "warmup": 1,
        "machine": Machine(kind=kind, cpu_cores=2),
        "steps": len(ms),
        "stamps": stamps,
        "busy": stamps[:, 4:],
        "length_s": stamps[-1:, 5].sum(),
        "thread_s": compute * own,
        "utilization": busy,
        "busy_at_least": busy if kind == "cpu" else 0.0,
        "telemetry": [],
        "xray_facts": CALM,
        "pipeline": lk.Pipeline(),
        "seconds": lambda t_ns: np.array(t_ns, float) / 1e9,
        "batch_bytes": np.full(len(ms), np.nan),
        "throughput": 1.0,
        "event": lambda name: None,
        "workers": (),
        "first_steps": (),
        "warm_s": stamps[:1, 5].sum(),
        "beside": (),
        "item_events": (),
        "on_the_card": (),
        "growth": (),
        "switches": (),
        "trainer": False,
        "batch_on_gpu": False,
        "host_ns": np.zeros((len(ms), 4)),
    }
    return Fake(**values | more)


def steps(wait=0.2, copy=0.0, compute=20.0, other=0.1, count=30):
    return np.tile([wait, copy, compute, other], (count, 1))


def on_gpu(kernel_us, knobs=(), ms=None, **more):
    """Diagnose a GPU whose x-ray saw kernels for `kernel_us` a step."""
    xray = {
        "kernel_us": kernel_us,
        "tensor_core_share": 0.9,
        "tensor_core_eligible_share": 0.9,
        "steps": 4,
        "top_kernels": (),
        "device_kind": "gpu",
        "cuda_graphs": False,
    }
    ms = steps() if ms is None else ms
    seen = SimpleNamespace(**xray | more)
    return lk.diagnose(fake(ms, "gpu", xray=seen, pipeline=lk.Pipeline(**dict(knobs))))


def diagnosed(workers=None, **more):
    """What is said of a loop that waits half of the time for workers that show this."""
    known = {"kind": "gpu", "wait_share": 0.5, "compute_share": 0.5, "code": LOADER}
    known |= {"knobs": {"num_workers": 2}, "use": CoreUse(2)}
    evidence = Evidence(**known | more, workers=workers and WorkerEvidence(**workers))
    return worded(judge.by_cost(evidence)[0], evidence)


def test_every_remedy_is_taught_in_a_section_that_is_there():
    taught = {made(name).lesson for name in rows_of_remedies()}
    assert taught | {"ranks"} == {"", *LESSONS}  # of ranks there are words alone
    for name, heading in LESSONS.values():
        cells = json.loads((NOTEBOOKS_FOLDER / name).read_text())["cells"]
        lines = [line.strip() for cell in cells for line in cell["source"]]
        assert f"## {heading}" in lines, (name, heading)


FITTING = Evidence(  # a run that most remedies fit
    "gpu",
    wait_share=0.5,
    stall_share=0.9,
    deeper_queue=8,
    wait_us=9e4,
    compute_us=9e3,
    threads=2,
    use=CoreUse(2),
    workers=WorkerEvidence(
        (0.9, 0.9),
        idle_share=0.2,
        hang=Hang(0, None, 40.0),
        lost_cache=LostCache("self.cache", 50.0, 60.0),
    ),
    knobs={"num_workers": 2, "batch_size": 4},
    batches_an_update=4,
    formats=("bf16",),
    batch=Batch("float64"),
    spare_card="H200",
    advised=6,
    code=LOADER,
)
BUT = {  # what else a remedy needs
    "one_block": {"kind": "cpu"},
    "more_per_call": {"kind": "cpu"},
    "use_the_card": {"kind": "cpu", "weights_dtype": "float32"},
    "cheaper_items": {"advised": 2},
    "batches_in_the_loop": {"advised": 0},
    "fetch_at_once": {"wait_us": 900.0, "knobs": {"num_workers": 0}},
    "some_workers": {"knobs": {}},
    "keep_items_in_RAM": {"batch": Batch(on_gpu=True), "knobs": {"num_workers": 0}},
    "copy_ahead": {"knobs": {"pin_memory": True}},
}


def rows_of_remedies():
    rooms = [sys.modules[name] for name in sys.modules if name.startswith("labkit.diagnosis")]
    named = [item for room in rooms for item in vars(room).items()]
    return {name: value for name, value in named if isinstance(value, Remedy)}


def made(name):
    known = {"kind": "gpu", **BUT.get(name, {})}
    return rows_of_remedies()[name].for_run(dataclasses.replace(FITTING, **known))


@pytest.mark.parametrize("name", rows_of_remedies())
def test_every_remedy_is_filled_in_for_what_it_fits(name):
    """One that asks for evidence needs it in FITTING, or in BUT: else it is missing here."""
    filled = made(name)
    assert filled.changes.keys() <= KNOBS.keys()
    assert "None" not in filled.text
    compile(filled.code, name, "exec")


@pytest.mark.parametrize(
    "time, bottleneck, expect",
    [
        ({"wait": 15.0}, "input", "in other processes: num_workers=2."),  # no item was timed
        ({"copy": 15.0}, "transfer", "At most 1.7 times as many steps."),  # were no copy waited for
        ({"other": 15.0}, "launch", "What it brings is unknown: measure it"),
    ],
)
def test_time_outside_the_compute_is_named_after_what_took_it(time, bottleneck, expect):
    found = lk.diagnose(fake(steps(**time)))
    assert found.bottleneck == bottleneck
    assert found.findings[0].lost_share == pytest.approx(15 / 35, abs=0.03)
    assert "% of the time" in found.evidence
    assert expect in found.advice


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
    "kernel_us, how",
    [(0.0, {}),  # no kernel at all, of a device that its events call busy
     (40_000.0, {}),  # kernels for longer than it was busy
     (2_000.0, {"cuda_graphs": True}),
     (2_000.0, {"knobs": {"compile": "reduce-overhead"}})],
)  # fmt: skip
def test_instruments_that_contradict_each_other_give_no_verdict(kernel_us, how):
    found = on_gpu(kernel_us, **how)
    assert found.findings[0].cause == "instruments_disagree"


PLAIN = "cutlass_80_simt_sgemm_128x64_8x5_nn_align1"  # FP32: aligned as it is made
FOREACH = "void at::native::multi_tensor_apply_kernel<BinaryOpListAlphaFunctor>"
FUSED = "void at::native::multi_tensor_apply_kernel<FusedAdamMathFunctor<float, 4>>"
SMALL = "void at::native::vectorized_elementwise_kernel<4, add>"


@pytest.mark.parametrize(
    "name, us, rest, bottleneck",
    [(PLAIN, 15_000, 4_500, "compute"), (FOREACH, 12_000, 7_500, "memory_bandwidth"),
     (FUSED, 12_000, 7_500, "compute"), (SMALL, 4_000, 0, "launch")],
    ids=["FP32", "foreach optimizer", "fused optimizer", "gaps"],
)  # fmt: skip
def test_the_names_of_kernels_tell_passes_over_memory(name, us, rest, bottleneck):
    top = (SimpleNamespace(name=name, total_us=4 * us),)  # of four steps of 20 ms
    found = on_gpu(us + rest, top_kernels=top)
    assert found.bottleneck == bottleneck


def test_a_diagnosis_prints_as_a_sentence_shows_as_a_table_and_is_json():
    found = lk.diagnose(fake(steps(wait=20.0), mark="RECORDED on NVIDIA <H200>"))
    assert str(found).startswith("RECORDED on NVIDIA <H200>: Bottleneck input (waiting for data)")
    what, _why, do = repr(found).split("\n")
    assert what.endswith("50% of the time")
    assert do.startswith("Do: Prepare batches in other processes: num_workers=2. ")
    html = found._repr_html_()
    assert "href='03_dataloader_tuning.ipynb#1.-Workers,-on-real-work'" in html
    assert "RECORDED on NVIDIA &lt;H200&gt;" in html
    assert json.dumps(found.to_dict(), allow_nan=False)


# -- advice does not contradict what is known of the run ------------------------------------------


@pytest.mark.skipif(not TRACES.is_dir(), reason="the shared traces are not here")
@pytest.mark.parametrize(
    "file, says, never",
    [("gpu/rtx2080ti_resnet_sawtooth", "Do less work per item", "num_workers"),
     ("resnet50_num_workers_0", "in other processes: num_workers=2", "less work"),
     ("gpu/v100_busy_fp32", "FP16 with a GradScaler", "bf16"),
     ("gpu/h100_bert_small_inference", "Launch fewer", "optimizer")],
)  # fmt: skip
def test_advice_from_a_trace_fits_the_loader_the_card_and_inference(file, says, never):
    found = lk.diagnose(next(TRACES.glob(f"{file}*.json.gz")))
    assert says in found.advice
    assert never not in str(found) and never not in str(found.findings[0].remedies)


@pytest.mark.parametrize(
    "name, capability, formats",
    [("Tesla V100-SXM2-32GB", None, ("fp16",)),
     ("Tesla P100-PCIE-16GB", None, ()), ("NVIDIA A100-SXM4-80GB", None, ("bf16", "fp16")),
     ("new", "12.0", ("bf16", "fp16")), ("new", None, None), ("NVIDIA T1000", "7.5", ())],
)  # fmt: skip
def test_a_card_is_advised_a_16_bit_format_that_its_tensor_cores_have(name, capability, formats):
    assert tensor_formats(name, capability) == formats
    seen = Kernels(kernel_us=1000.0, eligible_share=0.6)
    found = diagnosed(wait_share=0.0, compute_share=1.0, kernels=seen, formats=formats)
    assert (found.cause == "no_Tensor_Cores") == (formats != ())
    changes = [remedy.changes for remedy in found.remedies if remedy.changes]
    assert changes == ([{"precision": formats[0]}] if formats else [])


def test_with_other_programs_on_the_cores_the_verdict_is_not_certain_and_says_so():
    beside = ["python (pid 12)", "chrome (pid 3)"]
    found = lk.diagnose(fake(steps(wait=20.0), telemetry=[BUSY_CORES], beside=beside))
    assert found.confidence == pytest.approx(0.3, abs=0.01)
    said = "Other programs used 1.4 of 2 cores meanwhile: python (pid 12) and chrome (pid 3)"
    assert said in str(found).splitlines()[0]


@pytest.mark.parametrize("share, confidence", [(0.1, 0.9), (None, 0.5)])
def test_programs_on_the_same_gpu_are_named_and_lower_the_confidence(share, confidence):
    sample = {"t_ns": 10**8, "others_sm": share}
    beside = ["python (pid 12)"]
    found = lk.diagnose(fake(steps(wait=60.0), "gpu", telemetry=[sample], on_the_card=beside))
    assert found.bottleneck == "input" and found.confidence == pytest.approx(confidence)
    assert "Other programs were on the same GPU: python (pid 12)" in str(found).splitlines()[0]


# -- what the loader's workers show ----------------------------------------------------------------

BUSY = {"cpu_shares": (0.95, 0.97)}  # on two cores
ONE = {"cpu_shares": (0.95,)}
IDLE = {"cpu_shares": (0.9, 0.9), "idle_share": 0.7}
WAITING = {"cpu_shares": (0.1, 0.2), "item_wait_ms": 9.0}
SIX = 6  # workers that a simulation recommends


@pytest.mark.parametrize(
    "workers, cause, said, code",
    [(BUSY, "cores", "2 workers on 2 cores", ""),
     (ONE, "too_few_workers", "num_workers=6", "num_workers=6"),
     ({"cpu_shares": (1.9, 2.1)}, "threads", "with 2 threads, 4 in all, on 2 cores", "OPENBLAS"),
     (WAITING, "storage_latency", "num_workers=6", "num_workers=6"),
     (IDLE, "hand_over", "one tensor for each part of a batch", ""),
     (IDLE | {"busiest_over_mean": 1.6}, "uneven_shards", "At most 1.6 times as many",
      "files[info.id ::"),
     (BUSY | {"hang": Hang(1, None, 90.0)}, "hang", "worker 1", "timeout=90")],
    ids=lambda value: value if isinstance(value, str) and value.isidentifier() else "",
)  # fmt: skip
def test_what_the_workers_show_names_the_cause_and_the_remedy(workers, cause, said, code):
    more = {"advised": SIX} if "num_workers" in code else {}
    found = diagnosed(workers, **more)
    assert (found.name, found.cause) == ("input", cause)
    assert said in f"{found.evidence} {found.advice}"
    assert code in found.code
    assert "prefetch_factor" not in found.advice  # it hides a cause, and removes none
    assert ("num_workers=" in found.advice) == bool(more)


@pytest.mark.parametrize("streams", [False, True])
def test_a_stream_is_told_to_share_itself_out_among_workers(streams):
    code = dataclasses.replace(LOADER, streams=streams)
    found = diagnosed(knobs={"num_workers": 0}, code=code, advised=SIX)
    assert "num_workers=6" in found.advice
    assert ("every item comes once from each" in found.advice) == streams


def test_only_an_optimizer_that_could_be_fused_is_told_to():
    weights = [torch.nn.Parameter(torch.zeros(1))]
    for optimizer, is_told in (
        (torch.optim.AdamW(weights), True),
        (torch.optim.AdamW(weights, fused=True), False),
        (torch.optim.RMSprop(weights), False),
        (object(), True),  # who knows
    ):
        code = LoopCode(may_fuse=loader_call.may_fuse(optimizer))
        evidence = Evidence("gpu", code=code)
        assert bool(launches.fused_optimizer.for_run(evidence)) == is_told


def test_a_loader_that_makes_its_batches_on_a_gpu_is_advised_no_workers():
    on_gpu = {"batch": Batch(on_gpu=True), "knobs": {"num_workers": 0}}
    found = diagnosed(**on_gpu)
    assert found.advice.startswith("The loader makes its batches on the GPU")
    assert "num_workers" not in found.advice + found.code and "inputs.to(device" in found.code
    assert "BatchSampler" in diagnosed(code=TENSORS, **on_gpu).code


@pytest.mark.parametrize(
    "device, is_moved, on_gpu",
    [("cpu", False, False), ("meta", False, True), ("meta", True, False)],  # by a prefetcher
)
def test_a_watched_loader_is_known_to_make_its_batches_on_a_gpu(device, is_moved, on_gpu):
    loader = torch.utils.data.DataLoader(torch.zeros(160, 4, device=device), 8)
    with lk.watch((batch for batch in loader) if is_moved else loader, live=False) as watched:
        assert len(list(watched)) == 20
    assert StepTable(watched.run).evidence().batch.on_gpu == on_gpu


def test_hugging_face_cuts_its_own_shards():
    theirs = dataclasses.replace(LOADER, dataset_type="IterableDataset")
    found = diagnosed(IDLE | {"busiest_over_mean": 1.6}, code=theirs)
    assert "to_iterable_dataset(num_shards=8)" in found.advice


def test_a_loop_without_workers_is_not_told_that_these_have_all_cores():
    found = diagnosed(use=CoreUse(2, own=1.9), knobs={"num_workers": 0}, advised=0)
    assert "cores are busy" not in found.advice


@pytest.mark.parametrize(
    "workers, cores, says",
    [
        (None, CoreUse(16), "in other processes: num_workers=4. At most 2.0 times as many steps."),
        (None, CoreUse(1), "num_workers=2; PyTorch warns"),
        (BUSY, CoreUse(16, own=3.0), "Use more workers, and see: num_workers=4"),
        (ONE, CoreUse(2, own=1.95), "All cores are busy, so more workers gain nothing."),
    ],
)
def test_a_watched_loop_is_told_what_to_try_and_promised_nothing(workers, cores, says):
    count = len(workers["cpu_shares"]) if workers else 0
    found = diagnosed(workers, use=cores, knobs={"num_workers": count})
    assert says in found.advice and "Expect" not in found.advice
    assert found.expected is None and found.at_most == pytest.approx(2.0)


def test_a_measured_headroom_is_said_and_bounds_what_the_input_may_bring():
    uneven = IDLE | {"busiest_over_mean": 1.6}
    assert diagnosed(uneven).at_most == 1.6 and diagnosed(uneven, headroom=1.3).at_most == 1.3
    told = diagnosed(ONE, headroom=1.3).advice
    assert "At most 1.3 times as many steps" in told
    anew = diagnosed(BUSY, epochs=Epochs(0.4, 9e3), headroom=1.3)
    assert anew.at_most == pytest.approx(2.0)  # no replay saw the start of an epoch
    nothing = diagnosed(ONE, headroom=1.0)
    assert "num_workers" not in nothing.advice and not nothing.remedies


def test_memory_of_the_workers_that_grows_is_said_whatever_it_costs():
    found = diagnosed(ONE | {"memory": MemoryGrowth(2.0, 1.5)}, wait_share=0.0)
    assert (found.name, found.cause, found.lost_share) == ("host", "memory_growth", 0.0)
    assert "2.0 GiB" in found.evidence and "np.array" in found.code
    kept = diagnosed(ONE | {"memory": MemoryGrowth(2.0, 0.0)}, wait_share=0.0)
    assert "shared" not in kept.evidence and "np.array" not in kept.code
