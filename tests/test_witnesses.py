"""A GPU that looks busy may be waiting between its kernels: what is said of it, and who can tell.

The runs are event logs as a GPU would write them, from a queue of kernels played through by hand
(played_gpu.py): the share of the time in which a kernel ran is known, and is the standard.
"""

import itertools
import json
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from played_gpu import GPU, MS, play

import labkit as lk
from labkit.analysis.facts import CLASSES
from labkit.analysis.instruments import witnesses
from labkit.results.sweep import Sweep
from labkit.show.ladder import Ladder
from labkit.show.panel import run_verdict
from labkit.show.sweep_figure import draw_sweep
from labkit.show.watching import verdict_so_far

KNOBS = {"io_ms": 0.0, "xray": False}
count = itertools.count()


def load(path, lines):
    file = path / f"{next(count)}.jsonl"
    file.write_text("".join(json.dumps({"t_ns": 0, **line}) + "\n" for line in lines))
    return lk.load(file)


def record(path, *, machine=GPU, telemetry=(), extra=(), spec=(), knobs=KNOBS, **how):
    """Write and load the log of a loop that `play` played; its true busy share is beside it."""
    steps, kernels = play(**how)
    run = load(path, [
        {"event": "spec", "version": 1, "run": "r", "pipeline": knobs, **dict(spec)},
        {"event": "machine", **machine},
        {"event": "job", "pipeline": knobs, "not_applied": {}},
        {"event": "begin", "warmup": 3},
        *steps,
        *({"event": "telemetry", **sample} for sample in telemetry),
        *extra,
        {"event": "done"},
    ])  # fmt: skip
    run.recorded = False
    begin, end = (step["busy"][1] / MS for step in (steps[run.warmup - 1], steps[-1]))
    ran = np.clip(kernels[:, 1], begin, end) - np.clip(kernels[:, 0], begin, end)
    return run, ran.sum() / max(end - begin, 1e-9)


def samples(seconds=2.0, every=0.2, **values):
    """Telemetry from before the first step on."""
    moments = np.arange(0.5, 1.0 + seconds, every)
    return [{"t_ns": int(at * 1e9), **values} for at in moments]


LAUNCH_BOUND = {"launch": 10.0, "compute": 1.0, "steps": 200}
FED = {"launch": 1.0, "compute": 10.0, "steps": 200}
SYNCED = {"launch": 1.0, "compute": 10.0, "steps": 200, "sync": True}


# -- where the step's time goes, and how busy the device was --------------------------------------


@pytest.mark.parametrize(
    ("how", "expected"),
    [  # ms of the mean step
        ({"prep": 30.0}, {"wait": 30 - (10.2 - 2), "copy": 0.5, "compute": 10.2}),
        ({"prep": 5.0}, {"wait": 0, "copy": 0.5, "compute": 10.2}),  # prepared under the compute
        ({"launch": 0.5, "gap": 8.0, "compute": 4.0, "sync": True},
         {"wait": 0.1, "copy": 0.5, "launch": 8.0, "compute": 4.05}),
        ({"copy": 15.0}, {"copy": 15, "compute": 10.2}),
        ({"sync": True, "prep": 4.0}, {"wait": 4, "copy": 0.5, "compute": 10.2}),
        ({"after": 20.0, "sync": True}, {"wait": 0.1, "copy": 0.5, "compute": 10.2, "other": 20}),
        ({"side_stream": True, "waits": False, "copy": 6.0}, {"compute": 10}),
        ({"side_stream": True, "waits": False, "copy": 15.0}, {"copy": 5 - 0.2, "compute": 10.2}),
        ({"compute": [2.0, 2.0, 2.0, 12.0], "launch": 0.5},
         {"wait": 0.1, "copy": 0.5, "compute": 4.5 + 0.05}),
    ],
    ids=["starved", "prepared meanwhile", "launch-bound between steps", "copy-bound", "a sync each",
         "logging", "copied meanwhile", "copied too slowly meanwhile", "accumulation"],
)  # fmt: skip
def test_every_part_of_a_step_is_in_the_class_of_what_held_the_device_up(tmp_path, how, expected):
    found = record(tmp_path, steps=103, **how)[0].breakdown
    parts = {name: getattr(found, f"{name}_ms") for name in CLASSES}
    assert sum(parts.values()) == pytest.approx(found.step_ms)
    assert parts == pytest.approx(dict.fromkeys(CLASSES, 0.0) | expected, abs=0.3)


lengths = st.floats(0.0, 20.0)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    st.fixed_dictionaries(
        dict.fromkeys(("prep", "copy", "launch", "compute", "after", "gap"), lengths)
        | dict.fromkeys(("waits", "sync", "side_stream"), st.booleans())
    )
)
def test_the_true_busy_share_lies_between_the_two_that_the_run_tells(tmp_path_factory, how):
    how["compute"] += 0.1
    run, truth = record(tmp_path_factory.getbasetemp(), steps=20, **how)
    assert run.busy_at_least - 1e-3 <= truth <= run.utilization + 1e-3
    assert sum(run.breakdown.shares.values()) == pytest.approx(1)


def texts(figure):
    return "\n".join(t.get_text() for t in figure.findobj(lambda a: hasattr(a, "get_text")))


def test_a_launch_bound_loop_looks_busy_and_all_that_shows_it_says_at_most(tmp_path):
    run, truth = record(tmp_path, **LAUNCH_BOUND)
    assert run.utilization > 0.9 and truth < 0.15 and run.busy_at_least < 0.1
    assert run.to_dict()["utilization_is_upper_bound"] is True
    assert f"GPU busy at most {run.utilization:.0%}" in repr(run)
    assert "at most" in run_verdict(run) and "device is the limit" not in run_verdict(run)
    drawn = texts(run.plot())
    assert "GPU busy at most" in drawn and "≤" in drawn and "gaps between kernels" in drawn
    assert "at most" in repr(Ladder().add("a run", run))
    assert run.busy_text in texts(lk.beside(run))
    runs = [run, record(tmp_path, **FED)[0]]
    swept = Sweep(lk.Pipeline(), {"batch_size": [8, 64]})
    swept.runs = runs
    assert "GPU busy, at most" in texts(draw_sweep(swept))


def test_where_hardly_any_gap_can_hide_busy_is_busy(tmp_path):
    ahead, truth = record(tmp_path, waits=False, copy=0.1, **FED)  # the host is far ahead
    assert ahead.busy_at_least == pytest.approx(truth, abs=0.02)
    seen, _ = record(tmp_path, extra=[{"event": "xray", "steps": 4}], **LAUNCH_BOUND)
    cpu, _ = record(tmp_path, machine=GPU | {"kind": "cpu", "device": "cpu"}, **FED)
    for run in (ahead, seen, cpu):
        assert not run.utilization_is_upper_bound and "at most" not in repr(run)
    assert witnesses(cpu) == () and cpu.busy_at_least == cpu.utilization
    short, _ = record(tmp_path, steps=1)
    assert short.busy_at_least is None and short.busy_text == "unknown"


# -- who decides between launch-bound and compute ------------------------------------------------


def verdict_of(tmp_path, how, **more):
    return record(tmp_path, **how, **more)[0].diagnose()


@pytest.mark.parametrize("how", [LAUNCH_BOUND, SYNCED], ids=["launch-bound", "a sync each step"])
def test_without_a_witness_a_busy_gpu_is_not_called_healthy(tmp_path, how):
    found = verdict_of(tmp_path, how)
    assert (found.bottleneck, found.findings[0].cause) == ("unsure", "busy is an upper bound")
    assert "at most" in found.evidence and "xray=True" in found.advice
    assert found.findings[1].name == "compute"  # what it would be if there were no gaps
    assert any("upper bound" in note for note in found.notes)


LIMIT = {"power_limit_w": 700}
AT_100_W = [s | {"energy_j": 100 * s["t_ns"] / 1e9} for s in samples(power_w=600, **LIMIT)]


@pytest.mark.parametrize(
    ("how", "readings", "bottleneck", "words"),
    [
        (LAUNCH_BOUND, samples(gpm={"sm": 0.05}), "launch", "5% of"),
        (LAUNCH_BOUND, samples(gpm={"sm": 0.60}), "unsure", "63% of"),
        (LAUNCH_BOUND, samples(gpm={"sm": 0.85}), "compute", ""),
        (LAUNCH_BOUND, samples(power_w=110, gpm={"sm": None}, **LIMIT), "launch", "16% of its"),
        (LAUNCH_BOUND, samples(power_w=300, **LIMIT), "unsure", "(300 W; NVML; between"),
        (LAUNCH_BOUND, samples(power_w=560, **LIMIT), "compute", ""),
        # NVML's power is the mean of the last second; the energy counter has no lag
        (LAUNCH_BOUND, AT_100_W, "launch", "(100 W; NVML"),
        # SM activity goes before power, and the host ahead before both
        (LAUNCH_BOUND, samples(gpm={"sm": 0.1}, power_w=600, **LIMIT), "launch", "10% of"),
        (FED, samples(gpm={"sm": 0.1}, power_w=600, **LIMIT), "compute", ""),
        (FED, [], "compute", ""),
        # A starved card draws little and is not called launch-bound for it
        (FED | {"prep": 20.0}, samples(seconds=6, power_w=250, **LIMIT), "input", ""),
        # A loss outside of the compute needs no witness
        (SYNCED | {"prep": 15.0}, [], "input", ""),
        (SYNCED | {"copy": 8.0}, [], "transfer", ""),
    ],
)
def test_who_can_tell_decides(tmp_path, how, readings, bottleneck, words):
    found = verdict_of(tmp_path, how, telemetry=readings)
    assert found.bottleneck == bottleneck and words in found.evidence
    assert bottleneck != "compute" or not any("upper" in note for note in found.notes)
    if bottleneck == "launch":
        assert "threshold" in found.evidence and "larger batch" in found.advice


@pytest.mark.parametrize(
    "readings",
    [samples(power_w=110),  # a record from before the limit was read
     samples(gpm=None, power_w=None, power_limit_w=None),
     samples(gpm={"sm": 0.0})[:3],  # read before the first step, when nothing ran
     samples(power_w=110, **LIMIT)[:7]],  # all within a second of the warm-up
)  # fmt: skip
def test_what_was_not_read_in_the_measured_steps_is_no_witness(tmp_path, readings):
    found = verdict_of(tmp_path, LAUNCH_BOUND, telemetry=readings)
    assert found.findings[0].cause == "busy is an upper bound"


# -- watched loops and ranks ---------------------------------------------------------------------


def test_a_watched_loop_on_a_gpu_is_told_to_record_a_trace(tmp_path):
    watched = {"spec": {"watched": {"loader": "DataLoader"}}, "knobs": {"num_workers": 2}}
    run, _ = record(tmp_path, **watched, **LAUNCH_BOUND)
    found = run.diagnose()
    assert found.findings[0].cause == "busy is an upper bound"
    assert "torch.profiler" in found.advice and "at most" in repr(run)
    fed = SimpleNamespace(steps=50, wall=100, wait=1)
    assert verdict_so_far(fed, "cpu") == "so far: compute"
    assert verdict_so_far(fed, "gpu") == "so far: not input"


@pytest.mark.parametrize(("how", "bottleneck"), [(LAUNCH_BOUND, "unsure"), (FED, "compute")])
def test_ranks_whose_gpus_look_busy_are_not_called_healthy_either(tmp_path, how, bottleneck):
    lines = [{"event": "spec", "version": 1, "run": "r", "ranks": 2, "pipeline": {}}]
    lines.append({"event": "machine", **GPU})
    for rank in range(2):
        place = {"rank": rank, "world_size": 2}
        own = [{"event": "spec", "version": 1, "run": "r", "pipeline": {}, "place": place},
               {"event": "machine", **GPU}, {"event": "begin", "warmup": 3}]  # fmt: skip
        lines += [{**line, "of_rank": rank} for line in own + play(**how)[0]]
    found = load(tmp_path, lines).diagnose()
    assert found.bottleneck == bottleneck
    assert (found.findings[0].cause == "busy is an upper bound") == (bottleneck == "unsure")
