"""A GPU that looks busy may be waiting between its kernels: what is said of it, and who can tell.

The runs are event logs as a GPU would write them, from a queue of kernels played through by hand
(played_gpu.py): the share of the time in which a kernel ran is known, and is the standard.
"""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from played_gpu import GPU, MS, count, lines_of, play, watched_log, written

import labkit as lk
from labkit.stamps.step_classes import CLASSES

KNOBS = {"io_ms": 0.0, "xray": False}
LAUNCH_BOUND = {"launch": 10.0, "compute": 1.0, "steps": 200}
FED = {"launch": 1.0, "compute": 10.0, "steps": 200}
HIDDEN = "busy_is_an_upper_bound"


def record(path, *, telemetry=(), knobs=KNOBS, **how):
    """Write and load the log of a loop that `play` played; its true busy share is beside it."""
    steps, kernels = play(**how)
    read = ({"event": "telemetry", **sample} for sample in telemetry)
    (folder := path / f"{next(count)}").mkdir()  # as a run leaves it: a record is RECORDED
    lines = lines_of(GPU, knobs, *steps, *read)
    run = lk.load(written(folder / "events.jsonl", lines).parent)
    begin, end = (step["busy"][1] / MS for step in (steps[run.warmup - 1], steps[-1]))
    ran = np.clip(kernels[:, 1], begin, end) - np.clip(kernels[:, 0], begin, end)
    return run, ran.sum() / max(end - begin, 1e-9)


def diagnosed(path, **how):
    return record(path, **how)[0].diagnose()


def samples(seconds=2.0, **values):
    """Telemetry from before the first step on."""
    moments = np.arange(0.5, 1.0 + seconds, 0.2)
    return [{"t_ns": int(at * 1e9), **values} for at in moments]


# -- where the step's time goes, and how busy the device was --------------------------------------


@pytest.mark.parametrize(
    "how, expected",  # ms of the mean step
    [
        # starved
        ({"prep": 30.0}, {"wait": 30 - (10.2 - 2), "copy": 0.5, "compute": 10.2}),
        # launch-bound between steps
        (
            {"launch": 0.5, "gap": 8.0, "compute": 4.0, "sync": True},
            {"wait": 0.1, "copy": 0.5, "launch": 8.0, "compute": 4.05},
        ),
        # logging
        ({"after": 20.0, "sync": True}, {"wait": 0.1, "copy": 0.5, "compute": 10.2, "other": 20}),
        # copied too slowly meanwhile
        ({"side_stream": True, "waits": False, "copy": 15.0}, {"copy": 5 - 0.2, "compute": 10.2}),
        # accumulation
        (
            {"compute": [2.0, 2.0, 2.0, 12.0], "launch": 0.5},
            {"wait": 0.1, "copy": 0.5, "compute": 4.5 + 0.05},
        ),
    ],
)
def test_every_part_of_a_step_is_in_the_class_of_what_held_the_device_up(tmp_path, how, expected):
    run = record(tmp_path, steps=103, **how)[0]
    parts = dict(zip(CLASSES, run.mean_ms, strict=True))
    assert parts == pytest.approx(dict.fromkeys(CLASSES, 0.0) | expected, abs=0.3)


lengths = st.floats(0.0, 20.0)


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
    assert run.mean_ms.sum() == pytest.approx(run.step_ms)


def texts(figure):
    return "\n".join(t.get_text() for t in figure.findobj(lambda a: hasattr(a, "get_text")))


def test_a_launch_bound_loop_looks_busy_and_all_that_shows_it_says_at_most(tmp_path):
    run, truth = record(tmp_path, **LAUNCH_BOUND)
    assert run.utilization > 0.9 and truth < 0.15 and run.busy_at_least < 0.1
    assert f"GPU busy at most {run.utilization:.0%}" in repr(run)
    assert "GPU busy at most" in texts(run.plot())


# -- who decides between launch-bound and compute ------------------------------------------------

LIMIT = {"power_limit_w": 700}


@pytest.mark.parametrize(
    "how, readings, bottleneck, words",
    [
        (LAUNCH_BOUND, samples(gpm={"sm": 0.60}), "unsure", "63% of"),
        (LAUNCH_BOUND, samples(power_w=110, gpm={"sm": None}, **LIMIT), "launch", "16% of its"),
        # SM activity goes before power, and the host ahead before both
        (LAUNCH_BOUND, samples(gpm={"sm": 0.1}, power_w=600, **LIMIT), "launch", "10% of"),
        # A starved card draws little and is not called launch-bound for it
        (FED | {"prep": 20.0}, samples(seconds=6, power_w=250, **LIMIT), "input", ""),
        # Nothing was read in the measured steps
        (LAUNCH_BOUND, samples(gpm={"sm": 0.0})[:3], "unsure", "at most"),  # before the first step
    ],
)
def test_who_can_tell_decides(tmp_path, how, readings, bottleneck, words):
    found = diagnosed(tmp_path, telemetry=readings, **how)
    assert found.bottleneck == bottleneck and words in found.evidence
    if bottleneck == "unsure":
        assert found.findings[0].cause == HIDDEN and "xray=True" in found.advice
        assert found.findings[1].name == "compute"  # what it would be if there were no gaps
    if bottleneck in ("unsure", "compute"):
        assert any("upper bound" in note for note in found.notes) == (bottleneck == "unsure")


def test_a_card_that_is_held_down_is_not_called_waiting_for_the_little_that_it_draws(tmp_path):
    cold = samples(1.0, power_w=110, clock_reasons=0x1, **LIMIT)
    held = [sample | {"clock_reasons": 0x40} for sample in samples(power_w=110, **LIMIT)[5:]]
    found = diagnosed(tmp_path, telemetry=cold[:5] + held, **LAUNCH_BOUND)
    assert found.bottleneck == "unsure"


def test_heat_that_holds_the_clock_down_is_named_and_the_power_limit_is_not(tmp_path):
    hot = samples(1.0, clock_reasons=0x40, sm_mhz=990.0)
    cool = samples(0.3, clock_reasons=0x4, sm_mhz=1980.0)
    first = diagnosed(tmp_path, telemetry=cool + hot, **FED).findings[0]
    assert (first.name, first.cause) == ("compute", "throttle") and "83%" in first.evidence
    assert diagnosed(tmp_path, telemetry=cool, **FED).findings[0].cause != "throttle"


# -- the body of a loop -----------------------------------------------------------------------


def synchronised(path, body, busy=(0, 100), **read):
    """Diagnose a loop whose body has these {kind: ms}; its device is `busy` from and until, ms.

    Both count from the start of a step, and may reach into the next one.
    """
    length = sum(body.values())
    steps, rows = [], []
    for asked in 1000 + length * np.arange(100.0):
        end = asked
        for number, ms in enumerate(body.values()):
            rows.append((number, end, end + ms))
            end += ms
        begin, over = asked + busy[0], asked + busy[1]
        steps.append({"t": (asked, asked, asked, end), "copy": (begin,) * 2, "busy": (begin, over)})
    called = [(kind, f"{kind}()") for kind in body]
    read = samples(seconds=9, cpus=16, own_cpu=0.06, cpu=0.06, line_cpu=0.0, **read)
    return watched_log(path, GPU, called, steps, rows, read, knobs=KNOBS).diagnose()


def test_time_of_the_body_is_lost_once_where_the_card_waits_for_it(tmp_path):
    body = {"backward": 20, "python": 60, "sync": 20}
    found = synchronised(tmp_path, body, gpm={"sm": 0.1}).findings
    assert found[0].name == "host" and found[0].lost_share > 0.5
    assert sum(each.lost_share for each in found) <= 1.0


def test_a_synchronisation_that_keeps_a_gpu_waiting_is_blamed_on_its_line(tmp_path):
    found = synchronised(tmp_path, {"backward": 20, "sync": 80}, gpm={"sm": 0.1}).findings[0]
    assert (found.name, found.cause) == ("launch", "sync")
    assert (found.lines[0].line, found.lines[0].call) == (57, "sync()")
