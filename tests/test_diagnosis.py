"""What the diagnosis says about runs whose log is written by hand, and about real traces."""

import json
from pathlib import Path

import numpy as np
import pytest
from played_gpu import CPU, GPU, MS, host_steps, log, play, watched_log

import labkit as lk
from labkit.diagnosis import judge
from labkit.diagnosis.evidence import Evidence
from labkit.diagnosis.loader_code import LoopCode
from labkit.diagnosis.wording import with_advice
from labkit.results.core_use import CoreUse

NOTEBOOKS_FOLDER = Path(__file__).parents[1] / "notebooks"
TRACES = Path(__file__).resolve().parents[2] / "shared" / "traces"
CALM = {  # an x-ray that saw nothing
    "event": "xray", "steps": 3, "window_us": 20_000.0, "gap_us": 800.0, "tiny_us": 400.0,
    "elementwise_us": 2_000.0, "fusible_us": 300.0, "fixed_share": 0.0,
    "bf16_speedup": 0.9,
}  # fmt: skip
CROWDED = {"event": "telemetry", "t_ns": 1100 * MS, "cpu": 1.0, "own_cpu": 0.3, "cpus": 2}


def of_run(folder, *events, wait=0.2, copy=0.0, compute=20.0, other=0.1, count=30, workers=0):
    """Diagnose a run on a CPU whose steps took so many ms each, and whose log has these events."""
    steps = host_steps(wait, compute, count, copy=copy, other=other, cpu=round(compute * MS))
    return log(folder, CPU, {"num_workers": workers}, *steps, *events).diagnose()


@pytest.mark.parametrize(
    "time, bottleneck, expect",
    [
        ({"wait": 15.0}, "input", "in other processes: num_workers=2."),  # no item was timed
        ({"copy": 15.0}, "transfer", "At most 1.7 times as many steps."),  # were no copy waited for
        ({"other": 15.0}, "launch", "What it brings is unknown: measure it"),
    ],
)
def test_time_outside_the_compute_is_named_after_what_took_it(time, bottleneck, expect, tmp_path):
    found = of_run(tmp_path, CALM, **time)
    assert found.bottleneck == bottleneck
    assert found.findings[0].lost_share == pytest.approx(15 / 35, abs=0.03)
    assert "% of the time" in found.evidence
    assert expect in found.advice


@pytest.mark.parametrize(
    "seen, bottleneck",
    [({}, "compute"), ({"bf16_speedup": 2.0}, "precision"), ({"gap_us": 9_000.0}, "launch"),
     ({"tiny_us": 9_000.0}, "launch"), ({"fusible_us": 9_000.0}, "memory_bandwidth")],
)  # fmt: skip
def test_the_xray_sees_inside_the_compute_and_the_costlier_fault_comes_first(
    seen, bottleneck, tmp_path
):
    found = of_run(tmp_path, CALM | seen)
    assert found.bottleneck == bottleneck and found.confidence == 1.0
    names = [each.name for each in of_run(tmp_path, CALM | seen, wait=60.0).findings]
    assert names[0] == "input" and set(names[1:]) <= {bottleneck}


def test_a_run_that_is_too_short_gets_no_verdict(tmp_path):
    found = of_run(tmp_path, CALM, count=6)
    assert found.bottleneck == "unsure" and "more steps" in found.advice


def test_a_diagnosis_prints_as_a_sentence_shows_as_a_table_and_is_json(tmp_path):
    machine = CPU | {"name": "Test <CPU>"}
    found = log(tmp_path, machine, {"num_workers": 0}, *host_steps(20.0, 20.0)).diagnose()
    assert str(found).startswith("RECORDED on Test <CPU>: Bottleneck input (waiting for data)")
    what, _why, do = repr(found).split("\n")
    assert what.endswith("50% of the time")
    assert do.startswith("Do: Prepare batches in other processes: num_workers=2. ")
    html = found._repr_html_()
    assert "href='symptoms/too-few-workers.md'" in html
    assert "RECORDED on Test &lt;CPU&gt;" in html
    assert json.dumps(found.to_dict(), allow_nan=False)


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


def test_the_confidence_is_that_of_the_finding_that_is_printed_first(tmp_path):
    """Input costs most and a perfect loader gains nothing: the host's rare pauses come first."""
    pauses = [200.0 if i % 20 == 0 else 0.0 for i in range(60)]
    begins = 1000.0 + np.cumsum([0.0, *pauses[:-1]]) + 30.0 * np.arange(60)
    steps = [{"t": (at, at + 20, at + 20, at + 30)} for at in begins]
    rows = [(0, at + 20, at + 30) for at in begins]
    replay = {"event": "headroom", "factor": 1.0, "low": 0.9, "high": 1.1, "text": ""}
    work, more = [("optimizer", "optimizer.step()")], {"knobs": {"num_workers": 0}}
    found = watched_log(tmp_path, CPU, work, steps, rows, events=[replay], **more).diagnose()
    first, second, *_ = [each for each in found.findings if each.name != "unsure"]
    assert (first.name, second.name) == ("launch", "input")
    assert second.lost_share > first.lost_share and not second.remedies
    assert found.confidence < 1


def test_a_fact_that_does_not_exist_fails_and_one_that_was_not_measured_is_none():
    assert Evidence(kind="cpu").known("mfu") is None
    with pytest.raises(AttributeError, match="mfuu"):
        Evidence(kind="cpu").known("mfuu")


# -- who else uses the machine ---------------------------------------------------------------------


def test_with_other_programs_on_the_cores_the_verdict_is_not_certain_and_says_so(tmp_path):
    found = of_run(tmp_path, CALM, CROWDED, wait=20.0)
    assert found.confidence == pytest.approx(0.3, abs=0.01)
    assert "Other programs used 1.4 of 2 cores meanwhile" in str(found).splitlines()[0]


def test_programs_on_the_same_gpu_lower_the_confidence(tmp_path):
    read = {"event": "telemetry", "t_ns": 1500 * MS, "others_sm": 0.1}
    steps, _ = play(prep=60.0)
    found = log(tmp_path, GPU, {"num_workers": 0}, *steps, read).diagnose()
    assert found.bottleneck == "input" and found.confidence == pytest.approx(0.9)
    said = "Other programs computed on the same GPU: 10% of the time"
    assert said in str(found).splitlines()[0]


# -- what the loader's workers show ----------------------------------------------------------------

LOADER = LoopCode("loader", call="", arguments={"dataset": "data", "num_workers": "2"})
BUSY = {"workers": 2, "worker_cpu": 0.96}  # on two cores
ONE = {"workers": 1, "worker_cpu": 0.95}
IDLE = {"workers": 2, "worker_cpu": 0.9, "worker_idle": 0.7}
WAITING = {"workers": 2, "worker_cpu": 0.15}
SIX = 6  # workers that a simulation recommends


def diagnosed(workers=None, **more):
    """What is said of a loop that waits half of the time for workers that show this."""
    known = {"kind": "gpu", "wait_share": 0.5, "compute_share": 0.5, "code": LOADER}
    known |= {"knobs": {"num_workers": 2}, "use": CoreUse(2)}
    evidence = Evidence(**known | (workers or {}) | more)
    return with_advice(judge.by_cost(evidence)[0], evidence)


@pytest.mark.parametrize(
    "workers, cause, said, code",
    [(BUSY, "cores", "2 workers on 2 cores", ""),
     (ONE, "too_few_workers", "num_workers=6", "num_workers=6"),
     ({"workers": 2, "worker_cpu": 2.0}, "threads", "with 2 threads, 4 in all, on 2 cores",
      "OPENBLAS"),
     (WAITING, "storage_latency", "num_workers=6", "num_workers=6"),
     (IDLE, "hand_over", "one tensor for each part of a batch", "")],
    ids=lambda value: value if isinstance(value, str) and value.isidentifier() else "",
)  # fmt: skip
def test_what_the_workers_show_names_the_cause_and_the_remedy(workers, cause, said, code):
    more = {"advised": SIX} if "num_workers" in code else {}
    if cause == "cores":
        more = {"use": CoreUse(2, own=1.95)}
    found = diagnosed(workers, **more)
    assert (found.name, found.cause) == ("input", cause)
    assert said in f"{found.evidence} {found.advice}"
    assert code in found.code
    assert "prefetch_factor" not in found.advice  # it hides a cause, and removes none
    assert ("num_workers=" in found.advice) == ("num_workers" in code)


@pytest.mark.parametrize(
    "workers, cores, says",
    [
        (None, CoreUse(16), "in other processes: num_workers=4. At most 2.0 times as many steps."),
        (BUSY, CoreUse(16, own=3.0), "in other processes: num_workers=4"),
        (ONE, CoreUse(2, own=1.95), "Do less work per item"),
    ],
)
def test_a_watched_loop_is_told_what_to_try_and_promised_nothing(workers, cores, says):
    count = workers["workers"] if workers else 0
    found = diagnosed(workers, use=cores, knobs={"num_workers": count})
    assert says in found.advice and "Expect" not in found.advice
    assert found.expected is None and found.at_most == pytest.approx(2.0)


def test_a_measured_headroom_is_said_and_bounds_what_the_input_may_bring():
    told = diagnosed(ONE, headroom=1.3)
    assert "At most 1.3 times as many steps" in told.advice
    assert told.at_most == 1.3
    anew = diagnosed(BUSY, epoch_starts=0.4, headroom=1.3)
    assert anew.at_most == pytest.approx(2.0)  # no kept batch saw the start of an epoch
    nothing = diagnosed(ONE, headroom=1.0)
    assert "num_workers" not in nothing.advice and not nothing.remedies
