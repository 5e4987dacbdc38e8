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
from labkit.analysis.step_breakdown import CLASSES, breakdown
from labkit.analysis.witnesses import witnesses
from labkit.show.ladder import Ladder
from labkit.show.panels import run_verdict
from labkit.show.sweep_figure import draw_sweep
from labkit.show.watching import verdict_so_far

KNOBS = {"io_ms": 0.0, "xray": False}
count = itertools.count()


def record(path, *, machine=GPU, telemetry=(), extra=(), spec=(), knobs=KNOBS, **how):
    """Write and load the log of a loop that `play` played; its true busy share is beside it."""
    steps, kernels = play(**how)
    lines = [
        {"event": "spec", "version": 1, "run": "r", "pipeline": knobs, **dict(spec)},
        {"event": "machine", **machine},
        {"event": "job", "pipeline": knobs, "not_applied": {}},
        {"event": "begin", "warmup": 3},
        *steps,
        *({"event": "telemetry", **sample} for sample in telemetry),
        *extra,
        {"event": "done"},
    ]
    file = path / f"{next(count)}.jsonl"
    file.write_text("".join(json.dumps({"t_ns": 0, **line}) + "\n" for line in lines))
    run = lk.load(file)
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


# -- where the step's time goes ------------------------------------------------------------------


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
    run, _ = record(tmp_path, steps=103, **how)
    found = breakdown(run)
    parts = {name: getattr(found, f"{name}_ms") for name in CLASSES}
    assert sum(parts.values()) == pytest.approx(found.step_ms)
    assert parts == pytest.approx(dict.fromkeys(CLASSES, 0.0) | expected, abs=0.3)


# -- busy lies between two bounds ----------------------------------------------------------------


@pytest.mark.parametrize(
    "how", [LAUNCH_BOUND, FED, SYNCED, {"side_stream": True, "waits": False, "copy": 6.0}]
)
def test_the_true_busy_share_lies_between_the_two_that_the_run_tells(tmp_path, how):
    run, truth = record(tmp_path, **how)
    assert run.busy_at_least - 1e-6 <= truth <= run.utilization + 1e-6


lengths = st.floats(0.0, 20.0)


@settings(max_examples=60, deadline=None)
@given(lengths, lengths, lengths, lengths, lengths, lengths, st.booleans(), st.booleans(),
       st.booleans())  # fmt: skip
def test_whatever_the_loop_does(
    tmp_path_factory, prep, copy, launch, compute, after, gap, waits, sync, side_stream
):
    run, truth = record(
        tmp_path_factory.getbasetemp(), steps=20, prep=prep, copy=copy, launch=launch,
        compute=compute + 0.1, after=after, gap=gap, waits=waits, sync=sync,
        side_stream=side_stream,
    )  # fmt: skip
    assert run.busy_at_least - 1e-3 <= truth <= run.utilization + 1e-3
    found = breakdown(run)
    assert sum(found.shares.values()) == pytest.approx(1)


def test_a_launch_bound_loop_looks_busy_and_says_at_most(tmp_path):
    run, truth = record(tmp_path, **LAUNCH_BOUND)
    assert run.utilization > 0.9 and truth < 0.15 and run.busy_at_least < 0.1
    assert run.utilization_is_upper_bound
    assert f"GPU busy at most {run.utilization:.0%}" in repr(run)
    assert f"busy at most {run.utilization:.0%}" in run_verdict(run)
    assert json.loads(json.dumps(run.to_dict()))["utilization_is_upper_bound"] is True


def test_its_figures_and_tables_say_so_too(tmp_path):
    run, _ = record(tmp_path, **LAUNCH_BOUND)
    text = "\n".join(t.get_text() for t in run.plot().findobj(lambda a: hasattr(a, "get_text")))
    assert "GPU busy at most" in text and "≤" in text and "gaps between kernels included" in text
    assert "at most" in repr(Ladder().add("a run", run))
    assert run.busy_text in "".join(
        t.get_text() for t in lk.beside(run).findobj(lambda a: hasattr(a, "get_text"))
    )


def test_a_sweep_of_such_runs_says_at_most_on_its_axis(tmp_path):
    runs = [record(tmp_path, **how)[0] for how in (LAUNCH_BOUND, FED)]
    swept = SimpleNamespace(knobs={"batch_size": [8, 64]}, runs=runs, pipeline=lk.Pipeline())
    labels = [axes.get_ylabel() for axes in draw_sweep(swept).axes]
    assert "GPU busy, at most" in labels


def test_a_host_that_is_far_ahead_leaves_no_room_for_gaps_and_busy_is_busy(tmp_path):
    run, truth = record(tmp_path, waits=False, copy=0.1, **FED)
    assert run.busy_at_least == pytest.approx(truth, abs=0.02)
    assert not run.utilization_is_upper_bound and "at most" not in repr(run)


def test_on_a_cpu_and_where_an_x_ray_looked_inside_nothing_is_an_upper_bound(tmp_path):
    seen, _ = record(tmp_path, extra=[{"event": "xray", "steps": 4}], **LAUNCH_BOUND)
    assert not seen.utilization_is_upper_bound and "at most" not in repr(seen)
    cpu, _ = record(tmp_path, machine=GPU | {"kind": "cpu", "device": "cpu"}, **FED)
    assert not cpu.utilization_is_upper_bound and cpu.busy_at_least == cpu.utilization
    assert witnesses(cpu) == ()
    short, _ = record(tmp_path, steps=1)
    assert short.busy_at_least is None and short.busy_text == "unknown"


# -- who decides between launch-bound and compute ------------------------------------------------


def verdict_of(tmp_path, how, **more):
    run, _ = record(tmp_path, **how, **more)
    return run.diagnose()


@pytest.mark.parametrize("how", [LAUNCH_BOUND, SYNCED], ids=["launch-bound", "a sync each step"])
def test_without_a_witness_a_busy_gpu_is_not_called_healthy(tmp_path, how):
    found = verdict_of(tmp_path, how)
    assert (found.bottleneck, found.findings[0].cause) == ("unsure", "busy is an upper bound")
    assert "at most" in found.evidence and "xray=True" in found.advice
    assert found.findings[1].name == "compute"  # what it would be if there were no gaps


def test_a_host_that_ran_ahead_of_the_device_is_a_witness_for_compute(tmp_path):
    assert verdict_of(tmp_path, FED).bottleneck == "compute"


@pytest.mark.parametrize(
    ("sm", "bottleneck"), [(0.05, "launch"), (0.35, "launch"), (0.60, "unsure"), (0.85, "compute")]
)
def test_sm_activity_decides(tmp_path, sm, bottleneck):
    found = verdict_of(tmp_path, LAUNCH_BOUND, telemetry=samples(gpm={"sm": sm}))
    assert found.bottleneck == bottleneck
    if bottleneck != "compute":
        assert f"{sm / 0.95:.0%}" in found.evidence and "GPM" in found.evidence
    if bottleneck == "launch":
        assert "threshold" in found.evidence and "larger batch" in found.advice


@pytest.mark.parametrize(
    ("watts", "bottleneck"), [(110, "launch"), (300, "unsure"), (560, "compute")]
)
def test_power_against_the_limit_decides_where_nothing_counts_sms(tmp_path, watts, bottleneck):
    readings = samples(power_w=watts, power_limit_w=700, gpm={"sm": None})
    found = verdict_of(tmp_path, LAUNCH_BOUND, telemetry=readings)
    assert found.bottleneck == bottleneck
    if bottleneck != "compute":
        assert f"{watts} W" in found.evidence and f"{watts / 700:.0%}" in found.evidence


def test_the_energy_counter_tells_power_without_a_lag(tmp_path):
    readings = samples(power_w=600, power_limit_w=700)  # NVML's mean of the last second
    readings = [s | {"energy_j": 100 * s["t_ns"] / 1e9} for s in readings]
    assert verdict_of(tmp_path, LAUNCH_BOUND, telemetry=readings).bottleneck == "launch"


def test_a_starved_card_draws_little_and_is_not_called_launch_bound_for_it(tmp_path):
    readings = samples(seconds=6, power_w=250, power_limit_w=700)
    found = verdict_of(tmp_path, FED | {"prep": 20.0}, telemetry=readings)
    assert [finding.name for finding in found.findings] == ["input"]


@pytest.mark.parametrize(
    "readings",
    [
        [],
        samples(power_w=110),  # a record from before the limit was read
        samples(gpm=None, power_w=None, power_limit_w=None),
        samples(gpm={"sm": None}),
        samples(gpm={"sm": 0.0})[:3],  # read before the first step, when nothing ran
        samples(power_w=110, power_limit_w=700)[:7],  # all within a second of the warm-up
    ],
)
def test_what_was_not_read_in_the_measured_steps_is_no_witness(tmp_path, readings):
    found = verdict_of(tmp_path, LAUNCH_BOUND, telemetry=readings)
    assert found.findings[0].cause == "busy is an upper bound"


def test_sm_activity_goes_before_power_and_the_host_ahead_before_both(tmp_path):
    readings = samples(gpm={"sm": 0.1}, power_w=600, power_limit_w=700)
    assert verdict_of(tmp_path, LAUNCH_BOUND, telemetry=readings).bottleneck == "launch"
    assert verdict_of(tmp_path, FED, telemetry=readings).bottleneck == "compute"


@pytest.mark.parametrize(("time", "name"), [({"prep": 15.0}, "input"), ({"copy": 8.0}, "transfer")])
def test_a_loss_outside_of_the_compute_needs_no_witness_but_gaps_may_be_there_too(
    tmp_path, time, name
):
    found = verdict_of(tmp_path, SYNCED | time)
    assert found.bottleneck == name
    assert any("upper bound" in note for note in found.notes)
    assert not any("upper bound" in note for note in verdict_of(tmp_path, FED).notes)


# -- watched loops and ranks ---------------------------------------------------------------------


def test_a_watched_loop_on_a_gpu_is_told_to_record_a_trace(tmp_path):
    watched = {"spec": {"watched": {"loader": "DataLoader"}}, "knobs": {"num_workers": 2}}
    run, _ = record(tmp_path, **watched, **LAUNCH_BOUND)
    found = run.diagnose()
    assert found.findings[0].cause == "busy is an upper bound"
    assert "torch.profiler" in found.advice and "at most" in repr(run)


def test_its_live_line_does_not_call_a_gpu_healthy():
    class Fed:
        steps, wall, wait = 50, 100, 1

    assert verdict_so_far(Fed, "cpu") == "so far: compute"
    assert verdict_so_far(Fed, "gpu") == "so far: not input"


def test_ranks_whose_gpus_look_busy_are_not_called_healthy_either(tmp_path):
    def ranks(how):
        lines = [{"event": "spec", "version": 1, "run": "r", "ranks": 2, "pipeline": {}},
                 {"event": "machine", **GPU}]  # fmt: skip
        for rank in range(2):
            place = {"rank": rank, "world_size": 2}
            own = [{"event": "spec", "version": 1, "run": "r", "pipeline": {}, "place": place},
                   {"event": "machine", **GPU}, {"event": "begin", "warmup": 3}]  # fmt: skip
            lines += [{**line, "of_rank": rank} for line in own + play(**how)[0]]
        file = tmp_path / f"{next(count)}.jsonl"
        file.write_text("".join(json.dumps({"t_ns": 0, **line}) + "\n" for line in lines))
        return lk.load(file)

    found = ranks(LAUNCH_BOUND).diagnose()
    assert (found.bottleneck, found.findings[0].cause) == ("unsure", "busy is an upper bound")
    assert ranks(FED).diagnose().bottleneck == "compute"
